"""Training from a wide matrix: tensors, batches, selections, columns of metadata, and resuming."""

from __future__ import annotations

import json
import math
import pickle
import re
from collections.abc import Callable
from datetime import date
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from tests.helpers.beta_matrix import FEATURES, write_matrix
from tests.helpers.examples import examples
from zarr_core import EpochBatchSampler, MatrixDataset, ResumableLoader, m_values
from zarr_core.errors import MatrixError, UnknownFieldError, ZarrCoreError
from zarr_core.matrix import WideMatrix
from zarr_core.storage.byte_ranges import CountingObjects, open_objects


def counting(counters: list[CountingObjects], root: str) -> CountingObjects:
    counters.append(CountingObjects(open_objects(root)))
    return counters[-1]


def test_the_training_of_the_documentation(tmp_path: Path) -> None:
    matrix, beta = write_matrix(tmp_path / "matrix", batches=(40,))
    text = (Path(__file__).parents[2] / "docs" / "matrix.md").read_text()
    (block,) = (block for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "ResumableLoader(" in block)
    code = (
        block.replace("s3://bucket/betas", str(tmp_path / "matrix"))
        .replace("/scratch/cache", str(tmp_path / "cache"))
        .replace("generation=12", f"generation={matrix.generation}")
        .replace("num_workers=2", "num_workers=0")
        .replace('"forkserver"', "None")
    )
    names = {"train_ids": matrix.sample_ids, "cpgs": FEATURES[:7], "ages": torch.arange(40.0)}
    exec(code, names)
    batch = names["batch"]
    assert batch["beta"].shape == (32, 7)
    assert torch.equal(names["target"], batch["sample"].float())
    wanted = beta[batch["sample"], :7]
    filled = np.where(np.isnan(wanted), np.nanmean(beta[:, :7], axis=0), wanted).astype("float32")
    torch.testing.assert_close(batch["beta"], m_values(torch.from_numpy(filled)))


def test_items_are_rows(written: tuple[str, np.ndarray]) -> None:
    url, beta = written
    dataset = MatrixDataset(url)
    assert (len(dataset), dataset.n_features) == (12, 50)
    item = dataset[4]
    assert {name: (values.dtype, values.shape) for name, values in item.items()} == {
        "beta": (torch.float32, (50,)),
        "missing": (torch.bool, (50,)),
        "sample": (torch.int64, ()),
    }
    np.testing.assert_array_equal(item["beta"], beta[4])
    np.testing.assert_array_equal(item["missing"], np.isnan(beta[4]))
    assert dataset.sample_ids[int(item["sample"])] == "b1s1"
    np.testing.assert_array_equal(dataset[-1]["beta"], beta[11])
    with pytest.raises(IndexError):
        dataset[12]
    assert torch.equal(MatrixDataset(url, value="coverage")[0]["coverage"], torch.full((50,), 30.0))


def test_samples_and_features_come_in_the_requested_order(written: tuple[str, np.ndarray]) -> None:
    url, beta = written
    dataset = MatrixDataset(url, ["b2s1", "b0s0"], ["cg040", "cg002", "cg030"])
    expected = beta[[9, 0]][:, [40, 2, 30]]
    np.testing.assert_array_equal(dataset[0]["beta"], expected[0])
    np.testing.assert_array_equal(dataset.to_numpy(), expected)
    assert list(dataset.feature_ids) == ["cg040", "cg002", "cg030"]


def test_unknown_samples_and_features_are_named_at_once(written: tuple[str, np.ndarray]) -> None:
    url, _ = written
    for arguments, name in (
        ({"sample_ids": ["b0s0", "b9s9"]}, "b9s9"),
        ({"feature_ids": ["cg001", "cg999"]}, "cg999"),
        ({"value": "gamma"}, "gamma"),
    ):
        with pytest.raises(UnknownFieldError, match=name):
            MatrixDataset(url, **arguments)
    with pytest.raises(ZarrCoreError, match="apply when a matrix is opened"):
        MatrixDataset(WideMatrix.open(url), cache_dir="/tmp/nowhere")


