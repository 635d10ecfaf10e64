"""Samples and batches that are retired from a matrix, and what stays readable of them."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.clocks import clocks_ahead
from tests.helpers.examples import examples
from tests.helpers.faults import Kill, is_killed, lost_response
from tests.helpers.matrices import FEATURES, SMALL, append, block, flip
from zarr_core.errors import CorruptChunkError, MatrixError, StoreError, UnknownFieldError
from zarr_core.matrix import WideMatrix
from zarr_core.matrix.__main__ import main
from zarr_core.matrix.ingest import derive
from zarr_core.matrix.ingest import retire as retire_module
from zarr_core.matrix.store.batch_names import later_part
from zarr_core.matrix.store.head import HEAD
from zarr_core.matrix.verify import verify_matrix
from zarr_core.storage import Storage, StoredObject
from zarr_core.versioning.gc import collect_garbage
from zarr_core.versioning.history import commits
from zarr_core.versioning.tags import delete_tag, make_tag


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("loaded") / "m"
    made = WideMatrix.create(root, FEATURES, {"beta": "float32"}, **SMALL)
    append(made, "a", 9)
    append(made, "b", 3, seed=4)
    made.derive_columns()
    return root


@pytest.fixture
def matrix(loaded: Path, tmp_path: Path) -> WideMatrix:
    """A copy that a test may change."""
    return WideMatrix.open(shutil.copytree(loaded, tmp_path / "m"))


def shards(matrix: WideMatrix) -> set[str]:
    return {name for name in Storage(matrix.url).list() if "/c/" in name}


def test_retired_samples_are_gone_and_the_others_stay(matrix: WideMatrix) -> None:
    staying = [sample for sample in matrix.sample_ids if sample not in ("a_s1", "a_s8")]
    cells = matrix.read(staying)
    done = matrix.retire(["a_s1", "a_s8"])
    assert done.samples == {"a": ("a_s1", "a_s8")}
    assert (done.batches, done.generation) == ((), 6)
    assert done.underived == ("a",)
    for opened in (matrix, WideMatrix.open(matrix.url)):
        assert set(opened.sample_ids) == set(staying)
        np.testing.assert_array_equal(opened.read(staying), cells)
        with pytest.raises(UnknownFieldError, match="no sample 'a_s1'; it was retired"):
            opened.read(["a_s1"])
    assert matrix.derive_columns() == ["a"]
    np.testing.assert_array_equal(matrix.read(staying, FEATURES[3:5]), cells[:, 3:5])
    assert verify_matrix(matrix.url).problems == []
    again = matrix.retire(["a_s1"])
    assert (again.samples, matrix.generation) == ({}, 7)


def test_a_batch_is_retired_with_the_samples_that_joined_it_later(matrix: WideMatrix) -> None:
    matrix.append("b@0123456789ab", ["late"], {"beta": block(1)})
    assert matrix.retire(batch_ids=["b"]).batches == ("b", "b@0123456789ab")
    assert list(matrix.batches) == ["a"]
    assert matrix.retired.batches == {"b": ("b_s0", "b_s1", "b_s2", "late")}
    assert [change.what for change in next(commits(Storage(matrix.url), HEAD)).changes] == ["retired"]


def test_only_the_name_that_a_loader_makes_is_a_later_part_of_a_batch(matrix: WideMatrix) -> None:
    part = later_part("b", ["late"])
    for number, batch_id in enumerate(("b@rerun", "b@0123", f"{part}x", part)):
        matrix.append(batch_id, [f"n{number}"], {"beta": block(1)})
    assert matrix.retire(batch_ids=["b"]).batches == ("b", part)
    assert list(matrix.batches) == ["a", "b@rerun", "b@0123", f"{part}x"]


@pytest.mark.parametrize("joining", ["b@0123456789ab", "c"])
def test_samples_that_join_during_a_retirement_are_retired_too(
    matrix: WideMatrix, monkeypatch: pytest.MonkeyPatch, joining: str
) -> None:
    original = retire_module.commit
    matrix.set_metadata(pa.table({"sample_id": ["late"]}))

    def overtaken(*arguments: Any) -> Any:
        monkeypatch.setattr(retire_module, "commit", original)
        WideMatrix.open(matrix.url).append(joining, ["late"], {"beta": block(1)})
        return original(*arguments)

    monkeypatch.setattr(retire_module, "commit", overtaken)
    done = matrix.retire(["late"] if joining == "c" else [], ["b"])
    assert done.samples == {"b": ("b_s0", "b_s1", "b_s2"), joining: ("late",)}
    assert list(WideMatrix.open(matrix.url).batches) == ["a"]


def test_the_metadata_of_a_sample_that_was_never_loaded_is_retired_and_forgotten(matrix: WideMatrix) -> None:
    matrix.set_metadata(pa.table({"sample_id": ["a_s0", "donor7"], "diagnosis": ["none", "x"]}))
    make_tag(Storage(matrix.url), HEAD, "paper")
    done = matrix.retire(["donor7"])
    assert (done.samples, done.unloaded, done.readable) == ({}, ("donor7",), {6: ("paper",)})
    with pytest.raises(MatrixError, match="sample 'donor7' was retired"):
        matrix.append("c", ["donor7"], {"beta": block(1)})
    assert next(change.names for change in next(commits(Storage(matrix.url), HEAD)).changes) == ("donor7",)
    with pytest.raises(StoreError, match="kept by the tag 'paper'; delete the tag first"):
        matrix.forget_retired()
    delete_tag(Storage(matrix.url), HEAD, "paper")
    assert matrix.forget_retired().expired == [6]
    (table,) = (pq.read_table(file) for file in Path(matrix.url, "metadata").iterdir())
    assert table["sample_id"].to_pylist() == ["a_s0"]
    assert matrix.retire(["donor7"]).unloaded == ()
    matrix.reinstate(["donor7"])
    assert matrix.append("c", ["donor7"], {"beta": block(1)})


def test_a_generation_whose_metadata_alone_names_a_retired_sample_is_forgotten(matrix: WideMatrix) -> None:
    matrix.set_metadata(pa.table({"sample_id": ["donor7"], "diagnosis": ["x"]}))
    matrix.append("c", ["donor7"], {"beta": block(1)})
    assert matrix.retire(["donor7"]).readable == {6: (), 7: ()}
    assert matrix.forget_retired().expired == [6, 7]
    matrix.set_metadata(pa.table({"sample_id": ["a_s0"]}))
    table = Path(matrix.url, matrix._state.metadata["samples"].path)
    matrix.set_metadata(pa.table({"sample_id": ["a_s1"]}))
    flip(table, -9)  # its bytes may hold anything
    assert matrix.retire(["donor7"]).readable == {9: ()}


def test_what_was_retired_is_not_appended_again_until_it_is_reinstated(matrix: WideMatrix) -> None:
    matrix.retire(["a_s1"], ["b"])
    for batch_id in ("b", "b@0123456789ab"):  # a loader that began before the retirement names later samples so
        with pytest.raises(MatrixError, match="the batch was retired; matrix.reinstate"):
            matrix.append(batch_id, ["new"], {"beta": block(1)})
    with pytest.raises(MatrixError, match="sample 'a_s1' was retired"):
        matrix.append("c", ["a_s1", "c1"], {"beta": block(2)})
    with pytest.raises(UnknownFieldError, match="sample 'a_s2' was not retired"):
        matrix.reinstate(["a_s2"])
    with pytest.raises(UnknownFieldError, match=r"pass \['a_s1'\]"):
        matrix.reinstate("a_s1")
    matrix.reinstate(pd.Series(["a_s1"]), pd.Series(["b"]))  # type: ignore[arg-type]
    assert matrix.retired.sample_ids == set()
    assert matrix.append("c", ["a_s1", "b_s0"], {"beta": block(2)})
    np.testing.assert_array_equal(matrix.read(["a_s1", "b_s0"]), block(2))
    assert verify_matrix(matrix.url).problems == []


def test_unknown_names_are_refused(matrix: WideMatrix) -> None:
    for samples, batches, message in (
        (["a_s0", "x"], [], "no sample 'x'"),
        ([], ["x"], "no batch 'x'"),
        ([], [""], "no batch ''"),
        ("a_s0", [], "must be a collection"),
    ):
        with pytest.raises(UnknownFieldError, match=message):
            matrix.retire(samples, batches)
    with pytest.raises(MatrixError, match="open it without generation= to retire"):
        WideMatrix.open(matrix.url, 2).retire(["a_s0"])
    assert matrix.refresh().generation == 5


def test_earlier_generations_stay_readable_until_gc(matrix: WideMatrix) -> None:
    before = shards(matrix)
    assert matrix.retire(batch_ids=["b"]).readable == {3: (), 4: (), 5: ()}
    assert len(WideMatrix.open(matrix.url, 4).read(["b_s0"])) == 1
    with clocks_ahead(7200):
        collect_garbage(Storage(matrix.url), HEAD, 3600)
    with pytest.raises(StoreError, match="has been collected"):
        WideMatrix.open(matrix.url, 4)
    width = range(-(-len(FEATURES) // 16))
    assert before - shards(matrix) == {"beta.zarr/c/3/0", *(f"beta_columns.zarr/c/{n}/2" for n in width)}


def test_forgetting_deletes_what_is_retired_at_once_and_nothing_else(matrix: WideMatrix) -> None:
    make_tag(Storage(matrix.url), HEAD, "paper", 3)
    make_tag(Storage(matrix.url), HEAD, "early", 2)
    old = shards(matrix)
    done = matrix.retire(["b_s1"])
    assert done.readable == {3: ("paper",), 4: (), 5: ()}
    with pytest.raises(StoreError, match="kept by the tag 'paper'; delete the tag first"):
        matrix.forget_retired()
    assert old <= shards(matrix)
    delete_tag(Storage(matrix.url), HEAD, "paper")
    assert matrix.forget_retired().expired == [3, 4, 5]
    assert "beta.zarr/c/3/0" not in shards(matrix)
    assert WideMatrix.open(matrix.url, "early").sample_ids == [f"a_s{number}" for number in range(9)]
    assert WideMatrix.open(matrix.url, 1).sample_ids == []
    assert matrix.forget_retired().expired == []
    assert verify_matrix(matrix.url).problems == []


@pytest.mark.parametrize(
    "kill", [Kill("unlink", "/generations/", 2), Kill("unlink", "/metadata/"), Kill("unlink", "/c/")]
)
def test_forgetting_that_was_killed_is_finished_by_the_next(matrix: WideMatrix, kill: Kill) -> None:
    before = shards(matrix)
    matrix.set_metadata(pa.table({"sample_id": ["b_s1"], "age": [30]}))
    (described,) = Storage(matrix.url).list("metadata")
    matrix.retire(["b_s1"])
    assert is_killed(kill, matrix.forget_retired)
    assert before <= shards(matrix)
    matrix.forget_retired()
    assert {"beta.zarr/c/3/0", described}.isdisjoint(Storage(matrix.url).list())
    assert matrix.forget_retired().prefixes == {}
    assert verify_matrix(matrix.url).problems == []


def test_columns_that_were_derived_while_a_sample_was_retired_are_derived_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    matrix = WideMatrix.create(tmp_path, FEATURES, {"beta": "float32"}, **SMALL)
    append(matrix, "a", 3)
    original = derive.write_block

    def overtaken(*arguments: Any) -> Any:
        monkeypatch.setattr(derive, "write_block", original)
        WideMatrix.open(tmp_path).retire(["a_s1"])
        return original(*arguments)

    monkeypatch.setattr(derive, "write_block", overtaken)
    assert matrix.derive_columns() == ["a"]
    assert matrix.sample_ids == ["a_s0", "a_s2"]
    assert verify_matrix(tmp_path).problems == []


def test_an_append_after_the_last_batch_was_retired_uses_new_shards(matrix: WideMatrix) -> None:
    matrix.retire(["a_s1", "b_s0"])  # one claim for the new shards of both batches
    matrix.retire(batch_ids=[list(matrix.batches)[-1]])
    before = shards(matrix)
    append(matrix, "c", 5)
    assert before < shards(matrix)
    assert matrix._state.next_shard == 9  # 3 + 1 at first, 2 + 1 rewritten, 2 appended
    assert verify_matrix(matrix.url).problems == []


def test_two_retirements_at_once(matrix: WideMatrix, monkeypatch: pytest.MonkeyPatch) -> None:
    original = retire_module.commit

    def overtaken(*arguments: Any) -> Any:
        monkeypatch.setattr(retire_module, "commit", original)
        WideMatrix.open(matrix.url).retire(["a_s2", "b_s0"])
        return original(*arguments)

    monkeypatch.setattr(retire_module, "commit", overtaken)
    assert matrix.retire(["a_s1"]).samples == {"a": ("a_s1",)}
    assert matrix.retired.sample_ids == {"a_s1", "a_s2", "b_s0"}
    assert len(matrix.sample_ids) == 9
    assert verify_matrix(matrix.url).problems == []


def test_a_retirement_whose_response_is_lost_tells_what_it_retired(memory_root: str) -> None:
    """Another writer commits before the head is read back."""
    matrix = WideMatrix.create(memory_root, FEATURES, {"beta": "float32"}, **SMALL)
    append(matrix, "a", 3)
    with lost_response(matrix._storage, HEAD.name, lambda: append(WideMatrix.open(memory_root), "b", 2, seed=1)):
        done = matrix.retire(["a_s1"])
    assert done.samples == {"a": ("a_s1",)}
    with lost_response(matrix._storage, HEAD.name, lambda: append(WideMatrix.open(memory_root), "c", 2, seed=2)):
        matrix.reinstate(["a_s1"])
    held = matrix.refresh()
    assert (held.retired.sample_ids, list(held.batches)) == (set(), ["a", "b", "c"])
    assert verify_matrix(memory_root).problems == []


@pytest.mark.parametrize("forgets", [False, True])
def test_a_retirement_while_earlier_generations_are_collected(
    matrix: WideMatrix, forgets: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are collected after they were listed."""
    listed = retire_module.documents

    def then_collected(storage: Storage) -> dict[int, StoredObject]:
        found = listed(storage)
        monkeypatch.setattr(retire_module, "documents", listed)
        with clocks_ahead(2 * 24 * 3600):
            collect_garbage(Storage(matrix.url), HEAD, 3600)
        return found

    if not forgets:
        monkeypatch.setattr(retire_module, "documents", then_collected)
    done = matrix.retire(["a_s1"])
    assert (done.samples, forgets or done.readable) == ({"a": ("a_s1",)}, forgets or {})
    if forgets:
        monkeypatch.setattr(retire_module, "documents", then_collected)
        matrix.forget_retired()
    assert list(listed(Storage(matrix.url))) == [done.generation]


