"""Finds the files of each sample whose names a description gives as patterns."""

from __future__ import annotations

import hashlib
import math
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from fnmatch import fnmatchcase

from zarr_core.sources.arrays import CASE, PIECES, ROOTS, suffix_of
from zarr_core.sources.description import ANY_DEPTH, SourceDescription
from zarr_core.sources.sample import FileInfo

Listing = Mapping[str, Mapping[str, FileInfo]]

# A file that was split for a download: "volume_1.vtu.00.part".
_PART = re.compile(r"(.+)\.(\d+)\.part")
#: Name of the folder of a time of an OpenFOAM case.
TIME = r"-?\d+(?:\.\d*)?(?:e[+-]?\d+)?"
# Folder of a processor, or of several (collated).
_PROCESSOR = r"processor(?:\d+|(?P<collated>s\d+(?:_\d+-\d+)?))/"
# Files of an OpenFOAM case below its folder: meshes, and fields of times. Hidden files and backups are no fields.
_OF_CASE = re.compile(
    rf"system/controlDict|(?P<processor>{_PROCESSOR})?"
    rf"(?:(?:constant|(?P<moved>{TIME}))/polyMesh/(?P<mesh>\w+(?:\.gz)?)|(?P<time>{TIME})/[^/.][^/]*(?<!~))"
)
# A file of a mesh. That of a region lies in a folder with the region's name, which is neither "constant" nor a time.
_OF_MESH = re.compile(
    rf"(?:(?P<case>.*?)/)??(?:{_PROCESSOR})?(?:constant|{TIME})/"
    r"(?:(?P<region>(?!constant/)[A-Za-z_][^/]*)/)?polyMesh/\w+(?:\.gz)?"
)
_OfFile = tuple[re.Match[str], FileInfo]
#: Folders below a sample's folder that a case has.
CASE_DEPTH = 3
# Folders below a file of ROOTS that its pieces lie in: foamToVTK writes case_10.vtm and case_10/boundary/body.vtp.
_PIECE_DEPTH = 2
# Of samples at any depth. A link to a folder above itself would have no end.
_MAX_DEPTH = 12


def depth(description: SourceDescription) -> int:
    """Number of folders between the root and a file of a sample."""
    own = {CASE: CASE_DEPTH, **dict.fromkeys(ROOTS, _PIECE_DEPTH)}
    below = max((p.removeprefix("./").count("/") + own.get(suffix_of(p), 0) for p in description.patterns), default=0)
    above = [] if description.names_contain_id else description.samples.split("/")
    if description.samples == ANY_DEPTH:
        return _MAX_DEPTH
    return len([*filter(None, description.subfolder.split("/")), *above]) + below


def matches(path: str, pattern: str) -> bool:
    """Whether a path matches a pattern folder by folder; ``*`` matches neither ``/`` nor hidden files.

    The pattern "**" matches at any depth.
    """
    parts, patterns = path.split("/"), pattern.split("/")
    if pattern == ANY_DEPTH:
        patterns = ["*"] * len(parts)
    return len(parts) == len(patterns) and all(
        part and fnmatchcase(part, p) and not part.startswith(".") for part, p in zip(parts, patterns, strict=True)
    )


def by_sample(description: SourceDescription, listing: Listing) -> tuple[Listing, dict[str, dict[str, str]]]:
    """The files of each sample by pattern, and all others by name.

    Args:
        description: of the dataset.
        listing: files by folder and name.

    Returns:
        Files by folder of the sample (by id, if a sample has no folder) and by pattern or name, where the name of a
        file is its path below that folder; by the same folder, which patterns match no file or several.
    """
    if not description.patterns:
        return listing, {}
    prefix = f"{description.subfolder}/" if description.subfolder else ""
    samples: dict[str, dict[str, FileInfo]] = defaultdict(dict)
    for folder, files in listing.items():
        for name, info in files.items():
            path = f"{folder}/{name}" if folder else name
            sample, rest = _split(description, prefix, path)
            samples[sample][rest] = renamed(info, rest)
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
    found, problems, used = {}, {}, set()
    for pattern in patterns:
        if pattern.endswith(CASE):
            case = _case(pattern, files)
            if case is not None:
                found[pattern] = case
                used |= {part.name for part in case.parts}
            elif regions := meshes_of_cases(files).get(pattern.removeprefix("./").removesuffix(CASE)):
                problems[pattern] = f"{pattern}, an OpenFOAM case of {several_regions(regions)}"
            continue
        matching = [name for name in files if matches(name, pattern)]
        used.update(matching)
        if len(matching) == 1:
            found[pattern] = _with_pieces(files[matching[0]], files)
            used.update(part.name for part in found[pattern].parts)
        elif matching:
            problems[pattern] = f"{pattern}, which {len(matching)} files match: {', '.join(sorted(matching)[:5])}"
    found |= {name: info for name, info in files.items() if name not in used}
    return found, problems


