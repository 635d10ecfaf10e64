"""A small store and a small matrix, and a shootout of few repetitions."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.matrices import FEATURES, SMALL, append
from tests.helpers.small_source import KIND, write_source
from zarr_core.matrix import WideMatrix
from zarr_core.points.convert.conversion import convert
from zarr_core.shootout import run, turns


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("shootout")
    write_source(root / "source", surface=200, volume=600)
    convert(KIND, root / "store", source_url=str(root / "source"), chunk_points=64, codec="none")
    return root / "store"


@pytest.fixture(scope="module")
def matrix(tmp_path_factory: pytest.TempPathFactory) -> WideMatrix:
    made = WideMatrix.create(tmp_path_factory.mktemp("matrix") / "betas", FEATURES, {"beta": "float32"}, **SMALL)
    append(made, "first", 6)
    return made


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """No DataLoader workers, which take a second to start, few turns, and repetitions of one batch."""
    monkeypatch.setattr(run._Run, "_workers", lambda *_: ())
    monkeypatch.setattr(run, "_REPETITIONS", 2)
    monkeypatch.setattr(turns, "_TURNS", 2)
    monkeypatch.setattr(turns, "_TURNS_OF_ALL", 1)
    monkeypatch.setattr(run, "_SHORTEST", 0.0)
    monkeypatch.setattr(run, "_PART", 0.0)
    monkeypatch.setattr("os.fsync", lambda _: None)
