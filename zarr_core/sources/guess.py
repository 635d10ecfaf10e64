"""Guesses a description: samples from the paths of files, fields from the names and contents of those of one sample."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from glob import escape
from typing import Any, NamedTuple

from zarr_core.errors import SourceError
from zarr_core.format.names import POSITION
from zarr_core.sources.arrays import CASE, PIECES, ROOTS, suffix_of
from zarr_core.sources.formats import SUFFIXES
from zarr_core.sources.formats.contents import Contents, FoundArray
from zarr_core.sources.patterns import TIME

# Names of arrays and files, in lower case without the words for averages, by the name of the field.
_FIELDS = {
    "position": (
        *("position", "positions", "pos", "points", "coord", "coords", "coordinates", "xyz"),
        *("centers", "centres", "centroids"),
    ),
    "pressure": ("p", "pressure", "cp", "prs", "static_pressure"),
    "velocity": ("u", "velocity", "vel"),
    "friction": ("wallshearstress", "wall_shear_stress", "wss", "tau", "cf", "friction", "shearstress"),
    "vorticity": ("vorticity",),
    "normals": ("normal", "normals"),
    "area": ("area", "areas"),
    "temperature": ("t", "temperature"),
}
_NAMES: dict[str, str] = {}
for _field, _names in _FIELDS.items():
    _NAMES |= dict.fromkeys(_names, _field)
_AVERAGES = re.compile(r"_?(?:mean|avg|average|averaged|trim)(?=_|$)")
# Fields that only surfaces have.
_ON_SURFACES = {"friction", "normals", "area"}
_VOLUME = re.compile(r"vol|internal")
_SURFACE = re.compile(r"surf|bound|wall|body|skin")
_DOMAIN = re.compile(r"^(surface|volume)[_/.]")
#: What function objects of OpenFOAM write: a folder per object and per start of the solver.
FUNCTION_OBJECT = re.compile(rf"(postProcessing/.+)/{TIME}/([^/]+)")
# What ends the letters at the beginning of a name.
_LETTERS = re.compile(r"[^A-Za-z_.-]")


def field_of(name: str) -> str:
    """Name of the field in an array or file of this name."""
    plain = _plain(name)
    while (shorter := _AVERAGES.sub("", plain)) != plain:
        plain = shorter.strip("_")
    if plain in _NAMES:
        return _NAMES[plain]
    for word in plain.split("_"):
        if len(word) > 2 and word in _NAMES:
            return _NAMES[word]
    return plain if plain[:1].isalpha() else f"field_{plain}"


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")


def _domain_of(name: str, dimension: int) -> str:
    """Name of the domain of a mesh by the name of its file and, if that is known, its dimension."""
    if suffix_of(name) == ".stl":
        return "geometry"
    return "surface" if dimension == 2 or (dimension != 3 and _SURFACE.search(name.lower())) else "volume"


def describe(files: Mapping[str, Contents | None], patches: Iterable[str] = ()) -> tuple[dict[str, Any], list[str]]:
    """The parts of a description that name fields, and what is odd.

    Args:
        files: contents by pattern; None for a file with one tensor.
        patches: of an OpenFOAM case, those of the surface.
    """
    meshes: dict[str, Any] = {}
    arrays: list[_Array] = []
    odd: list[str] = []
    for pattern, contents in files.items():
        if contents is None or suffix_of(pattern) == ".npy":
            arrays.append(_Array(re.sub(r"{id}|\.\w+$", "", pattern), pattern, pattern))
        elif suffix_of(pattern) == CASE:
            fields = _fields(contents.arrays, "cells")
            if patches:
                surface = {"file": pattern, "patches": list(patches), "fields": fields, "compute": ["normals", "area"]}
                meshes["surface"] = surface
            meshes["volume"] = {"file": pattern, "fields": fields}
        elif contents.points:
            _add(meshes, _domain_of(pattern, contents.dimension), _mesh(pattern, contents), pattern, odd)
            if contents.patches:
                parts = ", ".join(contents.patches)
                odd.append(f"{pattern} has the parts {parts}: choose those of a domain by `patches`")
        else:
            for each in contents.arrays:
                arrays.append(_Array(each.name, pattern, {"file": pattern, "array": each.name}, each.rows))
    entries = _entries_of(arrays, odd)
    _drop_files(entries, bool(meshes), odd)
    doubled = [attribute for attribute in entries if attribute.partition("_")[0] in meshes]
    for attribute in doubled:
        del entries[attribute]
    if doubled:
        odd.append(f"{', '.join(doubled)} left out: a mesh has the points of their domain")
    _drop_domains_without_position(entries, odd)
    described = {"files": entries, "meshes": meshes}
    return {key: value for key, value in described.items() if value}, odd


class _Array(NamedTuple):
    """An array without a mesh: its name, that of its file, its entry in a description, and its points if known."""

    name: str
    file: str
    entry: Any
    rows: int | None = None

    @property
    def told(self) -> tuple[str, str]:
        """The domain that its name tells, or that of its file does, or ""; and its field."""
        found = _DOMAIN.match(self.name.lower())
        if found:
            return found[1], field_of(self.name[found.end() :])
        return _domain_in(self.name) or _domain_in(self.file), field_of(self.name)


def _drop_files(entries: dict[str, Any], has_meshes: bool, odd: list[str]) -> None:
    """Leave out files with one array each where there are meshes; otherwise tensors in folders of a sample's folder."""
    dropped = []
    for attribute, entry in entries.items():
        if isinstance(entry, str) and (has_meshes or ("/" in entry and suffix_of(entry) != ".npy")):
            dropped.append(attribute)
    for attribute in dropped:
        del entries[attribute]
    if dropped and has_meshes:
        odd.append(f"{len(dropped)} files with one array each were left out, because there are meshes")
    elif dropped:
        odd.append(f"{len(dropped)} files in folders of a sample's folder were left out: name that folder in `samples`")


