"""Looks at an unknown folder or URL: which kind of dataset it could be, and a description to start from."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import yaml

from zarr_core._util.commands import shell
from zarr_core._util.documents import parse_json, parse_table
from zarr_core._util.redaction import redact
from zarr_core.errors import SourceError
from zarr_core.format.object_names import MANIFEST
from zarr_core.sources.arrays import CASE, PIECES, ROOTS, ArrayChoice, suffix_of
from zarr_core.sources.description import SourceDescription
from zarr_core.sources.formats import SUFFIXES, open_file, peek
from zarr_core.sources.formats.contents import Contents
from zarr_core.sources.formats.files import SourceFile, path_of
from zarr_core.sources.guess import describe
from zarr_core.sources.left_out import collected_notes, some
from zarr_core.sources.patterns import (
    TIME,
    Listing,
    by_sample,
    joined,
    matches,
    meshes_of_cases,
    renamed,
    several_regions,
)
from zarr_core.sources.resolve import resolve_kind, shipped_kinds
from zarr_core.sources.sample import FileInfo, SourceSample
from zarr_core.sources.tables import rows_of
from zarr_core.sources.tree import SampleTree, file_info, open_root
from zarr_core.storage import ObjectInfo, Storage

_TABLES = (".csv", ".dat", ".json")
# A table, and a mesh whose cells are looked at, may be this large.
_MAX_BYTES = 64 * 2**20
# What function objects of OpenFOAM write: a folder per object and per start of the solver. Of the .dat files only
# coefficients and forces have one row per time.
_FUNCTION_OBJECT = re.compile(rf"(postProcessing/.+)/{TIME}/([^/]+)")
_COEFFICIENTS = re.compile(r"coeff|force", re.IGNORECASE)
_WALL = re.compile(rb"(\w+)\s*\{[^{}]*\btype\s+wall\s*;")


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
        samples: number of complete samples.
        incomplete: missing files by id.
        n_bytes: size of the samples' files.
        files: what the first sample consists of.
        splits: number of its samples by split.
        odd: sentences that name what is missing or unusual.
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
    odd: tuple[str, ...] = field(default=())

    def to_yaml(self) -> str:
        """A description to start from, with what is odd as comments."""
        head = [f"# Written by `{shell('inspect', self.url)}`. Check names, units and splits before you convert."]
        head += [f"# {sentence}" for sentence in self.odd]
        document = self.document or self.description.model_dump(mode="json", exclude_defaults=True)
        return "\n".join(head) + "\n" + yaml.dump(document, Dumper=_Dumper, sort_keys=False, width=110)


class _Dumper(yaml.SafeDumper):
    """Writes a value that stands at two places twice, without anchors."""

    def ignore_aliases(self, data: Any) -> bool:
        """True."""
        return True


class _ListedTree(SampleTree):
    """A source that was listed before."""

    def __init__(self, kind: str | SourceDescription, root: str, listing: Listing) -> None:
        super().__init__(kind, root)
        self._listing = listing

    def _list(self, below: str = "", dangling: list[str] | None = None) -> dict[str, dict[str, FileInfo]]:
        return {folder: dict(files) for folder, files in self._listing.items()}


def survey(root: str) -> Survey:
    """Look at a location. It is listed once, and the files of one sample are opened.

    Raises:
        SourceError: it cannot be listed, is a store, or nothing in it looks like a sample.
    """
    storage = open_root(root)
    try:
        paths = storage.infos("")
    except OSError as error:
        raise SourceError(f"{storage.url} cannot be listed: {error}") from error
    if not paths:
        raise SourceError(f"{storage.url} does not exist or contains no files")
    if MANIFEST in paths:
        raise SourceError(f"{storage.url} is a store: `{shell('info', storage.url)}` shows what it holds")
    listing: dict[str, dict[str, FileInfo]] = defaultdict(dict)
    for path, info in paths.items():
        folder, _, name = path.rpartition("/")
        listing[folder][name] = file_info(name, info)
    odd: list[str] = []
    kinds = _fitting(root, listing, odd)
    document: dict[str, Any] = {}
    if not kinds:
        document = _guessed(storage, {path: file_info(path, info) for path, info in paths.items()}, odd)
    description = resolve_kind(kinds[0]) if kinds else SourceDescription.model_validate(document)
    tree = _ListedTree(description, root, listing)
    found = tree.find()
    complete = {sample_id: sample for sample_id, sample in found.samples.items() if sample.complete}
    if not complete:
        raise SourceError("; ".join([f"{storage.url}: nothing looks like a sample", *odd, *found.left_out]))
    if document and (tables := _tables(storage, paths, complete)):
        document["tables"] = tables
    splits = {split: len(set(ids) & complete.keys()) for split, ids in tree.splits(complete).items()}
    odd += [*found.left_out, *found.unused]
    if len(kinds) > 1:
        odd.append(f"{', '.join(kinds)} have the same files; choose the one with your splits")
    if not any(splits.values()):
        odd.append("no splits: no file such as train_design_ids.txt lists samples")
    return Survey(
        redact(root),
        kinds,
        description,
        document,
        found.samples,
        len(complete),
        {sample_id: sample.missing for sample_id, sample in found.samples.items() if sample.missing},
        sum(sample.n_bytes for sample in complete.values()),
        _summaries(storage, description, next(iter(complete.values()))),
        splits,
        tuple(odd),
    )


def _fitting(root: str, listing: Listing, odd: list[str]) -> tuple[str, ...]:
    """The shipped kinds with the most complete samples and fields, of which one sample has all arrays."""
    scores = {}
    for kind in shipped_kinds():
        tree = _ListedTree(kind, root, listing)
        complete = [sample for sample in tree.find().samples.values() if sample.complete]
        if not complete:
            continue
        summaries = _summaries(Storage(root), tree.description, complete[0])
        arrays = {s.pattern: {a.name for a in s.contents.arrays} for s in summaries if s.contents is not None}
        absent = [
            f"{name} of {file.filename}"
            for file in tree.description.fields.values()
            for name in (file.choice.arrays if file.choice else ())
            if name not in arrays.get(file.filename, ())
        ]
        if absent:
            odd.append(f"the files are named as in {kind}, but {some(absent)} is not there")
        else:
            scores[kind] = (len(complete), len(tree.description.fields))
    return tuple(kind for kind, score in scores.items() if score == max(scores.values()))


def _summaries(storage: Storage, description: SourceDescription, sample: SourceSample) -> tuple[FileSummary, ...]:
    summaries: dict[str, FileSummary] = {}
    for canonical, file in description.fields.items():
        info = sample.files.get(canonical)  # None for an optional field that the sample lacks
        if info is not None and file.filename not in summaries:
            summaries[file.filename] = _summary(storage, sample.folder, file.filename, info)
    return tuple(summaries.values())


def _summary(storage: Storage, folder: str, pattern: str, info: FileInfo) -> FileSummary:
    name = info.name if suffix_of(info.name) != CASE else pattern
    if suffix_of(info.name) == ".pt":
        return FileSummary(pattern, name, info.size)
    file = SourceFile(storage, folder, info)
    try:
        contents = peek(file)
        if suffix_of(name) in (".vtu", ".pvtu") and not contents.dimension and info.size <= _MAX_BYTES:
            cells = open_file(file, [ArrayChoice(compute="position", at="cells")])
            contents = replace(contents, dimension=cells.contents().dimension)
        return FileSummary(pattern, name, info.size, contents)
    except (ValueError, SourceError) as error:
        return FileSummary(pattern, name, info.size, None, str(error))


def _guessed(storage: Storage, paths: Mapping[str, FileInfo], odd: list[str]) -> dict[str, Any]:
    """A description of a layout that no shipped kind has.

    Samples are the folders, at the depth where most of them contain files of the same names, apart from numbers that
    the folder's name contains as well. Where no two folders are alike, they are the files of one folder.
    """
    visible = {
        path: info
        for path, info in joined(paths).items()
        if suffix_of(path) in (*SUFFIXES, ".pt", *_TABLES) and not any(part.startswith(".") for part in path.split("/"))
    }
    files = {path: info for path, info in visible.items() if suffix_of(path) not in _TABLES}
    meshes = meshes_of_cases(paths)
    if "" in meshes:
        raise SourceError(f"{storage.url} is an OpenFOAM case, one sample: inspect the folder that contains it")
    if regions := {case: names for case, names in meshes.items() if any(names)}:
        case, names = next(iter(regions.items()))
        odd.append(f"{case} is an OpenFOAM case with {several_regions(names)}")
    cases = {case for case, names in meshes.items() if "" in names}
    # Files that were derived from a case are no second source of it.
    files = {path: info for path, info in files.items() if cases.isdisjoint(_folders_above(path))}
    files |= {f"{case}/{CASE}": FileInfo("", 0, "") for case in cases}
    files = _without_pieces(files)
    if not files:
        reason = "; ".join([f"no file has a known format: .pt, {', '.join(SUFFIXES)}, OpenFOAM", *odd])
        raise SourceError(f"{storage.url}: {reason}")
    samples, folders, patterns = _layout(list(files))
    flat = any("{id}" in pattern for pattern in patterns)  # without folders of samples
    scalars = [] if flat else _scalar_patterns([path for path in visible if path not in files], folders)
    document: dict[str, Any] = {"name": re.sub(r"\W+", "_", storage.url.rstrip("/").rpartition("/")[2]) or "dataset"}
    document["samples"] = samples
    probe = SourceDescription.model_validate(
        {
            **document,
            "files": {"volume_position": {"file": patterns[0], "array": "x"}},
            "parameters": [*patterns[1:], *scalars],
        }
    )
    grouped, _ = by_sample(probe, _folders({path: paths[path] for path in paths}))
    own = grouped[folders[0]]
    folder = "" if probe.names_contain_id else folders[0]
    looked_at: list[FileSummary] = []
    walls: list[str] = []
    for pattern in patterns:
        info = own.get(pattern)
        if info is None:
            odd.append(f"{pattern} of {folders[0]} matches several files, or some of its parts are missing")
            continue
        with collected_notes() as notes:
            looked_at.append(_summary(storage, folder, pattern, info))
        odd += [f"{pattern} of {folders[0]}: {reason} ({detail})" for reason, detail in notes.items()]
        for part in info.parts:
            if part.name.endswith("polyMesh/boundary"):
                walls += [name.decode() for name in _WALL.findall(storage.read(path_of(folder, part.name)))]
    odd += [f"{file.example} of {folders[0]} cannot be read: {file.problem}" for file in looked_at if file.problem]
    if walls:
        odd.append(f"the surface is every patch of type wall: {', '.join(dict.fromkeys(walls))}")
    described, more = describe({f.pattern: f.contents for f in looked_at if not f.problem}, dict.fromkeys(walls))
    odd += more
    if not described:
        shown = some([_shown(file) for file in looked_at])
        reason = "no file of a sample looks like positions of points or like a mesh"
        raise SourceError("; ".join([f"{storage.url}: {reason}", f"{folders[0]} has {shown}", *odd]))
    parameters = _parameters(storage, folder, {pattern: own.get(pattern) for pattern in scalars}, odd)
    return document | described | ({"parameters": parameters} if parameters else {})


def _shown(file: FileSummary) -> str:
    """A file and its arrays, in one line."""
    arrays = file.contents.arrays if file.contents else ()
    shown = [f"{a.name or 'one array'}: {'?' if a.rows is None else a.rows} x {a.components}" for a in arrays]
    return f"{file.example} ({', '.join(shown) or file.problem or 'one tensor'})"


def _folders_above(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:depth]) for depth in range(1, len(parts))]


def _scalar_patterns(paths: Collection[str], folders: Collection[str]) -> list[str]:
    """Patterns of the tables that at least half of the samples' folders contain."""
    having: dict[str, set[str]] = defaultdict(set)
    known = set(folders)
    for path in paths:
        for folder in known.intersection(_folders_above(path)):
            name = path[len(folder) + 1 :]
            if found := _FUNCTION_OBJECT.fullmatch(name):
                name = f"{found[1]}/*/{found[2]}"
            elif name == "params.json":  # which is read in any case
                continue
            having[_general(name, folder.rpartition("/")[2])].add(folder)
    return sorted(pattern for pattern, found_in in having.items() if 2 * len(found_in) >= len(folders))


