"""Guesses from the paths of files alone which folders are samples, and which files all of them have."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection

from zarr_core.errors import SourceError
from zarr_core.sources.arrays import CASE, PIECES, ROOTS, suffix_of
from zarr_core.sources.cases import TIME
from zarr_core.sources.formats import SUFFIXES

#: What function objects of OpenFOAM write: a folder per object and per start of the solver.
FUNCTION_OBJECT = re.compile(rf"(postProcessing/.+)/{TIME}/([^/]+)")
# What ends the letters at the beginning of a name.
_LETTERS = re.compile(r"[^A-Za-z_.-]")


def folders_above(path: str) -> list[str]:
    """The folders that contain a file, from the root on."""
    parts = path.split("/")
    return ["/".join(parts[:depth]) for depth in range(1, len(parts))]


def scalar_patterns(paths: Collection[str], folders: Collection[str]) -> list[str]:
    """Patterns of the tables that at least half of the samples' folders contain."""
    having: dict[str, set[str]] = defaultdict(set)
    for path in paths:
        for folder in set(folders).intersection(folders_above(path)):
            name = path[len(folder) + 1 :]
            if found := FUNCTION_OBJECT.fullmatch(name):
                name = f"{found[1]}/*/{found[2]}"
            elif name == "params.json":  # which is read in any case
                continue
            having[_general(name, folder.rpartition("/")[2])].add(folder)
    return sorted(pattern for pattern, found_in in having.items() if 2 * len(found_in) >= len(folders))


def without_pieces(paths: list[str]) -> list[str]:
    """The files without those that look like pieces of one beside them: "a.pvtu" has "a_0.vtu" and "a/a_0.vtu"."""
    stems = tuple(path.removesuffix(suffix_of(path)) for path in paths if suffix_of(path) in ROOTS)
    return [path for path in paths if suffix_of(path) not in PIECES or not path.startswith(stems)]


def layout(paths: list[str]) -> tuple[str, list[str], list[str]]:
    """Pattern of the samples, their folders (or ids), and patterns of the files of most of them."""
    folders: list[str] = []
    names: tuple[str, ...] = ()
    deepest = max(paths, key=lambda path: path.count("/"))
    for depth in range(1, deepest.count("/") + 1):
        alike, own_names = _alike_folders(paths, depth)
        # A description names tensors of the sample's own folder only, so that has to be the folder that contains them.
        is_too_high = all(suffix_of(name) == ".pt" and "/" in name for name in names)
        if len(alike) > len(folders) or (alike and len(alike) == len(folders) and is_too_high):
            folders, names = alike, own_names
    ids_by_pattern: dict[str, set[str]] = defaultdict(set)
    for path in paths:
        folder, _, name = path.rpartition("/")
        suffix = suffix_of(name)
        if suffix in SUFFIXES and suffix not in ROOTS:
            ids_by_pattern[f"{folder}/{{id}}{suffix}".lstrip("/")].add(name.removesuffix(suffix))
    flat = {pattern: ids for pattern, ids in ids_by_pattern.items() if len(ids) > max(len(folders), 1)}
    if shared := sorted(set.intersection(*flat.values())) if flat else []:
        return "*", shared, sorted(flat)
    if not folders:
        raise SourceError("no folder contains files of a known format; inspect the folder that contains the samples")
    return _common(folders), folders, list(names)


def _alike_folders(paths: list[str], depth: int) -> tuple[list[str], tuple[str, ...]]:
    """The most folders of this depth that contain files of the same names, and these names."""
    contained: dict[str, set[str]] = defaultdict(set)
    for path in paths:
        parts = path.split("/")
        if len(parts) > depth:
            contained["/".join(parts[:depth])].add(_general("/".join(parts[depth:]), parts[depth - 1]))
    alike: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for folder, names in contained.items():
        alike[tuple(sorted(names))].append(folder)
    most = max(alike, key=lambda names: len(alike[names]), default=())
    return sorted(alike[most]), most


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
    parts = [folder.split("/") for folder in folders]
    for names in zip(*parts, strict=True):
        start = _LETTERS.split(names[0])[0]
        if not all(name.startswith(start) for name in names):
            start = ""
        levels.append(start if set(names) == {start} else f"{start}*")
    return "/".join(levels)
