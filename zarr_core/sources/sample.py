"""One sample as its source shows it, and what every source can do."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch

    from zarr_core.sources.description import SourceDescription


@dataclass(frozen=True)
class FileInfo:
    """A file of a sample.

    Attributes:
        name: file name in the sample's folder.
        size: bytes.
        version: etag, or time of last change where the location has no etags.
        changed: of a local file, when the system last noted a change, and which file it was, by inode. Unlike the time
            above, nobody can set it, but a copy has another: it tells whether a file changed while it was read, and no
            more.
    """

    name: str
    size: int
    version: str
    changed: str = ""


@dataclass(frozen=True)
class SourceSample:
    """A sample that a source holds, known from a listing: nothing of it has been read yet.

    Attributes:
        sample_id: id in the store.
        folder: its folder below the source's root.
        files: file of each point field that is there.
        parameter_files: files with scalars of the sample as a whole.
        missing: file names that the description names and the folder lacks.
    """

    sample_id: str
    folder: str
    files: Mapping[str, FileInfo]
    parameter_files: tuple[FileInfo, ...] = ()
    missing: tuple[str, ...] = field(default=())

    @property
    def complete(self) -> bool:
        """Whether every point field has its file."""
        return not self.missing

    @property
    def n_bytes(self) -> int:
        """Bytes of all its files."""
        return sum(info.size for info in (*self.files.values(), *self.parameter_files))

    @property
    def fingerprint(self) -> str:
        """16 hex digits that change when a file of the sample is added, removed or replaced."""
        entries = sorted((name, info.name, info.size, info.version) for name, info in self.files.items())
        entries += sorted(("", info.name, info.size, info.version) for info in self.parameter_files)
        return hashlib.sha256(repr(entries).encode()).hexdigest()[:16]


class SampleSource(Protocol):
    """A place that samples come from."""

    @property
    def description(self) -> SourceDescription:
        """Fields and splits of the dataset."""

    @property
    def url(self) -> str:
        """Where it is, as it may be printed."""

    def discover(self, sample_ids: Collection[str] | None = None) -> dict[str, SourceSample]:
        """Look now: every sample that is there (of those asked for), by id."""

    def load(self, sample: SourceSample, canonical: str) -> torch.Tensor:
        """The tensor of one point field as the source holds it."""

    def load_parameters(self, sample: SourceSample) -> dict[str, Any]:
        """Scalars of the sample as a whole."""

    def is_unchanged(self, sample: SourceSample) -> bool:
        """Whether the sample's files are still those that :meth:`discover` saw."""

    def split_documents(self) -> dict[str, str]:
        """Split files and blacklists beside the samples, by name, for the store to carry along."""

    def splits(self, sample_ids: Collection[str]) -> dict[str, list[str]]:
        """Sample ids by split, those that the source lists but does not hold included."""

    def excluded(self) -> set[str]:
        """Ids that are in no split."""
