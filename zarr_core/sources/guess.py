"""Guesses a description from the names and the contents of the files of one sample."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from zarr_core.format.names import POSITION
from zarr_core.sources.arrays import CASE, suffix_of
from zarr_core.sources.formats.contents import Contents, FoundArray

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
_NAMES = {name: field for field, names in _FIELDS.items() for name in names}
_AVERAGES = re.compile(r"_?(?:mean|avg|average|averaged|trim)(?=_|$)")
# Fields that only surfaces have.
_ON_SURFACES = {"friction", "normals", "area"}
_VOLUME = re.compile(r"vol|internal")
_SURFACE = re.compile(r"surf|bound|wall|body|skin")
_DOMAIN = re.compile(r"^(surface|volume)[_/.]")


def field_of(name: str) -> str:
    """Name of the field in an array or file of this name."""
    plain = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")
    while (shorter := _AVERAGES.sub("", plain)) != plain:
        plain = shorter.strip("_")
    if plain in _NAMES:
        return _NAMES[plain]
    words = [_NAMES[word] for word in plain.split("_") if len(word) > 2 and word in _NAMES]
    return words[0] if words else plain if plain[:1].isalpha() else f"field_{plain}"


def domain_of(name: str, contents: Contents | None = None) -> str:
    """Name of the domain of a file or array of this name."""
    if suffix_of(name) == ".stl":
        return "geometry"
    dimension = contents.dimension if contents else 0
    return "surface" if dimension == 2 or (dimension != 3 and _SURFACE.search(name.lower())) else "volume"


def describe(files: Mapping[str, Contents | None], patches: Iterable[str] = ()) -> tuple[dict[str, Any], list[str]]:
    """The parts of a description that name fields, and what is odd.

    Args:
        files: contents by pattern; None for a file with one tensor.
        patches: of an OpenFOAM case, those of the surface.
    """
    document: dict[str, Any] = {"files": {}, "meshes": {}}
    odd: list[str] = []
    arrays: list[tuple[str, str, Any]] = []  # name, file and entry of the document
    for pattern, contents in files.items():
        if contents is None or suffix_of(pattern) == ".npy":
            arrays.append((re.sub(r"\.\w+$", "", pattern), pattern, pattern))
        elif suffix_of(pattern) == CASE:
            fields = _fields(contents.arrays, "cells")
            if patches:
                surface = {"file": pattern, "patches": list(patches), "fields": fields, "compute": ["normals", "area"]}
                document["meshes"]["surface"] = surface
            document["meshes"]["volume"] = {"file": pattern, "fields": fields}
        elif contents.points:
            _add(document["meshes"], domain_of(pattern, contents), _mesh(pattern, contents), pattern, odd)
            if contents.patches:
                odd.append(
                    f"{pattern} has the parts {', '.join(contents.patches)}: choose those of a domain by `patches`"
                )
        else:
            arrays += [(each.name, pattern, {"file": pattern, "array": each.name}) for each in contents.arrays]
    _add_arrays(document["files"], arrays, odd)
    tensors = [attribute for attribute, entry in document["files"].items() if isinstance(entry, str)]
    nested = [attribute for attribute in tensors if "/" in document["files"][attribute]]
    for attribute in nested if not document["meshes"] else tensors:
        del document["files"][attribute]
    if tensors and document["meshes"]:
        odd.append(f"{len(tensors)} files with one array each were left out, because there are meshes")
    elif nested:
        odd.append(f"{len(nested)} files in folders of a sample's folder were left out: name that folder in `samples`")
    _drop_domains_without_position(document["files"], odd)
    return {key: value for key, value in document.items() if value}, odd


def _add_arrays(entries: dict[str, Any], arrays: Iterable[tuple[str, str, Any]], odd: list[str]) -> None:
    """Add arrays without a mesh. Their names tell the domain, or that of their file does, or the fields beside them."""
    split: list[tuple[str, str, str, Any]] = []
    for name, file, entry in arrays:
        found = _DOMAIN.match(name.lower())
        told = found[1] if found else next(filter(None, map(_domain_in, (name, file))), "")
        split.append((told, field_of(name[found.end() :] if found else name), name, entry))
    others = "surface" if any(not told and field in _ON_SURFACES for told, field, _, _ in split) else "volume"
    for told, field, name, entry in split:
        source = entry if isinstance(entry, str) else f"{name} of {entry['file']}"
        _add(entries, f"{told or others}_{field}", entry, source, odd)


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
    at = "cells" if any(array.at == "cells" for array in contents.arrays) or suffix_of(pattern) == ".stl" else "points"
    fields = _fields(contents.arrays, at)
    mesh: dict[str, Any] = {"file": pattern, "at": at, "fields": fields}
    computed = [name for name in ("normals", "area") if name not in fields and (at == "cells" or name == "normals")]
    if domain_of(pattern, contents) != "volume" and computed:
        mesh["compute"] = computed
    return mesh


def _fields(arrays: Iterable[FoundArray], at: str) -> dict[str, Any]:
    """Array, or arrays of the components, by name of the field."""
    here = {array.name: array for array in arrays if array.at == at and array.name}
    fields: dict[str, Any] = {}
    used: set[str] = set()
    for name in here:
        components = _components(name, here)
        if name in used:
            continue
        used |= set(components)
        plain = name if len(components) == 1 else re.sub(r"[xX](?=$|[^a-z]|avg|mean)", "", name, count=1)
        field = field_of(plain)
        if field in fields or field == POSITION:
            field = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")
        if field not in fields and field[:1].isalpha():
            fields[field] = components[0] if len(components) == 1 else components
    return fields


def _components(name: str, names: Mapping[str, FoundArray]) -> list[str]:
    """The arrays that hold the components of a vector, if this one holds its first; otherwise itself."""
    for found in re.finditer("[xX]", name):
        letters = "xyz" if found[0] == "x" else "XYZ"
        triple = [f"{name[: found.start()]}{letter}{name[found.end() :]}" for letter in letters]
        if all(each in names and names[each].components == 1 for each in triple):
            return triple
    return [name]


def _drop_domains_without_position(files: dict[str, Any], odd: list[str]) -> None:
    for domain in {attribute.partition("_")[0] for attribute in files}:
        if f"{domain}_{POSITION}" not in files:
            dropped = [attribute for attribute in files if attribute.startswith(f"{domain}_")]
            for attribute in dropped:
                del files[attribute]
            odd.append(f"{', '.join(dropped)} left out: nothing looks like the positions of their points")