def _entries_of(arrays: list[_Array], odd: list[str]) -> dict[str, Any]:
    """Arrays by domain and field.

    Where all positions tell their domain, other arrays are in the one whose positions are as many. Otherwise fields
    that only surfaces have tell the domain of the arrays that do not. Arrays of another number of points than the
    positions of their domain are left out.
    """
    entries: dict[str, Any] = {}
    rows: dict[str, int | None] = {}
    others = "volume"
    domains: dict[int, set[str]] = defaultdict(set)  # by the number of their positions
    all_told = True
    for array in arrays:
        domain, field = array.told
        if not domain and field in _ON_SURFACES:
            others = "surface"
        if field == POSITION and domain and array.rows:
            domains[array.rows].add(domain)
        elif field == POSITION:
            all_told = False
    for array in arrays:
        domain, field = array.told
        as_many = domains.get(array.rows or 0, set())
        if not domain and all_told and len(as_many) == 1:
            (domain,) = as_many
        source = array.entry if isinstance(array.entry, str) else f"{array.name} of {array.file}"
        attribute = f"{domain or others}_{field}"
        _add(entries, attribute, array.entry, source, odd)
        rows.setdefault(attribute, array.rows)
    for attribute, own in rows.items():
        position = f"{attribute.partition('_')[0]}_{POSITION}"
        if own and own != (rows.get(position) or own):
            del entries[attribute]
            odd.append(f"{attribute} left out: it has {own:,} points, {position} has {rows[position]:,}")
    return entries


def _domain_in(name: str) -> str:
    """The domain that a name contains, or ""."""
    if _SURFACE.search(name.lower()):
        return "surface"
    return "volume" if _VOLUME.search(name.lower()) else ""


def _add(entries: dict[str, Any], key: str, entry: Any, source: str, odd: list[str]) -> None:
    if key in entries:
        odd.append(f"{source} was left out: it looks like {key}, as another one does")
    else:
        entries[key] = entry


