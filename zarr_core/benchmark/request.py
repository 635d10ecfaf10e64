"""What a benchmark was asked for."""

from __future__ import annotations

from collections.abc import Iterable
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

    def num_points(self, domains: Iterable[str]) -> dict[str, int]:
        """Points per draw by domain."""
        found = dict.fromkeys(domains, self.num_volume_points)
        for domain in found:
            if domain.startswith("surface"):
                found[domain] = self.num_surface_points
        return found

    @property
    def command(self) -> str:
        """The command line that measures again."""
        words = ["--source", redact(self.source)]
        words += ["--num-surface-points", str(self.num_surface_points)]
        words += ["--num-volume-points", str(self.num_volume_points), "--repeats", str(self.repeats)]
        if self.samples is not None:
            words += ["--limit", str(self.samples)]
        if self.dataset_kind is not None:
            words += ["--dataset-kind", self.dataset_kind]
        return shell("benchmark", redact(self.store), *words)