def _parameters(storage: Storage, folder: str, files: Mapping[str, FileInfo | None], odd: list[str]) -> list[str]:
    """The patterns of those tables that contain scalars, none of them twice with different values."""
    from zarr_core.sources.tensors import scalars

    found: list[str] = []
    left_out: list[str] = []
    known: dict[str, Any] = {}
    for pattern, info in files.items():
        try:
            if info is None:
                raise ValueError("it matches several files of a sample")
            if _FUNCTION_OBJECT.fullmatch(info.name) and not _COEFFICIENTS.search(info.name.rpartition("/")[2]):
                raise ValueError("it is not a table of coefficients or forces")
            if info.size > _MAX_BYTES:
                raise ValueError("it is large")
            data = storage.read(path_of(folder, info.name))
            is_json = suffix_of(pattern) == ".json"
            values = parse_json(data) if is_json else parse_table(data, latest=suffix_of(pattern) == ".dat")
            values = scalars(values, info.name)
            if again := [name for name in values if known.get(name, values[name]) != values[name]]:
                raise ValueError(f"{again[0]!r} has another value in another file: give it a `prefix`")
            known |= values
            found.append(pattern)
        except ValueError as error:
            left_out.append(f"{pattern} ({error})")
    if left_out:
        odd.append(f"left out of the parameters: {some(left_out)}")
    return found


