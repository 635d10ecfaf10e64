"""The names that ``zarr_core`` exports."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

import zarr_core
from zarr_core import errors

# Made by `python -m tests.test_public_names`. A difference between commits may only add lines.
RECORDED = Path(__file__).with_name("public_names.txt")
VERBS_WITH_NAMES = ("convert", "verify", "stage", "statistics", "info")
ERRORS = [name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, Exception)]


@pytest.mark.parametrize("name", zarr_core.__all__)
def test_every_name_can_be_imported(name: str) -> None:
    assert getattr(zarr_core, name).__name__ == name


def test_every_error_is_exported() -> None:
    assert set(ERRORS) <= set(zarr_core.__all__)


def test_dir_lists_every_name() -> None:
    assert {*zarr_core.__all__, "__doc__"} <= set(dir(zarr_core))
    assert not hasattr(zarr_core, "no_such_name")


def public_names() -> Iterator[str]:
    """Every public name, the attributes of public classes, and the parameters of what can be called."""
    things = {name: getattr(zarr_core, name) for name in zarr_core.__all__}
    for verb in VERBS_WITH_NAMES:
        module = import_module(f"zarr_core.{verb}")
        things |= {f"{verb}.{name}": getattr(module, name) for name in module.__all__}
    for name, thing in things.items():
        yield name
        if isinstance(thing, type) and issubclass(thing, Exception):
            continue
        if callable(thing):
            yield from (f"{name}({parameter})" for parameter in inspect.signature(thing).parameters)
        if not isinstance(thing, type):
            continue
        for attribute in dir(thing):
            if attribute.startswith("_"):
                continue
            yield f"{name}.{attribute}"
            value = getattr(thing, attribute)
            if callable(value):
                yield from (f"{name}.{attribute}({parameter})" for parameter in inspect.signature(value).parameters)


def test_no_public_name_or_parameter_disappears() -> None:
    assert set(RECORDED.read_text().splitlines()) - set(public_names()) == set()


if __name__ == "__main__":
    RECORDED.write_text("".join(f"{line}\n" for line in public_names()))
