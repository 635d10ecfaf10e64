from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.helpers.described_source import FILES, Source
from tests.helpers.drivaernet_store import CHUNK, IDS, drivaernet
from tests.helpers.published_store import make_samples, write_published_store
from zarr_core.datasets import (
    ZarrAhmedMLDataset,
    ZarrAhmedMLDatasetConfig,
    ZarrDrivAerMLDataset,
    ZarrDrivAerMLDatasetConfig,
    ZarrDrivAerNetDataset,
    ZarrDrivAerNetDatasetConfig,
    ZarrPointDataset,
    ZarrPointDatasetConfig,
    ZarrShapeNetCarDataset,
    ZarrShapeNetCarDatasetConfig,
)
from zarr_core.datasets.splits import choose_samples, take_share
from zarr_core.errors import UnknownFieldError, ZarrCoreError


@given(
    n=st.integers(0, 12),
    part=st.one_of(
        st.integers(-15, 15),
        st.tuples(*[st.none() | st.integers(-15, 15)] * 2, st.none() | st.integers(-4, 4).filter(bool)),
    ),
)
def test_parts_of_a_split_follow_python_slices(n: int, part: Any) -> None:
    ids = [f"run_{number}" for number in range(n)]
    text = str(part) if isinstance(part, int) else ":".join("" if x is None else str(x) for x in part)
    try:
        expected = [ids[part]] if isinstance(part, int) else ids[slice(*part)]
        error = "selects no sample"
    except IndexError:
        expected, error = [], f"index {part} is out of range"
    listed = {"train": ids}.__getitem__
    if expected:
        assert choose_samples(f"train[{text}]", listed, ids, None, "store") == expected
    else:
        with pytest.raises(ZarrCoreError, match=error):
            choose_samples(f"train[{text}]", listed, ids, None, "store")


@pytest.mark.parametrize(
    "split",
    ["train[", "train]", "train[]", "train[ ]", "train[a]", "train[1:2:3:4]", "train[::0]", "", "t[1][2]"],
)
def test_splits_in_no_known_form_are_refused(split: str) -> None:
    with pytest.raises(ValidationError, match="split"):
        ZarrPointDatasetConfig(root="x", split=split)


def test_a_split_loses_blacklisted_and_absent_samples_with_one_warning(root: Path) -> None:
    with pytest.warns(UserWarning, match=r"1 of 6 samples of split 'train' are absent.*A_B_404") as caught:
        dataset = ZarrDrivAerNetDataset(ZarrDrivAerNetDatasetConfig(root=str(root), split="train"))
    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert dataset.sample_ids == ["A_B_001", "A_B_002", "A_C_001", "A_C_002", "A_B_004"]
    assert len(dataset) == 5
    with pytest.raises(IndexError):
        dataset[5]


@pytest.mark.parametrize(
    ("split", "expected"),
    [
        ("train[0]", ["A_B_001"]),
        ("train[-1]", ["A_B_004"]),
        ("train[:2]", ["A_B_001", "A_B_002"]),
        ("train[0:3:2]", ["A_B_001", "A_B_004"]),
    ],
)
def test_parts_are_taken_after_everything_else(root: Path, split: str, expected: list[str]) -> None:
    assert drivaernet(root, split=split, filter_categories=["A_B"]).sample_ids == expected


def test_an_empty_selection_names_the_reasons(root: Path) -> None:
    with pytest.raises(ZarrCoreError, match=r"'test' lists 1 samples, of which 0 exist"):
        drivaernet(root, split="test")
    with pytest.raises(ZarrCoreError, match=r"0 have a category of A_X \(the categories are: A_B, A_C\)"):
        drivaernet(root, filter_categories=["A_X"])
    with pytest.raises(ZarrCoreError, match=r"'train\[5\]': index 5 is out of range for 5 samples"):
        drivaernet(root, split="train[5]")
    with pytest.raises(ZarrCoreError, match=r"'train\[9:\]' selects no sample"):
        drivaernet(root, split="train[9:]")
    with pytest.raises(UnknownFieldError, match=r"no split 'trian'.*train, val, test"):
        drivaernet(root, split="trian")


def test_a_published_store_without_splits_uses_the_rule_of_its_kind(tmp_path: Path) -> None:
    """AhmedML and DrivAerML are cut from one permutation; the first numbers of it are a fact of the datasets."""
    numbers = (torch.randperm(500, generator=torch.Generator().manual_seed(42)) + 1).tolist()
    made = iter(make_samples(3).values())
    ids = [f"run_{numbers[place]}" for place in (3, 401, 499)]
    store = write_published_store(tmp_path / "caeml", {i: next(made) for i in ids}, CHUNK)
    with pytest.warns(UserWarning, match="399 of 400"):
        assert ZarrAhmedMLDataset(ZarrAhmedMLDatasetConfig(root=str(store), split="train")).sample_ids == ids[:1]
    with pytest.warns(UserWarning, match="49 of 50"):
        assert ZarrAhmedMLDataset(ZarrAhmedMLDatasetConfig(root=str(store), split="test")).sample_ids == ids[2:]
    config = ZarrDrivAerMLDatasetConfig(root=str(store), split="val")
    with pytest.warns(UserWarning, match="33 of 34"):
        assert ZarrDrivAerMLDataset(config).sample_ids == ids[2:]
    with pytest.raises(UnknownFieldError, match="no split 'train'"):
        ZarrPointDataset(ZarrPointDatasetConfig(root=str(store), split="train"))

    cars = {f"param{k}/abc": sample for k, sample in zip((0, 3), make_samples(2).values(), strict=True)}
    store = write_published_store(tmp_path / "cars", cars, CHUNK)
    dataset = ZarrShapeNetCarDataset(ZarrShapeNetCarDatasetConfig(root=str(store), split="test"))
    assert dataset.sample_ids == ["param0/abc"]
    with pytest.raises(UnknownFieldError, match=r"no split 'val'.*train, test"):
        ZarrShapeNetCarDataset(ZarrShapeNetCarDatasetConfig(root=str(store), split="val"))


