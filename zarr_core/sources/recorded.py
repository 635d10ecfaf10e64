"""Finds the files that a stored sample was made from, from the record in the sample's attributes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from zarr_core._util.redaction import redact
from zarr_core.errors import SourceError
from zarr_core.format.names import check_relative_path
from zarr_core.sources.sample import FileInfo
from zarr_core.sources.tree import file_info
from zarr_core.storage import Storage

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class RecordedSource:
    """A tree of ``.pt`` files that a store was made from.

    It needs no description of the dataset: the attributes of each sample's group name the file of each field.

    Attributes:
        root: local folder or fsspec URL, with or without the dataset's subfolder.
    """

    root: str

    @property
    def url(self) -> str:
        """The root without credentials."""
        return redact(self.root)

    def folder(self, sample_id: str, recorded: Mapping[str, Any]) -> str | None:
        """The folder below the root that holds a sample's files now; None if there is none.

        Args:
            sample_id: the sample.
            recorded: "source" of the attributes of the sample's group.
        """
        storage = Storage(self.root)
        for folder in dict.fromkeys((str(recorded.get("folder", "")), sample_id)):
            try:
                check_relative_path(folder)
            except SourceError:  # a hostile store must not name a folder outside the source
                continue
            if storage.infos(folder):
                return folder
        return None

    def file(self, name: str) -> FileInfo:
        """Current size and version of a file; raises FileNotFoundError."""
        return file_info(name, Storage(self.root).info(name))

    def load(self, name: str, size: int) -> torch.Tensor:
        """The tensor of a file; raises FileNotFoundError, or ValueError if it cannot be read."""
        from zarr_core.sources.tensors import load_point_tensor

        return load_point_tensor(Storage(self.root), name, size)
