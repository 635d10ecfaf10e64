"""A source whose samples are folders of files, at any fsspec location."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any

from zarr_core._util.redaction import printable_cause, redact
from zarr_core.errors import SampleError, SourceError, StoreError
from zarr_core.format.names import check_sample_id
from zarr_core.sources.arrays import CASE
from zarr_core.sources.description import ANY_DEPTH, SourceDescription
from zarr_core.sources.fields import FieldLoader
from zarr_core.sources.formats.arrays import read_parameters
from zarr_core.sources.formats.contents import Mesh
from zarr_core.sources.formats.files import SourceFile, path_of
from zarr_core.sources.left_out import LeftOut, counted, note
from zarr_core.sources.patterns import Listing, by_folder, by_sample, depth, matches, meshes_of_cases
from zarr_core.sources.resolve import resolve_kind
from zarr_core.sources.sample import FileInfo, FoundSamples, SampleSource, SourceSample
from zarr_core.sources.tables import Tables, contains_nan, parse_scalars, scalars
from zarr_core.storage import ObjectInfo, Storage, absolute, is_local
from zarr_core.storage.backends import local
from zarr_core.storage.reading import read_listed

if TYPE_CHECKING:
    import torch

# More samples than these are found faster by a listing of the whole source: a page of it has a thousand objects.
MAX_FOLDERS = 100


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
        self._choices = {name: file.choice for name, file in self.description.fields.items() if file.choice is not None}
        self._storage = open_root(root)
        self._loader = FieldLoader(self._storage)
        self.url = self._storage.url
        self.reads_listed_versions = self._storage.reads_versions

    def __reduce__(self) -> tuple[type[SampleTree], tuple[SourceDescription, str]]:
        # Filesystem objects contain sockets and event loops, so another process opens its own.
        return type(self), (self.description, self._storage.root)

    def find(
        self,
        sample_ids: Collection[str] | None = None,
        folders: Collection[str] | None = None,
        listing: Listing | None = None,
    ) -> FoundSamples:
        """List the location once; only ``sample_ids`` if given. Raises SourceError.

        A folder is a sample if its name matches the description and it contains at least one field file.

        Args:
            sample_ids: ids of the samples to return. If these are few and have folders of their own, only their folders
                are listed; but if none of these exists, the whole location is: it may be a disk that is not mounted.
            folders: of samples, as :meth:`folder_of` gives them: only these are listed, those that exist.
            listing: files by folder and name of a location that was listed before.
        """
        description = self.description
        wanted = None if sample_ids is None else set(sample_ids)
        samples: dict[str, SourceSample] = {}
        left_out = LeftOut(description)
        tables = Tables(description, self._read_text)
        without: dict[str, list[str]] = {parameter.file: [] for parameter in description.parameters}
        if listing is None and folders is None and sample_ids is not None:
            few = sample_ids if self._folders_are_ids and len(sample_ids) <= MAX_FOLDERS else ()
            listing = self._list_some(chain.from_iterable(map(self.folders_of, few))) or None
        if listing is None:
            listing = self._list("", left_out) if folders is None else self._list_some(folders)
        folders_of_samples, problems = by_sample(description, listing)
        for folder, files in sorted(folders_of_samples.items()):
            sample_id = folder.removeprefix(f"{description.subfolder}/")
            if wanted is not None and sample_id not in wanted:
                continue
            left_out.count_unused(folder, files)
            found = {name: files[file.filename] for name, file in description.fields.items() if file.filename in files}
            own_problems = problems.get(folder, {})
            if not self._is_sample(sample_id, folder, bool(found), bool(own_problems), left_out):
                continue
            if sample_id in samples:
                left_out.add("repeated", samples[sample_id].folder)
            is_case = any(info.name.endswith(CASE) for info in found.values())
            if is_case and any(set().union(*meshes_of_cases(files).values())):
                left_out.add("regions", folder)
            scalars_of_sample, problems_of_tables = tables.find(sample_id)
            samples[sample_id] = SourceSample(
                sample_id,
                "" if description.names_contain_id else folder,
                found,
                tuple(files[name] for name in description.parameter_files if name in files),
                (*_missing(description, found, own_problems), *problems_of_tables),
                self._choices,
                scalars_of_sample,
                {files[p.file].name: p.prefix for p in description.parameters if p.prefix and p.file in files},
            )
            for pattern in without.keys() - files.keys() - own_problems.keys():
                without[pattern].append(sample_id)
        is_whole = sample_ids is None and folders is None
        notes = [*left_out.sentences(), *tables.notes(samples)]
        for pattern, lacking in without.items():
            notes += counted(f"samples without a file {pattern}, which `parameters` of the description names", lacking)
        return FoundSamples(samples, tuple(notes), left_out.unused(), is_whole)

    def _is_sample(self, sample_id: str, folder: str, has_fields: bool, has_problems: bool, left_out: LeftOut) -> bool:
        """Whether a folder is a sample; notes in ``left_out`` why not, if it looks like one."""
        description = self.description
        if not matches(sample_id, description.samples):
            if has_fields:
                left_out.add("elsewhere", folder or ".")
            return False
        if not has_fields and not has_problems:
            is_above_samples = f"{description.subfolder}/".startswith(f"{folder}/")
            if description.samples != ANY_DEPTH and not is_above_samples:
                left_out.add("empty", folder)
            return False
        try:
            check_sample_id(sample_id)
        except SourceError:
            left_out.add("bad id", folder)
            return False
        return True

    def folder_of(self, path: str) -> str | None:
        """Folder of the sample that a file belongs to, by its path below the root; None if that does not tell."""
        description = self.description
        if not self._folders_are_ids:
            return None
        prefix = f"{description.subfolder}/" if path.startswith(f"{description.subfolder}/") else ""
        parts = path.removeprefix(prefix).split("/")
        levels = description.samples.count("/") + 1
        return f"{prefix}{'/'.join(parts[:levels])}" if len(parts) > levels else None

    def folders_of(self, name: str) -> list[str]:
        """Paths that a sample, or a file beside it, may have: the root may contain the description's subfolder."""
        subfolder = self.description.subfolder
        return [name, f"{subfolder}/{name}"] if subfolder else [name]

    @property
    def _folders_are_ids(self) -> bool:
        """Whether each sample has a folder of its own, which its id names."""
        return not self.description.names_contain_id and self.description.samples != ANY_DEPTH

    def with_content(self, sample: SourceSample) -> SourceSample:
        known = {info.name: self._with_sha256(sample.folder, info) for info in sample.distinct_files}
        files = {canonical: known[info.name] for canonical, info in sample.files.items()}
        return replace(sample, files=files, parameter_files=tuple(known[info.name] for info in sample.parameter_files))

    def _with_sha256(self, folder: str, info: FileInfo) -> FileInfo:
        """The file with its digest; that of one in parts is of the digests of its parts."""
        digests = []
        for part in info.stored:
            digest = hashlib.sha256()
            for piece in SourceFile(self._storage, folder, part).pieces():
                digest.update(piece)
            digests.append(digest.hexdigest())
        joined = "".join(digests)
        return replace(info, sha256=hashlib.sha256(joined.encode()).hexdigest() if info.parts else joined)

    def load(self, sample: SourceSample, canonical: str) -> torch.Tensor:
        if canonical not in sample.files:
            raise SampleError(sample.sample_id, canonical, "its file is missing", "upload it")
        info = sample.files[canonical]
        try:
            return self._loader.load(sample, canonical)
        except FileNotFoundError as error:
            raise SampleError(sample.sample_id, canonical, f"{info.name} was removed during the conversion") from error
        except ValueError as error:
            way_out = "repair or upload the file again"
            way_out += ", or correct the description" if canonical in sample.choices else ""
            raise SampleError(sample.sample_id, canonical, f"{info.name}: {error}", way_out) from error

    def load_mesh(self, sample: SourceSample, canonical: str) -> Mesh:
        try:
            return self._loader.load_mesh(sample, canonical)
        except ValueError as error:
            raise SampleError(sample.sample_id, canonical, f"{sample.files[canonical].name}: {error}") from error

    def load_parameters(self, sample: SourceSample) -> dict[str, Any]:
        from zarr_core.sources.tensors import load_pt

        parameters: dict[str, Any] = {}
        where = ""
        try:
            for info in sample.parameter_files:
                where = info.name
                name = path_of(sample.folder, where)
                content: Any
                if where.endswith(".pt"):
                    content = load_pt(self._storage, name, info)
                elif where.endswith(".npz"):
                    fields = chain.from_iterable(choice.arrays for choice in sample.choices_of(info).values())
                    content = read_parameters(SourceFile(self._storage, sample.folder, info), set(fields))
                else:
                    content = parse_scalars(where, self._read_own(name, info))
                _add_scalars(parameters, content, where, sample.prefixes.get(where, ""))
            where = ", ".join(table.file for table in self.description.tables)
            _add_scalars(parameters, dict(sample.scalars), where)
        except ValueError as error:
            raise SampleError(sample.sample_id, "", f"{where}: {error}", "repair or remove the file") from error
        return parameters

    def is_unchanged(self, sample: SourceSample) -> bool:
        if not self.description.patterns:
            now = self._list(sample.folder).get(sample.folder, {})
            return all(now.get(info.name) == info for info in sample.distinct_files)
        for info in sample.distinct_files:  # they lie in several folders, so each is looked at by itself
            for file in info.stored:
                if file_info(file.name, self._storage.info(path_of(sample.folder, file.name))) != file:
                    return False
        return True

    def splits(self, sample_ids: Collection[str]) -> dict[str, list[str]]:
        """Sample ids by split; raises SourceError if a split file lists an invalid id."""
        return self.description.assign_splits(sample_ids, self._read_text)

    def merge_splits(self, known: Mapping[str, list[str]], listed: dict[str, list[str]]) -> dict[str, list[str]]:
        """Those that the source lists; those of the store where it has neither a rule nor a split file."""
        lists_none = self.description.splits is None and not listed
        return dict(known) if lists_none else listed

    def excluded(self) -> set[str]:
        return self.description.excluded_ids(self._read_text)

    def split_documents(self) -> dict[str, str]:
        documents = {}
        for name in (*self.description.blacklists, *self.description.split_files.values()):
            text = self._read_text(name)
            if text is not None:
                documents[name] = text
        return documents

    def _list(self, below: str = "", left_out: LeftOut | None = None) -> Listing:
        """Files by folder below the root, or below one of its folders; adds links to nothing to ``left_out``."""
        try:
            if is_local(self._storage.root):
                return dict(self._walk(f"{below}/" if below else "", left_out))
            listing = self._storage.infos(below)
        except FileNotFoundError as error:
            raise SourceError(f"{self.url} cannot be listed: it does not exist") from error
        except (OSError, StoreError) as error:
            raise SourceError(f"{self.url} cannot be listed: {error}") from printable_cause(error)
        return by_folder({path: file_info(path, info) for path, info in listing.items()})

    def _list_some(self, folders: Iterable[str]) -> Listing:
        """Files by folder below some folders of the root, those that exist."""
        found: dict[str, Mapping[str, FileInfo]] = {}
        for folder in sorted(folders):
            try:
                found |= self._list(folder)
            except SourceError as error:
                if not isinstance(error.__cause__, FileNotFoundError):
                    raise
        return found

    def _walk(self, folder: str, left_out: LeftOut | None) -> Iterator[tuple[str, dict[str, FileInfo]]]:
        """Files by folder on a local disk, down to the depth of samples. Follows links: datasets are often linked."""
        files = {}
        levels = depth(self.description)
        for entry in os.scandir(f"{self._storage.location}/{folder}"):
            if entry.is_file():
                files[entry.name] = file_info(entry.name, local.info(entry.path))
            elif local.links_above(entry.path):
                if left_out is not None:
                    left_out.add("above", f"{folder}{entry.name}")
            elif entry.is_dir() and folder.count("/") < levels:
                yield from self._walk(f"{folder}{entry.name}/", left_out)
            elif left_out is not None and entry.is_symlink() and not os.path.exists(entry.path):
                left_out.add("dangling", f"{folder}{entry.name}")
        yield folder.rstrip("/"), files

    def _read_text(self, name: str) -> str | None:
        """Text of a file at the root or in the subfolder of the samples; None if neither has it."""
        for path in self.folders_of(name):
            try:
                return self._read_own(path).decode()
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
        return self._storage.read(name) if info is None else read_listed(self._storage, name, info.version)


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
    return tuple(dict.fromkeys(problems.get(name, name) for name in (*names, *problems)))


def _add_scalars(parameters: dict[str, Any], content: Any, where: str, prefix: str = "") -> None:
    """Add the scalars of one file; raises ValueError for other values, or if another file contradicts them."""
    if isinstance(content, dict):
        named = {}
        for key, value in content.items():
            if contains_nan(value):
                note("values that are empty or not a number were left out", f"{key} of {where}")
            else:
                named[f"{prefix}{key}"] = value
        content = named
    for name, value in scalars(content, where).items():
        if parameters.setdefault(name, value) != value:
            raise ValueError(f"{name!r} has another value in another file of the sample")


def file_info(name: str, info: ObjectInfo) -> FileInfo:
    """The FileInfo of a file from its storage metadata."""
    return FileInfo(name, info.size, info.version, info.changed, modified=info.modified)
