"""A dataset object of another framework as a source: any object with ``filemap``, ``_load`` and sample ids."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from zarr_core._util.plain_arrays import plain_tensor
from zarr_core.errors import SampleError, SourceError
from zarr_core.format.names import PARAMETER_ATTRIBUTES, check_sample_id
from zarr_core.sources.description import SourceDescription
from zarr_core.sources.formats.contents import Mesh
from zarr_core.sources.resolve import describe_filemap
from zarr_core.sources.sample import FileInfo, FoundSamples, SourceSample
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


class AeroSource:
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
            name = type(dataset).__name__
            if not callable(getattr(dataset, "_load", None)) or getattr(dataset, "filemap", None) is None:
                raise SourceError(
                    f"{name} cannot be converted: it needs the attributes filemap and _load(idx, filename)"
                )
            self._name = f"{type(dataset).__module__}.{type(dataset).__qualname__}"
            self._description = describe_filemap(name, dataset.filemap)
            self._splits[split] = _sample_ids(dataset)
            self._where |= {sample_id: (dataset, index) for index, sample_id in enumerate(self._splits[split])}

    @property
    def description(self) -> SourceDescription:
        """Fields of the dataset."""
        return self._description

    @property
    def url(self) -> str:
        """The dataset's class."""
        return self._name

    @property
    def lists_all_splits(self) -> bool:
        """False: such an object has the samples of one split."""
        return False

    @property
    def reads_listed_versions(self) -> bool:
        """False: the object itself reads its files."""
        return False

    def find(self, sample_ids: Collection[str] | None = None) -> FoundSamples:
        """The samples that the object lists; only ``sample_ids`` if given."""
        wanted = self._where.keys() if sample_ids is None else set(sample_ids)
        samples = {sample_id: self._sample(sample_id) for sample_id in self._where if sample_id in wanted}
        return FoundSamples(samples, self._left_out)

    def discover(self, sample_ids: Collection[str] | None = None) -> dict[str, SourceSample]:
        """The samples of :meth:`find`, by id."""
        return self.find(sample_ids).samples

    def with_content(self, sample: SourceSample) -> SourceSample:
        """The sample with a digest of the values of each field and of its parameters."""
        files = {
            canonical: replace(info, sha256=self._fingerprint_content(sample.sample_id, canonical, info.name).version)
            for canonical, info in sample.files.items()
        }
        parameters = tuple(
            replace(info, sha256=self._fingerprint_parameters(sample.sample_id, attribute, info.name).version)
            for attribute, info in zip(self._parameter_attributes, sample.parameter_files, strict=True)
        )
        return replace(sample, files=files, parameter_files=parameters)

    def load(self, sample: SourceSample, canonical: str) -> torch.Tensor:
        """The tensor of one point field, as the object loads it; raises SampleError if that fails."""
        values = self._call(sample.sample_id, canonical, self.description.fields[canonical].filename)
        try:
            return plain_tensor(values)
        except ValueError as error:
            raise SampleError(sample.sample_id, canonical, f"what _load returned {error}") from error

    def load_mesh(self, sample: SourceSample, canonical: str) -> Mesh:
        """Such an object has no meshes: raises SampleError."""
        raise SampleError(sample.sample_id, canonical, "has no mesh")

    def load_parameters(self, sample: SourceSample) -> dict[str, Any]:
        """The sample's ``design_parameters``, if the file map has them; raises SampleError if they cannot be loaded."""
        parameters: dict[str, Any] = {}
        for attribute in self._parameter_attributes:
            parameters |= self._scalars(sample.sample_id, attribute)
        return parameters

    def is_unchanged(self, sample: SourceSample) -> bool:
        """Whether the sample's files have not changed since :meth:`discover`."""
        return not sample.folder or self._sample(sample.sample_id) == sample

    def splits(self, sample_ids: Collection[str]) -> dict[str, list[str]]:
        """Sample ids by the split that their object was opened with."""
        return {split: ids for split, ids in self._splits.items() if split}

    def merge_splits(self, known: Mapping[str, list[str]], listed: dict[str, list[str]]) -> dict[str, list[str]]:
        """Those of the store, except that the object replaces its own split."""
        return dict(known) | listed

    def excluded(self) -> set[str]:
        """Empty: such an object does not list excluded samples."""
        return set()

    def split_documents(self) -> dict[str, str]:
        """Empty: there are no split files."""
        return {}

    @property
    def _parameter_attributes(self) -> list[str]:
        return sorted(PARAMETER_ATTRIBUTES & self.description.files.keys())

    def _scalars(self, sample_id: str, attribute: str) -> dict[str, Any]:
        from zarr_core.sources.tensors import scalars

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
        folder = self._folder(sample_id)

        def info(name: str, filename: str, fingerprint: Callable[[str, str, str], FileInfo]) -> FileInfo:
            path = folder / filename if folder else None
            if path and path.is_file():
                return file_info(filename, local.info(str(path)))
            return fingerprint(sample_id, name, filename)

        files = {}
        for canonical, file in self.description.fields.items():
            found = info(canonical, file.filename, self._fingerprint_content)
            if found.version != _UNREADABLE or canonical not in self.description.optional:
                files[canonical] = found
        parameters = tuple(
            info(attribute, self.description.filemap[attribute], self._fingerprint_parameters)
            for attribute in self._parameter_attributes
        )
        return SourceSample(sample_id, str(folder or ""), files, parameters)

    def _fingerprint_content(self, sample_id: str, canonical: str, filename: str) -> FileInfo:
        import torch

        # The conversion fails at the same file and reports it.
        try:
            values = plain_tensor(self._call(sample_id, canonical, filename))
        except SampleError:
            return FileInfo(filename, 0, _UNREADABLE)
        except ValueError:
            return FileInfo(filename, 0, _NO_TENSOR)
        data = values.reshape(-1).view(torch.uint8).numpy().data  # NumPy lacks some dtypes of torch
        return FileInfo(filename, data.nbytes, hashlib.sha256(data).hexdigest()[:16])

    def _fingerprint_parameters(self, sample_id: str, attribute: str, filename: str) -> FileInfo:
        try:
            found = repr(sorted(self._scalars(sample_id, attribute).items())).encode()
        except SampleError:
            return FileInfo(filename, 0, _UNREADABLE)
        return FileInfo(filename, len(found), hashlib.sha256(found).hexdigest()[:16])

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
    sample_info, length = getattr(dataset, "sample_info", None), getattr(dataset, "__len__", None)
    if callable(sample_info) and callable(length):
        return [check_sample_id(str(sample_info(index)["run_name"])) for index in range(length())]
    raise SourceError(f"{type(dataset).__name__} has neither sample_ids nor design_ids, and no sample_info")
