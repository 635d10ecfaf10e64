"""A matrix under the verbs that all stores share: log, diff, tag, gc, verify."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers.clocks import clocks_ahead
from tests.helpers.faults import Kill, is_killed
from tests.helpers.matrices import FEATURES, SMALL, append
from tests.helpers.matrix_writer import cells_of, samples_of, write_batches
from tests.matrix.test_crashes import check, make
from zarr_core import diff, gc, log, tag, verify
from zarr_core.errors import CollectedError, StoreError
from zarr_core.matrix import WideMatrix
from zarr_core.matrix.__main__ import main as matrix_main
from zarr_core.matrix.ingest import append as append_module
from zarr_core.matrix.store.head import HEAD
from zarr_core.matrix.verify import verify_matrix
from zarr_core.storage import Storage
from zarr_core.versioning.gc import collect_garbage
from zarr_core.versioning.tags import make_tag


class Died(BaseException):
    pass


def leave_orphans(matrix: WideMatrix, monkeypatch: pytest.MonkeyPatch, batch_id: str) -> None:
    """Leave the objects of a writer that died just before its commit."""

    def die(*_: Any) -> None:
        raise Died

    with monkeypatch.context() as patched:
        patched.setattr(append_module, "commit", die)
        with pytest.raises(Died):
            matrix.append(batch_id, samples_of(batch_id), cells_of(batch_id))


@pytest.mark.slow
def test_gc_deletes_leftovers_of_dead_writers_and_nothing_else(any_root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = make(any_root)
    matrix.append("a", samples_of("a"), cells_of("a"))
    matrix.derive_columns()
    before = set(Storage(any_root).list())
    leave_orphans(matrix, monkeypatch, "b")
    orphans = {name for name in Storage(any_root).list() if "/c/" in name} - before
    assert len(orphans) == 6
    assert verify_matrix(any_root).unnamed == 6
    assert collect_garbage(Storage(any_root), HEAD, 3600).prefixes == {}
    with clocks_ahead(10):
        collected = collect_garbage(Storage(any_root), HEAD, 0)
    assert set(collected.prefixes) == orphans
    assert collected.foreign == 0
    left = set(Storage(any_root).list())
    assert not left & orphans
    assert {name for name in before if "/c/" in name or name.endswith(("zarr.json", ".npy"))} <= left
    check(any_root, ["a"])
    assert matrix.append("b", samples_of("b"), cells_of("b"))  # elsewhere: the rows of the dead writer stay unused
    check(any_root, ["a", "b"])
    report = verify_matrix(any_root)
    assert (report.ok, report.unnamed, report.samples) == (True, 0, 22)


@pytest.mark.parametrize("kill", [Kill("create", "/claims/rows/"), Kill("link", "/claims/columns/")])
def test_gc_deletes_what_a_writer_that_was_killed_at_its_claim_left(tmp_path: Path, kill: Kill) -> None:
    make(str(tmp_path))
    assert is_killed(kill, write_batches, str(tmp_path), 0, ["a"])
    claims = Storage(tmp_path).list("claims").keys()
    (left,) = (name for name in claims if name.endswith(".tmp"))
    assert collect_garbage(Storage(tmp_path), HEAD, 0).temporary.objects == 0  # its writer may still be there
    with clocks_ahead(3601):
        collected = collect_garbage(Storage(tmp_path), HEAD, 0)
    assert (collected.temporary.objects, collected.foreign) == (1, 0)
    assert Storage(tmp_path).list("claims").keys() == claims - {left}


def test_a_writer_slower_than_the_grace_period_gets_an_error_and_may_repeat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    matrix = make(str(tmp_path))
    original = append_module.commit

    def collected_first(*arguments: Any) -> Any:
        monkeypatch.setattr(append_module, "commit", original)
        with clocks_ahead(10):
            assert len(collect_garbage(Storage(tmp_path), HEAD, 0).prefixes) == 6
        return original(*arguments)

    monkeypatch.setattr(append_module, "commit", collected_first)
    with pytest.raises(CollectedError, match="garbage collection removed it; run again"):
        matrix.append("a", samples_of("a"), cells_of("a"))
    assert matrix.append("a", samples_of("a"), cells_of("a"))
    check(str(tmp_path), ["a"])


def test_the_shared_verbs_work_on_a_matrix(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = str(tmp_path)
    matrix = WideMatrix.create(root, FEATURES, {"beta": "float32"}, **SMALL)
    append(matrix, "first", 3)
    append(matrix, "second", 2)
    assert matrix_main([root, "--derive-columns"]) == 0
    printed = capsys.readouterr().out
    assert "added to the column-major copy: first, second" in printed
    assert "generation 4: 5 samples x 100 features" in printed
    assert log.main([root]) == 0
    printed = capsys.readouterr().out
    assert "transposed 2: first, second" in printed
    assert "added 1: second (2 samples)" in printed
    assert "created: 100 features; beta float32" in printed
    assert diff.main([root, "1", "3"]) == 0
    assert "added 2: first, second (5 samples)" in capsys.readouterr().out
    assert tag.main([root, "paper", "2"]) == 0
    assert gc.main([root, "--grace", "0s"]) == 0
    assert WideMatrix.open(root, generation="paper").sample_ids == [f"first_s{n}" for n in range(3)]
    with pytest.raises(StoreError, match="has been collected"):
        WideMatrix.open(root, generation=3)
    capsys.readouterr()
    assert verify.main([root]) == 0
    assert "all sound: 5 samples" in capsys.readouterr().out


def test_pinned_reads_go_on_while_others_append_and_collect(tmp_path: Path) -> None:
    matrix = WideMatrix.create(tmp_path, FEATURES, {"beta": "float32"}, **SMALL)
    rows = append(matrix, "a", 4)["beta"]
    make_tag(Storage(tmp_path), HEAD, "pinned")
    pinned = WideMatrix.open(tmp_path, generation="pinned")
    for number in range(5):
        append(matrix, f"later{number}", 3, seed=number)
        matrix.derive_columns()
        collect_garbage(Storage(tmp_path), HEAD, 0)
        np.testing.assert_array_equal(pinned.read(list(rows)), np.stack(list(rows.values())))
        np.testing.assert_array_equal(WideMatrix.open(tmp_path, generation="pinned").read(["a_s1"])[0], rows["a_s1"])


def test_reading_a_collected_generation_names_the_reason(tmp_path: Path) -> None:
    matrix = WideMatrix.create(tmp_path, FEATURES, {"beta": "float32"}, **SMALL)
    append(matrix, "a", 4)
    pinned = WideMatrix.open(tmp_path, generation=2)
    matrix.retire(["a_s0"])
    matrix.forget_retired()
    with pytest.raises(StoreError, match="no generation 2; .* has been collected"):
        pinned.read(["a_s1"])
