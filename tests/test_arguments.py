"""Law: an argument of the wrong type is refused where it enters the library, and the error names it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers.published_store import make_samples, write_published_store
from zarr_core import ZarrChunkReader, build_dataset
from zarr_core.convert import convert
from zarr_core.datasets import ZarrPointDataset
from zarr_core.errors import ZarrCoreError
from zarr_core.points.convert.conversion import iter_convert
from zarr_core.stage import stage_store
from zarr_core.statistics import calculate_store_statistics
from zarr_core.verify import verify_store


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    samples = make_samples(2)
    return write_published_store(tmp_path_factory.mktemp("arguments"), samples, 16, splits={"train": list(samples)})


def refused(message: str, call: Callable[[], Any]) -> None:
    with pytest.raises(ZarrCoreError, match=message):
        call()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_points": 100}, r"num_points must be a mapping such as \{'surface': 4096\}, not 100"),
        ({"num_points": {"surface": "100"}}, r"num_points of 'surface'.*must be a whole number, not '100'"),
        ({"num_points": {"surface": 10.0}}, r"num_points of 'surface'.*must be a whole number, not 10\.0"),
        ({"num_points": {"surface": 0}}, r"num_points of 'surface'.*must be positive, not 0"),
        ({"seed": "a"}, "seed must be a whole number, not 'a'"),
        ({"seed": None}, "seed must be a whole number, not None"),
        ({"epoch": 1.5}, r"epoch must be a whole number, not 1\.5"),
        ({"fields": "surface_pressure"}, r"fields must be a collection of names.*\['surface_pressure'\]"),
        ({"fields": 3}, "fields must be a collection of names, not 3"),
        ({"sample_id": 1}, "sample_id must be a string, not 1"),
        ({"sample_id": ["run_1"]}, r"sample_id must be a string, not \['run_1'\]"),
    ],
)
def test_arguments_of_a_read(store: Path, arguments: dict[str, Any], message: str) -> None:
    reader = ZarrChunkReader(store)
    refused(message, lambda: reader.read_sample(**{"sample_id": "run_1", **arguments}))
    numpy = reader.read_sample("run_1", {"surface": np.int32(4)}, seed=np.int64(1), epoch=np.int64(2))
    plain = reader.read_sample("run_1", {"surface": 4}, seed=1, epoch=2)
    assert all(np.array_equal(numpy[name], plain[name]) for name in plain)


@pytest.mark.parametrize(
    ("generation", "message"),
    [
        (1.5, r"generation must be a whole number, not 1\.5"),
        (True, "generation must be a whole number, not True"),
        ([1], "generation must be a whole number"),
        ("1", "generation='1' is a string; for a generation by number pass 1"),
    ],
)
def test_a_generation_is_a_number_or_a_tag(store: Path, tmp_path: Path, generation: Any, message: str) -> None:
    refused(message, lambda: ZarrChunkReader(store, generation=generation))
    refused(message, lambda: stage_store(store, tmp_path, generation=generation))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"chunk_points": "100"}, "chunk_points must be a whole number, not '100'"),
        ({"shard_points": 2.0}, r"shard_points must be a whole number, not 2\.0"),
        ({"shuffle_seed": None}, "shuffle_seed must be a whole number, not None"),
        ({"field_dtypes": "float32"}, "field_dtypes must be a mapping"),
        ({"field_dtypes": None}, "field_dtypes must be a mapping"),
        ({"workers": "2"}, "workers must be a whole number, not '2'"),
        ({"splits": "train"}, r"splits must be a collection of names; for one name pass \['train'\]"),
        ({"sample_ids": "s0"}, r"sample_ids must be a collection of names; for one name pass \['s0'\]"),
        ({"sample_ids": 5}, "sample_ids must be a collection of names, not 5"),
    ],
)
def test_arguments_of_a_conversion(tmp_path: Path, arguments: dict[str, Any], message: str) -> None:
    (tmp_path / "source").mkdir()
    refused(message, lambda: convert("ahmedml", tmp_path / "store", root=tmp_path / "source", **arguments))
    refused(message, lambda: list(iter_convert("ahmedml", tmp_path / "store", root=tmp_path / "source", **arguments)))
    assert not (tmp_path / "store").exists()


def test_sample_ids_and_workers_of_other_verbs(store: Path, tmp_path: Path) -> None:
    ids = "sample_ids must be a collection of names"
    refused(ids, lambda: verify_store(str(store), sample_ids="run_1"))
    refused(ids, lambda: calculate_store_statistics(str(store), sample_ids="run_1"))
    refused(ids, lambda: stage_store(store, tmp_path, sample_ids="run_1"))
    split = r"split must be the name of one split, not \['train'\]"
    refused(split, lambda: calculate_store_statistics(str(store), split=["train"]))  # type: ignore[arg-type]
    refused(split, lambda: stage_store(store, tmp_path, split=["train"]))  # type: ignore[arg-type]
    workers = "workers must be a whole number, not '2'"
    refused(workers, lambda: verify_store(str(store), workers="2"))  # type: ignore[arg-type]
    refused(workers, lambda: calculate_store_statistics(str(store), workers="2"))  # type: ignore[arg-type]
    refused(workers, lambda: stage_store(store, tmp_path, workers="2"))  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [1.5, [], 0, "much"])
def test_the_size_of_a_cache(store: Path, tmp_path: Path, size: Any) -> None:
    message = "size.*(whole number|positive|with a unit)"
    refused(message, lambda: ZarrChunkReader(store, cache_bytes=size))
    refused(message, lambda: ZarrChunkReader(store, cache_dir=tmp_path, cache_limit=size))


@pytest.mark.parametrize("config", [None, 3, ["train"]])
def test_a_dataset_config_is_a_mapping_or_a_path(config: Any) -> None:
    refused("config must be a mapping or the path of a YAML file", lambda: build_dataset(config))
    refused("config must be a ZarrPointDatasetConfig.*build_dataset", lambda: ZarrPointDataset(config))
