"""What a benchmark was asked for."""

from __future__ import annotations

from dataclasses import dataclass

from zarr_core._util.arguments import whole_number
from zarr_core._util.commands import shell
from zarr_core._util.redaction import redact


@dataclass(frozen=True)
class BenchmarkRequest:
    """Arguments of :func:`zarr_core.benchmark.run_benchmark`, checked."""

    source: str
    store: str
    num_surface_points: int
    num_volume_points: int
    samples: int | None
    repeats: int
    dataset_kind: str | None
    progress: bool

    def __post_init__(self) -> None:
        for name in ("num_surface_points", "num_volume_points", "repeats"):
            whole_number(name, getattr(self, name), 1)
        if self.samples is not None:
            whole_number("samples", self.samples, 1)

    @property
    def command(self) -> str:
        """The command line that measures again."""
        words = [redact(self.store), "--source", redact(self.source)]
        for name in ("num_surface_points", "num_volume_points", "repeats", "samples", "dataset_kind"):
            value = getattr(self, name)
            if value is not None:
                words += [f"--{name.replace('_', '-')}", str(value)]
        return shell("benchmark", *words)
