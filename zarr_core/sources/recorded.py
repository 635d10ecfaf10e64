"""The files that a stored sample was made from, found again through what its conversion recorded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fsspec.core import url_to_fs

from zarr_core.errors import SourceError
from zarr_core.names import check_relative_path
from zarr_core.sources.sample import FileInfo
from zarr_core.sources.tree import file_info
from zarr_core.storage import redact_url

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
        filesystem, location = url_to_fs(self.root)
        filesystem.invalidate_cache()
        for folder in dict.fromkeys((recorded.get("folder", ""), sample_id)):
            try:
                path = f"{location.rstrip('/')}/{check_relative_path(folder)}"
            except SourceError:  # a store is data: what it names must not lead out of the source
                continue
            if filesystem.isdir(path):
                return path
        return None

    def file(self, path: str) -> FileInfo:
        """Size and version of a file now; raises FileNotFoundError."""
        filesystem, _ = url_to_fs(self.root)
        return file_info(filesystem.info(path))

    def load(self, path: str, size: int) -> torch.Tensor:
        """The tensor of a file; raises FileNotFoundError, or ValueError if it is not readable."""
        from zarr_core.sources.tensors import load_point_tensor

        filesystem, _ = url_to_fs(self.root)
        return load_point_tensor(filesystem, path, size)
