"""JSON and YAML that somebody else may have written: parsed into plain values, and every refusal a ValueError.

The parsers themselves raise more than they say: RecursionError for deep nesting, TypeError for a list as a key, plain
ValueError for a date that does not exist.
"""

from __future__ import annotations

import json
import reprlib
from typing import Any, TypeVar

import yaml

_OF_PARSERS = (ValueError, TypeError, AttributeError, LookupError, ArithmeticError, RecursionError)

_Plain = TypeVar("_Plain", int, str, list[Any], dict[str, Any])


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


def parse_yaml(text: bytes | str, loader: type[yaml.SafeLoader] = yaml.SafeLoader) -> Any:
    """The value of a YAML document of plain values; raises ValueError.

    Args:
        text: the document.
        loader: a ``yaml.SafeLoader`` that is stricter in some way.
    """
    parser = None
    try:
        parser = loader(text)
        return parser.get_single_data()
    except (yaml.YAMLError, *_OF_PARSERS) as error:
        raise ValueError(str(error) or type(error).__name__) from error
    finally:
        if parser is not None:
            parser.dispose()
