"""A small synthetic source in the AhmedML layout, so that tests need no other data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from zarr_core.sources import resolve_kind

KIND = "ahmedml"
# Real data beside some checkouts; tests that need it are skipped where it is absent.
SHARED = Path(__file__).resolve().parents[3] / "shared"


def write_source(
    root: Path,
    sample_ids: tuple[str, ...] = ("run_1", "run_2", "run_3"),
    surface: int = 70,
    volume: int = 230,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    kind: str = KIND,
) -> Path:
    """Write samples of slightly different sizes. Means of fields are far from zero, so that a wrong mean is noticed."""
    rng = np.random.default_rng(seed)
    for number, sample_id in enumerate(sample_ids):
        (root / sample_id).mkdir(parents=True)
        for canonical, file in resolve_kind(kind).required_fields.items():
            n = (surface if file.domain == "surface" else volume) + 7 * number
            dim = file.field.dim or 1
            values = rng.normal(loc=5 * number - 3, scale=1 + number, size=(n, dim)) * (1 if "pos" in canonical else 30)
            tensor = torch.from_numpy(values).to(dtype)
            torch.save(tensor[:, 0].contiguous() if dim == 1 else tensor, root / sample_id / file.filename)
    return root


def load_field(root: Path, sample_id: str, canonical: str) -> np.ndarray:
    """A field as its source file holds it, (points, components)."""
    file = resolve_kind(KIND).fields[canonical]
    values = torch.load(root / sample_id / file.filename, weights_only=True).numpy()
    return values[:, None] if values.ndim == 1 else values
