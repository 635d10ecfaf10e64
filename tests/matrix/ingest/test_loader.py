"""``MatrixLoader``: every batch is unloaded from the warehouse once, also by concurrent and killed loaders."""

from __future__ import annotations

import hashlib
import json
import logging
import multiprocessing.process
import os
import re
import shlex
import shutil
import signal
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from tests.helpers import fork_server
from tests.helpers.loading_process import load
from tests.helpers.long_tables import BATCHES, FEATURES, pivoted, write_long
from tests.helpers.small_source import SHARED
from tests.helpers.waiting import wait_for
from tests.helpers.warehouse_kinds import KINDS, append_to_iceberg, iceberg_catalog, opened
from zarr_core.errors import MatrixError, UnknownFieldError, WarehouseError
from zarr_core.matrix import WideMatrix
from zarr_core.matrix.__main__ import main
from zarr_core.matrix.ingest.audit import audit_batches, withdrawn_batches
from zarr_core.matrix.ingest.leases import LEASES, Leases
from zarr_core.matrix.ingest.loader import MatrixLoader
from zarr_core.warehouses import Cost, DuckDBWarehouse, LongColumns

METHYLATION = SHARED / "data" / "methylation"
SAMPLES = [sample for samples in BATCHES.values() for sample in samples]


@pytest.fixture
def long(tmp_path: Path) -> Path:
    write_long(tmp_path / "long")
    return tmp_path / "long"


@pytest.fixture
def matrix(tmp_path: Path) -> WideMatrix:
    return WideMatrix.create(tmp_path / "matrix", FEATURES)


@pytest.fixture
def loader(long: Path, matrix: WideMatrix) -> MatrixLoader:
    return MatrixLoader(DuckDBWarehouse(f"{long}/*/*.parquet"), matrix)


def assert_holds(loader: MatrixLoader, long: Path, sample_ids: Sequence[str], axis: Sequence[str] = FEATURES) -> None:
    for value in ("beta", "coverage"):
        expected = pivoted(long, sample_ids, axis, value)
        loaded = loader.load(sample_ids, value)
        assert loaded.dtype == np.float32
        assert np.array_equal(loaded, expected, equal_nan=True)


