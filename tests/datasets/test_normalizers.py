from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.helpers.drivaernet_store import CHUNK, IDS, NORMALIZERS, drivaernet
from tests.helpers.published_store import make_samples, write_published_store
from zarr_core.datasets import (
    ZarrPointDataset,
    ZarrPointDatasetConfig,
)
from zarr_core.errors import UnknownFieldError, ZarrCoreError
from zarr_core.points.reader import ZarrChunkReader


def test_normalizers_use_the_statistics_and_have_an_inverse(root: Path, samples: dict[str, Any]) -> None:
    plain = drivaernet(root, num_geometry_points=9)
    normal = drivaernet(root, num_geometry_points=9, normalizers=NORMALIZERS)
    for index in range(len(plain)):
        raw, item = plain[index], normal[index]
        position = 1000 * (raw["surface_position"].double() + 3) / 143
        torch.testing.assert_close(item["surface_position"], position.float())
        torch.testing.assert_close(item["volume_position"], ((raw["volume_position"].double() + 3) / 143).float())
        geometry = 1000 * (raw["geometry_position"].double() + 3) / 143
        torch.testing.assert_close(item["geometry_position"], geometry.float())
        assert torch.equal(item["volume_pressure"], raw["volume_pressure"])
        for name, tensor in item.items():
            assert tensor.dtype == torch.float32
            assert tensor.shape == raw[name].shape
            torch.testing.assert_close(normal.denormalize(name, tensor), raw[name], rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("field", ["surface_pressure", "surface_velocity", "volume_velocity"])
def test_normalised_values_have_mean_0_and_deviation_1(tmp_path: Path, root: Path, field: str) -> None:
    dataset = drivaernet(root, normalizers=NORMALIZERS)
    # The statistics are of all samples; blacklisted A_B_003 is among them.
    reader = ZarrChunkReader(root)
    normalizer = dataset._normalizers[field]
    values = torch.cat([torch.from_numpy(reader.read_sample(i)[field].astype(np.float64)) for i in IDS])
    normal = normalizer.normalize(values)
    torch.testing.assert_close(normal.mean(0), torch.zeros(values.shape[1], dtype=torch.float64), atol=1e-9, rtol=0)
    torch.testing.assert_close(normal.std(0), torch.ones(values.shape[1], dtype=torch.float64))


def test_denormalize_takes_predictions_as_they_come(root: Path) -> None:
    dataset = drivaernet(root, split="val", normalizers=NORMALIZERS)
    flat = torch.randn(5, requires_grad=True)
    physical = dataset.denormalize("surface_pressure", flat)
    physical.sum().backward()
    assert flat.grad is not None
    assert (flat.grad > 0).all()
    assert torch.equal(dataset.denormalize("surface_pressure", flat.reshape(1, 5, 1)).flatten(), physical)
    half = dataset.denormalize("volume_velocity", torch.zeros(2, 4, 3, dtype=torch.bfloat16))
    exact = dataset.denormalize("volume_velocity", torch.zeros(2, 4, 3))
    assert half.dtype == torch.float32
    assert torch.equal(half, exact)
    with pytest.raises(ZarrCoreError, match=r"surface_velocity.*\(4, 1\).*3"):
        dataset.denormalize("surface_velocity", torch.zeros(4, 1))
    with pytest.raises(UnknownFieldError, match="wake_pressure"):
        dataset.denormalize("wake_pressure", flat)


def test_a_constant_field_is_shifted_only(tmp_path: Path) -> None:
    sample = make_samples(1)["run_1"]
    sample["surface_velocity"] = np.full((51, 3), 8.0, np.float16)
    store = write_published_store(tmp_path, {"run_1": sample}, CHUNK, splits={"train": ["run_1"]})
    (store / "stats.yaml").write_text(
        "surface_velocity_mean: [8, 8.000001, 7]\nsurface_velocity_std: [0, 1.0e-9, 0.5]\n"
    )
    config = ZarrPointDatasetConfig(root=str(store), split="train", normalizers={"surface_velocity": "mean_std"})
    dataset = ZarrPointDataset(config)
    values = dataset[0]["surface_velocity"]
    torch.testing.assert_close(values, torch.tensor([0.0, 0.0, 2.0]).expand(51, 3), atol=1e-5, rtol=0)
    torch.testing.assert_close(dataset.denormalize("surface_velocity", values), torch.full((51, 3), 8.0))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"no stats\.yaml.*`zarr-core statistics .* --split train`"),
        ("surface_pressure_mean: 1.0\n", r"no 'surface_pressure_std'.*zarr-core statistics"),
        ("surface_pressure_mean: .nan\nsurface_pressure_std: 1.0\n", "surface_pressure_mean is nan"),
        ("surface_pressure_mean: abc\nsurface_pressure_std: 1.0\n", "surface_pressure_mean is 'abc'"),
        ("surface_pressure_mean: [1.0, 2.0]\nsurface_pressure_std: 1.0\n", "has 2 components, surface_pressure has 1"),
        ("{", "is not valid YAML"),
        ("- 1\n", "is not a mapping"),
    ],
)
def test_unusable_statistics_are_named(tmp_path: Path, content: str | None, message: str) -> None:
    store = write_published_store(tmp_path, make_samples(1), CHUNK, splits={"train": ["run_1"]})
    if content is not None:
        (store / "stats.yaml").write_text(content)
    with pytest.raises(ZarrCoreError, match=message):
        ZarrPointDataset(
            ZarrPointDatasetConfig(root=str(store), split="train", normalizers={"surface_pressure": "mean_std"})
        )