def _by_id(
    description: SourceDescription, prefix: str, files: Mapping[str, FileInfo]
) -> tuple[dict[str, dict[str, FileInfo]], dict[str, dict[str, str]]]:
    """Files whose paths contain the id of their sample."""
    samples: dict[str, dict[str, list[FileInfo]]] = defaultdict(lambda: defaultdict(list))
    unused: dict[str, FileInfo] = {}
    expressions = {pattern: _expression(pattern) for pattern in description.patterns}
    for path, info in joined(files).items():
        hits = [(p, hit["id"]) for p, e in expressions.items() if (hit := e.fullmatch(path.removeprefix(prefix)))]
        for pattern, sample_id in hits:
            samples[sample_id][pattern].append(info)
        if not hits:
            unused[path] = info
    found = {i: {p: infos[0] for p, infos in by.items() if len(infos) == 1} for i, by in samples.items()}
    problems = {
        i: {p: f"{p}, which {len(infos)} files match" for p, infos in by.items() if len(infos) > 1}
        for i, by in samples.items()
    }
    return ({"": unused} if unused else {}) | found, problems


def _expression(pattern: str) -> re.Pattern[str]:
    pieces = {"*": r"[^/]*", "{id}": r"(?P<id>[^/]+)"}
    return re.compile("".join(pieces.get(p, re.escape(p)) for p in re.split(r"(\*|\{id\})", pattern)))


def joined(files: Mapping[str, FileInfo]) -> dict[str, FileInfo]:
    """The files by name, those in parts as one; parts of which one is missing stay as they are."""
    parts: dict[str, dict[int, FileInfo]] = defaultdict(dict)
    for name, info in files.items():
        if found := _PART.fullmatch(name):
            parts[found[1]][int(found[2])] = info
    whole = dict(files)
    for name, numbered in parts.items():
        if name not in files and sorted(numbered) == list(range(len(numbered))):
            ordered = [numbered[number] for number in sorted(numbered)]
            for part in ordered:
                del whole[part.name]
            whole[name] = combined(name, ordered)
    return whole


def _case(pattern: str, files: Mapping[str, FileInfo]) -> FileInfo | None:
    """An OpenFOAM case: its mesh and the fields of its latest time; None if there is no mesh.

    Files outside the folders of processors are left out if these folders have a later time. Folders that contain the
    files of several processors (collated) are left out unless they have the latest time.
    """
    prefix = pattern.removeprefix("./")
    own = [
        (found, info)
        for name, info in files.items()
        if name.startswith(prefix) and (found := _OF_CASE.fullmatch(name[len(prefix) :]))
    ]
    if not _has_mesh(own):
        return None
    whole = [each for each in own if not each[0]["processor"]]
    collated = [each for each in own if each[0]["collated"]]
    decomposed = [each for each in own if each[0]["processor"] and not each[0]["collated"]]
    control = [each for each in whole if each[0][0] == "system/controlDict"]
    own = whole + decomposed
    if not _has_mesh(own) or _latest(collated) > max(_latest(whole), _latest(decomposed)):
        own = collated + control
    elif _latest(decomposed) > _latest(whole):
        own = decomposed + control
    return combined(pattern, sorted(_at_latest_time(own), key=lambda info: info.name))


def meshes_of_cases(paths: Iterable[str]) -> dict[str, set[str]]:
    """Names of the regions that have meshes by folder of an OpenFOAM case; "" for the mesh of no region."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in paths:
        if hit := _OF_MESH.fullmatch(path):
            found[hit["case"] or ""].add(hit["region"] or "")
    return found


def several_regions(regions: Iterable[str]) -> str:
    """The regions of a case, and the way out."""
    names = ", ".join(sorted(filter(None, regions)))
    return f"the regions {names}, which are not read: write each with foamToVTK -region NAME, and describe its files"


def _has_mesh(files: Iterable[_OfFile]) -> bool:
    return any(found["mesh"] for found, _ in files)


def _latest(files: Collection[_OfFile]) -> float:
    """The latest time with fields; minus infinity without fields, or without a mesh."""
    times = [float(found["time"]) for found, _ in files if found["time"]]
    return max(times, default=-math.inf) if _has_mesh(files) else -math.inf


def _at_latest_time(files: Collection[_OfFile]) -> list[FileInfo]:
    """The fields of the latest time, and each file of the mesh from the newest time until then."""
    latest = max((float(found["time"]) for found, _ in files if found["time"]), default=math.inf)
    kept = [info for found, info in files if not found["mesh"] and float(found["time"] or latest) == latest]
    meshes = [(float(found["moved"] or -math.inf), found, info) for found, info in files if found["mesh"]]
    newest = {
        (found["processor"], found["mesh"]): info
        for time, found, info in sorted(meshes, key=lambda each: each[0])
        if time <= latest
    }
    return [*kept, *newest.values()]


def _with_pieces(info: FileInfo, files: Mapping[str, FileInfo]) -> FileInfo:
    """A file of ROOTS with every file that could be one of its pieces: which of them are is known when it is read."""
    if suffix_of(info.name) not in ROOTS:
        return info
    folder = info.name[: info.name.rfind("/") + 1]
    pieces = [
        file
        for name, file in sorted(files.items())
        if name.startswith(folder) and suffix_of(name) in PIECES and not file.parts
    ]
    return combined(info.name, [info, *pieces])


def combined(name: str, parts: list[FileInfo]) -> FileInfo:
    """Several files as one."""

    def digest(values: Iterable[object]) -> str:
        return hashlib.sha256(repr(list(values)).encode()).hexdigest()[:16]

    version = digest((part.name, part.size, part.version) for part in parts)
    return FileInfo(name, sum(p.size for p in parts), version, digest(p.changed for p in parts), parts=tuple(parts))


def renamed(info: FileInfo, name: str) -> FileInfo:
    """The file under another name."""
    return FileInfo(name, info.size, info.version, info.changed, modified=info.modified)
