"""An epoch that reaches DataLoader workers which are already running."""

from __future__ import annotations

from typing import Any

import torch

from zarr_core._util.arguments import INT64, whole_number


class SharedEpoch:
    """The number of an epoch in shared memory, or None as long as it was never set."""

    def __init__(self) -> None:
        self._numbers = torch.zeros(2, dtype=torch.int64)  # whether the epoch is set, and the epoch
        self._share()

    @property
    def value(self) -> int | None:
        """The epoch that was set last, in any process."""
        is_set, epoch = self._view.tolist()
        return epoch if is_set else None

    def set(self, epoch: int) -> None:
        """Set the epoch in all processes; raises ZarrCoreError if it is not a 64-bit integer."""
        self._view[1] = whole_number("epoch", epoch, *INT64)
        self._view[0] = 1

    def __getstate__(self) -> dict[str, Any]:
        return {"_numbers": self._numbers}

    def __setstate__(self, state: dict[str, Any]) -> None:
        # Copying or pickling moves the numbers out of shared memory; the workers of the copy need their own.
        self.__dict__.update(state)
        self._share()

    def _share(self) -> None:
        self._numbers.share_memory_()  # type: ignore[no-untyped-call]
        self._view = self._numbers.numpy()  # NumPy reads and sets single numbers several times as fast
