"""Sources of samples that are Python objects: dataset objects of other frameworks, and arrays in memory."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from zarr_core._util.plain_arrays import check_labels, plain_array, plain_tensor
from zarr_core.errors import SampleError, SourceError
from zarr_core.format.names import PARAMETER_ATTRIBUTES, check_sample_id
from zarr_core.sources.description import SourceDescription
from zarr_core.sources.resolve import describe_filemap
from zarr_core.sources.sample import FileInfo, FoundSamples, SampleSource, SourceSample
from zarr_core.sources.tables import scalars
from zarr_core.sources.tree import file_info
from zarr_core.storage.backends import local

if TYPE_CHECKING:
    import torch

# Versions of what cannot be fingerprinted.
_UNREADABLE, _NO_TENSOR = "unreadable", "no tensor"


class AeroDataset(Protocol):
    """The interface that this library needs of another framework's dataset.

    Sample ids come from ``sample_ids`` or ``design_ids`` (whole numbers stand for ``run_<number>``), or else from the
    ``run_name`` of ``sample_info(idx)`` of each index.
    """

    filemap: Any

    def _load(self, idx: int, filename: str) -> torch.Tensor: ...


class AeroSource(SampleSource):
    """Samples of a dataset object, read through its own ``_load``.

    Files are fingerprinted by size and time if the object reports a sample's folder
    (``sample_info(idx)["sample_uri"]``), and otherwise by content, which reads them.

    Args:
        datasets: the objects by the split that each was opened with; "" for one without splits.
        left_out: sentences that name the splits that were not opened.

    Raises:
        SourceError: an object has no file map, no ``_load`` or no sample ids.
    """

    def __init__(self, datasets: Mapping[str, AeroDataset], left_out: Sequence[str] = ()) -> None:
        self._left_out = tuple(left_out)
        self._splits: dict[str, list[str]] = {}
        self._where: dict[str, tuple[AeroDataset, int]] = {}
        for split, dataset in datasets.items():
            kind = type(dataset)
            if not callable(getattr(dataset, "_load", None)) or getattr(dataset, "filemap", None) is None:
                raise SourceError(
                    f"{kind.__name__} cannot be converted: it needs the attributes filemap and _load(idx, filename)"
                )
            self.url = f"{kind.__module__}.{kind.__qualname__}"
            self.description = describe_filemap(kind.__name__, dataset.filemap)
            self._splits[split] = _sample_ids(dataset)
            for index, sample_id in enumerate(self._splits[split]):
                self._where[sample_id] = dataset, index

    def find(self, sample_ids: Collection[str] | None = None) -> FoundSamples:
        wanted = self._where.keys() if sample_ids is None else set(sample_ids)
        return FoundSamples({i: self._sample(i) for i in self._where if i in wanted}, self._left_out)

    def with_content(self, sample: SourceSample) -> SourceSample:
        """The sample with a digest of the values of each field and of its parameters."""
        parameters = dict(zip(self._parameter_attributes, sample.parameter_files, strict=True))
        hashed = {}
        for name, info in (parameters | dict(sample.files)).items():
            hashed[name] = replace(info, sha256=self._content_of(sample.sample_id, name, info.name).version)
        parameter_files = tuple(hashed.pop(name) for name in parameters)
        return replace(sample, files=hashed, parameter_files=parameter_files)

    def load(self, sample: SourceSample, canonical: str) -> torch.Tensor:
        values = self._call(sample.sample_id, canonical, self.description.fields[canonical].filename)
        try:
            return plain_tensor(values)
        except ValueError as error:
            raise SampleError(sample.sample_id, canonical, f"what _load returned {error}") from error

    def load_parameters(self, sample: SourceSample) -> dict[str, Any]:
        """The sample's ``design_parameters``, if the file map has them; raises SampleError if they cannot be loaded."""
        parameters: dict[str, Any] = {}
        for attribute in self._parameter_attributes:
            parameters |= self._scalars(sample.sample_id, attribute)
        return parameters

    def is_unchanged(self, sample: SourceSample) -> bool:
        return not sample.folder or self._sample(sample.sample_id) == sample

    def splits(self, sample_ids: Collection[str]) -> dict[str, list[str]]:
        """Sample ids by the split that their object was opened with."""
        return {split: ids for split, ids in self._splits.items() if split}

    @property
    def _parameter_attributes(self) -> list[str]:
        return sorted(PARAMETER_ATTRIBUTES & self.description.files.keys())

    def _scalars(self, sample_id: str, attribute: str) -> dict[str, Any]:
        try:
            return scalars(self._call(sample_id, attribute, self.description.filemap[attribute]), attribute)
        except ValueError as error:
            raise SampleError(sample_id, attribute, str(error)) from error

    def _call(self, sample_id: str, field: str, filename: str) -> Any:
        dataset, index = self._where[sample_id]
        try:
            return dataset._load(index, filename)
        except Exception as error:  # another framework's loader may raise anything; it concerns one sample only
            raise SampleError(sample_id, field, f"{filename}: {type(error).__name__}: {error}") from error

    def _sample(self, sample_id: str) -> SourceSample:
        files = {}
        for canonical, file in self.description.fields.items():
            info = self._info(sample_id, canonical, file.filename)
            if info.version != _UNREADABLE or canonical not in self.description.optional:
                files[canonical] = info
        filemap = self.description.filemap
        parameters = tuple(self._info(sample_id, name, filemap[name]) for name in self._parameter_attributes)
        return SourceSample(sample_id, str(self._folder(sample_id) or ""), files, parameters)

    def _info(self, sample_id: str, name: str, filename: str) -> FileInfo:
        """The file of a field or of parameters: as it lies in the sample's folder, or else described by its content."""
        folder = self._folder(sample_id)
        if folder and (folder / filename).is_file():
            return file_info(filename, local.info(str(folder / filename)))
        return self._content_of(sample_id, name, filename)

    def _content_of(self, sample_id: str, name: str, filename: str) -> FileInfo:
        """The size and digest of the values that the object loads."""
        try:
            if name in PARAMETER_ATTRIBUTES:
                content: Any = repr(sorted(self._scalars(sample_id, name).items())).encode()
            else:
                values = plain_tensor(self._call(sample_id, name, filename))
                content = _octets(values)
        except (SampleError, ValueError) as error:  # the conversion fails at the same file and reports it
            return FileInfo(filename, 0, _UNREADABLE if isinstance(error, SampleError) else _NO_TENSOR)
        return FileInfo(filename, len(content), hashlib.sha256(content).hexdigest()[:16])

    def _folder(self, sample_id: str) -> Path | None:
        dataset, index = self._where[sample_id]
        sample_info = getattr(dataset, "sample_info", None)
        uri = sample_info(index).get("sample_uri") if callable(sample_info) else None
        return Path(uri) if uri else None


