"""Values of a wide matrix for training: imputation, M-values, and what low coverage leaves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from tests.helpers.beta_matrix import FEATURES
from tests.helpers.examples import examples
from tests.helpers.odd_arrays import WithUnit
from zarr_core import MatrixDataset, m_values
from zarr_core.errors import ZarrCoreError
from zarr_core.matrix import WideMatrix


def test_imputation_then_transform(written: tuple[str, np.ndarray]) -> None:
    url, beta = written
    known = [name for name in FEATURES if name != "cg007"]
    train = MatrixDataset(url, [f"b1s{number}" for number in range(5)], known)
    means = train.feature_means()
    np.testing.assert_allclose(means, np.nanmean(np.delete(beta[3:8], 7, axis=1).astype("f8"), axis=0), rtol=1e-6)
    test = MatrixDataset(url, ["b0s0"], known, impute=means, transform=m_values)
    item = test[0]
    filled = np.where(np.isnan(beta[0]), 0, beta[0])[[n for n in range(50) if n != 7]]
    filled = np.where(item["missing"], means, filled)
    inside = np.clip(filled, 0.001, 0.999)
    np.testing.assert_allclose(item["beta"], np.log2(inside / (1 - inside)), rtol=2e-4, atol=1e-4)
    assert item["missing"].any()
    assert not item["beta"].isnan().any()
    # As stored: a pipeline of scikit-learn imputes inside each fold.
    assert np.isnan(test.to_numpy()).sum() == item["missing"].sum()


def test_a_feature_without_a_value_cannot_be_filled_in(written: tuple[str, np.ndarray]) -> None:
    url, _ = written
    means = MatrixDataset(url).feature_means()
    assert np.isnan(means[7])
    with pytest.raises(ZarrCoreError, match="1 features.*cg007"):
        MatrixDataset(url, impute=means)
    with pytest.raises(ZarrCoreError, match="shape"):
        MatrixDataset(url, impute=means[:9])
    assert not MatrixDataset(url, impute=0.5)[0]["beta"].isnan().any()
    filled = np.nan_to_num(means)
    with pytest.raises(ZarrCoreError, match=f"impute is NaN for 1 features .for example {FEATURES[3]}"):
        MatrixDataset(url, impute=np.ma.array(filled, mask=np.arange(len(filled)) == 3))
    table = pytest.importorskip("pandas").Series(filled, FEATURES)
    with pytest.raises(ZarrCoreError, match="impute is a Series with labels such as 'cg.*select them in this order"):
        MatrixDataset(url, impute=table[::-1])
    torch.testing.assert_close(
        MatrixDataset(url, impute=table)[0]["beta"], MatrixDataset(url, impute=filled)[0]["beta"]
    )


def test_numbers_that_a_tensor_does_not_hold_are_refused(tmp_path: Path) -> None:
    matrix = WideMatrix.create(tmp_path / "m", ["a"], {"beta": "float64", "depth": "float64"})
    matrix.append("b", ["s", "t"], {"beta": np.array([[1e300], [0.5]]), "depth": np.array([[1.0], [-2e40]])})
    with pytest.raises(ZarrCoreError, match="beta: float32 does not hold 1e[+]300; .* matrix.read"):
        MatrixDataset(matrix, value="beta")[0]
    with pytest.raises(ZarrCoreError, match="depth: float32 does not hold -2e[+]40"):
        MatrixDataset(matrix, values=["beta", "depth"])[1]
    with pytest.raises(ZarrCoreError, match="impute: float32 does not hold 1e[+]39"):
        MatrixDataset(matrix, value="beta", impute=1e39)
    numbers = {"far": [1e39, None], "array": [203287590025, None], "serial": pa.array([2**64 - 1, 1], pa.uint64())}
    matrix.set_metadata(pa.table({"sample_id": ["s", "t"], **numbers}))
    with pytest.raises(ZarrCoreError, match="column 'far': float32 does not hold 1e[+]39"):
        MatrixDataset(matrix, value="beta", columns=["far"])
    with pytest.raises(ZarrCoreError, match="column 'array': float32 rounds 203287590025, .* some samples have no"):
        MatrixDataset(matrix, value="beta", columns=["array"])
    with pytest.raises(ZarrCoreError, match="column 'serial': int64 does not hold 18446744073709551615"):
        MatrixDataset(matrix, value="beta", columns=["serial"])


def test_m_values_of_masked_betas_are_missing() -> None:
    found = m_values(np.ma.array([0.5, 0.5], mask=[False, True]))
    np.testing.assert_array_equal(found, [0, np.nan])
    assert type(found) is np.ndarray
    with pytest.raises(ZarrCoreError, match="betas: is a WithUnit"):
        m_values(np.ones(2).view(WithUnit))


@given(st.lists(st.floats(-0.01, 1.01), min_size=1), st.sampled_from([0.001, 0.01, 0.1]))
def test_m_values_are_finite_monotonous_and_odd_about_a_half(betas: list[float], offset: float) -> None:
    beta = torch.tensor(sorted(betas), dtype=torch.float64)
    m = m_values(beta, offset)
    assert m.isfinite().all()
    assert (m.diff() >= 0).all()
    torch.testing.assert_close(m_values(1 - beta, offset), -m)
    inside = beta.clamp(offset, 1 - offset)
    torch.testing.assert_close(2**m / (2**m + 1), inside)
    assert m_values(torch.tensor([torch.nan])).isnan().all()
    array = m_values(beta.numpy(), offset)
    assert isinstance(array, np.ndarray)
    np.testing.assert_allclose(array, m.numpy(), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_m_values_take_what_load_returns(dtype: str) -> None:
    betas = np.array([[0.5, 0.8, np.nan], [0, 1, 0.2]], dtype)
    m = m_values(betas)
    assert isinstance(m, np.ndarray)
    assert m.dtype == dtype
    limit = np.log2(999)
    np.testing.assert_allclose(m, [[0, 2, np.nan], [-limit, limit, -2]], rtol=0.02, atol=0.01)


@pytest.mark.parametrize(
    ("betas", "offset", "message"),
    [
        ([0.5], 0.001, "floating-point tensor or NumPy array, not list"),
        (np.array([1, 0]), 0.001, "not int64"),
        (torch.tensor([1, 0]), 0.001, "not torch.int64"),
        (np.array([0.5]), 0, "offset is 0; it must be between 0 and 0.5"),
    ],
)
def test_m_values_of_other_types(betas: Any, offset: float, message: str) -> None:
    with pytest.raises(ZarrCoreError, match=message):
        m_values(betas, offset)


def test_low_coverage_is_missing(tmp_path: Path) -> None:
    matrix, beta, coverage = covered_matrix(tmp_path / "m")
    low = ~(coverage >= 10)
    dataset = MatrixDataset(matrix, values=["beta", "coverage"], min_coverage=10, impute=0.5)
    batch = next(iter(DataLoader(dataset, batch_size=len(matrix.sample_ids))))
    masked = np.where(low, np.nan, beta)
    assert torch.equal(batch["missing"], torch.from_numpy(np.isnan(masked)))
    torch.testing.assert_close(batch["beta"], torch.from_numpy(np.nan_to_num(masked, nan=0.5)))
    torch.testing.assert_close(batch["coverage"], torch.from_numpy(coverage), equal_nan=True)
    np.testing.assert_array_equal(dataset.to_numpy(), masked)
    np.testing.assert_array_equal(dataset.to_memmap(tmp_path / "x.npy"), masked)
    np.testing.assert_allclose(dataset.feature_means()[8:], np.nanmean(masked, axis=0)[8:], rtol=1e-5)
    dataset = MatrixDataset(matrix, min_coverage=10, coverage_mask=True)
    assert torch.equal(dataset[3]["covered"], torch.from_numpy(~low[3]))
    np.testing.assert_array_equal(dataset[3]["beta"].numpy(), beta[3])
    assert set(dataset[3]) == {"beta", "missing", "sample", "covered"}


def covered_matrix(url: Path) -> tuple[WideMatrix, np.ndarray, np.ndarray]:
    matrix = WideMatrix.create(url, FEATURES, shard_rows=2, chunk_features=16, column_chunk=(8, 4))
    random = np.random.default_rng(5)
    beta = random.random((6, len(FEATURES)), dtype="float32")
    coverage = random.integers(0, 40, beta.shape).astype("float32")
    beta[random.random(beta.shape) < 0.1] = np.nan
    coverage[random.random(beta.shape) < 0.1] = np.nan
    matrix.append("a", [f"s{n}" for n in range(6)], {"beta": beta, "coverage": coverage})
    return matrix, beta, coverage


@settings(max_examples=examples(15), deadline=None)
@given(least=st.integers(0, 40), share=st.floats(0, 1), features=st.lists(st.sampled_from(FEATURES), unique=True))
def test_covered_features_are_those_of_numpy(
    tmp_path_factory: pytest.TempPathFactory, least: int, share: float, features: list[str]
) -> None:
    matrix, _, coverage = covered_matrix(tmp_path_factory.mktemp("m"))
    dataset = MatrixDataset(matrix, feature_ids=features or None)
    columns = [FEATURES.index(name) for name in features] or list(range(len(FEATURES)))
    enough = (coverage[:, columns] >= least).sum(axis=0) / 6 >= share
    assert dataset.covered_features(least, share).tolist() == [FEATURES[n] for n in np.array(columns)[enough]]


def test_several_probes_of_a_locus_are_averaged_without_low_coverage(tmp_path: Path) -> None:
    matrix = WideMatrix.create(tmp_path, ["cg1_TC11", "cg1_BC11", "cg2"])
    beta = np.array([[0.2, 0.6, 0.5], [0.2, 0.6, 0.5]], np.float32)
    coverage = np.array([[20, 30, 5], [20, 1, 50]], np.float32)
    matrix.append("a", ["s0", "s1"], {"beta": beta, "coverage": coverage})
    loci = matrix.select(["cg1", "cg2"], stem=True, duplicates="mean")
    dataset = MatrixDataset(matrix, feature_ids=loci, min_coverage=10)
    np.testing.assert_allclose(dataset.to_numpy(), [[0.4, np.nan], [0.2, 0.5]], rtol=1e-6)
    assert dataset.feature_ids.tolist() == ["cg1", "cg2"]
    covered = dataset.covered_features(10)
    np.testing.assert_allclose(MatrixDataset(matrix, feature_ids=covered).to_numpy(), [[0.4], [0.4]], rtol=1e-6)
    second = MatrixDataset(matrix, ["s1"], loci).covered_features(25)
    assert second.feature_ids.tolist() == ["cg2"]
    np.testing.assert_array_equal(MatrixDataset(matrix, feature_ids=second).to_numpy(), [[0.5], [0.5]])
    one_each = matrix.select(["cg1", "cg2"], stem=True, duplicates="first")
    fingerprints = {
        MatrixDataset(matrix, feature_ids=loci).fingerprint,
        MatrixDataset(matrix, feature_ids=one_each).fingerprint,
        dataset.fingerprint,
        MatrixDataset(matrix, feature_ids=loci, values=["beta", "coverage"]).fingerprint,
    }
    assert len(fingerprints) == 4
    assert MatrixDataset(matrix, feature_ids=["cg1_TC11", "cg2"]).fingerprint in fingerprints


def test_features_exactly_at_the_share_are_covered(tmp_path: Path) -> None:
    matrix = WideMatrix.create(tmp_path, ["a"])
    coverage = (np.arange(100) < 55).astype(np.float32)[:, None]
    matrix.append("batch", [f"s{n}" for n in range(100)], {"beta": coverage, "coverage": coverage})
    assert MatrixDataset(matrix).covered_features(1, 0.55).tolist() == ["a"]
    assert MatrixDataset(matrix).covered_features(1, 0.56).tolist() == []
    assert MatrixDataset(matrix, sample_ids=[]).covered_features(1).tolist() == ["a"]
