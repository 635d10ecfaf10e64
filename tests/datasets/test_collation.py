"""Whole samples of different sizes become batches, in training loops and in evaluations on several ranks."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, DataLoader, Subset

from tests.helpers import fork_server
from tests.helpers.drivaernet_store import FIELDS, NORMALIZERS, drivaernet
from tests.helpers.published_store import make_samples, write_published_store
from tests.helpers.unequal import errors_of, evaluate
from zarr_core import Collate, EpochBatchSampler, ResumableLoader, build_dataset
from zarr_core.datasets import Normalizers, collate
from zarr_core.datasets.collation import domain_of
from zarr_core.errors import ZarrCoreError

WAYS = ["pad", "concat", "list"]


def separate(batch: Any, way: str, sizes: dict[str, list[int]]) -> list[dict[str, Tensor]]:
    """The items of a collated batch; checks what was added of each domain."""
    if way == "list":
        return list(batch)
    items: list[dict[str, Tensor]] = [{} for _ in next(iter(sizes.values()))]
    for domain, lengths in sizes.items():
        if way == "pad":
            assert batch[f"{domain}_lengths"].tolist() == lengths
            assert batch[f"{domain}_lengths"].dtype == torch.int64
            assert batch[f"{domain}_mask"].dtype == torch.bool
            assert batch[f"{domain}_mask"].sum(1).tolist() == lengths
        else:
            ptr = batch[f"{domain}_ptr"].tolist()
            assert ptr == [0, *torch.tensor(lengths).cumsum(0).tolist()]
            assert batch[f"{domain}_batch"].bincount().tolist() == lengths
            assert batch[f"{domain}_batch"].diff().min() >= 0
        for field in FIELDS:
            if not field.startswith(domain):
                continue
            for number, item in enumerate(items):
                if way == "pad":
                    item[field] = batch[field][number][batch[f"{domain}_mask"][number]]
                    assert not batch[field][number, lengths[number] :].any(), "zeros"
                else:
                    item[field] = batch[field][ptr[number] : ptr[number + 1]]
    return items


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("given", ["config", "collate_fn"])
def test_whole_samples_are_batches(root: Path, way: str, given: str) -> None:
    settings: dict[str, Any] = {"normalizers": NORMALIZERS, "with_index": True}
    plain = drivaernet(root, **settings)
    chosen = [plain[i] for i in (0, 2, 1)]
    sizes = {domain: [len(item[f"{domain}_position"]) for item in chosen] for domain in ("surface", "volume")}
    assert len(set(sizes["volume"])) == 3
    if given == "config":
        dataset, options = drivaernet(root, collate=way, **settings), {}
    else:
        dataset, options = plain, {"collate_fn": Collate(way)}
    for loader in (
        DataLoader(Subset(dataset, [0, 2, 1]), 3, **options),
        DataLoader(Subset(dataset, [0, 2, 1]), 3, num_workers=1, **options),
        DataLoader(ConcatDataset([Subset(dataset, [0, 2, 1])]), 3, **options),
    ):
        (batch,) = loader
        if way != "list":
            assert batch["index"].tolist() == [0, 2, 1]
        for item, expected in zip(separate(batch, way, sizes), chosen, strict=True):
            for field in FIELDS:
                assert torch.equal(item[field], expected[field])


@pytest.mark.parametrize("way", ["pad", "concat"])
def test_equal_sizes_are_collated_in_the_same_way(root: Path, way: str) -> None:
    dataset = drivaernet(root, num_surface_points=5, num_geometry_points=3, collate=way)
    (batch,) = DataLoader(Subset(dataset, [0, 1]), 2)
    if way == "pad":
        assert batch["surface_pressure"].shape == (2, 5)
        assert batch["surface_lengths"].tolist() == [5, 5]
        assert batch["geometry_mask"].tolist() == [[True] * 3] * 2
    else:
        assert batch["surface_pressure"].shape == (10,)
        assert batch["surface_ptr"].tolist() == [0, 5, 10]
        assert batch["geometry_batch"].tolist() == [0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize("way", ["pad", "concat"])
def test_a_collated_batch_is_normalized_later(root: Path, way: str) -> None:
    one = drivaernet(root, normalizers=NORMALIZERS, collate=way, num_geometry_points=3, with_index=True)
    stored = drivaernet(
        root, normalizers=NORMALIZERS, collate=way, num_geometry_points=3, with_index=True, dtype="stored"
    )
    (expected,) = DataLoader(Subset(one, [0, 1]), 2)
    (batch,) = DataLoader(Subset(stored, [0, 1]), 2)
    for normalized in (stored.normalize(batch), Normalizers(stored.normalizers).normalize(batch)):
        assert normalized.keys() == expected.keys()
        for name, values in normalized.items():
            assert values.dtype == expected[name].dtype
            torch.testing.assert_close(values, expected[name], msg=name)  # also where it was padded
    for name, values in Normalizers(stored.normalizers).inverse(expected).items():
        torch.testing.assert_close(values, batch[name].to(values.dtype), rtol=1e-4, atol=1e-4, msg=name)


def test_values_that_are_no_points_are_stacked() -> None:
    items = [
        {
            "surface_position": torch.ones(n, 3),
            "drag": torch.tensor(0.1 * n),
            "inflow": torch.ones(3),
            "name": f"run_{n}",
        }
        for n in (2, 3)
    ]
    batch = pickle.loads(pickle.dumps(Collate("concat", per_sample=["inflow"])))(items)
    assert batch["inflow"].shape == (2, 3)
    assert batch["drag"].shape == (2,)
    assert batch["name"] == ["run_2", "run_3"]
    assert list(batch) == ["surface_position", "surface_batch", "surface_ptr", "drag", "inflow", "name"]


def test_edges_of_unequal_graphs_are_a_domain_of_their_own() -> None:
    items = [{"surface_position": torch.ones(n, 3), "edges": torch.full((2 * n, 2), n - 1)} for n in (3, 5)]
    batch: Any = Collate("concat")(items)
    assert batch["edges_ptr"].tolist() == [0, 6, 16]
    shifted = batch["edges"] + batch["surface_ptr"][batch["edges_batch"]][:, None]
    assert shifted.unique().tolist() == [2, 3 + 4]  # the last points of both


@pytest.mark.parametrize("way", ["pad", "concat"])
def test_arrays_are_collated_as_tensors(way: str) -> None:
    items = [{"surface_position": torch.ones(n, 3), "surface_neighbours": np.full((n, 2), n)} for n in (3, 5)]
    batch = Collate(way)(items)
    assert isinstance(items[0]["surface_neighbours"], np.ndarray)
    assert batch["surface_neighbours"].shape == (*batch["surface_position"].shape[:-1], 2)
    assert set(batch["surface_neighbours"].unique().tolist()) - {0} == {3, 5}


def test_the_domain_of_a_field() -> None:
    fields = ["surface_position", "surface_stl_position", "surface_stl_normals", "volume_pressure"]
    domains = [domain_of(field, fields) for field in fields]
    assert domains == ["surface", "surface_stl", "surface_stl", "volume"]
    assert domain_of("x", ["x"]) == "x"


def test_types_of_all_items_fit_into_the_batch() -> None:
    items = [{"p_q": torch.ones(2, dtype=torch.float16)}, {"p_q": torch.ones(3, dtype=torch.float32)}]
    for way in ("pad", "concat"):
        assert Collate(way)(items)["p_q"].dtype == torch.float32


def test_what_cannot_be_collated_is_named() -> None:
    with pytest.raises(ZarrCoreError, match="collate must be one of pad, concat, list, not 'stack'"):
        Collate("stack")  # type: ignore[arg-type]
    with pytest.raises(ZarrCoreError, match=r"collate.*'pad', 'concat' or 'list'"):
        build_dataset({"kind": "point", "root": "/nowhere", "split": "train", "collate": "stack"})
    for function in (Collate("pad"), Collate("concat"), collate):
        with pytest.raises(ZarrCoreError, match="a batch has no items"):
            function([])
    one = {"surface_position": torch.ones(2, 3), "sample_id": "run_1"}
    with pytest.raises(ZarrCoreError, match="run_1: fields of the domain 'surface' differ.*surface_p 3.*per_sample"):
        Collate("pad")([one | {"surface_p": torch.ones(3)}])
    with pytest.raises(ZarrCoreError, match="surface_mask is a field of the items.*excluded_properties"):
        Collate("pad")([one | {"surface_mask": torch.ones(2)}])
    edges = [one | {"edges": torch.ones(2, n)} for n in (5, 6)]
    shapes = r"edges: items of shapes \(2, 5\) \(run_1\), \(2, 6\) \(run_1\) cannot be"
    with pytest.raises(ZarrCoreError, match=rf"{shapes} stacked; leave what has points of its own out of per_sample"):
        Collate("concat", per_sample=["edges"])(edges)
    with pytest.raises(ZarrCoreError, match=rf"{shapes} joined along their first axis.*edges are \(edges, 2\)"):
        Collate("concat")(edges)
    with pytest.raises(ZarrCoreError, match="surface_p: 1 of the 2 items of a batch have no such field"):
        Collate("concat")([one, one | {"surface_p": torch.ones(2)}])


def test_samples_that_cannot_be_stacked_are_named(root: Path) -> None:
    dataset = drivaernet(root)
    wrong = (
        r"surface_position: items of shapes \(51, 3\) \(A_B_001\), \(52, 3\) \(A_B_002\).*collate: pad, concat or list"
    )
    for given in (dataset, ConcatDataset([dataset])):
        with pytest.raises(ZarrCoreError, match=wrong):
            next(iter(DataLoader(given, 2)))


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = make_samples(3)
    return write_published_store(tmp_path_factory.mktemp("three"), made, 16, splits={"train": list(made)})


@pytest.mark.parametrize("way", WAYS)
def test_two_ranks_evaluate_each_sample_once_as_one_rank_does(three: Path, tmp_path: Path, way: str) -> None:
    expected = errors_of(three, way)
    assert [index for index, _ in expected] == [0, 1, 2]
    ranks = [fork_server.start(evaluate, three, tmp_path, way, rank) for rank in range(2)]
    for rank in ranks:
        rank.join()
    assert [rank.exitcode for rank in ranks] == [0, 0]
    found = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(2)]
    seen = [tuple(error) for rank in found for error in rank["errors"]]
    assert sorted(seen) == expected
    mean = sum(error for _, error in expected) / 3
    assert [rank["mean"] for rank in found] == pytest.approx([mean, mean], rel=1e-12)


def test_too_few_samples_for_the_ranks_are_an_error_before_training(
    three: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "4")
    dataset = build_dataset({"kind": "point", "root": str(three), "split": "train", "collate": "pad"})
    sampler = EpochBatchSampler.of(dataset, 8, evaluation=True)
    with pytest.raises(ZarrCoreError, match="evaluating 3 samples.*each of 4 ranks needs a sample.*Use fewer ranks"):
        ResumableLoader(dataset, sampler)
