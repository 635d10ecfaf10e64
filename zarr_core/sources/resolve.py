"""Finds the description of a dataset: by short name, YAML file, dotted path, class or object."""

from __future__ import annotations

import importlib
from collections.abc import Hashable, Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import pydantic
import yaml

from zarr_core._util.documents import PlainLoader, parse_yaml
from zarr_core.errors import SourceError
from zarr_core.sources.description import SourceDescription


def shipped_kinds() -> list[str]:
    """Short names of the datasets whose descriptions come with the library."""
    folder = resources.files("zarr_core.sources").joinpath("kinds")
    return sorted(entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml"))


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
    if kind in shipped_kinds():
        text = resources.files("zarr_core.sources").joinpath("kinds", f"{kind}.yaml").read_text()
        return _from_yaml(text, kind)
    if kind.endswith((".yaml", ".yml")):
        try:
            return _from_yaml(Path(kind).read_text(), kind)
        except (OSError, ValueError) as error:
            raise SourceError(f"{kind} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    if "." in kind:
        return _described_by(import_dotted(kind))
    raise SourceError(
        f"no dataset kind {kind!r}: use one of {', '.join(shipped_kinds())}, a dotted path or the path of a YAML file"
    )


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
    filemap = getattr(obj, "filemap", None)
    if filemap is None:
        raise SourceError(f"{obj!r} has neither a description nor a filemap")
    name = obj.__name__ if isinstance(obj, type) else type(obj).__name__
    return describe_filemap(name, filemap)


def describe_filemap(name: str, filemap: object) -> SourceDescription:
    """The description of another framework's file map: a mapping, or an object with file names as attributes.

    An attribute that is None stands for a field that the dataset does not have.
    """
    if isinstance(filemap, Mapping):
        entries: Iterable[tuple[str, object]] = filemap.items()
    else:
        entries = ((a, getattr(filemap, a)) for a in dir(filemap) if not a.startswith("_"))
    files = {attribute: value for attribute, value in entries if isinstance(value, str)}
    return _validated({"name": name, "samples": "*", "files": files}, f"file map of {name}")


class _StrictLoader(PlainLoader):
    """A YAML loader that rejects duplicate keys; PyYAML keeps the last one without a warning."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):  # refused below
                continue
            if key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{key!r} is given twice", key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


def _from_yaml(text: str, where: str) -> SourceDescription:
    try:
        data = parse_yaml(text, _StrictLoader)
    except ValueError as error:
        raise SourceError(f"{where}: {error}") from error
    if not isinstance(data, dict):
        raise SourceError(f"{where}: the document must be a mapping with name, samples and files")
    return _validated(data, where)


def _validated(data: dict[str, Any], where: str) -> SourceDescription:
    try:
        return SourceDescription.model_validate(data)
    except pydantic.ValidationError as error:
        reasons = "; ".join(
            f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}".lstrip(": ") for problem in error.errors()
        )
        raise SourceError(f"{where}: {reasons}") from error
    except SourceError as error:
        raise SourceError(f"{where}: {error}") from error
