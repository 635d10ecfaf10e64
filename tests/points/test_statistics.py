"""Statistics: merged moments against numbers taken another way, whatever the partition, order or number of workers."""

from __future__ import annotations

import itertools
import json
import os
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.published_store import make_samples, write_published_store
from tests.helpers.small_source import KIND, load_field, write_source
from zarr_core.datasets import build_dataset
from zarr_core.errors import CorruptChunkError, UnknownFieldError, ZarrCoreError
from zarr_core.format.moments import FieldMoments
from zarr_core.points.convert.conversion import convert
from zarr_core.points.statistics import calculate_store_statistics, record_training_statistics, write_statistics
from zarr_core.points.store.group import recorded_moments
from zarr_core.points.store.head import load_manifest
from zarr_core.sources import resolve_kind
from zarr_core.statistics import main
from zarr_core.storage import Storage

IDS = ("run_1", "run_2", "run_3", "run_4")  # run_4 is in the test split
MOMENTS = ("mean", "m2", "min", "max", "log_mean", "log_m2")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_source(tmp_path_factory.mktemp("source"), IDS)


@pytest.fixture(scope="module")
def store(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("store")
    convert(KIND, root, source_url=str(source), chunk_points=16, shard_points=48)
    return root


def by_numpy(source: Path, sample_ids: tuple[str, ...] = IDS) -> dict[str, Any]:
    """All keys, from the source files by plain NumPy, in one pass over everything at once."""
    expected: dict[str, Any] = {}
    positions = []
    for name, file in resolve_kind(KIND).required_fields.items():
        dtype = np.float32 if file.field.is_position else np.float16
        values = np.concatenate([load_field(source, i, name) for i in sample_ids]).astype(dtype).astype(np.float64)
        logs = np.sign(values) * np.log1p(np.abs(values))
        found = {
            "mean": values.mean(axis=0),
            "std": values.std(axis=0, ddof=1),
            "min": values.min(axis=0),
            "max": values.max(axis=0),
            "logscale_mean": logs.mean(axis=0),
            "logscale_std": logs.std(axis=0, ddof=1),
        }
        expected |= {f"{name}_{key}": v.tolist() if len(v) > 1 else float(v[0]) for key, v in found.items()}
        expected[f"{name}_count"] = len(values)
        positions += [values] if file.field.is_position else []
    expected["raw_pos_min"] = min(float(v.min()) for v in positions)
    expected["raw_pos_max"] = max(float(v.max()) for v in positions)
    return expected


def assert_close(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert sorted(found) == sorted(expected)
    for key, value in expected.items():
        np.testing.assert_allclose(found[key], value, rtol=1e-9, atol=1e-10, err_msg=key)


@pytest.mark.parametrize("recompute", [False, True])
def test_equal_to_numpy_over_the_source(store: Path, source: Path, recompute: bool) -> None:
    assert_close(calculate_store_statistics(str(store), recompute=recompute), by_numpy(source))


def test_plain_numbers_in_a_fixed_order(store: Path) -> None:
    statistics = calculate_store_statistics(str(store))
    keys = list(statistics)
    assert keys[:7] == [
        f"surface_friction_{key}" for key in ("mean", "std", "min", "max", "count", "logscale_mean", "logscale_std")
    ]
    assert keys[-2:] == ["raw_pos_min", "raw_pos_max"]
    assert type(statistics["surface_pressure_mean"]) is float
    assert type(statistics["surface_pressure_count"]) is int
    assert [type(value) for value in statistics["volume_velocity_std"]] == [float] * 3


def test_no_array_is_read_without_recompute(store: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    for path in store.rglob("*"):
        if path.is_file() and "/c/" not in str(path):
            target = bare / path.relative_to(store)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
    assert calculate_store_statistics(str(bare)) == calculate_store_statistics(str(store))
    with pytest.raises(CorruptChunkError, match="run_1, surface_friction: shard 0: the object is missing"):
        calculate_store_statistics(str(bare), recompute=True)


@pytest.mark.parametrize("layout", ["directory", "packed"])
def test_recorded_moments_cost_one_request_per_sample(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str
) -> None:
    convert(KIND, tmp_path / "store", source_url=str(source), chunk_points=16, layout=layout)
    requests: list[str] = []
    read, info = Storage._read, Storage._info
    monkeypatch.setattr(Storage, "_read", lambda self, name, *span: requests.append(name) or read(self, name, *span))
    monkeypatch.setattr(Storage, "_info", lambda self, name: requests.append(name) or info(self, name))
    calculate_store_statistics(tmp_path / "store")
    assert sorted(name.split("/")[1] for name in requests if name.startswith("samples/")) == sorted(IDS)


def test_workers_and_concurrency_change_nothing(store: Path) -> None:
    merged = calculate_store_statistics(str(store))
    assert calculate_store_statistics(str(store), workers=3, read_concurrency=4) == merged
    recomputed = calculate_store_statistics(str(store), recompute=True)
    assert calculate_store_statistics(str(store), recompute=True, workers=2, read_concurrency=3) == recomputed


def test_split_leaves_out_the_blacklisted_and_the_absent(store: Path, source: Path) -> None:
    manifest = load_manifest(str(store))
    train = tuple(sorted(manifest.split_ids("train")))
    assert train
    assert set(train) < set(IDS)
    assert_close(calculate_store_statistics(str(store), split="train"), by_numpy(source, train))
    with pytest.raises(UnknownFieldError, match="no split 'holdout'"):
        calculate_store_statistics(str(store), split="holdout")


def test_without_splits_the_blacklisted_are_left_out_as_in_training(tmp_path: Path) -> None:
    kind = tmp_path / "kind.yaml"
    kind.write_text("name: own\nsamples: '*'\nfiles: {surface_position: p.npy}\nblacklists: [bad.txt]\n")
    for number in range(3):
        sample = tmp_path / "source" / f"case_{number}"
        sample.mkdir(parents=True)
        np.save(sample / "p.npy", np.full((4, 3), 10.0**number, np.float32))
    root = str(tmp_path / "store")
    convert(str(kind), root, root=tmp_path / "source")
    (tmp_path / "source" / "bad.txt").write_text("case_2\n")
    manifest = convert(str(kind), root, root=tmp_path / "source").manifest
    assert "case_2" in manifest.samples
    record_training_statistics(root, manifest)
    dataset = build_dataset(
        {"kind": "point", "root": root, "split": "all", "normalizers": {"surface_position": "mean_std"}}
    )
    assert dataset.sample_ids == ["case_0", "case_1"]
    assert dataset.normalizers["surface_position"]["shift"] == [5.5] * 3
    assert calculate_store_statistics(root)["surface_position_count"] == 8
    assert calculate_store_statistics(root, sample_ids=["case_1", "case_2"])["surface_position_count"] == 8, "by name"


def test_split_file_by_bare_name_lies_in_the_store(store: Path, source: Path, tmp_path: Path) -> None:
    (store / "mine.txt").write_text("run_3\n\nrun_99\nrun_1\nrun_98\n")
    expected = by_numpy(source, ("run_1", "run_3"))
    with pytest.warns(
        UserWarning, match=r"mine.txt: 2 of 4 listed samples are not in the store.*run_98, run_99"
    ) as seen:
        assert_close(calculate_store_statistics(str(store), split_file="mine.txt"), expected)
    assert len(seen) == 1
    elsewhere = tmp_path / "ids.txt"
    elsewhere.write_text("run_1\nrun_3\n")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_close(calculate_store_statistics(str(store), split_file=str(elsewhere)), expected)
    with pytest.raises(ZarrCoreError, match=r"no split file 'absent.txt'"):
        calculate_store_statistics(str(store), split_file="absent.txt")


def test_blacklisted_ids_in_a_split_file_are_left_out(tmp_path: Path) -> None:
    samples = make_samples(3)
    store = write_published_store(tmp_path / "store", samples)
    (store / "train_design_ids.txt").write_text("run_1\nrun_2\nrun_3\n")
    (store / "blacklist.txt").write_text("/somewhere/run_2.vtk\n")
    statistics = calculate_store_statistics(str(store), split_file="train_design_ids.txt", recompute=True)
    assert statistics["surface_pressure_count"] == len(samples["run_1"]["surface_pressure"]) + len(
        samples["run_3"]["surface_pressure"]
    )
    assert statistics == calculate_store_statistics(str(store), split="train", recompute=True)


def test_the_arrays_of_samples_without_recorded_moments_are_read(tmp_path: Path) -> None:
    samples = make_samples(2)
    samples["run_1"]["surface_pressure"][:] = 0  # zarr-python leaves such chunks out
    store = write_published_store(tmp_path / "store", samples)
    statistics = calculate_store_statistics(str(store))
    assert statistics == calculate_store_statistics(str(store), recompute=True)
    pressure = np.concatenate([fields["surface_pressure"] for fields in samples.values()]).astype(np.float64)
    assert statistics["surface_pressure_count"] == len(pressure)
    assert statistics["surface_pressure_mean"] == pytest.approx(pressure.mean(), rel=1e-12)


@pytest.mark.parametrize("recompute", [False, True])
def test_only_some_fields_and_samples(store: Path, recompute: bool) -> None:
    whole = calculate_store_statistics(str(store), sample_ids=["run_1", "run_2"], recompute=recompute)
    some = calculate_store_statistics(
        str(store), limit=2, fields=["surface_pressure", "volume_velocity"], recompute=recompute
    )
    assert some == {key: whole[key] for key in whole if key.startswith(("surface_pressure", "volume_velocity"))}
    without = calculate_store_statistics(str(store), limit=2, exclude_fields=["surface_position"], recompute=recompute)
    assert not any(key.startswith("surface_position") for key in without)
    assert {*whole} - {*without} == {key for key in whole if key.startswith("surface_position")}
    with pytest.raises(UnknownFieldError, match="no field 'surface_presure'"):
        calculate_store_statistics(str(store), fields=["surface_presure"])
    with pytest.raises(ZarrCoreError, match="no field is left"):
        calculate_store_statistics(str(store), fields=["surface_pressure"], exclude_fields=["surface_pressure"])


def test_a_store_does_not_record_statistics_of_some_fields(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(store), "--fields", "surface_pressure", "--limit", "1"]) == 2
    assert "name a file for those of --fields, --limit" in capsys.readouterr().err


def test_an_empty_choice_is_an_error(store: Path) -> None:
    with pytest.raises(ZarrCoreError, match="none of the requested samples"):
        calculate_store_statistics(str(store), sample_ids=[])


def test_command_line_writes_into_the_store(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--store", str(store), "--split", "train"]) == 0
    statistics = calculate_store_statistics(str(store), split="train")
    assert yaml.safe_load((store / "stats.yaml").read_text()) == statistics
    assert json.loads((store / "stats.json").read_text()) == statistics
    assert (store / "stats.yaml").read_text().startswith("# Normalisation statistics of split train")
    first = {name: (store / name).read_bytes() for name in ("stats.yaml", "stats.json")}
    assert main(["--store", str(store), "--split", "train", "--workers", "2", "--read-concurrency", "3"]) == 0
    assert {name: (store / name).read_bytes() for name in first} == first
    assert list(yaml.safe_load(first["stats.yaml"])) == list(json.loads(first["stats.json"])) == list(statistics)
    assert f"wrote {store}/stats.yaml" in capsys.readouterr().out


def counts(store: Path) -> list[int]:
    files = (store / "stats.yaml", store / "stats.json")
    return [yaml.safe_load(file.read_text())["surface_pressure_count"] for file in files]


@pytest.mark.parametrize("moment", ["stats.yaml", "stats.json"])
def test_the_copy_beside_the_manifest_is_of_the_last_commit(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """Another process commits, and records its statistics, just before the first one writes the copy of its own."""
    store = str(tmp_path / "store")
    first = convert(KIND, store, source_url=str(source), sample_ids=["run_1"]).manifest
    write = Storage.write

    def overtaken(self: Storage, name: str, pieces: Iterable[bytes]) -> int:
        if name == moment:
            monkeypatch.setattr(Storage, "write", write)
            second = convert(KIND, store, source_url=str(source), sample_ids=["run_2"]).manifest
            assert f"{store}/stats.yaml" in record_training_statistics(store, second)
        return write(self, name, pieces)

    monkeypatch.setattr(Storage, "write", overtaken)
    record_training_statistics(store, first)
    assert counts(tmp_path / "store") == [70 + 77] * 2


@pytest.mark.parametrize("moment", ["statistics/00000001/train.yaml", "stats.yaml", "stats.json"])
def test_the_next_conversion_finishes_statistics_of_a_killed_one(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    store = str(tmp_path / "store")
    manifest = convert(KIND, store, source_url=str(source), sample_ids=["run_1"]).manifest
    write = Storage.write

    def killed(self: Storage, name: str, pieces: Iterable[bytes]) -> int:
        if name == moment:
            raise KeyboardInterrupt
        return write(self, name, pieces)

    monkeypatch.setattr(Storage, "write", killed)
    with pytest.raises(KeyboardInterrupt):
        record_training_statistics(store, manifest)
    monkeypatch.setattr(Storage, "write", write)
    record_training_statistics(store, manifest)
    assert counts(tmp_path / "store") == [70] * 2
    assert sorted(os.listdir(f"{store}/statistics/00000001")) == ["train.json", "train.yaml"]
    assert record_training_statistics(store, manifest) == []


def test_command_line_writes_to_the_given_files(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    before = {path: path.stat().st_mtime_ns for path in store.glob("stats.*")}
    assert main(["--store", str(store), "--recompute", "--output-json", "stats.json"]) == 0
    assert os.listdir(tmp_path) == ["stats.json"]
    assert {path: path.stat().st_mtime_ns for path in store.glob("stats.*")} == before
    assert_close(json.loads((tmp_path / "stats.json").read_text()), calculate_store_statistics(str(store)))


def test_command_line_explains_itself(tmp_path: Path, store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--store", str(tmp_path / "nothing")]) == 1
    assert main(["--store", str(store), "--split-file", "absent.txt", "--output-json", str(tmp_path / "x")]) == 1
    assert main(["--store", str(store), "--workers", "0"]) == 2
    errors = capsys.readouterr().err
    assert errors.count("error: ") == 3
    assert "Traceback" not in errors


@pytest.mark.parametrize("split", ["all", "a/b"])
def test_a_split_that_cannot_be_a_file_name_is_refused(store: Path, split: str) -> None:
    with pytest.raises(ZarrCoreError, match=f"a split named '{split}' cannot be recorded"):
        write_statistics(str(store), {}, of="a test", split=split, generation=1)


def test_written_numbers_survive_yaml(tmp_path: Path) -> None:
    # YAML 1.1 reads 1e-05 as a string; safe_dump knows, a home-made formatter would not.
    statistics = {"a_mean": 1e-05, "b_mean": [1e300, -0.1, 5e-324], "b_count": 3}
    file = tmp_path / "stats.yaml"
    write_statistics(str(tmp_path), statistics, of="a test", output_yaml=str(file))
    assert yaml.safe_load(file.read_text()) == statistics


values = st.floats(-6e4, 6e4, width=32)
rows = st.lists(st.tuples(values, values, values), min_size=1, max_size=40)


@given(rows=rows, data=st.data())
def test_merging_parts_in_any_order_equals_one_pass(
    rows: list[tuple[float, float, float]], data: st.DataObject
) -> None:
    points = np.array(rows)
    cuts = data.draw(st.lists(st.integers(1, len(points)), max_size=6).map(lambda c: sorted({0, *c, len(points)})))
    parts = [points[start:stop] for start, stop in itertools.pairwise(cuts)]
    order = data.draw(st.permutations(range(len(parts))))
    merged = FieldMoments.of(parts[order[0]])
    for number in order[1:]:
        merged = merged.merge(FieldMoments.of(parts[number]))
    assert merged.count == len(points)
    logs = np.sign(points) * np.log1p(np.abs(points))
    expected = {
        "mean": points.mean(axis=0),
        "m2": ((points - points.mean(axis=0)) ** 2).sum(axis=0),
        "min": points.min(axis=0),
        "max": points.max(axis=0),
        "log_mean": logs.mean(axis=0),
        "log_m2": ((logs - logs.mean(axis=0)) ** 2).sum(axis=0),
    }
    scale = np.abs(points).max() + 1
    for key in MOMENTS:
        power = 2 if key.endswith("m2") else 1
        np.testing.assert_allclose(getattr(merged, key), expected[key], rtol=1e-9, atol=1e-12 * scale**power)


@given(rows=rows)
def test_recorded_moments_come_back(rows: list[tuple[float, float, float]]) -> None:
    moments = FieldMoments.of(np.array(rows))
    back = recorded_moments(json.loads(json.dumps({"moments": {"field": moments.to_json()}})))["field"]
    assert back.count == moments.count
    for key in MOMENTS:
        np.testing.assert_allclose(getattr(back, key), getattr(moments, key), rtol=1e-11)
