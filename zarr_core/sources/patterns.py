"""Finds the files of each sample whose names a description gives as patterns."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase

from zarr_core.sources.arrays import CASE, PIECES, ROOTS, suffix_of
from zarr_core.sources.cases import CASE_DEPTH, case_of, meshes_of_cases, several_regions
from zarr_core.sources.description import ANY_DEPTH, SourceDescription
from zarr_core.sources.sample import FileInfo, combined

Listing = Mapping[str, Mapping[str, FileInfo]]

# A file that was split for a download: "volume_1.vtu.00.part".
_PART = re.compile(r"(.+)\.(\d+)\.part")
# Folders below a file of ROOTS that its pieces lie in: foamToVTK writes case_10.vtm and case_10/boundary/body.vtp.
_PIECE_DEPTH = 2
# Of samples at any depth. A link to a folder above itself would have no end.
_MAX_DEPTH = 12


def depth(description: SourceDescription) -> int:
    """Number of folders between the root and a file of a sample."""
    if description.samples == ANY_DEPTH:
        return _MAX_DEPTH
    below = 0
    for pattern in description.patterns:
        suffix = suffix_of(pattern)
        own = CASE_DEPTH if suffix == CASE else _PIECE_DEPTH if suffix in ROOTS else 0
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
    for path, info in joined(files).items():
        is_used = False
        for pattern, expression in expressions.items():
            if hit := expression.fullmatch(path.removeprefix(prefix)):
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
    expression = re.escape(pattern)
    for written, meant in ((r"\*", r"[^/]*"), (r"\{id\}", r"(?P<id>[^/]+)")):
        expression = expression.replace(written, meant)
    return re.compile(expression)


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
