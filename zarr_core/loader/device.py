"""Batches on the device where they are needed, copied while the one before is being computed on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor


class DeviceLoader:
    """Iterates a loader and gives its batches on a device; made by :func:`to_device`.

    ``state_dict`` is the loader's as of the batch that was last given, not of the one that is already under way: where
    there is such a state, save this one. Everything else is the loader's own.
    """

    def __init__(self, loader: Any, device: str | torch.device) -> None:
        self.loader = loader
        self.device = torch.device(device)
        self._state: Mapping[str, Any] | None = None

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        if self.device.type == "cpu":
            yield from self.loader
        elif self.device.type == "cuda":
            yield from self._one_ahead()
        else:
            for batch in self.loader:
                yield _each_tensor(batch, lambda tensor: tensor.to(self.device))

    def _one_ahead(self) -> Iterator[Any]:
        copies = _CudaCopies(self.device)
        stateful = hasattr(self.loader, "state_dict")
        self._state = self.loader.state_dict() if stateful else None
        under_way = None
        for batch in self.loader:
            started = copies.start(batch), self.loader.state_dict() if stateful else None
            if under_way is not None:
                copy, self._state = under_way
                yield copies.finish(copy)
            under_way = started
        if under_way is not None:
            copy, self._state = under_way
            yield copies.finish(copy)
        self._state = None  # the loader is at its end, too

    def state_dict(self) -> dict[str, Any]:
        """The loader's state when it had given the batch that was last given here."""
        return dict(self.loader.state_dict() if self._state is None else self._state)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Hand a saved state to the loader."""
        self._state = None
        self.loader.load_state_dict(state)

    def set_epoch(self, epoch: int) -> None:
        """Hand the epoch to the loader."""
        if getattr(self.loader, "epoch", None) != epoch:
            self._state = None
        self.loader.set_epoch(epoch)

    def __getattr__(self, name: str) -> Any:
        if name == "loader":  # not there yet, while being unpickled
            raise AttributeError(name)
        return getattr(self.loader, name)


def to_device(loader: Iterable[Any], device: str | torch.device) -> DeviceLoader:
    """The batches of a loader on a device.

    For CUDA each batch is put into pinned memory, unless the loader has done so, and copied on a stream of its own
    while the trainer works on the one before; the trainer's stream waits for the copy, not the trainer. On the CPU the
    batches are those of the loader, untouched.

    Args:
        loader: gives tensors, alone or in mappings, lists and tuples.
        device: "cuda", "cuda:1", "cpu", ...
    """
    return DeviceLoader(loader, device)


class _CudaCopies:
    """Copies to one CUDA device on a stream beside the one that computes."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def start(self, batch: Any) -> tuple[Any, Any]:
        """Begin to copy a batch; returns at once. The batch on the device may be used after :meth:`finish`."""
        # Pinned memory that is let go of is kept by PyTorch until the copies out of it are done.
        pinned = _each_tensor(batch, lambda tensor: tensor if _is_there(tensor) else tensor.pin_memory())
        with torch.cuda.stream(self._stream):
            copy = _each_tensor(pinned, lambda tensor: tensor.to(self._device, non_blocking=True))
        return copy, self._stream.record_event()

    def finish(self, started: tuple[Any, Any]) -> Any:
        """Make what is computed from now on wait for the copy, and give it."""
        batch, copied = started
        computing = torch.cuda.current_stream(self._device)
        computing.wait_event(copied)  # of this copy alone: the next one may still be under way
        # The memory belongs to the copying stream: it must not be used again there while the other computes on it.
        _each_tensor(batch, lambda tensor: tensor.record_stream(computing))
        return batch


def _is_there(tensor: Tensor) -> bool:
    return tensor.is_cuda or tensor.is_pinned()


def _each_tensor(batch: Any, change: Callable[[Tensor], Any]) -> Any:
    if isinstance(batch, Tensor):
        return change(batch)
    if isinstance(batch, Mapping):
        return {key: _each_tensor(value, change) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(_each_tensor(value, change) for value in batch))
    if isinstance(batch, (list, tuple)):
        return type(batch)(_each_tensor(value, change) for value in batch)
    return batch