def _mesh(pattern: str, contents: Contents) -> dict[str, Any]:
    has_cells = suffix_of(pattern) == ".stl" or any(array.at == "cells" for array in contents.arrays)
    at = "cells" if has_cells else "points"
    fields = _fields(contents.arrays, at)
    mesh: dict[str, Any] = {"file": pattern, "at": at, "fields": fields}
    computed = ("normals", "area") if has_cells else ("normals",)
    absent = [name for name in computed if name not in fields]
    if absent and contents.dimension == 2:
        mesh["compute"] = absent
    return mesh


def _fields(arrays: Iterable[FoundArray], at: str) -> dict[str, Any]:
    """Array, or arrays of the components, by name of the field."""
    here = {array.name: array for array in arrays if array.at == at and array.name}
    fields: dict[str, Any] = {}
    used: set[str] = set()
    for name in here:
        if name in used:
            continue
        components = _components(name, here)
        used.update(components)
        is_vector = len(components) > 1
        field = field_of(re.sub(r"[xX](?=$|[^a-z]|avg|mean)", "", name, count=1) if is_vector else name)
        if field in fields or field == POSITION:
            field = _plain(name)
        if field not in (*fields, POSITION) and field[:1].isalpha():
            fields[field] = components if is_vector else name
    return fields


def _components(name: str, names: Mapping[str, FoundArray]) -> list[str]:
    """The arrays that hold the components of a vector, if this one holds its first; otherwise itself."""
    for found in re.finditer("[xX]", name):
        before, after = name[: found.start()], name[found.end() :]
        triple = [f"{before}{letter}{after}" for letter in ("xyz" if found[0] == "x" else "XYZ")]
        if all(each in names and names[each].components == 1 for each in triple):
            return triple
    return [name]


def _drop_domains_without_position(files: dict[str, Any], odd: list[str]) -> None:
    by_domain: dict[str, list[str]] = defaultdict(list)
    for attribute in files:
        by_domain[attribute.partition("_")[0]].append(attribute)
    for domain, dropped in by_domain.items():
        if f"{domain}_{POSITION}" not in dropped:
            for attribute in dropped:
                del files[attribute]
            odd.append(f"{', '.join(dropped)} left out: nothing looks like the positions of their points")


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
            ids_by_pattern[f"{escape(folder)}/{{id}}{suffix}".lstrip("/")].add(name.removesuffix(suffix))
    fields = [field_of(pattern.rpartition("/")[0]) for pattern in ids_by_pattern]
    # One folder is called as positions: each field has a folder, whose files are samples.
    least = 1 if fields.count(POSITION) == 1 else max(len(folders), 1)
    flat = {pattern: ids for pattern, ids in ids_by_pattern.items() if len(ids) > least}
    shared = sorted(set.intersection(*flat.values())) if flat else []
    if shared and POSITION not in map(field_of, shared):  # else these are the fields of a few samples
        return "*", shared, sorted(flat)
    if len(folders) < 2 and (pattern := _in_folders(flat)):
        return "*", sorted(set().union(*flat.values())), [pattern]
    if not folders:
        raise SourceError(
            "the files are in no folder, and their names are not ids of samples: if they are one sample, inspect the "
            "folder above; if one file has many samples, write each with zarr_core.write_sample"
        )
    return _common(folders), folders, list(names)


def _in_folders(flat: Mapping[str, set[str]]) -> str:
    """The pattern of samples whose files lie in several folders, as train/a.npz and test/b.npz; "" of others."""
    folders: list[str] = []
    names: set[str] = set()
    ids: list[str] = []
    for pattern, own_ids in flat.items():
        folder, _, name = pattern.rpartition("/")
        folders.append(folder)
        names.add(name)
        ids += own_ids
    is_one_level = len({folder.count("/") for folder in folders}) == 1
    if len(folders) < 2 or len(names) > 1 or len(set(ids)) < len(ids) or not is_one_level:
        return ""
    return "" if POSITION in map(field_of, ids) else f"{_common(folders)}/{names.pop()}"


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
    if name.endswith(CASE):
        name = name.removesuffix(CASE) or "./"
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
