"""One sample as a source lists it, and the interface of sources."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from zarr_core._util.digests import short_digest
from zarr_core.errors import SampleError

if TYPE_CHECKING:
    import torch

    from zarr_core.sources.arrays import ArrayChoice
    from zarr_core.sources.description import SourceDescription
    from zarr_core.sources.formats.contents import Mesh


@dataclass(frozen=True)
class FileInfo:
    """A file of a sample.

    Attributes:
        name: file name in the sample's folder.
        size: bytes.
        version: etag, or modification time if the location has no etags.
        changed: ctime and inode of a local file. No program can set the ctime, so it shows whether a file changed
            while it was read; it is not comparable between copies of a file.
        sha256: digest of the content in hex; "" unless it was requested. The same in every copy of the file.
        parts: the files that this one is made of, if it was split for a download or is an OpenFOAM case.
        modified: modification time in seconds since 1970; 0 if the location does not report it.
    """

    name: str
    size: int
    version: str
    changed: str = ""
    sha256: str = field(default="", compare=False)
    parts: tuple[FileInfo, ...] = field(default=(), compare=False)
    modified: float = field(default=0.0, compare=False)

    @property
    def stored(self) -> tuple[FileInfo, ...]:
        """The files that the source stores."""
        return self.parts or (self,)

    @property
    def identity(self) -> tuple[str, int, str]:
        """What the fingerprint of a sample is made of."""
        return self.name, self.size, self.sha256 or self.version


def combined(name: str, parts: Sequence[FileInfo]) -> FileInfo:
    """Several files as one."""
    version = short_digest([repr([(part.name, part.size, part.version) for part in parts])])
    changed = short_digest([repr([part.changed for part in parts])])
    return FileInfo(name, sum(part.size for part in parts), version, changed, parts=tuple(parts))


@dataclass(frozen=True)
class SourceSample:
    """A sample from a source's listing; none of its files has been read.

    Attributes:
        sample_id: id in the store.
        folder: the sample's folder below the source's root.
        files: file of each point field that is present.
        parameter_files: files with per-sample scalars.
        missing: names of files that the description requires and the folder lacks.
        choices: which arrays of its file make a field, for files that contain more than one tensor.
        scalars: its values in the tables beside the samples, by name.
        prefixes: what is put before the names of the scalars of a parameter file, by name of the file.
        in_memory: whether the sample consists of arrays, and ``files`` describe no files but these.
    """

    sample_id: str
    folder: str
    files: Mapping[str, FileInfo]
    parameter_files: tuple[FileInfo, ...] = ()
    missing: tuple[str, ...] = ()
    choices: Mapping[str, ArrayChoice] = field(default_factory=dict)
    scalars: Mapping[str, Any] = field(default_factory=dict)
    prefixes: Mapping[str, str] = field(default_factory=dict)
    in_memory: bool = False

    @property
    def complete(self) -> bool:
        """Whether every point field has its file."""
        return not self.missing

    @property
    def distinct_files(self) -> tuple[FileInfo, ...]:
        """Its files by name: several fields may lie in one."""
        files = (*self.files.values(), *self.parameter_files)
        return tuple({info.name: info for info in files}.values())

    def choices_of(self, file: FileInfo) -> dict[str, ArrayChoice]:
        """Choices by field of the fields that lie in a file."""
        return {name: choice for name, choice in self.choices.items() if self.files.get(name) == file}

    @property
    def n_bytes(self) -> int:
        """Size of all files, in bytes."""
        return sum(info.size for info in self.distinct_files)

    @property
    def modified(self) -> float:
        """When its newest file was written, in seconds since 1970; 0 if the location does not report it."""
        newest = 0.0
        for info in self.distinct_files:
            for stored in info.stored:
                newest = max(newest, stored.modified)
        return newest

    @property
    def fingerprint(self) -> str:
        """16 hex digits that change when a file or a scalar of the sample is added, removed or replaced."""
        fields = sorted((name, *info.identity) for name, info in self.files.items())
        content: Any = fields + sorted(("", *info.identity) for info in self.parameter_files)
        if self.choices:
            content = content, sorted((name, choice.to_document()) for name, choice in self.choices.items())
        if self.scalars:
            content = content, sorted(self.scalars.items())
        if self.prefixes:
            content = content, sorted(self.prefixes.items())
        return short_digest([repr(content)])


@dataclass(frozen=True)
class FoundSamples:
    """One listing of a source.

    Attributes:
        samples: the samples by id.
        left_out: one sentence per reason for which folders are not samples; names them and the way out.
        unused: one sentence that names the files that nothing uses, if there are any.
        is_whole: whether the whole source was listed, not only requested samples.
    """

    samples: dict[str, SourceSample]
    left_out: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    is_whole: bool = True

    @property
    def complete(self) -> dict[str, SourceSample]:
        """The samples that have all their files, by id."""
        return {sample_id: sample for sample_id, sample in self.samples.items() if sample.complete}


class SampleSource(ABC):
    """A source of samples.

    Attributes:
        description: fields and splits of the dataset.
        url: the location without credentials, or a text in its place.
        lists_all_splits: whether :meth:`splits` returns every split of the dataset.
        reads_listed_versions: whether every read raises SourceError if the file is no longer the one that was listed.
    """

    description: SourceDescription
    url: str
    lists_all_splits = False
    reads_listed_versions = False

    @abstractmethod
    def find(self, sample_ids: Collection[str] | None = None) -> FoundSamples:
        """List the source; only ``sample_ids`` if given."""

    def discover(self, sample_ids: Collection[str] | None = None) -> dict[str, SourceSample]:
        """The samples of :meth:`find`, by id."""
        return self.find(sample_ids).samples

    @abstractmethod
    def with_content(self, sample: SourceSample) -> SourceSample:
        """The sample with the SHA-256 of each file, for which every file is read; raises OSError."""

    @abstractmethod
    def load(self, sample: SourceSample, canonical: str) -> torch.Tensor:
        """The tensor of one point field, with the source's dtype and shape; raises SampleError."""

    def load_mesh(self, sample: SourceSample, canonical: str) -> Mesh:
        """The mesh of the domain with this position field; raises SampleError, as for a source without meshes."""
        raise SampleError(sample.sample_id, canonical, "has no mesh")

    @abstractmethod
    def load_parameters(self, sample: SourceSample) -> dict[str, Any]:
        """Per-sample scalars by name; raises SampleError."""

    @abstractmethod
    def is_unchanged(self, sample: SourceSample) -> bool:
        """Whether the sample's files have not changed since :meth:`discover`."""

    def split_documents(self) -> dict[str, str]:
        """Content of split files and blacklists by name, to be copied into the store."""
        return {}

    @abstractmethod
    def splits(self, sample_ids: Collection[str]) -> dict[str, list[str]]:
        """Sample ids by split, including ids that the source lists but does not have."""

    def merge_splits(self, known: Mapping[str, list[str]], listed: dict[str, list[str]]) -> dict[str, list[str]]:
        """The splits of a store that has the splits ``known``, after it took over those that the source lists."""
        return listed if self.lists_all_splits else dict(known) | listed

    def excluded(self) -> set[str]:
        """Ids excluded from every split."""
        return set()

    def check_others(self, fields: Sequence[Collection[str]]) -> None:  # noqa: B027  (most have no such condition)
        """Raise SampleError if its samples cannot be in a store whose other samples have these fields."""
