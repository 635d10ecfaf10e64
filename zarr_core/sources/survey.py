"""Looks at an unknown folder or URL: which kind of dataset it could be, and a description to start from."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import yaml

from zarr_core._util.commands import shell
from zarr_core._util.redaction import redact
from zarr_core.errors import SourceError
from zarr_core.format.object_names import MANIFEST
from zarr_core.sources.arrays import CASE, ArrayChoice, suffix_of
from zarr_core.sources.description import SourceDescription, SplitFiles
from zarr_core.sources.formats import SUFFIXES, missing_extra, open_file, peek
from zarr_core.sources.formats.arrays import read_parameters
from zarr_core.sources.formats.contents import Contents
from zarr_core.sources.formats.files import SourceFile, path_of
from zarr_core.sources.guess import FUNCTION_OBJECT, describe, folders_above, layout, scalar_patterns, without_pieces
from zarr_core.sources.left_out import collected_notes, some
from zarr_core.sources.patterns import Listing, by_folder, by_sample, joined, meshes_of_cases, several_regions
from zarr_core.sources.resolve import resolve_kind, shipped_kinds
from zarr_core.sources.sample import FileInfo, SourceSample
from zarr_core.sources.tables import contains_nan, parse_scalars, rows_of, scalars
from zarr_core.sources.tree import SampleTree, file_info, open_root
from zarr_core.storage import Storage

_TABLES = (".csv", ".dat", ".json")
# A table, and a mesh whose cells are looked at, may be this large.
_MAX_BYTES = 64 * 2**20
# Of the .dat files of function objects only coefficients and forces have one row per time.
_COEFFICIENTS = re.compile(r"coeff|force", re.IGNORECASE)
_OF_COLUMNS = "`files: {volume_position: {file: a.csv, array: [x, y, z]}}`"
_WALL = re.compile(rb"([^\s(){};\"]+)\s*\{[^{}]*\btype\s+wall\s*;")


@dataclass(frozen=True)
class FileSummary:
    """A file that each sample has.

    Attributes:
        pattern: of its name.
        example: its name in the first sample.
        size: bytes there.
        contents: what it contains there; None for a tensor, or if it cannot be read.
        problem: why it cannot be read, or "".
    """

    pattern: str
    example: str
    size: int
    contents: Contents | None = None
    problem: str = ""


@dataclass(frozen=True)
class Survey:
    """What a location could be.

    Attributes:
        url: the location as it was given, without secrets.
        kinds: shipped kinds that fit; empty: none does.
        description: of the first of them, or a guess.
        document: the guess as a document of YAML; empty if a shipped kind fits.
        found: every sample by id, complete or not.
        samples, n_bytes: number of complete samples, and size of their files.
        incomplete: missing files by id.
        files: what the first sample consists of.
        splits: number of its samples by split.
        odd: sentences that name what is missing or unusual.
        extras: extras of this library that the files need and that are not installed.
    """

    url: str
    kinds: tuple[str, ...]
    description: SourceDescription
    document: dict[str, Any]
    found: Mapping[str, SourceSample]
    samples: int
    incomplete: Mapping[str, tuple[str, ...]]
    n_bytes: int
    files: tuple[FileSummary, ...]
    splits: Mapping[str, int]
    odd: tuple[str, ...] = ()
    extras: tuple[str, ...] = ()

    @property
    def fields(self) -> list[str]:
        """The fields of the description that a sample has."""
        there = {name for sample in self.found.values() for name in sample.files}
        return [name for name in self.description.fields if name in there]

    @property
    def parameter_files(self) -> list[str]:
        """Names of the files with parameters in the first complete sample."""
        first = next(sample for sample in self.found.values() if sample.complete)
        return [info.name for info in first.parameter_files]

    def to_yaml(self) -> str:
        """A description to start from, with what is odd as comments."""
        head = [f"# Written by `{shell('inspect', self.url)}`. Check names, units and splits before you convert."]
        head += [f"# {sentence}" for sentence in self.odd]
        document = self.document or self.description.model_dump(mode="json", exclude_defaults=True)
        plain = json.loads(json.dumps(document))  # a value that stands at two places is two, without anchors
        return "\n".join(head) + "\n" + yaml.safe_dump(plain, sort_keys=False, width=110)


def survey(root: str) -> Survey:
    """Look at a location. It is listed once, and the files of one sample are opened.

    Raises:
        SourceError: it cannot be listed, is a store, or nothing in it looks like a sample.
    """
    storage = open_root(root)
    try:
        infos = storage.infos("")
    except OSError as error:
        raise SourceError(f"{storage.url} cannot be listed: {error}") from error
    if not infos:
        raise SourceError(f"{storage.url} does not exist or contains no files")
    if MANIFEST in infos:
        raise SourceError(f"{storage.url} is a store: `{shell('info', storage.url)}` shows what it holds")
    paths = {path: file_info(path, info) for path, info in infos.items()}
    listing = by_folder(paths)
    odd: list[str] = []
    kinds = _fitting(root, listing, odd)
    guess = _Guess(storage, paths, odd)
    document = {} if kinds else guess.document()
    description = resolve_kind(kinds[0]) if kinds else SourceDescription.model_validate(document)
    tree = SampleTree(description, root)
    found = noted = tree.find(listing=listing)
    complete = found.complete
    if not complete:
        raise SourceError("; ".join([f"{storage.url}: nothing looks like a sample", *odd, *found.left_out]))
    if document and (beside := guess.beside(complete)):
        document |= beside
        tree = SampleTree(SourceDescription.model_validate(document), root)
        noted = tree.find(listing=listing)
    if kinds:
        document = guess.with_split_lists(kinds[0], description, complete, redact(root))
    examples = [file.filename for file in description.fields.values() if file.choice is not None]
    if not kinds:  # of each suffix one file: the guess may have left it out
        examples += {suffix_of(path): path for path in paths}.values()
    extras = set(map(missing_extra, examples)) - {""}
    splits = {}
    for split, ids in tree.splits(complete).items():
        splits[split] = len(complete.keys() & ids)
    incomplete = {}
    for sample_id, sample in found.samples.items():
        if sample.missing:
            incomplete[sample_id] = sample.missing
    odd += [*noted.left_out, *noted.unused]
    if len(kinds) > 1:
        odd.append(f"{', '.join(kinds)} have the same files; choose the one with your splits")
    if not any(splits.values()):
        names = "no file such as train.txt or train_design_ids.txt lists samples"
        odd.append(f"no splits: {names}; make such files before the description, which names them")
    return Survey(
        redact(root),
        kinds,
        description,
        document,
        found.samples,
        len(complete),
        incomplete,
        sum(sample.n_bytes for sample in complete.values()),
        _summaries(storage, description, next(iter(complete.values()))),
        splits,
        tuple(odd),
        tuple(sorted(extras)),
    )


def _fitting(root: str, listing: Listing, odd: list[str]) -> tuple[str, ...]:
    """The shipped kinds with the most complete samples and fields; the first sample of each has all arrays."""
    best = 0, 0
    fitting: list[str] = []
    for kind in shipped_kinds():
        tree = SampleTree(kind, root)
        complete = list(tree.find(listing=listing).complete.values())
        if not complete:
            continue
        absent = _absent_arrays(Storage(root), tree.description, complete[0])
        if absent:
            odd.append(f"the files are named as in {kind}, but {some(absent)} is not there")
            continue
        score = len(complete), len(tree.description.fields)
        if score > best:
            best, fitting = score, []
        if score == best:
            fitting.append(kind)
    return tuple(fitting)


def _absent_arrays(storage: Storage, description: SourceDescription, sample: SourceSample) -> list[str]:
    """The arrays of a description that the files of a sample do not contain."""
    known: dict[str, set[str]] = defaultdict(set)
    for summary in _summaries(storage, description, sample):
        if summary.contents is not None:
            known[summary.pattern].update(array.name for array in summary.contents.arrays)
    absent = []
    for file in description.fields.values():
        for name in file.choice.arrays if file.choice else ():
            if name not in known[file.filename]:
                absent.append(f"{name} of {file.filename}")
    return absent


def _summaries(storage: Storage, description: SourceDescription, sample: SourceSample) -> tuple[FileSummary, ...]:
    summaries: dict[str, FileSummary] = {}
    for canonical, file in description.fields.items():
        info = sample.files.get(canonical)  # None for an optional field that the sample lacks
        if info is not None and file.filename not in summaries:
            summaries[file.filename] = _summary(SourceFile(storage, sample.folder, info), file.filename)
    return tuple(summaries.values())


def _summary(file: SourceFile, pattern: str) -> FileSummary:
    info = file.info
    name = pattern if file.suffix == CASE else info.name
    if file.suffix == ".pt":
        return FileSummary(pattern, name, info.size)
    try:
        contents = peek(file)
        if file.suffix in (".vtu", ".pvtu") and not contents.dimension and info.size <= _MAX_BYTES:
            cells = open_file(file, [ArrayChoice(compute="position", at="cells")])
            contents = replace(contents, dimension=cells.contents().dimension)
        return FileSummary(pattern, name, info.size, contents)
    except (ValueError, SourceError) as error:
        return FileSummary(pattern, name, info.size, None, str(error).removeprefix(f"{info.name} cannot be read: "))


@dataclass(frozen=True)
class _Guess:
    """Guesses the description of a layout that no shipped kind has; adds to ``odd`` what is missing or unusual.

    Samples are the folders, at the depth where most of them contain files of the same names, apart from numbers that
    the folder's name contains as well. Where no two folders are alike, they are the files of one folder.
    """

    storage: Storage
    paths: Mapping[str, FileInfo]
    odd: list[str]

    def document(self) -> dict[str, Any]:
        """The description."""
        visible = list(filter(_is_known, joined(self.paths)))
        files = self._files_of_samples([path for path in visible if suffix_of(path) not in _TABLES])
        samples, folders, patterns = layout(files)
        is_flat = "{id}" in patterns[0]  # without folders of samples
        scalars = [] if is_flat else scalar_patterns(set(visible).difference(files), folders)
        name = re.sub(r"\W+", "_", self.storage.url.rstrip("/").rpartition("/")[2])
        document: dict[str, Any] = {"name": name or "dataset", "samples": samples}
        placeholders = {f"volume_{i}": {"file": pattern, "array": "x"} for i, pattern in enumerate(patterns)}
        placeholders["volume_position"] = placeholders["volume_0"]
        whole = document | {"files": placeholders, "parameters": scalars}
        probe = SourceDescription.model_validate(whole)
        own = by_sample(probe, by_folder(self.paths))[0][folders[0]]
        where = "" if is_flat else folders[0]
        document |= self._fields(folders[0], where, patterns, own)
        archives = [pattern for pattern in patterns if suffix_of(pattern) == ".npz"]
        if parameters := self._parameters(where, [*scalars, *archives], own):
            document["parameters"] = parameters
        return document

    def _files_of_samples(self, files: list[str]) -> list[str]:
        """Those of the files that could hold fields, with OpenFOAM cases as paths that end in "/"."""
        meshes = meshes_of_cases(self.paths)
        if "" in meshes:
            raise SourceError(
                f"{self.storage.url} is an OpenFOAM case, one sample: inspect the folder that contains it"
            )
        for case, regions in meshes.items():
            if any(regions):
                self.odd.append(f"{case} is an OpenFOAM case with {several_regions(regions)}")
                break  # the others have them, too
        cases = {case for case, regions in meshes.items() if "" in regions}
        # Files that were derived from a case are not a second source of it.
        found = [path for path in files if cases.isdisjoint(folders_above(path))]
        found = without_pieces([*found, *(f"{case}/{CASE}" for case in cases)])
        if not found:
            suffixes = [".pt", *(suffix for suffix in SUFFIXES if suffix not in _TABLES)]
            formats = f"no file has a known format: {', '.join(suffixes)}, OpenFOAM"
            way_out = "read other files yourself, and give the points to zarr_core.write_sample"
            if any(suffix_of(path) == ".csv" for path in self.paths):
                way_out = f"describe CSV files of points yourself, as in {_OF_COLUMNS}; {way_out}"
            raise SourceError(f"{self.storage.url}: {'; '.join([formats, *self.odd, way_out])}")
        return found

    def _fields(self, sample: str, folder: str, patterns: list[str], files: Mapping[str, FileInfo]) -> dict[str, Any]:
        """The parts of the description that name fields, from the files of one sample by pattern."""
        looked_at: list[FileSummary] = []
        walls: dict[str, None] = {}
        for pattern in patterns:
            info = files.get(pattern)
            if info is None:
                self.odd.append(f"{pattern} of {sample} matches several files, or some of its parts are missing")
                continue
            with collected_notes() as notes:
                looked_at.append(_summary(SourceFile(self.storage, folder, info), pattern))
            for reason, detail in notes.items():
                self.odd.append(f"{pattern} of {sample}: {reason} ({detail})")
            for part in info.parts:
                if part.name.endswith("polyMesh/boundary"):
                    found = _WALL.findall(self.storage.read(path_of(folder, part.name)))
                    walls |= dict.fromkeys(name.decode(errors="replace") for name in found)
        readable = {}
        for file in looked_at:
            if file.problem:
                self.odd.append(f"{file.example} of {sample} cannot be read: {file.problem}")
            else:
                readable[file.pattern] = file.contents
        if walls:
            self.odd.append(f"the surface is every patch of type wall: {', '.join(walls)}")
        described, more = describe(readable, walls)
        self.odd.extend(more)
        if not described:
            reason = f"{self.storage.url}: no file of a sample looks like positions of points or like a mesh"
            shown = f"{sample} has {some([_shown(file) for file in looked_at])}"
            raise SourceError("; ".join([reason, shown, *self.odd]))
        return described

    def _parameters(self, folder: str, patterns: list[str], files: Mapping[str, FileInfo]) -> list[str]:
        """The patterns of those tables that contain scalars, none of them twice with different values."""
        found: list[str] = []
        left_out: list[str] = []
        known: dict[str, Any] = {}
        for pattern in patterns:
            try:
                values = self._scalars(folder, files.get(pattern))
                for name, value in values.items():
                    if known.get(name, value) != value:
                        raise ValueError(f"{name!r} has another value in another file: give it a `prefix`")
            except ValueError as error:
                left_out.append(f"{pattern} ({error})")
                continue
            if values:
                known |= values
                found.append(pattern)
        if left_out:
            self.odd.append(f"left out of the parameters: {some(left_out)}")
        return found

    def _scalars(self, folder: str, info: FileInfo | None) -> dict[str, Any]:
        """The values of a table, or the scalars of an archive; raises ValueError if a table is not one of scalars."""
        if info is None:
            raise ValueError("it matches several files of a sample")
        if FUNCTION_OBJECT.fullmatch(info.name) and not _COEFFICIENTS.search(info.name.rpartition("/")[2]):
            raise ValueError("it is not a table of coefficients or forces")
        if suffix_of(info.name) == ".npz":
            arrays = read_parameters(SourceFile(self.storage, folder, info))
            return scalars({name: value for name, value in arrays.items() if value.ndim == 0}, info.name)
        if info.size > _MAX_BYTES:
            raise ValueError("it is large")
        content = parse_scalars(info.name, self.storage.read(path_of(folder, info.name)))
        if isinstance(content, dict):  # a conversion leaves values out that are not a number, too
            content = {name: value for name, value in content.items() if not contains_nan(value)}
        return scalars(content, info.name)

    def beside(self, sample_ids: Collection[str]) -> dict[str, Any]:
        """The parts of the description that name files beside the samples: tables, and lists of splits."""
        found: dict[str, Any] = {}
        if tables := self._tables(sample_ids):
            found["tables"] = tables
        lists = self.split_lists(sample_ids)
        if lists is not None and lists != SplitFiles():
            found["splits"] = lists.model_dump(exclude={"names"})
        return found

    def with_split_lists(
        self, kind: str, description: SourceDescription, sample_ids: Collection[str], shown_root: str
    ) -> dict[str, Any]:
        """The description of a shipped kind with the lists of splits that it does not read; empty if there are none."""
        lists = None if isinstance(description.splits, SplitFiles) else self.split_lists(sample_ids)
        if lists is None:
            return {}
        there = filter(self.paths.__contains__, lists.filenames.values())
        self.odd.append(
            f"{', '.join(there)} list samples, and {kind} does not read them; the description that "
            f"`{shell('inspect', shown_root, '--write', 'description.yaml')}` writes does"
        )
        document = description.model_dump(mode="json", exclude_defaults=True)
        document["splits"] = lists.model_dump(exclude={"names"})
        return document

    def split_lists(self, sample_ids: Collection[str]) -> SplitFiles | None:
        """Split files that list a sample."""
        for rule in (SplitFiles(), SplitFiles(filename="{split}.txt")):
            if not set(sample_ids).isdisjoint(chain.from_iterable(rule.assign(sample_ids, self._text).values())):
                return rule
        return None

    def _text(self, path: str) -> str | None:
        return self.storage.read(path).decode(errors="replace") if path in self.paths else None

    def _tables(self, sample_ids: Collection[str]) -> list[dict[str, str]]:
        """The tables at the root of which one column names at least half of the samples, by their ids or numbers."""
        numbered = re.sub(r"\d+", "{}", next(iter(sample_ids)), count=1)
        templates = ["{}", numbered] if "{}" in numbered else ["{}"]
        found = []
        for path, info in self.paths.items():
            if "/" in path or suffix_of(path) not in (".csv", ".json") or info.size > _MAX_BYTES:
                continue
            try:
                rows = rows_of(path, self.storage.read(path).decode())
            except ValueError:
                continue
            if column := _column_of_ids(rows, templates, set(sample_ids)):
                found.append({"file": path} | column)
        return found


def _column_of_ids(rows: list[dict[str, Any]], templates: list[str], sample_ids: set[str]) -> dict[str, str] | None:
    """The first column of a table that names at least half of the samples, and how."""
    for template in templates:
        for key in rows[0] if rows else ():
            named = {template.format(row[key]) for row in rows if key in row}
            if all(key in row for row in rows) and 2 * len(named & sample_ids) >= len(sample_ids):
                return {"key": key, "sample_id": template}
    return None


def _is_known(path: str) -> bool:
    """Whether a file has a known format, and neither it nor a folder that contains it is hidden."""
    is_hidden = path.startswith(".") or "/." in path
    return suffix_of(path) in (*SUFFIXES, ".pt", *_TABLES) and not is_hidden


def _shown(file: FileSummary) -> str:
    """A file and its arrays, in one line."""
    shown = []
    for array in file.contents.arrays if file.contents else ():
        rows = "?" if array.rows is None else array.rows
        shown.append(f"{array.name or 'one array'}: {rows} x {array.components}")
    return f"{file.example} ({', '.join(shown) or file.problem or 'one tensor'})"
