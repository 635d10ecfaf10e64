"""Finds the files that a stored sample was made from, from the record in the sample's attributes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pydantic

from zarr_core._util.documents import check_model, expect
from zarr_core.errors import SourceError
from zarr_core.format.names import check_relative_path
from zarr_core.sources.arrays import ArrayChoice
from zarr_core.sources.fields import FieldLoader
from zarr_core.sources.formats.files import path_of
from zarr_core.sources.sample import FileInfo, SourceSample, combined
from zarr_core.sources.tree import file_info
from zarr_core.storage import Storage

if TYPE_CHECKING:
    import torch


_CHOICE = pydantic.TypeAdapter(ArrayChoice)


def record(sample: SourceSample) -> dict[str, Any]:
    """What the attributes of a sample's group record about its files, as JSON.

    Equal content gives equal bytes, so the times of the files are left out where their content is known. Empty for
    arrays that come from no files.
    """
    if sample.in_memory:
        return {}
    files: dict[str, dict[str, Any]] = {}
    parts: dict[str, list[str]] = {}
    for canonical, info in sample.files.items():
        files[canonical] = {"name": info.name, "size": info.size}
        files[canonical] |= {"sha256": info.sha256} if info.sha256 else {"version": info.version}
        if canonical in sample.choices:
            files[canonical]["choice"] = sample.choices[canonical].to_document()
        if info.parts:
            parts[info.name] = [part.name for part in info.parts]
    recorded: dict[str, Any] = {"folder": sample.folder, "files": files}
    if parts:
        recorded["parts"] = parts
    return recorded


def folder_now(storage: Storage, sample_id: str, recorded: Mapping[str, Any]) -> str | None:
    """The folder of a source that holds a sample's files now, by "source" of its group; None if there is none."""
    for folder in dict.fromkeys((str(recorded.get("folder", "")), sample_id)):
        try:
            check_relative_path(folder)
        except SourceError:  # a hostile store must not name a folder outside the source
            continue
        if storage.infos(folder):
            return folder
    return None


@dataclass(frozen=True)
class RecordedSample:
    """The files of one sample: its folder, and the file of each field, which the attributes of its group record.

    It needs no description of the dataset.
    """

    storage: Storage
    folder: str
    files: Mapping[str, Mapping[str, Any]]
    parts: Mapping[str, Any]
    _loader: FieldLoader

    @classmethod
    def find(cls, storage: Storage, sample_id: str, recorded: Mapping[str, Any]) -> RecordedSample | None:
        """The files of a sample in a source; None if its folder no longer exists. Raises DocumentError."""
        files = expect(dict, recorded.get("files", {}), "files of source")
        for canonical, file in files.items():
            expect(str, expect(dict, file, f"file of {canonical!r}").get("name"), f"file of {canonical!r}, name")
            expect(int, file.get("size"), f"file of {canonical!r}, size")
        # Samples without a folder of their own have the id in the names of their files.
        own_folder = recorded.get("folder") != "" or not all(sample_id in file["name"] for file in files.values())
        folder = folder_now(storage, sample_id, recorded) if own_folder else ""
        parts = expect(dict, recorded.get("parts", {}), "parts of source")
        return None if folder is None else cls(storage, folder, files, parts, FieldLoader(storage))

    def file(self, canonical: str) -> FileInfo:
        """Current size and version of a field's file.

        Raises:
            FileNotFoundError: it does not exist.
            DocumentError: the record is damaged.
        """
        name = self.files[canonical]["name"]
        if name not in self.parts:
            return self._part(name)
        return combined(name, [self._part(part) for part in expect(list, self.parts[name], f"parts of {name!r}")])

    def load(self, canonical: str) -> torch.Tensor:
        """The tensor of a field; raises FileNotFoundError, or ValueError if it cannot be read."""
        choices: dict[str, ArrayChoice] = {}
        for name, file in self.files.items():
            if "choice" in file:
                choices[name] = check_model(_CHOICE, file["choice"], f"choice of {name!r}")
        needed = choices if canonical in choices else [canonical]  # the arrays of one file are read together
        files = {name: self.file(name) for name in needed}
        return self._loader.load(SourceSample("", self.folder, files, choices=choices), canonical)

    def _part(self, name: Any) -> FileInfo:
        name = expect(str, name, "part of a file")
        return file_info(name, self.storage.info(path_of(self.folder, name)))
