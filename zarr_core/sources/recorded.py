"""The files that a stored sample was made from, found again through what its conversion recorded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from zarr_core._util.redaction import redact_url
from zarr_core.errors import SourceError
from zarr_core.format.names import check_relative_path
from zarr_core.sources.sample import FileInfo
from zarr_core.sources.tree import file_info
from zarr_core.storage import Storage

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class RecordedSource:
    """A tree of ``.pt`` files that a store was made from. No description of the dataset is needed: which file is which
    field stands in the attributes of each sample's group.

    Attributes:
        root: local folder or fsspec URL, with or without the dataset's subfolder.
    """

    root: str

    @property
    def url(self) -> str:
        """The root as it may be printed."""
        return redact_url(self.root)

    def folder(self, sample_id: str, recorded: Mapping[str, Any]) -> str | None:
        """Where the files of a sample lie now, None if nowhere.

        Args:
            sample_id: its id.
            recorded: "source" in the attributes of its group.
        """
        storage = Storage(self.root)
        for folder in dict.fromkeys((str(recorded.get("folder", "")), sample_id)):
            try:
                check_relative_path(folder)
            except SourceError:  # a store is data: what it names must not lead out of the source
                continue
            if storage.infos(folder):
                return folder
        return None

    def file(self, name: str) -> FileInfo:
        """Size and version of a file now; raises FileNotFoundError."""
        return file_info(name, Storage(self.root).info(name))

    def load(self, name: str, size: int) -> torch.Tensor:
        """The tensor of a file; raises FileNotFoundError, or ValueError if it is not readable."""
        from zarr_core.sources.tensors import load_point_tensor

        return load_point_tensor(Storage(self.root), name, size)
