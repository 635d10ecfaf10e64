"""The samples in each format, in a local folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from zarr_core.errors import ZarrCoreError
from zarr_core.shootout.candidates import Candidate
from zarr_core.shootout.planner import MeasurementError
from zarr_core.shootout.tiers import footprint


class Copies:
    """Local copies of the samples, each written when it is first asked for.

    Args:
        samples: input of the formats.
        folder: local.
    """

    def __init__(self, samples: Any, folder: Path) -> None:
        self._samples, self._folder = samples, folder
        self._footprints: dict[str, dict[str, int]] = {}

    def local(self, chosen: Candidate) -> Path:
        """The copy.

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