@pytest.mark.parametrize("split", ["train-a", "fold 1", "2024.1"])
def test_a_split_of_any_name_can_be_opened(tmp_path: Path, split: str) -> None:
    source = Source(tmp_path)
    source.write("s1", "s2")
    (source.root / f"{split}_design_ids.txt").write_text("s2\n")
    rule = {"rule": "files", "names": [split]}
    document = {"name": "bodies", "samples": "*", "files": FILES, "splits": rule}
    source.kind.write_text(json.dumps(document))
    source.convert()
    config = {"kind": "zarr_core.datasets.ZarrPointDataset", "root": str(source.store)}
    for name in (split, f"{split}[0]", f"{split}[:1]"):
        assert ZarrPointDataset(ZarrPointDatasetConfig(**config, split=name)).sample_ids == ["s2"]


@pytest.fixture(scope="module")
def without_splits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_published_store(tmp_path_factory.mktemp("none"), make_samples(40), CHUNK)


def point(store: Path, **settings: Any) -> list[str]:
    return ZarrPointDataset(ZarrPointDatasetConfig(root=str(store), **settings)).sample_ids


@pytest.mark.slow
def test_a_store_without_splits_says_how_to_choose_its_samples(without_splits: Path) -> None:
    with pytest.raises(
        UnknownFieldError, match="no split 'train': it has no splits.*split: all.*sample_ids.*splits: {"
    ):
        point(without_splits, split="train")


def test_all_samples_are_those_that_no_blacklist_excludes(without_splits: Path, root: Path) -> None:
    every = point(without_splits, split="all")
    assert len(every) == 40
    assert point(without_splits, split="all[:3]") == every[:3]
    assert point(root, split="all") == [name for name in point(root, sample_ids=IDS) if name != "A_B_003"]


def test_listed_samples_come_in_their_order(without_splits: Path) -> None:
    config = ZarrPointDatasetConfig(root=str(without_splits), sample_ids=["run_3", "run_1"])
    dataset = ZarrPointDataset(config)
    assert dataset.sample_ids == ["run_3", "run_1"]
    assert dataset.lineage["zarr_core.split"] == "sample_ids"
    assert "sample_ids" in repr(dataset)
    other = ZarrPointDataset(ZarrPointDatasetConfig(root=str(without_splits), sample_ids=["run_1", "run_3"]))
    assert dataset.fingerprint != other.fingerprint
    with pytest.raises(UnknownFieldError, match="holds no sample 'run_99'"):
        point(without_splits, sample_ids=["run_99"])


def test_shares_divide_the_samples_by_id_and_seed(without_splits: Path) -> None:
    shares = {"train": 0.6, "val": 0.2, "test": 0.2}
    parts = {name: point(without_splits, split=name, splits=shares) for name in shares}
    every = point(without_splits, split="all")
    assert sorted(itertools.chain.from_iterable(parts.values())) == sorted(every)
    assert 15 <= len(parts["train"]) <= 33
    assert [name for name in every if name in parts["train"]] == parts["train"]
    assert point(without_splits, split="train", splits={**shares, "seed": 1}) != parts["train"]
    assert point(without_splits, split="train[:2]", splits=shares) == parts["train"][:2]
    for name in shares:
        assert point(without_splits, split=name, splits=dict(sorted(shares.items()))) == parts[name], "in any order"
    fewer = {name: take_share(every[::3], shares, name) for name in shares}
    assert all(set(fewer[name]) <= set(parts[name]) for name in shares), "arrivals change no split"
    # A run is resumed on the same samples in every later version.
    assert point(without_splits, split="val", splits=shares)[:3] == ["run_7", "run_8", "run_16"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"split": "train", "splits": {"train": 0.9, "val": 0.2}}, "shares add up to 1.1"),
        ({"split": "train", "splits": {"train": 0}}, "shares add up to 0"),
        ({"split": "dev", "splits": {"train": 0.9, "val": 0.1}}, "split 'dev' is not one of splits: train, val"),
        ({"split": "train", "splits": {"train": 0.9, "seed": 0.5}}, "seed must be a whole number"),
        ({"split": "train", "sample_ids": ["a"]}, "split and sample_ids both"),
        ({"sample_ids": ["a", "a"]}, "names a sample twice"),
        ({"sample_ids": ["a"], "splits": {"train": 0.5}}, "splits needs split"),
    ],
)
def test_samples_that_cannot_be_chosen_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        ZarrPointDatasetConfig(root="x", **settings)


def test_shares_without_a_sample_and_of_a_store_with_splits_are_refused(without_splits: Path, root: Path) -> None:
    with pytest.raises(ZarrCoreError, match="none of 40 samples falls into 'val', whose share is 1e-06; take another"):
        point(without_splits, split="val", splits={"train": 0.9, "val": 1e-6})
    with pytest.raises(ZarrCoreError, match=r"has splits of its own \(train, val, test\).*train\[:80\]"):
        point(root, split="val", splits={"train": 0.8, "val": 0.2})
