"""The examples in the docstrings of public names, run in a folder with a store."""

from __future__ import annotations

import doctest
import inspect
import pydoc
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

import zarr_core

NAMES = {name: getattr(zarr_core, name) for name in zarr_core.__all__}
WITH_EXAMPLES = sorted(name for name, found in NAMES.items() if ">>> " in (inspect.getdoc(found) or ""))
ERRORS = {name for name, found in NAMES.items() if isinstance(found, type) and issubclass(found, Exception)}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("examples") / "store"
    for number in range(4):
        fields = {"surface_position": np.random.default_rng(number).uniform(size=(200, 3))}
        fields["surface_pressure"] = fields["surface_position"][:, 0]
        zarr_core.write_sample(root, f"case_{number}", fields, split="train", chunk_points=64)
    return root


@pytest.fixture
def folder(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory of an example."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(store, "store")
    return tmp_path


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_the_example_runs(name: str) -> None:
    text = inspect.getdoc(NAMES[name])
    assert text
    test = doctest.DocTestParser().get_doctest(text, dict(NAMES), name, None, None)
    assert test.examples
    runner = doctest.DocTestRunner()
    runner.run(test)
    assert runner.summarize(verbose=False).failed == 0


def test_every_public_name_but_errors_has_an_example() -> None:
    assert NAMES.keys() - ERRORS == set(WITH_EXAMPLES)


@pytest.mark.parametrize("name", sorted(NAMES.keys() - ERRORS))
def test_help_begins_with_a_screen_of_what_a_name_is_for(name: str) -> None:
    """What follows is the reference of a class: its methods."""
    shown = pydoc.plain(pydoc.render_doc(NAMES[name])).splitlines()
    example = next(number for number, line in enumerate(shown) if ">>> " in line)
    columns = 120
    # Python 3.13 writes each parameter on a line of its own.
    assert sum(1 + len(line) // columns for line in shown[:example]) <= 70
    assert max(map(len, shown[:example])) <= 1000  # the signature: of types, pydantic shows thousands of characters


def test_help_finds_what_docstrings_refer_to() -> None:
    """By its name as text: ``import zarr_core`` makes no attribute of a module that was not imported yet."""
    named = []
    for path in Path(zarr_core.__file__).parent.rglob("*.py"):
        named += re.findall(r"``help\(([^)]+)\)``", path.read_text())
    assert named
    assert [name for name in named if pydoc.locate(name.strip('"')) is None or not name.startswith('"')] == []
