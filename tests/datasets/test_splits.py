from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.helpers.described_source import FILES, Source
from tests.helpers.drivaernet_store import CHUNK, drivaernet
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
from zarr_core.datasets.splits import parse_split, take_part
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
    name, parsed = parse_split(f"train[{text}]")
    assert name == "train"
    if isinstance(part, int):
        try:
            expected = [ids[part]]
        except IndexError:
            with pytest.raises(ZarrCoreError, match=f"index {part} is out of range"):
                take_part(ids, parsed)
            return
    else:
        expected = ids[slice(*part)]
    assert take_part(ids, parsed) == expected


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