def _sample_ids(dataset: AeroDataset) -> list[str]:
    for attribute in ("sample_ids", "design_ids"):
        ids: Sequence[object] | None = getattr(dataset, attribute, None)
        if ids is not None:
            return [check_sample_id(f"run_{i}" if isinstance(i, Integral) else str(i)) for i in ids]
    sample_info = getattr(dataset, "sample_info", None)
    length = getattr(dataset, "__len__", None)
    if callable(sample_info) and callable(length):
        return [check_sample_id(str(sample_info(index)["run_name"])) for index in range(length())]
    raise SourceError(f"{type(dataset).__name__} has neither sample_ids nor design_ids, and no sample_info")


class ArraySource(SampleSource):
    """One sample whose fields are arrays in memory. It is identified by their content.

    Args:
        sample_id: id of the sample.
        arrays: NumPy arrays, torch tensors or the like, by the file name of a field in the description.
        description: of the fields.
        split: the sample's split; None leaves the splits of a store as they are.
        parameters: scalars, and arrays of one axis with at most 1,000 numbers, of the whole sample.
        like_others: whether its fields must be those of the other samples of its store.

    Raises:
        SourceError: the id or the split cannot be used.
        SampleError: a field is not an array of numbers, or a parameter is neither a scalar nor a small array.
    """

    url = "arrays in memory"
    reads_listed_versions = True  # there are no files

    def __init__(
        self,
        sample_id: str,
        arrays: Mapping[str, Any],
        description: SourceDescription,
        split: str | None = None,
        parameters: Mapping[str, Any] | None = None,
        *,
        like_others: bool = False,
    ) -> None:
        names = {"sample_id": sample_id} if split is None else {"sample_id": sample_id, "split": split}
        for what, name in names.items():
            if not isinstance(name, str) or not name:
                raise SourceError(f"{what} must be a name, not {name!r}")
        check_sample_id(sample_id)
        self.description = description
        self._split, self._like_others = split, like_others
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

    def check_others(self, fields: Sequence[Collection[str]]) -> None:
        """Raise SampleError if the sample must be like the others and is not."""
        if self._like_others and fields:
            others = [set(own) for own in {id(own): own for own in fields}.values()]  # most samples share one object
            given = set(self.description.fields)
            check_fields(self._sample.sample_id, given, set.intersection(*others), set.union(*others))


def check_fields(sample_id: str, given: set[str], required: set[str], known: set[str]) -> None:
    """Raise SampleError if a sample has other fields than it must have."""
    for name in sorted(given - known):
        reason = f"is not a field of this store's samples, which have {', '.join(sorted(known))}"
        raise SampleError(sample_id, name, reason, "check the name, or pass a kind that has it as an optional field")
    for name in sorted(required - given):
        reason = "is missing; the samples of this store have it"
        raise SampleError(sample_id, name, reason, "add it, or pass a kind that has it as an optional field")


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


def _octets(tensor: torch.Tensor) -> memoryview:
    """The bytes of the values in order, without a copy where that is possible."""
    import torch

    flat = tensor.reshape(-1)
    if flat.stride() != (1,):  # also of no value and of a single one, which torch calls contiguous
        flat = flat.clone(memory_format=torch.contiguous_format)
    return flat.view(torch.uint8).numpy().data  # NumPy lacks some dtypes of torch


def _described(canonical: str, tensor: torch.Tensor) -> FileInfo:
    octets = _octets(tensor)
    digest = hashlib.sha256(repr((str(tensor.dtype), tuple(tensor.shape))).encode())
    digest.update(octets)
    return FileInfo(canonical, len(octets), digest.hexdigest()[:16], sha256=digest.hexdigest())
