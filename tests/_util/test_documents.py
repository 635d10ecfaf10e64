"""Parsing untrusted JSON and YAML: errors are ValueErrors; valid documents give the values that PyYAML gives."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from zarr_core._util.documents import parse_yaml

_TAGS = [
    "",
    "!x",
    *(f"!!{kind}" for kind in ["bool", "int", "float", "null", "timestamp", "str", "binary", "set", "omap", "map"]),
]
_SCALARS = [
    "''",
    "'1'",
    "[1, a]",
    "{=: x}",
    "{a: b}",
    *["x", "3", "1.5", "yes", "0x_", "2001-01-01", "2001-99-99", "=", "<<"],
]


@given(st.lists(st.tuples(st.sampled_from(_TAGS), st.sampled_from(_SCALARS)), max_size=4), st.booleans())
def test_tagged_values_are_parsed_or_refused_with_one_error(values: list[tuple[str, str]], as_keys: bool) -> None:
    text = "\n".join(f"? {tag} {value}\n: 1" if as_keys else f"- {tag} {value}" for tag, value in values)
    try:
        parsed = parse_yaml(text)
    except ValueError:
        return
    assert parsed == yaml.safe_load(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("!!int 3", 3),
        ("!!float 3", 3.0),
        ("!!str 3", "3"),
        ("!!bool yes", True),
        ("a: &x 1\nb: *x", {"a": 1, "b": 1}),
    ],
)
def test_tags_that_their_values_match_are_accepted(text: str, value: Any) -> None:
    assert parse_yaml(text) == value


@pytest.mark.parametrize("text", ["!!bool maybe", "!!int ''", "!!timestamp x", "!!bool {=: foo}"])
def test_tags_that_their_values_do_not_match_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a tag:yaml.org,2002"):
        parse_yaml(text)
