"""A reader of a pinned generation reads the same bytes until the generation expires."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from tests.helpers import fork_server, pinned_reader
from tests.helpers.small_source import KIND, write_source
from tests.helpers.waiting import wait_for
from zarr_core.datasets import build_dataset
from zarr_core.errors import StoreError
from zarr_core.gc import main as gc
from zarr_core.points.convert.conversion import convert
from zarr_core.points.read.reader import ZarrChunkReader
from zarr_core.points.stage.store import stage_store
from zarr_core.points.store.head import HEAD, load_manifest
from zarr_core.storage import Storage
from zarr_core.versioning.archive import documents
from zarr_core.versioning.tags import make_tag

RECENT = 30


def generation_after(conversions: int) -> int:
    """The number of the generation after some conversions with other settings: settings and samples, a commit each."""
    return 1 + 2 * conversions


@contextmanager
def reading(store: Path, generation: str, folder: Path) -> Iterator[Callable[[], None]]:
    """Start a process that reads a generation; yields a function that waits for its next complete pass."""
    folder.mkdir()
    process = fork_server.start(pinned_reader.main, str(store), generation, str(folder))

    def passes() -> int:
        return int((folder / "passes").read_text()) if (folder / "passes").exists() else 0

    def wait_for_a_pass() -> None:
        goal = passes() + 2  # the pass under way began before
        wait_for(lambda: passes() >= goal or not process.is_alive())
        assert process.is_alive()

    try:
        wait_for_a_pass()
        yield wait_for_a_pass
        (folder / "stop").touch()
        process.join()
        assert process.exitcode == 0
    finally:
        process.kill()
        process.join()


def make_old(store: Path) -> None:
    """Make objects 30 hours older, except those of commits after ``RECENT`` conversions."""
    young = {f"{number:08d}.json" for number in range(generation_after(RECENT), 200)}
    old = time.time() - 30 * 3600
    for path in store.rglob("*"):
        if path.is_file() and path.name not in young:
            os.utime(path, (old, old))


@pytest.mark.slow
def test_identical_bytes_during_fifty_conversions_and_two_collections(tmp_path: Path) -> None:
    source = write_source(tmp_path / "source", ("run_1", "run_2"), surface=40, volume=90)
    store = tmp_path / "store"

    def convert_again(number: int) -> None:
        if number % 10 == 9:
            torch.save(torch.full((40,), float(number)), source / "run_1" / "surface_pressure.pt")
        # Groups of settings that recur are reused, or written again where they have been collected.
        report = convert(KIND, store, source_url=str(source), reconvert=True, chunk_points=8 + number % 7)
        assert not report.having("failed")

    convert(KIND, store, source_url=str(source), reconvert=True, chunk_points=64)
    make_tag(Storage(store), HEAD, "paper")
    expected = {"paper": pinned_reader.digest(ZarrChunkReader(store))}
    with reading(store, "paper", tmp_path / "paper") as tagged_is_read_again:
        for number in range(25):
            convert_again(number)
        make_old(store)
        assert gc([str(store), "--grace", "24h"]) == 0
        tagged_is_read_again()
        for number in range(25, RECENT):
            convert_again(number)
        pinned = load_manifest(store).generation
        assert pinned == generation_after(RECENT)
        expected["recent"] = pinned_reader.digest(ZarrChunkReader(store))
        with reading(store, str(pinned), tmp_path / "recent") as recent_is_read_again:
            for number in range(RECENT, 50):
                convert_again(number)
            make_old(store)
            assert gc([str(store), "--grace", "24h"]) == 0
            tagged_is_read_again()
            recent_is_read_again()
    assert set(documents(Storage(store))) == {1, *range(pinned - 1, generation_after(50) + 1)}
    for name, digest in expected.items():
        assert (tmp_path / name / "digests").read_text() == digest
    with pytest.raises(StoreError, match="no generation 3; .* has been collected"):
        ZarrChunkReader(store, generation=3)


def test_a_tag_is_accepted_wherever_a_generation_is(tmp_path: Path) -> None:
    source = write_source(tmp_path / "source", ("run_1", "run_2"))
    (source / "train_design_ids.txt").write_text("run_1\nrun_2\n")
    store = tmp_path / "store"
    convert(KIND, store, source_url=str(source), sample_ids=["run_1"])
    make_tag(Storage(store), HEAD, "paper")
    convert(KIND, store, source_url=str(source))
    assert ZarrChunkReader(store, generation="paper").sample_ids == ["run_1"]
    assert ZarrChunkReader(store).sample_ids == ["run_1", "run_2"]
    assert len(build_dataset({"kind": KIND, "root": str(store), "split": "train", "generation": "paper"})) == 1
    staged = stage_store(store, tmp_path / "copy", generation="paper")
    assert (list(staged.manifest.samples), staged.manifest.retention.tags) == (["run_1"], {})
    with pytest.raises(StoreError, match="no tag 'nope'; its tags are: paper"):
        ZarrChunkReader(store, generation="nope")
