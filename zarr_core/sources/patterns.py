"""Finds the files of each sample whose names a description gives as patterns, among them those of OpenFOAM cases."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase, translate
from typing import NamedTuple

from zarr_core.sources.arrays import CASE, PIECES, ROOTS, suffix_of
from zarr_core.sources.description import ANY_DEPTH, SourceDescription
from zarr_core.sources.sample import FileInfo, combined

Listing = Mapping[str, Mapping[str, FileInfo]]

# A file that was split for a download: "volume_1.vtu.00.part".
_PART = re.compile(r"(.+)\.(\d+)\.part")
# Folders below a file of ROOTS that its pieces lie in: foamToVTK writes case_10.vtm and case_10/boundary/body.vtp.
_PIECE_DEPTH = 2
# What a pattern with ``{id}`` consists of: wildcards, and characters that stand for themselves.
_TOKEN = re.compile(r"{id}|\[!?[^\]]+\]|.", re.DOTALL)
_OF_SEVERAL = {"{id}": "(?P<id>[^/]+)", "*": "[^/]*"}
# Of samples at any depth. A link to a folder above itself would have no end.
_MAX_DEPTH = 12
#: Name of the folder of a time.
TIME = r"-?\d+(?:\.\d*)?(?:e[+-]?\d+)?"
# Folders below a sample's folder that a case has.
_CASE_DEPTH = 3
# Folder of a processor, or of several (collated).
_PROCESSOR = r"processor(?:\d+|(?P<collated>s\d+(?:_\d+-\d+)?))/"
# Files of a case below its folder: meshes, and fields of times. Hidden files and backups are not fields.
_OF_CASE = re.compile(
    rf"system/controlDict|(?P<processor>{_PROCESSOR})?"
    rf"(?:(?:constant|(?P<moved>{TIME}))/polyMesh/(?P<mesh>\w+(?:\.gz)?)|(?P<time>{TIME})/[^/.][^/]*(?<!~))"
)
# A file of a mesh. That of a region lies in a folder with the region's name, which is neither "constant" nor a time.
_OF_MESH = re.compile(
    rf"(?:(?P<case>.*?)/)??(?:{_PROCESSOR})?(?:constant|{TIME})/"
    r"(?:(?P<region>(?!constant/)[A-Za-z_][^/]*)/)?polyMesh/\w+(?:\.gz)?"
)


def depth(description: SourceDescription) -> int:
    """Number of folders between the root and a file of a sample."""
    if description.samples == ANY_DEPTH:
        return _MAX_DEPTH
    below = 0
    for pattern in description.patterns:
        suffix = suffix_of(pattern)
        own = _CASE_DEPTH if suffix == CASE else _PIECE_DEPTH if suffix in ROOTS else 0
        below = max(below, pattern.removeprefix("./").count("/") + own)
    above = description.subfolder.split("/") if description.subfolder else []
    if not description.names_contain_id:
        above += description.samples.split("/")
    return len(above) + below


def matches(path: str, pattern: str) -> bool:
    """Whether a path matches a pattern folder by folder; ``*`` matches neither ``/`` nor hidden files.

    The pattern "**" matches at any depth.
    """
    parts = path.split("/")
    patterns = ["*"] * len(parts) if pattern == ANY_DEPTH else pattern.split("/")
    if len(parts) != len(patterns):
        return False
    for part, own in zip(parts, patterns, strict=True):
        if not part or part.startswith(".") or not fnmatchcase(part, own):
            return False
    return True


def by_folder(paths: Mapping[str, FileInfo]) -> Listing:
    """The files by folder and name."""
    folders: dict[str, dict[str, FileInfo]] = defaultdict(dict)
    for path, info in paths.items():
        folder, _, name = path.rpartition("/")
        folders[folder][name] = replace(info, name=name)
    return folders


def by_sample(description: SourceDescription, listing: Listing) -> tuple[Listing, dict[str, dict[str, str]]]:
    """The files of each sample by pattern, and all others by name, which is the path below the sample's folder.

    Both are by folder of the sample (by id, if a sample has no folder), as is which patterns match no file or several.
    """
    if not description.patterns:
        return listing, {}
    prefix = f"{description.subfolder}/" if description.subfolder else ""
    samples: dict[str, dict[str, FileInfo]] = defaultdict(dict)
    for folder, files in listing.items():
        samples[_split(description, prefix, f"{folder}/")[0]]  # also that of an empty folder, which is named
        for name, info in files.items():
            sample, rest = _split(description, prefix, f"{folder}/{name}" if folder else name)
            samples[sample][rest] = replace(info, name=rest)
    if description.names_contain_id:
        return _by_id(description, prefix, samples[""])
    found: dict[str, dict[str, FileInfo]] = {}
    problems: dict[str, dict[str, str]] = {}
    for sample, files in samples.items():
        found[sample], problems[sample] = _by_pattern(description.patterns, joined(files))
    return found, problems


def _split(description: SourceDescription, prefix: str, path: str) -> tuple[str, str]:
    """A path as the folder of its sample and the rest."""
    if description.names_contain_id:
        return "", path
    below = path.removeprefix(prefix)
    parts = below.split("/")
    levels = min(description.samples.count("/") + 1, len(parts) - 1)
    rest = "/".join(parts[levels:])
    return path[: -len(rest) - 1], rest


def _by_pattern(patterns: Iterable[str], files: Mapping[str, FileInfo]) -> tuple[dict[str, FileInfo], dict[str, str]]:
    """The file of each pattern and all others by name, and why a pattern has no file."""
    found: dict[str, FileInfo] = {}
    problems: dict[str, str] = {}
    used: set[str] = set()
    for pattern in patterns:
        if pattern.endswith(CASE):
            if case := case_of(pattern, files):
                found[pattern] = case
            elif regions := meshes_of_cases(files).get(pattern.removeprefix("./").removesuffix(CASE)):
                problems[pattern] = f"{pattern}, an OpenFOAM case of {several_regions(regions)}"
        else:
            matching = [name for name in files if matches(name, pattern)]
            used.update(matching)
            if len(matching) == 1:
                found[pattern] = _with_pieces(files[matching[0]], files)
            elif matching:
                names = ", ".join(sorted(matching)[:5])
                problems[pattern] = f"{pattern}, which {len(matching)} files match: {names}"
        if pattern in found:
            used.update(part.name for part in found[pattern].parts)
    for name, info in files.items():
        if name not in used:
            found[name] = info
    return found, problems


def _by_id(
    description: SourceDescription, prefix: str, files: Mapping[str, FileInfo]
) -> tuple[dict[str, dict[str, FileInfo]], dict[str, dict[str, str]]]:
    """Files whose paths contain the id of their sample."""
    matching: dict[str, dict[str, list[FileInfo]]] = defaultdict(lambda: defaultdict(list))
    unused: dict[str, FileInfo] = {}
    expressions = {pattern: _expression(pattern) for pattern in description.patterns}
    tables = {table.file for table in description.tables}
    for path, info in joined(files).items():
        is_used = False
        below = path.removeprefix(prefix)
        is_table = not tables.isdisjoint((path, below))  # of many samples, beside "{id}.csv"
        for pattern, expression in expressions.items():
            if not is_table and (hit := expression.fullmatch(below)):
                matching[hit["id"]][pattern].append(info)
                is_used = True
        if not is_used:
            unused[path] = info
    found: dict[str, dict[str, FileInfo]] = {"": unused} if unused else {}
    problems: dict[str, dict[str, str]] = {}
    for sample_id, by_pattern in matching.items():
        found[sample_id], problems[sample_id] = {}, {}
        for pattern, infos in by_pattern.items():
            if len(infos) == 1:
                found[sample_id][pattern] = infos[0]
            else:
                problems[sample_id][pattern] = f"{pattern}, which {len(infos)} files match"
    return found, problems


def _expression(pattern: str) -> re.Pattern[str]:
    """A pattern with ``{id}``; otherwise it matches as in :func:`matches`."""
    parts = []
    for part in pattern.split("/"):
        own = "" if part.startswith(".") else r"(?!\.)"
        for token in _TOKEN.findall(part):
            # One character; what fnmatch makes of it ends with an anchor.
            own += _OF_SEVERAL.get(token) or f"(?!/){translate(token)[:-2]}"
        parts.append(own)
    return re.compile("/".join(parts))


def joined(files: Mapping[str, FileInfo]) -> dict[str, FileInfo]:
    """The files by name, those in parts as one; parts of which one is missing stay as they are."""
    parts: dict[str, dict[int, FileInfo]] = defaultdict(dict)
    for name, info in files.items():
        if found := _PART.fullmatch(name):
            parts[found[1]][int(found[2])] = info
    whole = dict(files)
    for name, numbered in parts.items():
        if name not in files and sorted(numbered) == list(range(len(numbered))):
            ordered = [part for _, part in sorted(numbered.items())]
            for part in ordered:
                del whole[part.name]
            whole[name] = combined(name, ordered)
    return whole


def _with_pieces(info: FileInfo, files: Mapping[str, FileInfo]) -> FileInfo:
    """A file of ROOTS with every file that could be one of its pieces: which of them are is known when it is read."""
    if suffix_of(info.name) not in ROOTS:
        return info
    folder = info.name[: info.name.rfind("/") + 1]
    parts = [info]
    for name, file in sorted(files.items()):
        if name.startswith(folder) and suffix_of(name) in PIECES and not file.parts:
            parts.append(file)
    return combined(info.name, parts)


class _CaseFile(NamedTuple):
    """A file of a case, and what its path tells."""

    info: FileInfo
    processor: str  # its folder, or ""
    collated: bool  # whether that folder has the files of several processors
    mesh: str  # name of a file of a mesh, or ""
    time: float | None  # of a field, and of a mesh that moves


def case_of(pattern: str, files: Mapping[str, FileInfo]) -> FileInfo | None:
    """A case: its mesh and the fields of its latest time; None if there is no mesh.

    Files outside the folders of processors are left out if these folders have a later time. Folders that contain the
    files of several processors (collated) are left out unless they have the latest time.
    """
    own = list(_files_of_case(pattern.removeprefix("./"), files))
    if not _has_mesh(own):
        return None
    whole = [file for file in own if not file.processor]
    collated = [file for file in own if file.collated]
    decomposed = [file for file in own if file.processor and not file.collated]
    control = [file for file in whole if not file.mesh and file.time is None]
    chosen = whole + decomposed
    if not _has_mesh(chosen) or _latest(collated) > max(_latest(whole), _latest(decomposed)):
        chosen = collated + control
    elif _latest(decomposed) > _latest(whole):
        chosen = decomposed + control
    return combined(pattern, sorted(_at_latest_time(chosen), key=lambda info: info.name))


def meshes_of_cases(paths: Iterable[str]) -> dict[str, set[str]]:
    """Names of the regions that have meshes by folder of a case; "" for the mesh of no region."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in paths:
        if hit := _OF_MESH.fullmatch(path):
            found[hit["case"] or ""].add(hit["region"] or "")
    return found


