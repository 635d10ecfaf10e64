"""Mixtures of stores: what a batch consists of, new points for repetitions, masks, statistics, and resumed runs."""

from __future__ import annotations

import copy
import pickle
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, DataLoader, Subset, default_collate

from tests.helpers.published_store import make_samples, write_published_store
from zarr_core import write_sample
from zarr_core._util.repeated import Repeated
from zarr_core.datasets import MixedDataset, ZarrPointDataset, build_dataset
from zarr_core.errors import UnknownFieldError, ZarrCoreError
from zarr_core.loader import EpochBatchSampler, ResumableLoader, ZarrIterableDataset
from zarr_core.points.read import selection as reading

STATISTICS = "surface_pressure_mean: {}\nsurface_pressure_std: 2.0\n"


@pytest.fixture(scope="module")
def roots(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Two stores of other samples and statistics; b has no volume_velocity."""
    found = {}
    for number, (name, samples) in enumerate((("a", 5), ("b", 3)), start=1):
        made = make_samples(samples, seed=number)
        for fields in made.values():
            fields["volume_pressure"][:, 0] += np.float16(1000 * number)
            if name == "b":
                del fields["volume_velocity"]
        root = write_published_store(
            tmp_path_factory.mktemp(name), made, 16, splits={"train": list(made)}, dataset_name=name
        )
        (root / "stats.yaml").write_text(STATISTICS.format(float(number)))
        found[name] = str(root)
    return found


def opened(root: str, **settings_: Any) -> ZarrPointDataset:
    config = {"kind": "point", "root": root, "split": "train", "fields": ["volume_pressure", "surface_pressure"]}
    return build_dataset(config | {"num_volume_points": 8, "num_surface_points": 8} | settings_)


def both(roots: dict[str, str], **settings_: Any) -> dict[str, ZarrPointDataset]:
    return {name: opened(root, **settings_) for name, root in roots.items()}


@pytest.fixture
def mixed(roots: dict[str, str]) -> MixedDataset:
    return MixedDataset(both(roots), {"a": 1, "b": 3}, size=16, with_part=True)


def test_a_batch_consists_of_the_items_of_both_stores(roots: dict[str, str], mixed: MixedDataset) -> None:
    mixed.set_epoch(2)
    items = [mixed[index] for index in range(16)]
    (batch,) = DataLoader(mixed, batch_size=16)
    for field in ("volume_pressure", "surface_pressure", "part"):
        assert torch.equal(batch[field], torch.stack([item[field] for item in items]))
    assert batch["part"].tolist() == [0] * 4 + [1] * 12
    assert ((batch["volume_pressure"] > 2000) == (batch["part"] == 1)[:, None]).all()
    alone = opened(roots["b"])
    alone.set_epoch(2)
    assert torch.equal(items[4]["volume_pressure"], alone[0]["volume_pressure"])  # of the first pass over b
    assert len({tuple(item["volume_pressure"].tolist()) for item in items}) == 16  # new points in each repetition
    assert repr(mixed) == "<MixedDataset: 16 samples per epoch, 4 of a, 12 of b>"


@pytest.mark.parametrize("kind", ["the same", "a subset", "opened again", "joined"])
@pytest.mark.parametrize("weights", [None, {"a": 1, "b": 3}])
def test_a_sample_of_two_datasets_has_other_points_in_each(roots: dict[str, str], kind: str, weights: Any) -> None:
    first = opened(roots["a"])
    second: Any = {
        "the same": first,
        "a subset": Subset(first, range(len(first))),
        "opened again": opened(roots["a"]),
        "joined": ConcatDataset([opened(roots["b"]), first]),
    }[kind]
    mixed = MixedDataset({"a": first, "b": second}, weights, size=None if weights is None else 4 * len(second))
    drawn: list[Any] = []
    for epoch in range(8):
        mixed.set_epoch(epoch)
        drawn += [(epoch, *item["volume_pressure"].tolist()) for item in mixed.__getitems__(range(len(mixed)))]
    # A sample has about 130 draws, two of which may be equal by chance.
    assert len(set(drawn)) > 0.9 * len(drawn)


@pytest.mark.parametrize("others", [[1], [0, 0, 1], [0, 1, 1, 1]])
def test_a_sample_of_two_subsets_has_other_points_each_time(roots: dict[str, str], others: list[int]) -> None:
    first = opened(roots["a"])
    mixed = MixedDataset({"a": Subset(first, [0, 1, 1]), "b": Subset(Subset(first, others), range(len(others)))})
    drawn: list[Any] = []
    for epoch in range(8):
        mixed.set_epoch(epoch)
        indices = [Repeated(index, earlier) for earlier in range(3) for index in range(len(mixed))]
        drawn += [(epoch, *item["volume_pressure"].tolist()) for item in mixed.__getitems__(indices)]
    # Two draws may be equal by chance.
    assert len(set(drawn)) > 0.9 * len(drawn)


def test_parts_of_a_dataset_without_common_samples_are_drawn_as_before(roots: dict[str, str]) -> None:
    alone = opened(roots["a"])
    mixed = MixedDataset({"a": Subset(alone, [0]), "b": Subset(alone, [1])})
    mixed.set_epoch(3)
    for index in range(2):
        assert torch.equal(mixed[index]["volume_pressure"], alone[index]["volume_pressure"])


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_a_run_resumes_in_the_middle_with_workers(mixed: MixedDataset, workers: int) -> None:
    options: dict[str, Any] = {"num_workers": workers}
    if workers:
        options |= {"multiprocessing_context": "fork", "persistent_workers": True}

    def run(loader: Any) -> Iterator[list[Any]]:
        for epoch in range(loader.epoch, 3):
            loader.set_epoch(epoch)
            for batch in loader:
                yield [batch["part"].tolist(), batch["volume_pressure"].tolist()]

    def loader() -> Any:
        own = copy.deepcopy(mixed)
        return ResumableLoader(own, EpochBatchSampler.of(own, 4, seed=3), **options)

    undisturbed = list(run(loader()))
    assert len(undisturbed) == 12
    begun = loader()
    batches = run(begun)
    head = [next(batches) for _ in range(6)]
    state = pickle.loads(pickle.dumps(begun.state_dict()))
    resumed = loader()
    resumed.load_state_dict(state)
    assert head + list(run(resumed)) == undisturbed
    samples = ZarrIterableDataset(copy.deepcopy(mixed), batch_size=4, seed=3)
    samples.set_epoch(0)
    streamed = [[b["part"].tolist(), b["volume_pressure"].tolist()] for b in DataLoader(samples, batch_size=4)]
    assert streamed == undisturbed[:4]


def test_a_state_of_another_mixture_is_refused_by_name(roots: dict[str, str], mixed: MixedDataset) -> None:
    state = EpochBatchSampler.of(mixed, 4).state_dict()
    assert "mixture of 4 of a [a, split train" in mixed.fingerprint
    for other, named in (
        (MixedDataset(both(roots), {"a": 1, "b": 1}, size=16), "8 of a"),
        (MixedDataset(both(roots), {"a": 1, "b": 3}, size=16, seed=1), "seed 1"),
        (MixedDataset(both(roots, fields=["volume_pressure"]), {"a": 1, "b": 3}, size=16), "1 fields"),
    ):
        with pytest.raises(ZarrCoreError, match=rf"other data: \[mixture of 4 of a.*, not \[mixture of .*{named}"):
            EpochBatchSampler.of(other, 4).load_state_dict(state)
    assert mixed.lineage["zarr_core.b.store"] == roots["b"]
    assert mixed.lineage["zarr_core.b.samples_per_epoch"] == "12"
    assert mixed.lineage["zarr_core.fingerprint"] == mixed.fingerprint


def test_epochs_reach_wrapped_datasets_and_nobody_else_sets_them(roots: dict[str, str]) -> None:
    a, b = both(roots).values()
    mixed = MixedDataset({"a": Subset(a, [0, 0, 1]), "b": ConcatDataset([b])}, {"a": 1, "b": 4}, size=15)
    loader = ResumableLoader(mixed, EpochBatchSampler.of(mixed, 15))
    loader.set_epoch(4)
    (batch,) = loader
    assert a.epoch == b.epoch == mixed.epoch == 4
    assert len({tuple(points) for points in batch["volume_pressure"].tolist()}) == 15
    a.set_epoch(5)
    with pytest.raises(ZarrCoreError, match="epoch of the ZarrPointDataset was set to 5 while epoch 4 was read"):
        mixed[0]


def test_fields_that_only_one_store_has_are_named_or_masked(roots: dict[str, str]) -> None:
    with pytest.raises(UnknownFieldError, match=r"b has no volume_velocity\. Read what all have, with `fields` \(of "):
        MixedDataset(both(roots, fields=None))
    with pytest.raises(UnknownFieldError, match=r"\(of surface_position, .*, volume_pressure\), or mask"):
        MixedDataset(both(roots, fields=None, with_sample_id=True, with_index=True))
    mixed = MixedDataset(both(roots, fields=None), missing_fields="mask")
    (batch,) = DataLoader(mixed, batch_size=8)
    assert batch["volume_velocity_missing"].tolist() == [False] * 5 + [True] * 3
    assert batch["volume_velocity"].shape == (8, 8, 3)
    assert torch.equal(batch["volume_velocity"].isnan().all(-1).all(-1), batch["volume_velocity_missing"])
    assert not batch["volume_velocity"][:5].isnan().any()
    (only_a,) = DataLoader(Subset(mixed, [0, 1]), batch_size=2)
    assert only_a.keys() == batch.keys()
    assert mixed[7].keys() == batch.keys()
    assert torch.equal(mixed[7]["volume_velocity_missing"], torch.tensor(True))


@pytest.mark.parametrize("collate", ["pad", "concat", "list"])
def test_a_masked_field_has_the_points_of_its_sample(tmp_path: Path, collate: str) -> None:
    stores: dict[str, ZarrPointDataset] = {}
    for name, sizes in {"a": (20, 23), "b": (25, 3)}.items():
        for number, size in enumerate(sizes):
            fields = {"surface_position": np.ones((size, 3)), f"surface_{name}": np.arange(size)}
            write_sample(tmp_path / name, f"{name}_{number}", fields, split="train", parameters={"surface_area": [1.0]})
        config = {"kind": "point", "root": str(tmp_path / name), "split": "train", "collate": collate}
        stores[name] = build_dataset(config | {"parameters": ["surface_area"] if name == "b" else []})
    mixed = MixedDataset(stores, missing_fields="mask")
    for place, size in enumerate((20, 23, 25, 3)):
        assert mixed[place]["surface_a"].shape == mixed[place]["surface_b"].shape == (size,)
        assert mixed[place]["surface_area"].shape == (1,)
    (batch,) = DataLoader(Subset(mixed, [2, 3, 0, 1]), batch_size=4)
    if collate == "pad":
        assert torch.equal(batch["surface_a"][:2].isnan(), batch["surface_mask"][:2])
        assert torch.equal(batch["surface_b"][2:].isnan(), batch["surface_mask"][2:])
    if collate == "concat":
        assert torch.equal(batch["surface_a"].isnan(), batch["surface_batch"] < 2)


def test_a_masked_field_of_a_transform_has_the_points_of_its_sample(tmp_path: Path) -> None:
    stores = {}
    for name, size in (("a", 20), ("b", 25)):
        write_sample(tmp_path / name, "run_1", {"surface_position": np.ones((size, 3))}, split="train")
        stores[name] = build_dataset({"kind": "point", "root": str(tmp_path / name), "split": "train"})
    stores["a"] = build_dataset(
        {"kind": "point", "root": str(tmp_path / "a"), "split": "train"}
        | {"transform": lambda item: item | {"surface_distance": item["surface_position"][:, 0]}}
    )
    mixed = MixedDataset(stores, missing_fields="mask")
    assert [mixed[place]["surface_distance"].shape for place in (0, 1)] == [(20,), (25,)]


def test_a_masked_field_with_a_key_of_its_own_has_the_points_of_its_sample(tmp_path: Path) -> None:
    stores = {}
    for name, size, keys in (("a", 20, {"x": "surface_position", "f": "surface_pressure"}), ("b", 25, {})):
        fields = {"surface_position": np.ones((size, 3)), "surface_pressure": np.ones(size)}
        write_sample(tmp_path / name, "run_1", fields, split="train")
        config = {"kind": "point", "root": str(tmp_path / name), "split": "train", "collate": "pad"}
        stores[name] = build_dataset(config | {"item": keys or {"x": "surface_position"}})
    batch = next(iter(DataLoader(MixedDataset(stores, missing_fields="mask"), batch_size=2)))
    assert batch["f"].shape == batch["x"].shape[:2] == (2, 25)
    assert torch.equal(batch["f_lengths"], torch.tensor([20, 25]))


def test_statistics_are_those_of_each_store_or_common(roots: dict[str, str]) -> None:
    scaled = {"normalizers": {"surface_pressure": "mean_std"}}

    def first(mixed: MixedDataset) -> list[Tensor]:
        mixed.set_epoch(0)
        return [mixed[place]["surface_pressure"] for place in (0, 5)]

    raw = first(MixedDataset(both(roots)))
    own = first(MixedDataset(both(roots, **scaled)))
    common = first(MixedDataset(both(roots, **scaled, statistics=f"{roots['a']}/stats.yaml")))
    for number in (0, 1):
        torch.testing.assert_close(own[number], (raw[number] - (number + 1)) / 2)
        torch.testing.assert_close(common[number], (raw[number] - 1) / 2)
    stored = {
        name: opened(root, dtype=dtype, **scaled, fields=["surface_position", "surface_pressure"])
        for (name, root), dtype in zip(roots.items(), ("stored", "float32"), strict=True)
    }
    with pytest.raises(ZarrCoreError, match="give .* dtype"):
        MixedDataset(stored)
    with pytest.raises(ZarrCoreError, match="surface_pressure is normalized in a and not in b"):
        MixedDataset({"a": opened(roots["a"], **scaled), "b": opened(roots["b"])})


@pytest.mark.parametrize("wrapped", [lambda dataset: Subset(dataset, [0]), lambda dataset: ConcatDataset([dataset])])
def test_normalizers_are_compared_within_wrappers(roots: dict[str, str], wrapped: Callable[[Any], Any]) -> None:
    scaled, raw = opened(roots["a"], normalizers={"surface_pressure": "mean_std"}), opened(roots["b"])
    with pytest.raises(ZarrCoreError, match="surface_pressure is normalized in a and not in b"):
        MixedDataset({"a": wrapped(scaled), "b": wrapped(raw)})
    assert len(MixedDataset({"a": wrapped(scaled), "b": scaled})) > 5


@pytest.mark.parametrize("dtype", ["float32", "stored"])
@pytest.mark.parametrize("normalizers", [{}, {"surface_pressure": "mean_std"}])
@pytest.mark.parametrize("common", [True, False])
@pytest.mark.parametrize("subsets", [True, False])
def test_a_batch_read_together_equals_those_of_the_datasets(
    roots: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    dtype: str,
    normalizers: dict[str, str],
    common: bool,
    subsets: bool,
) -> None:
    shared = {"statistics": f"{roots['a']}/stats.yaml"} if common else {}
    fields = ["volume_position", "volume_pressure", "surface_pressure"]
    datasets: dict[str, Any] = both(roots, dtype=dtype, normalizers=normalizers, fields=fields, **shared)
    if subsets:  # one of them of a subset, with a sample that occurs twice
        datasets = {"a": Subset(Subset(datasets["a"], [4, 2, 0]), [1, 0, 1]), "b": Subset(datasets["b"], [2, 0])}
    mixed = MixedDataset(datasets, {"a": 1, "b": 1}, size=20, with_part=True)
    mixed.set_epoch(3)
    order = [0, 19, 4, 15, 2, 11, 9]
    together_ = mixed.__getitems__(order)
    monkeypatch.setattr(ZarrPointDataset, "__getitems__", lambda *_: pytest.fail("read by itself"))
    assert mixed.__getitems__(order) is not None
    monkeypatch.undo()
    monkeypatch.setattr(mixed, "_joined", None)
    apart = default_collate(mixed.__getitems__(order))
    assert together_.tensors.keys() == apart.keys()
    for field, values in apart.items():
        assert values.dtype == together_.tensors[field].dtype
        assert torch.equal(values, together_.tensors[field])
    assert [item["part"].item() for item in together_] == [0, 1, 0, 1, 0, 1, 0]


def test_points_from_memory_maps_are_in_the_place_of_their_sample(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    datasets = {}
    for number, name in enumerate("ab"):
        for sample in range(3):
            arrays = {"surface_position": np.random.default_rng(10 * number + sample).normal(size=(64, 3))}
            write_sample(tmp_path / name, f"case_{sample}", arrays, chunk_points=16, codec="none")
        config = {"kind": "point", "root": str(tmp_path / name), "split": "all", "num_surface_points": 8}
        datasets[name] = build_dataset(config)
    mixed = MixedDataset(datasets)
    joined: list[int] = []
    join = reading.join_pieces

    def counting(pieces: Any, out: Any) -> None:
        joined.append(len(pieces))
        join(pieces, out)

    monkeypatch.setattr(reading, "join_pieces", counting)
    order = [0, 3, 1, 5, 4, 2]
    for epoch in [*range(20), *range(20)]:
        mixed.set_epoch(epoch)
        tensors = mixed.__getitems__(order).tensors
        of_mixture = joined[-1:]
        for place, index in enumerate(order):
            expected = datasets["ab"[index // 3]][index % 3]["surface_position"]
            assert torch.equal(tensors["surface_position"][place], expected)
    assert of_mixture == [len(order)], "one copy per field, once all chunks were read"


def test_items_are_those_of_each_dataset(roots: dict[str, str]) -> None:
    asked = {"item": {"x": ["volume_pressure", "volume_position"], "id": "sample_id"}, "with_sample_id": True}
    mixed = MixedDataset(both(roots, fields=["volume_pressure", "volume_position"], **asked), with_part=True)
    mixed.set_epoch(0)
    (batch,) = DataLoader(mixed, batch_size=8)
    assert batch["id"] == [f"run_{number}" for number in (1, 2, 3, 4, 5, 1, 2, 3)]
    assert batch["x"].shape == (8, 8, 4)
    assert torch.equal(batch["x"][6], mixed[6]["x"])
    assert mixed[6]["id"] == "run_2"
    unequal = MixedDataset(both(roots, num_volume_points=None, collate="pad"), with_part=True)
    (batch,) = DataLoader(unequal, batch_size=8)
    assert batch["volume_lengths"].tolist() == [131, 132, 133, 134, 135, 131, 132, 133]
    assert batch["part"].tolist() == [0] * 5 + [1] * 3


def test_the_documented_mixture_runs(roots: dict[str, str]) -> None:
    text = (Path(__file__).parents[2] / "docs" / "training.md").read_text()
    (block,) = [part for part in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "MixedDataset(" in part]
    run: dict[str, Any] = {}
    exec(block.replace("/data/cars", roots["a"]).replace("/data/wings", roots["b"]), run)
    assert run["mixed"].counts == {"cars": 6, "wings": 2}
    assert len(list(run["loader"])) == 2
    assert run["wings"].normalizers == run["cars"].normalizers
    plain = build_dataset(run["common"] | {"root": roots["b"], "normalizers": {}})
    for dataset in (plain, run["wings"]):
        dataset.set_epoch(0)
    physical = run["cars"].denormalize("surface_pressure", run["wings"][0]["surface_pressure"])
    torch.testing.assert_close(physical, plain[0]["surface_pressure"])


def test_opening_a_mixture_draws_nothing(roots: dict[str, str]) -> None:
    torch.manual_seed(1)
    expected = torch.rand(())
    torch.manual_seed(1)
    MixedDataset(both(roots))
    assert torch.rand(()) == expected


def test_mixed_dtypes_and_shapes_are_named(roots: dict[str, str]) -> None:
    a = opened(roots["a"])
    with pytest.raises(ZarrCoreError, match="volume_pressure is float32, 1 axes in a and float16, 1 axes in b"):
        MixedDataset({"a": a, "b": opened(roots["b"], dtype="stored")})
    with pytest.raises(ZarrCoreError, match="1 axes in a and float32, 2 axes, 1 components in b"):
        MixedDataset({"a": a, "b": opened(roots["b"], scalar_axis=True)})
    mixed = MixedDataset({"a": a, "b": opened(roots["b"], num_volume_points=9)})
    with pytest.raises(ZarrCoreError, match=r"volume_pressure: items of shapes \(8,\), \(9,\) cannot be stacked"):
        next(iter(DataLoader(mixed, batch_size=8)))


def test_datasets_that_are_collated_in_several_ways_are_refused(roots: dict[str, str]) -> None:
    padded = opened(roots["a"], collate="pad")
    for way in (None, "concat"):
        with pytest.raises(ZarrCoreError, match=f"one collate, not {{'a': 'pad', 'b': '?{way}'?}}"):
            MixedDataset({"a": padded, "b": Subset(opened(roots["b"], collate=way), [0, 1])})


def test_the_part_of_items_that_are_no_mappings_is_refused(roots: dict[str, str]) -> None:
    datasets = {name: opened(root, transform=lambda item: tuple(item.values())) for name, root in roots.items()}
    with pytest.raises(ZarrCoreError, match="are not mappings and take no field 'part'; leave with_part out"):
        MixedDataset(datasets, with_part=True)
    assert len(MixedDataset(datasets)[0]) == len(MixedDataset(both(roots))[0])
    with pytest.raises(ZarrCoreError, match="with_part must be True or False, not 'no'"):
        MixedDataset(datasets, with_part="no")  # type: ignore[arg-type]
