"""A source whose samples are folders of files, at any fsspec location."""

from __future__ import annotations

import hashlib
import math
import os
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

from zarr_core._util.documents import parse_json, parse_table
from zarr_core._util.redaction import printable_cause, redact
from zarr_core.errors import SampleError, SourceError, StoreError
from zarr_core.format.names import check_sample_id
from zarr_core.sources.arrays import CASE
from zarr_core.sources.description import ANY_DEPTH, SourceDescription
from zarr_core.sources.fields import FieldLoader, SampleFiles
from zarr_core.sources.formats.contents import Mesh
from zarr_core.sources.formats.files import path_of
from zarr_core.sources.left_out import LeftOut, note
from zarr_core.sources.patterns import by_sample, depth, matches, meshes_of_cases, renamed
from zarr_core.sources.reading import read_listed
from zarr_core.sources.resolve import resolve_kind
from zarr_core.sources.sample import FileInfo, FoundSamples, SampleSource, SourceSample
from zarr_core.sources.tables import Tables
from zarr_core.storage import ObjectInfo, Storage, absolute, is_local
from zarr_core.storage.backends import local

if TYPE_CHECKING:
    import torch

# Bytes of a file that are in memory while it is hashed.
_PIECE_BYTES = 32 * 2**20


class SampleTree(SampleSource):
    """A dataset as published: one folder per sample, with a ``.pt`` file per field or files of a solver.

    Args:
        kind: a description, or any argument of :func:`resolve_kind`.
        root: local folder or fsspec URL, with or without the description's subfolder.

    Raises:
        SourceError: the root cannot be reached or is not a folder.
    """

    lists_all_splits = True  # the description has a rule for all of them

    def __init__(self, kind: str | SourceDescription | object, root: str | os.PathLike[str]) -> None:
        self.description = resolve_kind(kind)
        self._loader = FieldLoader()
        self._choices = {name: file.choice for name, file in self.description.fields.items() if file.choice is not None}
        self._storage = open_root(root)
        self.url = self._storage.url

    def __reduce__(self) -> tuple[type[SampleTree], tuple[SourceDescription, str]]:
        # Filesystem objects contain sockets and event loops, so another process opens its own.
        return type(self), (self.description, self._storage.root)

    @property
    def reads_listed_versions(self) -> bool:
        """Whether the source is a service whose responses tell the versions of files."""
        return self._storage.reads_versions

    def find(self, sample_ids: Collection[str] | None = None, folders: Collection[str] | None = None) -> FoundSamples:
        """List the location once; only ``sample_ids`` if given.

        A folder is a sample if its name matches the description and it contains at least one field file.

        Args:
            sample_ids: ids of the samples to return.
            folders: of samples, as :meth:`folder_of` gives them: only these are listed, those that exist.

        Raises:
            SourceError: the location cannot be listed.
        """
        wanted = None if sample_ids is None else set(sample_ids)
        description = self.description
        samples: dict[str, SourceSample] = {}
        left_out = LeftOut(description)
        tables = Tables(description, self._read_text)
        listing = self._list("", left_out.dangling) if folders is None else self._list_some(folders)
        by_folder, problems = by_sample(description, listing)
        for folder, files in sorted(by_folder.items()):
            sample_id = folder.removeprefix(f"{description.subfolder}/")
            if wanted is not None and sample_id not in wanted:
                continue
            left_out.count_unused(files)
            found = {c: files[f.filename] for c, f in description.fields.items() if f.filename in files}
            if not matches(sample_id, description.samples):
                left_out.elsewhere += [folder or "."] * bool(found)
                continue
            if not found and not problems.get(folder):
                is_above_samples = description.samples == ANY_DEPTH or f"{description.subfolder}/".startswith(
                    f"{folder}/"
                )
                left_out.empty += [] if is_above_samples else [folder]
                continue
            try:
                check_sample_id(sample_id)
            except SourceError:
                left_out.bad_ids.append(folder)
                continue
            is_case = any(info.name.endswith(CASE) for info in found.values())
            if is_case and any(set().union(*meshes_of_cases(files).values())):
                left_out.regions.append(folder)
            if sample_id in samples:
                left_out.repeated.append(samples[sample_id].folder)
            samples[sample_id] = SourceSample(
                sample_id,
                "" if description.names_contain_id else folder,
                found,
                tuple(files[name] for name in description.parameter_files if name in files),
                (*_missing(description, found, problems.get(folder, {})), *tables.problems(sample_id)),
                self._choices,
                tables.scalars(sample_id),
                {files[p.file].name: p.prefix for p in description.parameters if p.prefix and p.file in files},
            )
        return FoundSamples(samples, (*left_out.sentences(), *tables.notes(samples)), left_out.unused())

    def folder_of(self, path: str) -> str | None:
        """Folder of the sample that a file belongs to, by its path below the root; None if that does not tell."""
        description = self.description
        if description.names_contain_id or description.samples == ANY_DEPTH:
            return None
        prefix = f"{description.subfolder}/" if path.startswith(f"{description.subfolder}/") else ""
        parts = path.removeprefix(prefix).split("/")
        levels = description.samples.count("/") + 1
        return f"{prefix}{'/'.join(parts[:levels])}" if len(parts) > levels else None

    def folders_of(self, sample_id: str) -> list[str]:
        """Folders that a sample may have: the root may contain the description's subfolder, or be it."""
        subfolder = self.description.subfolder
        return [sample_id, *([f"{subfolder}/{sample_id}"] if subfolder else [])]

    def with_content(self, sample: SourceSample) -> SourceSample:
        """The sample with the SHA-256 of each file, for which every file is read; raises OSError."""

        @cache
        def hashed(info: FileInfo) -> FileInfo:
            digests = [_sha256(self._storage, path_of(sample.folder, f.name), f.size) for f in info.stored]
            joined = "".join(digests)
            return replace(info, sha256=hashlib.sha256(joined.encode()).hexdigest() if info.parts else joined)

        files = {canonical: hashed(info) for canonical, info in sample.files.items()}
        return replace(sample, files=files, parameter_files=tuple(map(hashed, sample.parameter_files)))

    def load(self, sample: SourceSample, canonical: str) -> torch.Tensor:
        """The tensor of one point field, with the dtype and shape of its file.

        Raises:
            SampleError: the file is missing or unreadable, or does not contain one tensor.
        """
        from zarr_core.sources.tensors import load_point_tensor

        if canonical not in sample.files:
            raise SampleError(sample.sample_id, canonical, "its file is missing", "upload it")
        info = sample.files[canonical]
        try:
            if canonical in self._choices:
                return self._loader.load(self._files(sample), canonical)
            return load_point_tensor(self._storage, path_of(sample.folder, info.name), info)
        except FileNotFoundError as error:
            raise SampleError(sample.sample_id, canonical, f"{info.name} was removed during the conversion") from error
        except ValueError as error:
            way_out = "repair or upload the file again"
            way_out += ", or correct the description" if canonical in self._choices else ""
            raise SampleError(sample.sample_id, canonical, f"{info.name}: {error}", way_out) from error

    def load_mesh(self, sample: SourceSample, canonical: str) -> Mesh:
        """The mesh of the domain with this position field; raises SampleError."""
        try:
            return self._loader.load_mesh(self._files(sample), canonical)
        except ValueError as error:
            raise SampleError(sample.sample_id, canonical, f"{sample.files[canonical].name}: {error}") from error

    def _files(self, sample: SourceSample) -> SampleFiles:
        return SampleFiles(self._storage, sample.folder, sample.files, self._choices)

    def load_parameters(self, sample: SourceSample) -> dict[str, Any]:
        """Per-sample scalars from the parameter files and tables; raises SampleError if a file cannot be used."""
        from zarr_core.sources.tensors import load_pt, scalars

        parameters: dict[str, Any] = {}

        def add(found: Any, where: str) -> None:
            if isinstance(found, dict):
                empty = [key for key, value in found.items() if isinstance(value, float) and math.isnan(value)]
                for key in empty:
                    note("values that are not a number were left out", f"{key} of {where}")
                found = {f"{sample.prefixes.get(where, '')}{key}": found[key] for key in found if key not in empty}
            plain = scalars(found, where)
            if again := [key for key in plain.keys() & parameters.keys() if plain[key] != parameters[key]]:
                raise ValueError(f"{min(again)!r} has another value in another file of the sample")
            parameters.update(plain)

        where = ""
        try:
            for info in sample.parameter_files:
                name, where = path_of(sample.folder, info.name), info.name
                if info.name.endswith(".json"):
                    add(parse_json(self._read_own(name, info)), where)
                elif info.name.endswith(".pt"):
                    add(load_pt(self._storage, name, info), where)
                else:
                    add(parse_table(self._read_own(name, info), latest=info.name.endswith(".dat")), where)
            where = ", ".join(table.file for table in self.description.tables)
            add(dict(sample.scalars), where)
        except ValueError as error:
            raise SampleError(sample.sample_id, "", f"{where}: {error}", "repair or remove the file") from error
        return parameters

    def is_unchanged(self, sample: SourceSample) -> bool:
        """Whether the sample's files have not changed since :meth:`discover`."""
        files = {*sample.files.values(), *sample.parameter_files}
        if sample.choices:  # its files lie in several folders, so each is looked at by itself
            stored = {part for info in files for part in info.stored}
            return all(
                renamed(file_info(f.name, self._storage.info(path_of(sample.folder, f.name))), f.name) == f
                for f in stored
            )
        return files.issubset(self._list(sample.folder).get(sample.folder, {}).values())

    def splits(self, sample_ids: Collection[str]) -> dict[str, list[str]]:
        """Sample ids by split; raises SourceError if a split file lists an invalid id."""
        return self.description.assign_splits(sample_ids, self._read_text)

    def excluded(self) -> set[str]:
        """Ids listed in the blacklists beside the samples."""
        return self.description.excluded_ids(self._read_text)

    def split_documents(self) -> dict[str, str]:
        """Content of split files and blacklists by name, to be copied into the store."""
        names = (*self.description.blacklists, *self.description.split_files.values())
        found = {name: self._read_text(name) for name in names}
        return {name: text for name, text in found.items() if text is not None}

    def _list(self, below: str = "", dangling: list[str] | None = None) -> dict[str, dict[str, FileInfo]]:
        """Files by folder below the root, or below one of its folders; appends links to nothing to ``dangling``."""
        try:
            if is_local(self._storage.root):
                return dict(self._walk(f"{below}/" if below else "", [] if dangling is None else dangling))
            listing = self._storage.infos(below)
        except FileNotFoundError as error:
            raise SourceError(f"{self.url} cannot be listed: it does not exist") from error
        except (OSError, StoreError) as error:
            raise SourceError(f"{self.url} cannot be listed: {error}") from printable_cause(error)
        folders: dict[str, dict[str, FileInfo]] = defaultdict(dict)
        for path, info in listing.items():
            folder, _, name = path.rpartition("/")
            folders[folder][name] = file_info(name, info)
        return folders

    def _list_some(self, folders: Iterable[str]) -> dict[str, dict[str, FileInfo]]:
        """Files by folder below some folders of the root, those that exist."""
        found: dict[str, dict[str, FileInfo]] = {}
        for folder in sorted(folders):
            try:
                found |= self._list(folder)
            except SourceError as error:
                if not isinstance(error.__cause__, FileNotFoundError):
                    raise
        return found

    def _walk(self, folder: str, dangling: list[str]) -> Iterator[tuple[str, dict[str, FileInfo]]]:
        """Files by folder on a local disk, down to the depth of samples. Follows links: datasets are often linked."""
        files, levels = {}, depth(self.description)
        for entry in os.scandir(f"{self._storage.location}/{folder}"):
            if entry.is_file():
                files[entry.name] = file_info(entry.name, local.info(entry.path))
            elif entry.is_dir() and folder.count("/") < levels:
                yield from self._walk(f"{folder}{entry.name}/", dangling)
            elif entry.is_symlink() and not os.path.exists(entry.path):
                dangling.append(f"{folder}{entry.name}")
        yield folder.rstrip("/"), files

    def _read_text(self, name: str) -> str | None:
        """Text of a file at the root or in the subfolder of the samples; None if neither has it."""
        for folder in ("", f"{self.description.subfolder}/" if self.description.subfolder else ""):
            try:
                return self._read_own(f"{folder}{name}").decode()
            except FileNotFoundError:
                continue
            except (ValueError, OSError) as error:  # OSError: an impossible name, or no permission
                reason = getattr(error, "strerror", None) or error
                raise SourceError(f"{self.url}/{name:.200} cannot be read: {reason}") from error
        return None

    def _read_own(self, name: str, info: FileInfo | None = None) -> bytes:
        """Content of a text file that is copied into the store; raises ValueError if it is a link.

        Files of tensors may be links, because only numbers are read from them. A text behind a link could publish any
        file of this machine.
        """
        if is_local(self._storage.root):
            folder, _, own = self._storage.path(name).rpartition("/")
            if os.path.realpath(f"{folder}/{own}") != f"{os.path.realpath(folder)}/{own}":
                raise ValueError("it is a link; replace it with a copy of the file")
        return self._storage.read(name) if info is None else read_listed(self._storage, name, info)


def open_root(root: str | os.PathLike[str]) -> Storage:
    """The location of a dataset; raises SourceError if it cannot be reached or is not a folder."""
    root = absolute(root)
    if is_local(root) and os.path.isfile(root):
        raise SourceError(f"{redact(root)} is a file; expected the folder that contains the samples")
    try:
        return Storage(root)
    except StoreError as error:
        raise SourceError(str(error)) from error


def _missing(description: SourceDescription, found: Collection[str], problems: Mapping[str, str]) -> tuple[str, ...]:
    """Names of the files that a sample lacks, each once."""
    names = [file.filename for canonical, file in description.required_fields.items() if canonical not in found]
    names += problems
    return tuple(dict.fromkeys(problems.get(name, name) for name in names))


def _sha256(storage: Storage, name: str, size: int) -> str:
    digest = hashlib.sha256()
    for start in range(0, size, _PIECE_BYTES):
        digest.update(storage.read(name, start, min(start + _PIECE_BYTES, size)))
    return digest.hexdigest()


def file_info(name: str, info: ObjectInfo) -> FileInfo:
    """The FileInfo of a file from its storage metadata."""
    return FileInfo(name.rpartition("/")[2], info.size, info.version, info.changed, modified=info.modified)
