"""Parsing JSON and YAML documents of others into plain values. Every refusal is a ValueError."""

from __future__ import annotations

import json
import reprlib
from typing import Any, TypeVar

import pydantic
import yaml

_TAG = "tag:yaml.org,2002:"

_Plain = TypeVar("_Plain", int, str, list[Any], dict[str, Any])
_Model = TypeVar("_Model")


class DocumentError(ValueError):
    """A document lacks a value, or holds one of the wrong type."""


def expect(kind: type[_Plain], value: Any, name: str) -> _Plain:
    """The value, if its type is exactly ``kind``: JSON's ``true`` is not an int. Raises DocumentError."""
    if type(value) is not kind:
        found = "missing" if value is None else reprlib.repr(value)
        raise DocumentError(f"{name} is {found}, expected {kind.__name__}")
    return value


def parse_json(data: bytes | str) -> Any:
    """The value of a JSON document; raises ValueError."""
    try:
        return json.loads(data)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def parse_model(model: pydantic.TypeAdapter[_Model], data: bytes | str) -> _Model:
    """The value of a JSON document that has exactly the types of a model; raises DocumentError."""
    try:
        return model.validate_json(data, strict=True)
    except pydantic.ValidationError as error:
        raise DocumentError(problems_of(error)) from error


def problems_of(error: pydantic.ValidationError) -> str:
    """The keys that failed validation, each with its problem, as in "fields.0: Input should be a valid string"."""
    return "; ".join(f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}" for problem in error.errors())


class PlainLoader(yaml.SafeLoader):
    """A YAML loader that refuses an explicit tag which its scalar does not match, as in ``!!bool maybe``.

    PyYAML would raise AttributeError or LookupError for most of them.
    """

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Make the next node; raises yaml.YAMLError."""
        node = super().compose_node(parent, index)
        if isinstance(node, yaml.ScalarNode):
            plain: str = self.resolve(yaml.ScalarNode, node.value, (True, False))  # type: ignore[no-untyped-call]
            allowed = {plain, _TAG + "str", _TAG + "binary"} | ({_TAG + "float"} if plain == _TAG + "int" else set())
        else:
            allowed = {_TAG + kind for kind in ("map", "seq", "set", "omap", "pairs")}
        if node is not None and node.tag not in allowed:
            raise yaml.composer.ComposerError(None, None, f"the value is not a {node.tag}", node.start_mark)
        return node


def parse_yaml(text: bytes | str, loader: type[PlainLoader] = PlainLoader) -> Any:
    """The value of a YAML document of plain values; raises ValueError.

    Args:
        text: the document.
        loader: a stricter loader.
    """
    parser = None
    try:
        parser = loader(text)
        return parser.get_single_data()
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    finally:
        if parser is not None:
            parser.dispose()