def test_a_batch_is_one_read_into_one_tensor(written: tuple[str, np.ndarray]) -> None:
    url, beta = written
    dataset = MatrixDataset(url)
    reads = []
    read = dataset.matrix.read

    def counted(*arguments: object, **named: object) -> np.ndarray:
        reads.append(arguments)
        return read(*arguments, **named)  # type: ignore[arg-type]

    dataset.matrix.read = counted  # type: ignore[method-assign]
    (batch,) = DataLoader(dataset, batch_size=12)
    assert len(reads) == 1
    np.testing.assert_array_equal(batch["beta"], beta)
    assert batch["sample"].tolist() == list(range(12))
    whole = dataset.__getitems__([0, 1])
    assert whole.tensors is not None
    assert whole[1]["beta"].data_ptr() == whole.tensors["beta"][1].data_ptr(), "items are views of the batch"


def test_a_pinned_generation_stays(written: tuple[str, np.ndarray]) -> None:
    url, _ = written
    dataset = MatrixDataset(url, generation=3)  # made, then two batches
    assert len(dataset) == 8
    later = MatrixDataset(url)
    assert len(later) == 12
    assert dataset.fingerprint != later.fingerprint
    assert dataset.fingerprint == MatrixDataset(url, later.sample_ids[:8]).fingerprint, "independent of appends"
    assert dataset.lineage == {
        "zarr_core.store": url,
        "zarr_core.generation": "3",
        "zarr_core.fingerprint": dataset.fingerprint,
    }


def test_corrected_values_under_the_same_ids_are_other_data(tmp_path: Path) -> None:
    matrix = WideMatrix.create(tmp_path / "matrix", ["a", "b"], {"beta": "float32"})
    matrix.append("kept", ["s3", "s4"], {"beta": np.full((2, 2), 0.2, np.float32)})
    matrix.append("wrong", ["s1", "s2"], {"beta": np.full((2, 2), 0.1, np.float32)})
    dataset = MatrixDataset(matrix.url, ["s1", "s2", "s3"])
    unaffected = MatrixDataset(matrix.url, ["s3"]).fingerprint
    dataset.to_memmap(tmp_path / "cells.npy")
    loader = ResumableLoader(dataset, EpochBatchSampler.of(dataset, 1))
    next(iter(loader))

    matrix.retire([], ["wrong"])
    matrix.reinstate([], ["wrong"])
    matrix.append("wrong", ["s1", "s2"], {"beta": np.full((2, 2), 0.9, np.float32)})
    corrected = MatrixDataset(matrix.url, ["s1", "s2", "s3"])
    np.testing.assert_array_equal(corrected.to_memmap(tmp_path / "cells.npy"), corrected.to_numpy())
    generation = re.escape(f"generation {dataset.lineage['zarr_core.generation']} of {matrix.url}")
    with pytest.raises(ZarrCoreError, match=rf"belongs to other data.*the saved generation \({generation}\)"):
        ResumableLoader(corrected, EpochBatchSampler.of(corrected, 1)).load_state_dict(loader.state_dict())
    earlier = {name: value for name, value in loader.state_dict().items() if name != "data"}
    with pytest.raises(ZarrCoreError, match="Open the saved generation with the same fields"):
        ResumableLoader(corrected, EpochBatchSampler.of(corrected, 1)).load_state_dict(earlier)
    assert MatrixDataset(matrix.url, ["s3"]).fingerprint == unaffected
    with pytest.raises(UnknownFieldError, match="coverage"):
        corrected.covered_features(10)


def test_what_happens_to_an_open_matrix_does_not_change_a_dataset_over_it(written: tuple[str, np.ndarray]) -> None:
    url, _ = written
    matrix = WideMatrix.open(url)
    dataset = MatrixDataset(matrix)
    fingerprint, lineage, items = dataset.fingerprint, dataset.lineage, dataset.to_numpy()
    batch_id, sample_ids = next(iter(matrix.batches.items()))
    matrix.retire(batch_ids=[batch_id])
    matrix.reinstate(batch_ids=[batch_id])
    cells = np.zeros((len(sample_ids), len(FEATURES)), np.float32)
    matrix.append(batch_id, sample_ids, dict.fromkeys(matrix.values, cells))
    assert np.array_equal(matrix.read(sample_ids), cells)
    assert np.array_equal(dataset.to_numpy(), items, equal_nan=True)
    assert (dataset.fingerprint, dataset.lineage) == (fingerprint, lineage)
    assert MatrixDataset(matrix, dataset.sample_ids).fingerprint != fingerprint


