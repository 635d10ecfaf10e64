"""The samples in each format: written once to a local folder, and copied to tiers."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from zarr_core.errors import ZarrCoreError
from zarr_core.shootout.candidates import Candidate
from zarr_core.shootout.planner import MeasurementError
from zarr_core.shootout.tiers import Tier, TooSlowError, footprint


class Copies:
    """Copies of the samples.

    Args:
        samples: input of the formats.
        folder: local.
        seconds: that one copy to a tier may take.
    """

    def __init__(self, samples: Any, folder: Path, seconds: float) -> None:
        self._samples, self._folder, self._seconds = samples, folder, seconds
        self._on_tier: dict[tuple[str, str], float] = {}  # seconds that each copy took
        self._too_slow: dict[str, str] = {}
        self._footprints: dict[str, dict[str, int]] = {}

    def local(self, chosen: Candidate) -> Path:
        """The local copy, which is written if it does not exist.

        Raises:
            MeasurementError: the format cannot be written, with the reason.
        """
        folder = self._folder / "copies" / chosen.copy
        if folder.is_dir():
            return folder
        building = folder.with_name(f"{folder.name}.building")
        building.mkdir(parents=True)
        try:
            chosen.entry.make().prepare(self._samples, building)
        except (ZarrCoreError, OSError):
            raise
        # A format is another library, which may raise anything; one of them must not end the others.
        except Exception as error:
            raise MeasurementError(f"{type(error).__name__}: {error}") from error
        building.rename(folder)
        return folder

    def footprint(self, chosen: Candidate) -> dict[str, int]:
        """See :func:`footprint`."""
        if chosen.copy not in self._footprints:
            self._footprints[chosen.copy] = footprint(self.local(chosen))
        return self._footprints[chosen.copy]

    def are_on(self, tier: Tier, chosen: Candidate) -> bool:
        """Whether there is a copy on a tier."""
        return (tier.name, chosen.copy) in self._on_tier

    def put(self, tier: Tier, chosen: Candidate, end: float) -> None:
        """Copy to a tier what is not there yet, until a time of ``time.monotonic``."""
        if self.are_on(tier, chosen):
            return
        if tier.name in self._too_slow:  # another copy would use up the budget as well
            raise MeasurementError(self._too_slow[tier.name])
        folder = self.local(chosen)
        try:
            seconds = tier.put(chosen.copy, folder, min(end - time.monotonic(), self._seconds))
        except TooSlowError as error:
            self._too_slow[tier.name] = str(error)
            raise
        self.footprint(chosen)
        self._on_tier[tier.name, chosen.copy] = seconds

    @property
    def rates(self) -> dict[str, float]:
        """Bytes per second that were written to each tier."""
        size: dict[str, float] = {}
        took: dict[str, float] = {}
        for (tier, copy), seconds in self._on_tier.items():
            size[tier] = size.get(tier, 0) + self._footprints[copy]["bytes"]
            took[tier] = took.get(tier, 0) + seconds
        return {tier: size[tier] / took[tier] for tier in size}
