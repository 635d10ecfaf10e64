"""Fixtures of the tests of the loader."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.helpers.loading import SAMPLES
from tests.helpers.published_store import make_samples, write_published_store


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = make_samples(SAMPLES)
    for number, fields in enumerate(made.values()):  # rows tell the sample, too
        fields["volume_position"][:, 1] = number
    return write_published_store(tmp_path_factory.mktemp("loader"), made, 16, splits={"train": list(made)})


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Iterator[int]]:
    """Act as each rank of a world in turn."""

    def be(world: int) -> Iterator[int]:
        for rank in range(world):
            monkeypatch.setenv("RANK", str(rank))
            monkeypatch.setenv("WORLD_SIZE", str(world))
            yield rank
        monkeypatch.delenv("RANK")
        monkeypatch.delenv("WORLD_SIZE")

    return be