def several_regions(regions: Iterable[str]) -> str:
    """The regions of a case, and the way out."""
    names = ", ".join(sorted(filter(None, regions)))
    return f"the regions {names}, which are not read: write each with foamToVTK -region NAME, and describe its files"


def _files_of_case(folder: str, files: Mapping[str, FileInfo]) -> Iterator[_CaseFile]:
    for name, info in files.items():
        found = _OF_CASE.fullmatch(name[len(folder) :]) if name.startswith(folder) else None
        if found:
            time = found["moved"] or found["time"]
            own_time = None if time is None else float(time)
            yield _CaseFile(info, found["processor"] or "", bool(found["collated"]), found["mesh"] or "", own_time)


def _has_mesh(files: Iterable[_CaseFile]) -> bool:
    return any(file.mesh for file in files)


def _times_of_fields(files: Iterable[_CaseFile]) -> list[float]:
    return [file.time for file in files if file.time is not None and not file.mesh]


def _latest(files: list[_CaseFile]) -> float:
    """The latest time with fields; minus infinity without fields, or without a mesh."""
    return max(_times_of_fields(files), default=-math.inf) if _has_mesh(files) else -math.inf


def _at_latest_time(files: list[_CaseFile]) -> list[FileInfo]:
    """The fields of the latest time, and each file of the mesh from the newest time until then."""
    latest = max(_times_of_fields(files), default=math.inf)
    kept: list[FileInfo] = []
    newest: dict[tuple[str, str], tuple[float, FileInfo]] = {}
    for file in files:
        if not file.mesh:
            if file.time in (None, latest):
                kept.append(file.info)
            continue
        time = -math.inf if file.time is None else file.time
        place = file.processor, file.mesh
        if time <= latest and (place not in newest or newest[place][0] <= time):
            newest[place] = time, file.info
    return kept + [info for _, info in newest.values()]