def test_an_earlier_library_refuses_a_matrix_with_retired_samples(matrix: WideMatrix) -> None:
    head = Path(matrix.url) / "HEAD.json"
    assert json.loads(head.read_bytes())["format_version"] == 1
    matrix.retire(["a_s1"])
    assert json.loads(head.read_bytes())["format_version"] == 2


def test_damage_is_an_error_and_nothing_is_retired(matrix: WideMatrix) -> None:
    (Path(matrix.url) / "beta.zarr/c/0/0").unlink()
    with pytest.raises(CorruptChunkError, match="is committed but missing"):
        WideMatrix.open(matrix.url).retire(["a_s1"])
    assert matrix.refresh().generation == 5


def test_a_copy_on_another_axis_refuses_what_was_retired(tmp_path: Path, matrix: WideMatrix) -> None:
    matrix.retire(batch_ids=["b"])
    copy = matrix.reindex(tmp_path / "copy", FEATURES[::2])
    with pytest.raises(MatrixError, match="was retired"):
        copy.append("b", ["b_s0"], {"beta": block(1, len(FEATURES[::2]))})
    assert copy.append("c", ["c_s0"], {"beta": block(1, len(FEATURES[::2]))})


def test_the_command(matrix: WideMatrix, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["retire", matrix.url]) == 2
    assert main(["retire", matrix.url, "--samples", "a_s1", "a_s2", "--undo", "--forget"]) == 2
    capsys.readouterr()
    assert main(["retire", matrix.url, "--samples", "a_s1", "a_s2"]) == 0
    shown = capsys.readouterr().out
    assert "retired 2 samples; generation 6 and later do not hold them" in shown
    assert "  a: a_s1, a_s2" in shown
    assert f"still readable in generations 2, 3, 4, 5: `zarr-core gc {matrix.url}` deletes them" in shown
    assert main(["retire", matrix.url, "--batches", "b", "--forget", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["retired_batches"] == ["b"]
    assert document["deleted_generations"] == [2, 3, 4, 5, 6]
    assert main([matrix.url]) == 0
    assert "retired: 5 samples" in capsys.readouterr().out
    assert main(["retire", matrix.url, "--batches", "b", "--undo"]) == 0
    assert "set the metadata" not in capsys.readouterr().out
    matrix.refresh().set_metadata(pa.table({"sample_id": ["a_s3"], "age": [40]}))
    assert main(["retire", matrix.url, "--samples", "a_s3"]) == 0
    assert main(["retire", matrix.url, "--samples", "a_s3", "--undo"]) == 0
    assert "set the metadata of its samples again, whose rows were removed" in capsys.readouterr().out
    assert WideMatrix.open(matrix.url).retired.sample_ids == {"a_s1", "a_s2"}


def test_the_command_says_that_a_killed_append_left_cells(
    matrix: WideMatrix, capsys: pytest.CaptureFixture[str]
) -> None:
    assert is_killed(Kill("rename", "/HEAD.json$"), append, matrix, "c", 6)
    append(matrix, "c", 6)
    assert main(["retire", matrix.url, "--samples", "c_s1", "--forget"]) == 0
    shown = capsys.readouterr().out
    assert "left: 2 objects that no generation names" in shown
    assert f"may hold retired samples, too: `zarr-core gc {matrix.url}` deletes those older than its grace" in shown
    with clocks_ahead(25 * 3600):
        collect_garbage(Storage(matrix.url), HEAD, 24 * 3600)
    assert main(["retire", matrix.url, "--samples", "c_s1", "--forget"]) == 0
    assert "left: " not in capsys.readouterr().out
    assert main(["retire", matrix.url, "--forget", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["unnamed_objects"] == 0


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 6)),
        st.tuples(st.just("samples"), st.sets(st.integers(0, 20), min_size=1, max_size=3)),
        st.tuples(st.just("batch"), st.integers(0, 5)),
        st.tuples(st.sampled_from(["derive", "gc", "forget", "hold", "replace"]), st.none()),
        st.tuples(st.just("go to"), st.sampled_from(["one", "two"])),
    ),
    min_size=3,
    max_size=12,
)


