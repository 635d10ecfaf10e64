"""Checks of arguments where they enter the library, so that a wrong one is named before anything is done with it."""

from __future__ import annotations

import difflib
import operator
import reprlib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from numbers import Real
from typing import Any

from zarr_core.errors import ZarrCoreError

#: Range of numbers that tensors and saved states hold.
INT64 = (-(2**63), 2**63 - 1)


def whole_number(
    name: str,
    value: Any,
    minimum: int | None = None,
    maximum: int | None = None,
    *,
    error: type[ZarrCoreError] = ZarrCoreError,
) -> int:
    """The value as a Python int, also if it is a NumPy integer, so that JSON and ``torch.save`` can store it.

    Raises:
        ZarrCoreError: the value is not an integer (nor are a bool, a float and a string), or is out of range.
    """
    number: int | None = None
    if type(value) is int:  # most are, and this is asked for each draw
        number = value
    elif not isinstance(value, bool):
        with suppress(TypeError):
            number = operator.index(value)
    if number is None:
        raise error(f"{name} must be a whole number, not {reprlib.repr(value)}")
    if minimum is not None and number < minimum:
        least = "positive" if minimum == 1 else f"at least {minimum}"
        raise error(f"{name} must be {least}, not {number}")
    if maximum is not None and number > maximum:
        raise error(f"{name} must be at most {maximum}, not {number}")
    return number


def boolean(name: str, value: Any) -> bool:
    """The value as a Python bool; raises ZarrCoreError if it is another one, such as the text "no"."""
    if type(value).__name__ not in ("bool", "bool_"):  # Python's and NumPy's, which need not be imported
        raise ZarrCoreError(f"{name} must be True or False, not {reprlib.repr(value)}")
    return bool(value)


def check_number(name: str, value: Any) -> None:
    """Raise ZarrCoreError if the value is not a number, or is NaN."""
    if isinstance(value, bool) or not isinstance(value, Real) or value != value:
        raise ZarrCoreError(f"{name} must be a number, not {reprlib.repr(value)}")


def check_names(name: str, values: Any, *, error: type[ZarrCoreError] = ZarrCoreError) -> None:
    """Raise an error if ``values`` is not a collection of names or None; one string is not taken for its letters."""
    if isinstance(values, (str, bytes)):
        raise error(f"{name} must be a collection of names; for one name pass [{values!r}]")
    if values is not None and not isinstance(values, Iterable):
        raise error(f"{name} must be a collection of names, not {reprlib.repr(values)}")


def check_mapping(name: str, values: Any, example: str, *, error: type[ZarrCoreError] = ZarrCoreError) -> None:
    """Raise an error if ``values`` is not a mapping."""
    if not isinstance(values, Mapping):
        raise error(f"{name} must be a mapping such as {example}, not {reprlib.repr(values)}")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown name: "; did you mean 'chunk_points'?", or "" if none is like it."""
    nearest = difflib.get_close_matches(name, list(known), n=1, cutoff=0.7)
    return f"; did you mean {nearest[0]!r}?" if nearest else ""