@pytest.mark.parametrize(("kind", "url"), [*((kind, "local") for kind in KINDS), ("duckdb", "s3")])
def test_loads_in_the_requested_order(
    kind: str, url: str, long: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if kind == "athena":
        request.getfixturevalue("s3_server")
    root = tmp_path / "matrix" if url == "local" else request.getfixturevalue("s3_root")
    with opened(kind, long, tmp_path / "warehouse") as warehouse:
        loader = MatrixLoader(warehouse, WideMatrix.create(root, FEATURES))
        assert_holds(loader, long, ["s2", "s3", "s'4"])
        assert_holds(loader, long, [*SAMPLES[::-1], "s2"])
        sources = loader.matrix.batch_sources
        if kind == "iceberg":
            snapshot = str(warehouse.pinned().snapshot_id)  # type: ignore[attr-defined]
            assert sources["001"] == {"kind": "iceberg", "table": "lab.long", "snapshot": snapshot, "schema": "0"}
        elif kind == "athena":
            assert sources["b-1"]["table"].endswith(".long")
            assert len(sources["b-1"]["queries"].split()) == 2  # one per value
        else:
            assert {source["kind"] for source in sources.values()} == {"parquet"}
            assert sources["001"]["sha256"] != sources["b-1"]["sha256"]
    assert_holds(loader, long, SAMPLES)  # from the matrix alone


@cache
def real_pivot(platform: str, value: str) -> tuple[list[str], list[str], np.ndarray]:
    folder = METHYLATION / platform
    axis = pd.read_parquet(folder / "cpgs.parquet").cpg_id.tolist()
    sample_ids = pd.read_csv(folder / "samples.csv", dtype=str).sample_id.tolist()
    return sample_ids, axis, pivoted(folder / "long", sample_ids, axis, value)


def test_retired_samples_are_not_loaded_again(loader: MatrixLoader, caplog: pytest.LogCaptureFixture) -> None:
    first, second = list(BATCHES)[:2]
    loader.ingest([first, second])
    gone = BATCHES[first][0]
    loader.matrix.retire([gone], [second])
    with caplog.at_level(logging.WARNING):
        again = loader.ingest([first, second])
    assert again.batches == ()
    assert sorted(again.retired) == sorted([gone, *BATCHES[second]])
    assert f"left out 4 retired samples, such as {again.retired[0]}" in caplog.text
    with pytest.raises(UnknownFieldError, match=f"sample '{gone}' was retired"):
        loader.load([gone])
    (audit,) = audit_batches(loader.warehouse, loader.matrix, [first, second])
    assert (audit.batch_id, audit.losses, audit.doubles, audit.withdrawn) == (first, [], [], [])
    assert withdrawn_batches(loader.matrix, [second]) == [first]


@pytest.mark.slow
@pytest.mark.skipif(not METHYLATION.is_dir(), reason="../shared/data/methylation is not beside this clone")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("platform", ["array", "wgbs"])
def test_real_batches_equal_pandas(
    kind: str, platform: str, tmp_path: Path, request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> None:
    if kind == "athena":
        request.getfixturevalue("s3_server")
    sample_ids, axis, _ = real_pivot(platform, "beta")
    matrix = WideMatrix.create(tmp_path / "matrix", axis)
    caplog.set_level(logging.INFO, "zarr_core.matrix.ingest.loader")
    with opened(kind, METHYLATION / platform / "long", tmp_path / "warehouse") as warehouse:
        loader = MatrixLoader(warehouse, matrix)
        loaded = {value: loader.load(sample_ids, value) for value in ("beta", "coverage")}
    for value, array in loaded.items():
        expected = real_pivot(platform, value)[2]
        assert np.array_equal(array, expected, equal_nan=True)
        # coverage is null throughout in "array", and counted everywhere that beta is in "wgbs"
        assert np.isnan(array).all() == (platform == "array" and value == "coverage")
    assert ("queries scanned" in caplog.text) == (kind == "athena")


def test_the_second_load_makes_no_warehouse_queries(loader: MatrixLoader, long: Path) -> None:
    first = loader.load(SAMPLES)
    shutil.rmtree(long)
    assert np.array_equal(loader.load(SAMPLES), first, equal_nan=True)
    again = MatrixLoader(loader.warehouse, WideMatrix.open(loader.matrix.url))
    assert np.array_equal(again.load(SAMPLES[::-1]), first[::-1], equal_nan=True)


def test_a_batch_is_taken_whole(loader: MatrixLoader, long: Path) -> None:
    loader.load(["s3"])
    assert loader.matrix.batches == {"b-1": ["s1", "s3"]}
    assert loader.matrix.generation == 2


def test_loads_are_counted(loader: MatrixLoader, long: Path) -> None:
    done = loader.ingest(["b-1"])
    (batch,) = done.batches
    rows = pd.read_parquet(long / "batch_id=b-1" / "part-0.parquet")
    assert batch.sample_ids == ("s1", "s3")
    assert batch.rows == {"beta": len(rows), "coverage": len(rows)}
    assert batch.without_value == {value: int(rows[value].isna().sum()) for value in ("beta", "coverage")}
    assert batch.cells == 2 * len(FEATURES)
    for value in ("beta", "coverage"):
        filled = int(np.isfinite(loader.load(["s1", "s3"], value)).sum())
        assert filled == batch.rows[value] - batch.without_value[value]
    assert done.cost == Cost()
    assert loader.ingest(["b-1"]).batches == ()


def test_samples_that_arrive_later_join_their_batch(loader: MatrixLoader, long: Path) -> None:
    loader.load(["s1"])
    write_long(long, {"b-1": ["s9", "s8"]}, seed=5)
    assert_holds(loader, long, ["s9", "s3", "s8"])
    later = hashlib.sha256(b"s8\ns9").hexdigest()[:12]
    assert loader.matrix.batches == {"b-1": ["s1", "s3"], f"b-1@{later}": ["s8", "s9"]}
    assert loader.ingest(["b-1"]).batches == ()


def correct(file: Path, by: float) -> None:
    """Correct the beta values of a batch's file, which is written again."""
    rows = pd.read_parquet(file)
    rows["beta"] += by
    rows.to_parquet(file, index=False)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["duckdb", "iceberg"])
def test_a_batch_that_was_corrected_is_never_up_to_date_in_silence(
    kind: str, long: Path, matrix: WideMatrix, tmp_path: Path
) -> None:
    with opened(kind, long, tmp_path) as warehouse:
        loader = MatrixLoader(warehouse, matrix)
        loader.ingest(list(BATCHES))
        matrix.set_metadata(pa.table({"sample_id": ["s2"], "age": [40]}))
        (file,) = (long / "batch_id=b-1").iterdir()
        for by in (0.0, 0.25):  # the files are others in both cases
            correct(file, by)
            if kind == "iceberg":
                catalog = iceberg_catalog(tmp_path)
                catalog.load_table("lab.long").delete("batch_id = 'b-1'")
                append_to_iceberg(catalog, file)
            if not by:
                assert loader.ingest(list(BATCHES)).batches == ()
        before = pivoted(long, ["s2"], FEATURES, "beta")
        with pytest.raises(
            WarehouseError, match=r"batch b-1: \d+ beta cells differ, such as s\d, cg\d+: the warehouse"
        ) as no:
            loader.ingest(pd.Series(list(BATCHES)))  # type: ignore[arg-type]
        with patch.object(type(warehouse), "unload", side_effect=AssertionError("it is not read again")):
            assert loader.ingest(["001"]).batches == ()
        (retire,) = {found[1] for found in re.finditer(r"(zarr-core matrix retire \S+ --batches b-1) ", str(no.value))}
        assert "then load it again, and set its metadata" in str(no.value)
        command = shlex.split(retire)[2:]
        assert [main(command), main([*command, "--undo"])] == [0, 0]
        assert [batch.batch_id for batch in loader.ingest(list(BATCHES)).batches] == ["b-1"]
        assert_holds(loader, long, SAMPLES)
        assert np.array_equal(loader.load(["s2"]), before, equal_nan=True)


def test_a_batch_of_another_name_is_loaded_as_the_error_says(loader: MatrixLoader, long: Path) -> None:
    loader.ingest(list(BATCHES))
    shutil.move(long / "batch_id=b-1", long / "batch_id=b-2")
    with pytest.raises(WarehouseError, match="The matrix holds it in b-1; if the warehouse has it in b-2 alone") as no:
        loader.ingest(["b-2"])
    (retire,) = {found[1] for found in re.finditer(r"`(zarr-core matrix retire [^`]+?)(?: --undo)?`", str(no.value))}
    command = shlex.split(retire)[2:]
    assert [main(command), main([*command, "--undo"])] == [0, 0]
    assert [batch.batch_id for batch in loader.ingest(["b-2"]).batches] == ["b-2"]
    assert_holds(loader, long, SAMPLES)


def test_samples_that_the_warehouse_no_longer_has_are_named(
    loader: MatrixLoader, long: Path, caplog: pytest.LogCaptureFixture
) -> None:
    loader.ingest(list(BATCHES))
    (file,) = (long / "batch_id=001").iterdir()
    rows = pd.read_parquet(file)
    rows[rows.sample_id != "s'4"].to_parquet(file, index=False)
    assert loader.ingest(list(BATCHES)).batches == ()
    assert "batch 001 of the warehouse no longer has 1 sample that the matrix holds" in caplog.text
    (command,) = re.findall(r"`(zarr-core matrix retire .*)`", caplog.text)
    assert main(shlex.split(command)[2:]) == 0
    caplog.clear()
    assert loader.ingest(list(BATCHES)).batches == ()
    assert caplog.text == ""


def test_a_corrected_batch_that_has_grown_is_named_and_grows(loader: MatrixLoader, long: Path) -> None:
    loader.ingest(["b-1"])
    (file,) = (long / "batch_id=b-1").iterdir()
    correct(file, 0.25)
    write_long(long, {"b-1": ["s9"]}, seed=5)
    for _ in range(2):
        with pytest.raises(WarehouseError, match="cells differ"):
            loader.ingest(["b-1"])
    assert set(loader.matrix.refresh().sample_ids) == {"s1", "s3", "s9"}


def test_no_value_passes_through_a_narrower_type(long: Path, tmp_path: Path) -> None:
    (file,) = (long / "batch_id=b-1").iterdir()
    rows = pd.read_parquet(file).astype({"beta": "float64"})
    rows["beta"] += 1e-12
    rows.to_parquet(file, index=False)
    matrix = WideMatrix.create(tmp_path / "matrix", FEATURES, {"beta": "float64"})
    loaded = MatrixLoader(DuckDBWarehouse(f"{long}/*/*.parquet"), matrix).load(["s1"])
    wide = rows.pivot(index="sample_id", columns="cpg_id", values="beta").reindex(index=["s1"], columns=FEATURES)
    np.testing.assert_array_equal(loaded, wide.to_numpy("float64"))


def test_unknown_samples_batches_and_values(loader: MatrixLoader) -> None:
    with pytest.raises(UnknownFieldError, match="has the sample 'nobody' and 1 more"):
        loader.load(["s1", "nobody", "no-one"])
    for ids in ("s1", ["s1", 7]):
        with pytest.raises(UnknownFieldError, match="sequence of strings; given: .*s1"):
            loader.load(ids)  # type: ignore[arg-type]
    with pytest.raises(UnknownFieldError, match="has no rows of a batch 'b-9'"):
        loader.ingest(["b-1", "b-9"])
    with pytest.raises(UnknownFieldError, match=r"batch_ids must be a collection of names; .* pass \['b-1'\]"):
        loader.ingest("b-1")
    with pytest.raises(UnknownFieldError, match="no value table 'm_value'; it has beta, coverage"):
        loader.load(["s1"], "m_value")
    assert loader.matrix.refresh().generation == 1
    with pytest.raises(WarehouseError, match="has no column for coverage"):
        MatrixLoader(DuckDBWarehouse("x", LongColumns(values={"beta": "beta"})), loader.matrix)
    for seconds in (0, -1, float("nan"), "60"):
        with pytest.raises(WarehouseError, match="lease_seconds must be a positive number"):
            MatrixLoader(loader.warehouse, loader.matrix, lease_seconds=seconds)  # type: ignore[arg-type]


def test_a_pinned_matrix_is_not_loaded_into(loader: MatrixLoader) -> None:
    loader.load(["s1"])
    pinned = MatrixLoader(loader.warehouse, WideMatrix.open(loader.matrix.url, generation=2))
    assert pinned.load(["s3"]).shape == (1, len(FEATURES))
    with pytest.raises(MatrixError, match="opened at generation 2"):
        pinned.load(["s2"])


def test_a_batch_loaded_twice_is_refused(loader: MatrixLoader, long: Path) -> None:
    shutil.copy(long / "batch_id=b-1" / "part-0.parquet", long / "batch_id=b-1" / "again.parquet")
    with pytest.raises(WarehouseError, match=r"batch b-1, sample s\d, feature cg\d+ has more than one beta row"):
        loader.load(["s1"])
    assert loader.matrix.refresh().generation == 1
    assert not list(Path(loader.matrix.url).glob("*.zarr/c/**/*"))
    # The others are not held up, and a repaired warehouse is taken at once.
    assert loader.load(["s2"]).shape == (1, len(FEATURES))
    (long / "batch_id=b-1" / "again.parquet").unlink()
    assert_holds(loader, long, SAMPLES)


def test_a_sample_of_two_batches_is_refused(loader: MatrixLoader, long: Path) -> None:
    write_long(long, {"b-2": ["s1", "s7"]})
    for batches in (["b-1", "b-2"], ["b-2", "b-1"]):
        with pytest.raises(WarehouseError, match=r"sample s1 is in two batches, b-\d and b-\d"):
            loader.ingest(batches)
    assert loader.matrix.refresh().generation == 1
    loader.ingest(["b-1"])
    with pytest.raises(WarehouseError, match="sample s1 is in two batches, b-1 and b-2"):
        loader.load(["s7"])


def test_values_that_come_in_different_numbers_are_refused(
    loader: MatrixLoader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A warehouse without snapshots may change between the queries of two values."""
    from zarr_core.warehouses.join import PositionJoin

    rows = PositionJoin.rows

    def fewer(self, batch_id, value):  # type: ignore[no-untyped-def]
        for batch in rows(self, batch_id, value):
            yield batch.slice(1) if value == "coverage" else batch

    monkeypatch.setattr(PositionJoin, "rows", fewer)
    with pytest.raises(WarehouseError, match="batch b-1 .*coverage. It changed meanwhile"):
        loader.load(["s1"])
    assert loader.matrix.refresh().generation == 1


def start_loader(
    matrix: WideMatrix, long: Path, notes: Path, samples: Sequence[str], digest: Path, dies: bool = False
) -> multiprocessing.process.BaseProcess:
    files = f"{long}/*/*.parquet"
    return fork_server.start(load, matrix.url, files, notes, samples, digest, dies=dies)


def digest(long: Path, sample_ids: Sequence[str]) -> str:
    return hashlib.sha256(pivoted(long, sample_ids, FEATURES, "beta").tobytes()).hexdigest()


@pytest.mark.slow
def test_concurrent_loaders_do_the_work_once(matrix: WideMatrix, long: Path, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    wanted = [SAMPLES, SAMPLES[::-1], ["s3", "s2"], ["s:5", "s1"]]
    digests = [tmp_path / f"digest{number}" for number in range(len(wanted))]
    loaders = [start_loader(matrix, long, notes, *each) for each in zip(wanted, digests, strict=True)]
    for process in loaders:
        process.join()
    assert [process.exitcode for process in loaders] == [0] * len(wanted)
    assert [path.read_text() for path in digests] == [digest(long, samples) for samples in wanted]
    assert Counter(notes.read_text().split()) == {"001": 1, "b-1": 1}
    assert set(matrix.refresh().batches) == {"001", "b-1"}
    assert json.loads((Path(matrix.url) / LEASES).read_bytes()) == {}


def test_threads_do_the_work_once(loader: MatrixLoader, long: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unloads: list[str] = []
    unload = DuckDBWarehouse.unload

    def noting(self, batches, *args):  # type: ignore[no-untyped-def]
        unloads.extend(batches)
        return unload(self, batches, *args)

    monkeypatch.setattr(DuckDBWarehouse, "unload", noting)
    with ThreadPoolExecutor(6) as threads:
        for loaded in threads.map(lambda _: loader.load(SAMPLES), range(6)):
            assert np.array_equal(loaded, pivoted(long, SAMPLES, FEATURES, "beta"), equal_nan=True)
    assert sorted(unloads) == ["001", "b-1"]


def test_the_batch_of_a_killed_loader_is_taken_over(matrix: WideMatrix, long: Path, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    killed = start_loader(matrix, long, notes, ["s1"], tmp_path / "digest", dies=True)
    killed.join()
    assert killed.exitcode == -signal.SIGKILL
    assert notes.read_text().split() == ["b-1"]
    loader = MatrixLoader(DuckDBWarehouse(f"{long}/*/*.parquet"), matrix, lease_seconds=3_600)
    assert np.array_equal(loader.load(["s3"]), pivoted(long, ["s3"], FEATURES, "beta"), equal_nan=True)


def test_a_loader_that_waits_says_so(
    loader: MatrixLoader, matrix: WideMatrix, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    other = Leases(matrix._storage)
    other.take(["b-1"])
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            other.release(["b-1"])

    monkeypatch.setattr("zarr_core.matrix.ingest.loader.time", SimpleNamespace(sleep=pause, monotonic=time.monotonic))
    with caplog.at_level(logging.WARNING):
        loader.load(["s1"])
    (message,) = (record.getMessage() for record in caplog.records if "waits for" in record.getMessage())
    assert f"waits for 1 batches that others are loading, such as b-1 (process {os.getpid()} on" in message
    assert "not renewed for 60 s" in message


def test_a_loader_renews_its_leases_while_it_works(
    long: Path, matrix: WideMatrix, monkeypatch: pytest.MonkeyPatch
) -> None:
    unload, beats = DuckDBWarehouse.unload, []

    def slow(self, batches, *args):  # type: ignore[no-untyped-def]
        def beat() -> int:
            return int(json.loads((Path(matrix.url) / LEASES).read_bytes())["b-1"]["beat"])

        first = beat()
        wait_for(lambda: beat() > first + 1)
        beats.append(beat())
        return unload(self, batches, *args)

    monkeypatch.setattr(DuckDBWarehouse, "unload", slow)
    MatrixLoader(DuckDBWarehouse(f"{long}/*/*.parquet"), matrix, lease_seconds=0.2).load(["s1"])
    assert beats


def test_lost_leases_cost_only_duplicate_work(
    loader: MatrixLoader, long: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everybody believes to have every lease; all load, one appends, all are served."""
    monkeypatch.setattr(Leases, "take", lambda self, names: list(names))
    barrier = threading.Barrier(4)

    def ingest(number: int) -> list[str]:
        mine = MatrixLoader(loader.warehouse, WideMatrix.open(loader.matrix.url))
        barrier.wait()
        done = mine.ingest(["b-1", "001"])
        assert np.array_equal(mine.load(SAMPLES), pivoted(long, SAMPLES, FEATURES, "beta"), equal_nan=True)
        return [batch.batch_id for batch in done.batches]

    with ThreadPoolExecutor(4) as threads:
        loaded = [batch_id for of in threads.map(ingest, range(4)) for batch_id in of]
    assert sorted(loaded) == ["001", "b-1"]  # each is reported by the loader that loaded it
    assert {name: sorted(of) for name, of in loader.matrix.refresh().batches.items()} == {
        name: sorted(of) for name, of in BATCHES.items()
    }


def test_a_lost_lease_on_a_batch_that_has_grown_meanwhile(
    loader: MatrixLoader, long: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another loader, which saw the batch before samples joined it, appends it while we scatter it with them."""
    earlier = MatrixLoader(loader.warehouse.pinned(), WideMatrix.open(loader.matrix.url))
    monkeypatch.setattr(DuckDBWarehouse, "pinned", lambda self: self)
    monkeypatch.setattr(Leases, "take", lambda self, names: list(names))
    write_long(long, {"b-1": ["s9", "s8"]}, seed=5)
    append = WideMatrix.append

    def overtaken(matrix: WideMatrix, *arguments: Any, **options: Any) -> bool:
        monkeypatch.setattr(WideMatrix, "append", append)
        assert earlier.load(["s1"]).shape == (1, len(FEATURES))
        return append(matrix, *arguments, **options)

    monkeypatch.setattr(WideMatrix, "append", overtaken)
    done = loader.ingest(["b-1"])
    assert [batch.sample_ids for batch in done.batches] == [("s8", "s9")]
    assert_holds(loader, long, ["s9", "s3", "s8", "s1"])
