"""Arrays in memory as a source of one sample."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from zarr_core._util.plain_arrays import check_labels, plain_array, plain_tensor
from zarr_core.errors import SampleError, SourceError
from zarr_core.format.names import check_sample_id
from zarr_core.sources.description import SourceDescription
from zarr_core.sources.sample import FileInfo, FoundSamples, SampleSource, SourceSample
from zarr_core.sources.tables import scalars

if TYPE_CHECKING:
    import torch


class ArraySource(SampleSource):
    """One sample whose fields are arrays in memory. It is identified by their content.

    Args:
        sample_id: id of the sample.
        arrays: NumPy arrays, torch tensors or the like, by the file name of a field in the description.
        description: of the fields.
        split: the sample's split; None leaves the splits of a store as they are.
        parameters: scalars, and arrays of one axis with at most 1,000 numbers, of the whole sample.

    Raises:
        SourceError: the id or the split cannot be used.
        SampleError: a field is not an array of numbers, or a parameter is neither a scalar nor a small array.
    """

    url = "arrays in memory"

    def __init__(
        self,
        sample_id: str,
        arrays: Mapping[str, Any],
        description: SourceDescription,
        split: str | None = None,
        parameters: Mapping[str, Any] | None = None,
    ) -> None:
        _check_name("sample_id", sample_id)
        if split is not None:
            _check_name("split", split)
        check_sample_id(sample_id)
        self.description = description
        self._split = split
        self._tensors: dict[str, torch.Tensor] = {}
        for canonical, file in description.fields.items():
            if file.filename in arrays:
                self._tensors[canonical] = _tensor(sample_id, canonical, arrays[file.filename])
        try:
            plain = scalars(dict(parameters or {}), "parameters")
        except ValueError as error:
            raise SampleError(sample_id, "", str(error)) from error
        files = {canonical: _described(canonical, tensor) for canonical, tensor in self._tensors.items()}
        self._sample = SourceSample(sample_id, "", files, scalars=plain, in_memory=True)

    @property
    def reads_listed_versions(self) -> bool:
        """True: there are no files."""
        return True

    def find(self, sample_ids: Collection[str] | None = None) -> FoundSamples:
        wanted = sample_ids is None or self._sample.sample_id in sample_ids
        return FoundSamples({self._sample.sample_id: self._sample} if wanted else {})

    def with_content(self, sample: SourceSample) -> SourceSample:
        """The sample itself, whose content is known."""
        return sample

    def load(self, sample: SourceSample, canonical: str) -> torch.Tensor:
        return self._tensors[canonical]

    def load_parameters(self, sample: SourceSample) -> dict[str, Any]:
        return dict(sample.scalars)

    def is_unchanged(self, sample: SourceSample) -> bool:
        return True

    def splits(self, sample_ids: Collection[str]) -> dict[str, list[str]]:
        return {} if self._split is None else {self._split: [self._sample.sample_id]}

    def merge_splits(self, known: Mapping[str, list[str]], listed: dict[str, list[str]]) -> dict[str, list[str]]:
        """Those of the store, with the sample at the end of its split and in no other one."""
        merged = {split: list(ids) for split, ids in known.items()}
        if self._split is None:
            return merged
        own = self._sample.sample_id
        for split, ids in merged.items():
            if own in ids and split != self._split:
                ids.remove(own)
        ids = merged.setdefault(self._split, [])
        if own not in ids:
            ids.append(own)
        return merged


def _check_name(what: str, value: Any) -> None:
    if not isinstance(value, str) or not value:
        raise SourceError(f"{what} must be a name, not {value!r}")


def _tensor(sample_id: str, canonical: str, values: Any) -> torch.Tensor:
    """The values as a dense tensor in this machine's memory, without a copy where that is possible."""
    import torch

    try:
        if isinstance(values, torch.Tensor):
            return plain_tensor(values).contiguous()
        check_labels(values, tuple)  # the points of all fields are in one order, and have no labels
        return torch.from_numpy(np.require(plain_array(values), requirements=("C", "W")))
    except (TypeError, ValueError) as error:  # torch lacks some dtypes of NumPy
        raise SampleError(sample_id, canonical, str(error)) from error


def _described(canonical: str, tensor: torch.Tensor) -> FileInfo:
    import torch

    flat = tensor.reshape(-1)
    digest = hashlib.sha256(repr((str(tensor.dtype), tuple(tensor.shape))).encode())
    digest.update(flat.view(torch.uint8).numpy().data)  # NumPy lacks some dtypes of torch
    return FileInfo(canonical, flat.numel() * flat.element_size(), digest.hexdigest()[:16], sha256=digest.hexdigest())
