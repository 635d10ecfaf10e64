"""Blocks of stored values: rows in the given order, cast to the stored dtype."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from zarr_core.format.names import FieldName
from zarr_core.points.convert.stored_values import stored_blocks
from zarr_core.points.store.settings import ConversionSettings

VALUES = torch.randn(1000, 6)


@pytest.mark.parametrize(
    "source",
    [
        VALUES[:, :1],
        VALUES[:, :3],
        VALUES[::2, :3],
        VALUES[:, :4].reshape(4, -1).T,
        VALUES.double(),
        VALUES[:, :3].bfloat16(),
        VALUES[:, :2].half(),
        VALUES[:, :1].to(torch.int32),
        VALUES.clone().requires_grad_(),
    ],
    ids=["one", "three", "every other", "transposed", "float64", "bfloat16", "float16", "int32", "requires grad"],
)
@pytest.mark.parametrize("slab_bytes", [1, 4000, 2**25])
def test_rows_are_gathered_in_order(monkeypatch: pytest.MonkeyPatch, source: torch.Tensor, slab_bytes: int) -> None:
    monkeypatch.setattr("zarr_core.points.convert.stored_values._SLAB_BYTES", slab_bytes)
    monkeypatch.setattr("zarr_core.points.convert.stored_values._BLOCK_POINTS", 64)
    layout = ConversionSettings(chunk_points=32).array_layout(FieldName("volume", "x"), len(source), source.shape[1])
    before, rows = source.detach().clone(), np.random.default_rng(0).permutation(len(source))
    stored = np.concatenate([block.copy() for block in stored_blocks(source, rows, layout)])
    assert stored.dtype == layout.dtype
    np.testing.assert_array_equal(stored, before[torch.from_numpy(rows)].half().numpy())
    assert torch.equal(source, before)