def _tables(storage: Storage, paths: Mapping[str, ObjectInfo], sample_ids: Collection[str]) -> list[dict[str, str]]:
    """The tables at the root of which one column names at least half of the samples, by their ids or numbers."""
    first = next(iter(sample_ids))
    found = []
    for path, info in paths.items():
        if "/" in path or suffix_of(path) not in (".csv", ".json") or info.size > _MAX_BYTES:
            continue
        try:
            rows = rows_of(path, storage.read(path).decode())
        except ValueError:
            continue
        for template in dict.fromkeys(("{}", re.sub(r"\d+", "{}", first, count=1))):
            for key in rows[0] if rows and "{}" in template else ():
                named = {template.format(row.get(key)) for row in rows}.intersection(sample_ids)
                if 2 * len(named) >= len(sample_ids):
                    found.append({"file": path, "key": key, "sample_id": template})
    return list({entry["file"]: entry for entry in reversed(found)}.values())


def _without_pieces(files: Mapping[str, FileInfo]) -> dict[str, FileInfo]:
    """The files without those that look like pieces of one beside them: "a.pvtu" has "a_0.vtu" and "a/a_0.vtu"."""
    stems: dict[str, list[str]] = defaultdict(list)
    for path in files:
        if suffix_of(path) in ROOTS:
            stems[path.rpartition("/")[0]].append(path.removesuffix(suffix_of(path)))

    def is_piece(path: str) -> bool:
        parts = path.split("/")
        folders = ("/".join(parts[:depth]) for depth in range(len(parts)))
        return suffix_of(path) in PIECES and any(path.startswith(stem) for folder in folders for stem in stems[folder])

    return {path: info for path, info in files.items() if not is_piece(path)}


