"""Parsing JSON, YAML and CSV documents of others into plain values. Every refusal is a ValueError."""

from __future__ import annotations

import csv
import json
import math
import reprlib
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

import pydantic
import yaml
from pydantic_core import from_json

from zarr_core.errors import ZarrCoreError

#: The value of a JSON document; raises ValueError.
parse_json = from_json

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


def checked_by(check: Callable[[Any], object]) -> pydantic.AfterValidator:
    """A validator of pydantic that keeps a value for which a function raises no ZarrCoreError."""

    def checked(value: Any) -> Any:
        try:
            check(value)
        except ZarrCoreError as error:
            raise DocumentError(str(error)) from None
        return value

    return pydantic.AfterValidator(checked)


def describe_problems(error: pydantic.ValidationError) -> str:
    """What pydantic found wrong, in one line: the path of each of the first values, the value, and the reason."""
    found = []
    for problem in error.errors(include_url=False)[:5]:
        place = ".".join(map(str, problem["loc"]))
        reason = problem["msg"].removeprefix("Value error, ")
        if problem["type"] == "missing":
            found.append(f"{place} is missing")
        elif problem["type"] in ("value_error", "json_invalid"):
            found.append(f"{place}: {reason}".removeprefix(": "))
        else:
            found.append(f"{place} is {reprlib.repr(problem['input'])}: {reason[0].lower()}{reason[1:]}")
    return "; ".join(found)


def parse_model(model: pydantic.TypeAdapter[_Model], data: bytes | str) -> _Model:
    """The value of a JSON document that has exactly the types of a model; raises DocumentError."""
    try:
        return model.validate_json(data, strict=True)
    except pydantic.ValidationError as error:
        raise DocumentError(describe_problems(error)) from error


def check_model(model: pydantic.TypeAdapter[_Model], value: Any, name: str) -> _Model:
    """The value of a parsed document in the types of a model; raises DocumentError, which names it."""
    try:
        return model.validate_python(value)
    except pydantic.ValidationError as error:
        raise DocumentError(f"{name}: {describe_problems(error)}") from error


def to_json(document: Any) -> bytes:
    """A document as one line of JSON; raises ValueError for a number that JSON does not have."""
    return (json.dumps(document, separators=(",", ":"), allow_nan=False) + "\n").encode()


def parse_table(data: bytes, *, latest: bool = False) -> dict[str, float | str]:
    """The values of a table with a header and one row, by column; raises ValueError.

    Args:
        data: comma-separated text, or text in columns whose header is the last line with ``#`` before the last row,
            as OpenFOAM writes it. Empty cells are NaN.
        latest: whether there may be several rows, of which the last is wanted, and commas in such a header.
    """
    lines = [line for line in data.decode("utf-8-sig").splitlines() if line.strip()]
    while lines and lines[-1].startswith("#"):
        lines.pop()
    rows = [line for line in lines if not line.startswith("#")]
    comments = [line for line in lines if line.startswith("#")]
    is_header = bool(comments) and (latest or "," not in comments[-1])
    header = ""
    if is_header:
        header = comments[-1].lstrip("#")
    elif rows:
        header = rows.pop(0)
    if not rows or (len(rows) > 1 and not latest):
        raise ValueError(f"has {len(rows)} rows below its header, expected one")
    refuse_semicolons(header)
    names, values = header.split(), rows[-1].split()
    if "," in header:
        # A quote may follow the blank behind a comma.
        names = [cell.strip() for cell in next(csv.reader([header], skipinitialspace=True))]
        values = [cell.strip() for cell in next(csv.reader([rows[-1]], skipinitialspace=True))]
    if len(names) != len(values):
        raise ValueError(f"has {len(names)} columns in its header and {len(values)} in its row")
    numbers = [name for name in names if not isinstance(number_or_text(name), str)]
    if len(numbers) == len(names) or (numbers and not latest):
        line = "a line with # and the names" if latest else "a line with the names"
        raise ValueError(f"has numbers in the place of its header ({numbers[0]:.80}); put {line} before its rows")
    found: dict[str, float | str] = {}
    for name, value in zip(names, map(number_or_text, values), strict=True):
        if name in found and found[name] != value:
            raise ValueError(f"has different values in two columns {name!r}")
        if name and value != "":
            found[name] = value
    return dict.fromkeys(filter(None, names), math.nan) | found


def refuse_semicolons(header: str) -> None:
    """Raise ValueError for the header of a table with semicolons, as a spreadsheet writes it in many countries."""
    if ";" in header and "," not in header:
        raise ValueError("has semicolons between its columns; write commas between them, and points in numbers")


def number_or_text(text: str) -> float | str:
    """The number that a cell of a table contains, or its text.

    "0012_05" is text, although Python reads a number, and so are whole numbers that a float does not hold, such as ids.
    """
    try:
        number = float(text)
        is_changed = text.isdecimal() and int(text) != number
    except ValueError:
        return text
    return text if "_" in text or is_changed else number


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


class StrictLoader(PlainLoader):
    """A YAML loader that rejects duplicate keys; PyYAML keeps the last one without a warning."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """Make a dictionary; raises yaml.YAMLError."""
        seen = set()
        for key_node, _ in node.value:
            if key_node.tag == _TAG + "merge":  # of an anchor, whose keys a mapping may replace
                continue
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):  # refused below
                continue
            if key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{key!r} is given twice", key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


def parse_yaml(text: bytes | str, loader: type[PlainLoader] = PlainLoader) -> Any:
    """The value of a YAML document of plain values; raises ValueError."""
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