@pytest.mark.parametrize("kind", ["local", "memory"])
@settings(max_examples=examples(8))
@given(steps=STEPS)
def test_any_sequence_equals_a_model(
    kind: str, tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, Any]]
) -> None:
    """Places are relative to the working directory, which changes; open handles read what they opened, or raise."""
    folder = tmp_path_factory.mktemp("m")
    with contextlib.chdir(folder):
        walk(kind, folder, steps)


def walk(kind: str, folder: Path, steps: list[tuple[str, Any]]) -> None:
    root = str(folder / "m") if kind == "local" else f"memory://{os.urandom(8).hex()}"
    features = FEATURES[:20]
    names = (f"b{number}" for number in itertools.count())
    held: list[tuple[WideMatrix, pd.DataFrame]] = []
    collected = False

    def place() -> str:
        return os.path.relpath(root) if kind == "local" else root

    def create() -> tuple[WideMatrix, pd.DataFrame, pd.Series]:
        created = WideMatrix.create(place(), features, {"beta": "float32"}, **SMALL)
        return created, pd.DataFrame(columns=features, dtype="float32"), pd.Series(dtype=object)

    matrix, model, homes = create()
    for step, argument in steps:
        if step == "go to":
            (folder / argument).mkdir(exist_ok=True)
            os.chdir(folder / argument)
        elif step == "hold":
            held += [(opened := WideMatrix.open(place()), model), (pickle.loads(pickle.dumps(opened)), model)]
            opened.read(opened.sample_ids[:1])
        elif step == "replace":
            held.append((matrix, model))
            storage = Storage(root)
            storage.delete(list(storage.list()))
            features = features[::-1]
            matrix, model, homes = create()
            for opened, rows in held:
                for use in (opened.refresh, lambda o=opened, r=rows: o.read([*r.index]) if len(r) else o.refresh()):
                    with pytest.raises(StoreError, match="was replaced by another one"):
                        use()
            held.clear()
        elif step == "append":
            batch_id = next(names)
            samples = [f"{batch_id}_s{number}" for number in range(argument)]
            cells = block(argument, len(features), seed=len(homes))
            assert matrix.append(batch_id, samples, {"beta": cells})
            model = pd.concat([model, pd.DataFrame(cells, samples, features)])
            homes = pd.concat([homes, pd.Series(batch_id, samples)])
        elif step == "samples" and len(model):
            samples = [*{model.index[number % len(model)] for number in argument}]
            matrix.retire(samples)
            model, homes = model.drop(samples), homes.drop(samples)
        elif step == "batch" and len(model):
            batch_id = homes.iloc[argument % len(homes)]
            matrix.retire(batch_ids=[batch_id])
            model, homes = model[homes != batch_id], homes[homes != batch_id]
        elif step == "derive":
            matrix.derive_columns()
        elif step == "gc":
            collected = True
            with clocks_ahead(10):
                collect_garbage(Storage(root), HEAD, 0)
        elif step == "forget":
            collected = True
            matrix.forget_retired()
        for opened, rows in held:
            try:
                np.testing.assert_array_equal(opened.read([*rows.index]), rows.to_numpy("float32"))
            except StoreError:
                assert collected
        opened = WideMatrix.open(place())
        samples = list(model.index)
        assert sorted(opened.sample_ids) == sorted(samples)
        assert {name: set(ids) for name, ids in opened.batches.items()} == {
            name: set(ids.index) for name, ids in homes.groupby(homes)
        }
        np.testing.assert_array_equal(opened.read(samples), model.to_numpy("float32"))
        np.testing.assert_array_equal(opened.read(samples, features[2:4]), model[features[2:4]].to_numpy("float32"))
    assert verify_matrix(root).problems == []