def _layout(paths: list[str]) -> tuple[str, list[str], list[str]]:
    """Pattern of the samples, their folders (or ids), and patterns of the files of most of them."""
    best: tuple[int, list[str], tuple[str, ...]] = (0, [], ())
    for depth in range(1, max(path.count("/") for path in paths) + 1):
        groups: dict[str, set[str]] = defaultdict(set)
        for path in paths:
            parts = path.split("/")
            if len(parts) > depth:
                groups["/".join(parts[:depth])].add(_general("/".join(parts[depth:]), parts[depth - 1]))
        signatures = Counter(tuple(sorted(group)) for group in groups.values())
        if not signatures:
            continue
        signature, count = signatures.most_common(1)[0]
        # A description names tensors of the sample's own folder only, so that has to be the folder that contains them.
        too_high = all(suffix_of(name) == ".pt" and "/" in name for name in best[2])
        if count > best[0] or (count == best[0] and too_high):
            best = count, sorted(f for f, group in groups.items() if tuple(sorted(group)) == signature), signature
    by_name: dict[str, set[str]] = defaultdict(set)
    for path in paths:
        folder, _, name = path.rpartition("/")
        if suffix_of(name) in SUFFIXES and suffix_of(name) not in ROOTS:
            stem = name.removesuffix(suffix_of(name))
            by_name[f"{folder}/{{id}}{suffix_of(name)}".lstrip("/")].add(stem)
    flat = {pattern: ids for pattern, ids in by_name.items() if len(ids) > max(best[0], 1)}
    if shared := sorted(set.intersection(*flat.values())) if flat else []:
        return "*", shared, sorted(flat)
    if not best[0]:
        raise SourceError("no folder contains files of a known format; inspect the folder that contains the samples")
    return _common(best[1]), best[1], list(best[2])


def _general(name: str, folder: str) -> str:
    """A file's name with ``*`` for a number that its folder's name contains."""
    if name == CASE:
        return "./"
    for number in sorted(re.findall(r"\d+", folder), key=len, reverse=True):
        name = re.sub(rf"(?<!\d){number}(?!\d)", "*", name)
    return name


def _common(folders: list[str]) -> str:
    """A pattern that the folders match: level by level the beginning that all have, and ``*``."""
    levels = []
    for names in zip(*(folder.split("/") for folder in folders), strict=True):
        start = re.match(r"[A-Za-z_.-]*", names[0])
        prefix = start[0] if start and all(name.startswith(start[0]) for name in names) else ""
        levels.append(names[0] if len(set(names)) == 1 and prefix == names[0] else f"{prefix}*")
    pattern = "/".join(levels)
    assert all(matches(folder, pattern) for folder in folders)
    return pattern


def _folders(paths: Mapping[str, FileInfo]) -> Listing:
    listing: dict[str, dict[str, FileInfo]] = defaultdict(dict)
    for path, info in paths.items():
        folder, _, name = path.rpartition("/")
        listing[folder][name] = renamed(info, name)
    return listing
