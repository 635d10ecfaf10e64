"""Finds the description of a dataset: by short name, YAML file, dotted path, class or object."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import pydantic

from zarr_core._util.commands import shell
from zarr_core._util.documents import StrictLoader, describe_problems, parse_yaml
from zarr_core.errors import SourceError
from zarr_core.sources.description import ANY_DEPTH, SourceDescription

# Classes of the package `noether`, which published these layouts. The layouts are shipped here, so the package need not
# be installed, and a store is the same with it and without it.
_NOETHER_CLASSES = {
    "ShapeNetCarDataset": "shapenet_car",
    "AhmedMLDataset": "ahmedml",
    "DrivAerMLDataset": "drivaerml",
    "DrivAerNetDataset": "drivaernet",
    "EmmiWingDataset": "emmi_wing",
}


@cache
def shipped_kinds() -> tuple[str, ...]:
    """Short names of the datasets whose descriptions come with the library."""
    folder = resources.files("zarr_core.sources").joinpath("kinds")
    return tuple(sorted(entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml")))


def resolve_kind(kind: str | SourceDescription | object) -> SourceDescription:
    """The description of a dataset kind.

    Args:
        kind: a short name ("ahmedml"), a dotted path ("zarr_core.datasets.AhmedMLDataset"), the path of a YAML file, a
            description, or any class or object with a ``description`` or a ``filemap``.

    Raises:
        SourceError: there is no such kind, or its description is invalid.
    """
    if isinstance(kind, SourceDescription):
        return kind
    if not isinstance(kind, str):
        return _described_by(kind)
    kind = shipped_name(kind)
    if kind in shipped_kinds():
        return _shipped(kind)
    if kind.endswith((".yaml", ".yml")):
        try:
            return _from_yaml(Path(kind).read_text(), kind)
        except (OSError, ValueError) as error:
            reason = f"{kind} cannot be read: {getattr(error, 'strerror', None) or error}"
            if isinstance(error, FileNotFoundError):
                reason += f"; `{shell('inspect', 'FOLDER', '--write', kind)}` describes the samples of a folder in it"
            raise SourceError(reason) from error
    if "." in kind:
        return _described_by(import_dotted(kind))
    raise SourceError(
        f"no dataset kind {kind!r}: use one of {', '.join(shipped_kinds())}, a dotted path or the path of a YAML file; "
        f"`{shell('inspect', 'FOLDER')}` says what a folder could be"
    )


@cache  # every opened source asks for it
def _shipped(kind: str) -> SourceDescription:
    text = resources.files("zarr_core.sources").joinpath("kinds", f"{kind}.yaml").read_text()
    return _from_yaml(text, kind)


def short_name(kind: str) -> str:
    """A kind as ``--dataset-kind`` takes it: its name if it comes with the library, else the placeholder KIND."""
    return kind if kind in shipped_kinds() else "KIND"


def shipped_name(kind: str) -> str:
    """The short name of the shipped kind that a dotted path of Noether stands for; other names as they are."""
    if not kind.startswith("noether."):
        return kind
    return _NOETHER_CLASSES.get(kind.rpartition(".")[2].removeprefix("Zarr"), kind)


def import_dotted(path: str) -> Any:
    """The object at a dotted path.

    Raises:
        SourceError: the path is not dotted, or the module or its attribute does not exist.
    """
    module, _, name = path.rpartition(".")
    if not all(part.isidentifier() for part in path.split(".")) or not module:
        raise SourceError(f"{path!r} is not a dotted path such as package.module.Class")
    try:
        imported = importlib.import_module(module)
        if hasattr(imported, name):
            return getattr(imported, name)
    except ImportError as error:
        raise SourceError(f"{path}: {error}") from error
    raise SourceError(f"{path}: module {module!r} has no attribute {name!r}")


def _described_by(obj: object) -> SourceDescription:
    description = getattr(obj, "description", None)
    if isinstance(description, str | SourceDescription):
        return resolve_kind(description)
    cls = obj if isinstance(obj, type) else type(obj)
    filemap = getattr(obj, "filemap", None) or _find_filemap(cls)
    if filemap is None:
        raise SourceError(f"{obj!r} has neither a description nor a filemap")
    return describe_filemap(cls.__name__, filemap)


def _find_filemap(cls: type) -> object | None:
    """The file map of a class whose objects get it only when they are made; raises SourceError if there are several.

    It is a default of ``__init__``, or has an upper-case name in the class or in the module that defines the class.
    """
    for base in cls.__mro__[:-1]:
        init = vars(base).get("__init__")
        defaults: dict[str, object] = {}
        for parameter in inspect.signature(init).parameters.values() if init else ():
            defaults[parameter.name] = parameter.default
        for values in (_constants(base), defaults, _constants(sys.modules[base.__module__])):
            found = [name for name, value in values.items() if _is_filemap(value)]
            if len(found) > 1:
                raise SourceError(
                    f"{cls.__name__}: {', '.join(found)} could be its file map; name it in the class, filemap = ..."
                )
            if found:
                return values[found[0]]
    return None


def _constants(of: object) -> dict[str, object]:
    return {name: value for name, value in vars(of).items() if name.isupper()}


def _is_filemap(value: object) -> bool:
    return not isinstance(value, type) and any(name.endswith("_position") for name in _files(value))


def _files(filemap: object) -> dict[str, str]:
    """File name by attribute. An attribute that is None stands for a field that the dataset does not have."""
    if isinstance(filemap, Mapping):
        entries = dict(filemap)
    else:
        names = [name for name in dir(filemap) if not name.startswith(("_", "model_"))]  # model_: pydantic's own
        entries = {name: getattr(filemap, name, None) for name in names}
    return {name: value for name, value in entries.items() if isinstance(value, str)}


def describe_filemap(name: str, filemap: object) -> SourceDescription:
    """The description of another framework's file map: a mapping, or an object with file names as attributes.

    Normals and areas are optional: a file map names their files whether or not a dataset was prepared with them.
    """
    files = _files(filemap)
    optional = {"surface_normals", "surface_area", "volume_normals"} & files.keys()
    return _validated({"name": name, "samples": ANY_DEPTH, "files": files, "optional": optional}, f"file map of {name}")


def _from_yaml(text: str, where: str) -> SourceDescription:
    try:
        data = parse_yaml(text, StrictLoader)
    except ValueError as error:
        raise SourceError(f"{where}: {error}") from error
    if not isinstance(data, dict):
        raise SourceError(f"{where}: the document must be a mapping with name, samples and files")
    return _validated(data, where)


def _validated(data: dict[str, Any], where: str) -> SourceDescription:
    try:
        return SourceDescription.model_validate(data)
    except pydantic.ValidationError as error:
        raise SourceError(f"{where}: {describe_problems(error)}") from error
    except SourceError as error:
        raise SourceError(f"{where}: {error}") from error