def test_selections_have_different_fingerprints(written: tuple[str, np.ndarray], tmp_path: Path) -> None:
    url, _ = written
    other, _ = write_matrix(tmp_path / "other")
    selections = [
        MatrixDataset(url),
        MatrixDataset(url, value="coverage"),
        MatrixDataset(url, feature_ids=FEATURES[:4]),
        MatrixDataset(url, feature_ids=FEATURES[3::-1]),
        MatrixDataset(url, ["b0s0", "b0s1"]),
        MatrixDataset(url, ["b0s1", "b0s0"]),
        MatrixDataset(other),
    ]
    assert len({dataset.fingerprint for dataset in selections}) == len(selections)
    assert MatrixDataset(url).fingerprint == selections[0].fingerprint
    of_python, of_numpy = (MatrixDataset(url, min_coverage=least).fingerprint for least in (10, np.int64(10)))
    assert of_python == of_numpy


def test_every_worker_gives_the_same_batches(written: tuple[str, np.ndarray]) -> None:
    url, _ = written
    means = MatrixDataset(url, feature_ids=FEATURES[8:]).feature_means()
    dataset = MatrixDataset(url, feature_ids=FEATURES[8:], impute=means, transform=partial(m_values, offset=0.01))
    dataset[0]  # handles are open before the fork

    def batches(**options: object) -> list[torch.Tensor]:
        sampler = EpochBatchSampler.of(dataset, 5, seed=3)
        loader = ResumableLoader(dataset, sampler, **options)
        return [batch["beta"] for batch in loader]

    expected = batches()
    assert [tuple(batch.shape) for batch in expected] == [(5, 42)] * 3
    for method in ("fork", "forkserver"):
        found = batches(num_workers=2, multiprocessing_context=method)
        assert all(torch.equal(*pair) for pair in zip(expected, found, strict=True)), method
    copied = pickle.loads(pickle.dumps(dataset))
    assert torch.equal(copied[3]["beta"], dataset[3]["beta"])


def stateful(dataset: MatrixDataset, sampler: EpochBatchSampler) -> object:
    from torchdata.stateful_dataloader import StatefulDataLoader

    return StatefulDataLoader(dataset, batch_sampler=sampler)


@pytest.mark.parametrize("make", [ResumableLoader, stateful])
def test_a_run_resumes_at_its_position(
    written: tuple[str, np.ndarray], make: Callable[[MatrixDataset, EpochBatchSampler], DataLoader]
) -> None:
    url, beta = written
    first = MatrixDataset(url)
    loader = make(first, EpochBatchSampler.of(first, 5, seed=3))
    batches = iter(loader)
    next(batches)
    state = json.loads(json.dumps(loader.state_dict())) if make is ResumableLoader else loader.state_dict()
    left = [batch["sample"].tolist() for batch in batches]
    # A batch that was appended meanwhile changes nothing for a run over the same samples ...
    WideMatrix.open(url).append("late", ["late"], {"beta": beta[:1], "coverage": beta[:1]})
    again = MatrixDataset(url, first.sample_ids)
    loader = make(again, EpochBatchSampler.of(again, 5, seed=3))
    loader.load_state_dict(state)
    assert [batch["sample"].tolist() for batch in loader] == left
    if make is ResumableLoader:  # ... and a state of other samples is refused.
        other = MatrixDataset(url, MatrixDataset(url).sample_ids[1:])
        with pytest.raises(ZarrCoreError, match="other data"):
            make(other, EpochBatchSampler.of(other, 5, seed=3)).load_state_dict(state)


@pytest.mark.slow
def test_the_cache_keeps_fetched_ranges(s3_root: str, tmp_path: Path) -> None:
    _, beta = write_matrix(s3_root)
    dataset = MatrixDataset(s3_root, cache_dir=tmp_path / "cache")
    np.testing.assert_array_equal(dataset.to_numpy(), beta)
    counters: list[CountingObjects] = []
    again = WideMatrix.open(s3_root, objects_factory=partial(counting, counters), cache_dir=tmp_path / "cache")
    np.testing.assert_array_equal(MatrixDataset(again).to_numpy(), beta)
    assert sum(counter.requests for counter in counters) == 0


