"""What a shootout was asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from zarr_core._util.arguments import whole_number
from zarr_core.errors import ZarrCoreError


@dataclass(frozen=True)
class ShootoutRequest:
    """Arguments of :func:`zarr_core.shootout.run_shootout`, checked; all defaults stand here."""

    source: str
    tiers: Mapping[str, str]
    budget: float = 600.0
    dataset_kind: str | None = None
    num_surface_points: int = 4096
    num_volume_points: int = 4096
    num_features: int = 1000
    batch_size: int = 8
    samples: int | None = None
    formats: Sequence[str] | None = None
    price_per_1000_gets: float | None = None
    progress: bool = False

    def __post_init__(self) -> None:
        for name in ("num_surface_points", "num_volume_points", "num_features", "batch_size"):
            whole_number(name, getattr(self, name), 1)
        if self.samples is not None:
            whole_number("samples", self.samples, 1)
        if not self.budget > 0:
            raise ZarrCoreError(f"budget must be positive, not {self.budget}")
        if not self.tiers:
            raise ZarrCoreError("tiers must name at least one folder or URL")