@pytest.mark.slow
def test_a_recreated_matrix_is_not_taken_for_the_old_one(s3_root: str, tmp_path: Path) -> None:
    import s3fs

    _, beta = write_matrix(s3_root)
    cached = {"cache_dir": tmp_path / "cache"}
    MatrixDataset(s3_root, **cached).to_numpy()
    s3fs.S3FileSystem().rm(s3_root, recursive=True)
    matrix = WideMatrix.create(s3_root, FEATURES, shard_rows=2, chunk_features=16, column_chunk=(8, 4))
    matrix.append("b0", ["b0s0"], {"beta": beta[5:6], "coverage": beta[5:6]})
    np.testing.assert_array_equal(MatrixDataset(s3_root, **cached).to_numpy(), beta[5:6])


@settings(max_examples=examples(30))
@given(data=st.data())
def test_all_ways_of_reading_a_selection_agree(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.getbasetemp() / "selections"
    if not folder.exists():
        write_matrix(folder)
    samples = data.draw(st.lists(st.sampled_from(MatrixDataset(folder).sample_ids), min_size=1, max_size=9))
    features = data.draw(st.lists(st.sampled_from(FEATURES), min_size=1, max_size=9, unique=True))
    dataset = MatrixDataset(folder, samples, features)
    whole = dataset.to_numpy()
    np.testing.assert_array_equal(torch.stack([item["beta"] for item in dataset]), whole)
    np.testing.assert_array_equal(dataset.__getitems__(range(len(samples))).tensors["beta"], whole)


@pytest.mark.parametrize("name", ["missing", "sample", "covered"])
def test_a_value_with_the_name_of_a_tensor_of_items_is_refused(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(MatrixError, match=f"'{name}': items of a dataset have another tensor of this name"):
        WideMatrix.create(tmp_path, ["a"], {"beta": "float32", name: "float32"})
    monkeypatch.setattr("zarr_core.matrix.store.create.ITEM_NAMES", ())  # as in earlier versions
    matrix = WideMatrix.create(tmp_path, ["a"], {"beta": "float32", name: "float32"})
    for values in ([name], ["beta", name]):
        with pytest.raises(ZarrCoreError, match=f"items have another tensor '{name}'"):
            MatrixDataset(matrix, values=values)


def test_columns_of_metadata_are_tensors(written: tuple[str, np.ndarray], caplog: pytest.LogCaptureFixture) -> None:
    matrix = WideMatrix.open(written[0])
    ids = matrix.sample_ids[:4]
    table = {"sample_id": ids, "age": [1.5, None, 3.0, 4.0], "sex": ["M", "F", None, "F"], "n": [1, 2, 3, 4]}
    matrix.set_metadata(pa.table(table | {"day": [date(2026, 1, 1)] * 4}))
    matrix.set_metadata(pa.table({"batch_id": ["b0", "b1", "b2"], "array": [450, 850, 850]}), "batches")
    dataset = MatrixDataset(matrix, ids[::-1], FEATURES[:3], columns=["age", "sex", "n", "array"])
    batch = next(iter(DataLoader(pickle.loads(pickle.dumps(dataset)), batch_size=4)))
    torch.testing.assert_close(batch["age"], torch.tensor([4.0, 3.0, float("nan"), 1.5]), equal_nan=True)
    assert batch["sex"].tolist() == [0, -1, 0, 1]
    assert dataset.categories == {"sex": ["F", "M"]}
    assert batch["n"].dtype == torch.float32  # other samples of the matrix have none
    assert batch["array"].tolist() == [850, 450, 450, 450]
    assert batch["array"].dtype == torch.int64
    assert "1 samples have no age, such as b0s1" in caplog.text
    assert dataset.metadata["sample_id"].to_pylist() == ids[::-1]
    before = dataset.fingerprint
    assert before != MatrixDataset(matrix, ids[::-1], FEATURES[:3]).fingerprint
    matrix.set_metadata(pa.table({"sample_id": ids[:1], "age": [2.0]}))
    assert MatrixDataset(matrix, ids[::-1], FEATURES[:3], columns=["age", "sex", "n", "array"]).fingerprint != before
    with pytest.raises(ZarrCoreError, match="column 'day' is of type date32"):
        MatrixDataset(matrix, columns=["day"])
    with pytest.raises(UnknownFieldError, match="no metadata 'tissue'"):
        MatrixDataset(matrix, columns=["tissue"])
    refused: list[tuple[dict[str, object], str]] = [
        ({"values": []}, "each once"),
        ({"coverage_mask": True}, "needs min_coverage"),
        ({"coverage_mask": "no", "min_coverage": 5}, "coverage_mask must be True or False, not 'no'"),
        ({"min_coverage": math.nan}, "min_coverage must be a number, not nan"),
        ({"min_coverage": True}, "min_coverage must be a number, not True"),
        ({"min_coverage": "5"}, "min_coverage must be a number, not '5'"),
    ]
    for wrong, message in refused:
        with pytest.raises(ZarrCoreError, match=message):
            MatrixDataset(matrix, **wrong)  # type: ignore[arg-type]
    with pytest.raises(ZarrCoreError, match="min_coverage must be a number, not nan"):
        MatrixDataset(matrix).covered_features(math.nan)


def test_other_numbers_of_texts_are_other_data(written: tuple[str, np.ndarray]) -> None:
    matrix = WideMatrix.open(written[0])
    matrix.set_metadata(pa.table({"sample_id": ["b0s0", "b0s1"], "tissue": ["blood", "skin"], "age": [1, 2]}))
    before, ages = (MatrixDataset(matrix, ["b0s0"], columns=[name]) for name in ("tissue", "age"))
    matrix.set_metadata(pa.table({"sample_id": ["b1s0"], "tissue": ["artery"], "age": [3]}))
    after = MatrixDataset(matrix, ["b0s0"], columns=["tissue"])
    assert [before[0]["tissue"].item(), after[0]["tissue"].item()] == [0, 1]
    assert after.fingerprint != before.fingerprint
    assert MatrixDataset(matrix, ["b0s0"], columns=["age"]).fingerprint == ages.fingerprint


def test_a_selection_of_another_matrix_is_read_by_name(tmp_path: Path) -> None:
    matrix = WideMatrix.create(tmp_path / "m", ["a", "b", "c"], {"beta": "float32"})
    matrix.append("batch", ["s"], {"beta": np.array([[0.1, 0.2, 0.3]], np.float32)})
    other = matrix.reindex(tmp_path / "n", ["c", "x", "long", "a"])
    dataset = MatrixDataset(other, feature_ids=matrix.select(["a"]))
    np.testing.assert_array_equal(dataset.to_numpy(), matrix.read(["s"], ["a"]))
    assert dataset.fingerprint == MatrixDataset(other, feature_ids=["a"]).fingerprint
    with pytest.raises(UnknownFieldError, match="'b'"):
        MatrixDataset(other, feature_ids=matrix.select(["b"]))


def test_the_only_value_table_needs_no_name(tmp_path: Path) -> None:
    matrix = WideMatrix.create(tmp_path / "matrix", ["a", "b"], {"counts": "float32"})
    cells = np.arange(4, dtype=np.float32).reshape(2, 2)
    with pytest.raises(MatrixError, match=r"values must be a mapping such as \{'beta': cells\}, not array"):
        matrix.append("x", ["s", "t"], cells)  # type: ignore[arg-type]
    matrix.append("x", ["s", "t"], {"counts": cells})
    assert np.array_equal(matrix.read(["t", "s"]), cells[::-1])
    dataset = MatrixDataset(matrix)
    assert dataset.value == "counts"
    assert torch.equal(dataset[1]["counts"], torch.from_numpy(cells[1]))
    several = WideMatrix.create(tmp_path / "several", ["a"], {"counts": "float32", "depth": "float32"})
    for read in (lambda: several.read([]), lambda: MatrixDataset(several)):
        with pytest.raises(UnknownFieldError, match="has no value table 'beta'; it has counts, depth"):
            read()
