"""Copies batches to a device while the trainer computes on the previous batch."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from zarr_core.errors import ZarrCoreError


class DeviceLoader:
    """Iterates over a loader and yields its batches on a device; created by :func:`to_device`.

    ``state_dict`` is the state of the loader after the batch that was yielded last, without the batch that is already
    being copied: save this state, not the loader's. Other attributes are the loader's.
    """

    def __init__(self, loader: Any, device: str | torch.device, transform: Callable[[Any], Any] | None = None) -> None:
        if transform is not None and not callable(transform):
            raise ZarrCoreError(f"transform must be a function of a batch, not {reprlib.repr(transform)}")
        self.loader = loader
        self.transform = transform
        try:
            self.device = torch.device(device)
        except (RuntimeError, TypeError) as error:
            raise ZarrCoreError(f"device must be a torch device such as 'cuda' or 'cpu', not {device!r}") from error
        self._state: Mapping[str, Any] | None = None

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        for batch in self._copied():
            yield batch if self.transform is None else self.transform(batch)

    def _copied(self) -> Iterator[Any]:
        if self.device.type == "cpu":
            yield from self.loader
        elif self.device.type == "cuda":
            yield from self._prefetched()
        else:
            for batch in self.loader:
                yield _each_tensor(batch, lambda tensor: tensor.to(self.device))

    def _prefetched(self) -> Iterator[Any]:
        copies = _CudaCopies(self.device)
        stateful = hasattr(self.loader, "state_dict")
        self._state = self.loader.state_dict() if stateful else None
        pending = None
        for batch in self.loader:
            started = copies.start(batch), self.loader.state_dict() if stateful else None
            if pending is not None:
                copy, self._state = pending
                yield copies.finish(copy)
            pending = started
        if pending is not None:
            copy, self._state = pending
            yield copies.finish(copy)
        self._state = None  # the loader has ended, too

    def state_dict(self) -> dict[str, Any]:
        """The state of the loader after the batch that was yielded last."""
        return dict(self.loader.state_dict() if self._state is None else self._state)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a saved state into the loader."""
        self._state = None
        self.loader.load_state_dict(state)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the loader."""
        if getattr(self.loader, "epoch", None) != epoch:
            self._state = None
        self.loader.set_epoch(epoch)

    def __getattr__(self, name: str) -> Any:
        if name == "loader":  # not set yet while unpickling
            raise AttributeError(name)
        return getattr(self.loader, name)


def to_device(
    loader: Iterable[Any], device: str | torch.device, *, transform: Callable[[Any], Any] | None = None
) -> DeviceLoader:
    """Iterate over a loader with its batches on a device.

    For CUDA, each batch is copied from pinned memory on a separate stream while the trainer computes on the previous
    batch; the trainer's stream, not its thread, waits for the copy. Batches that the loader has not pinned are pinned
    first. On the CPU, batches are passed on unchanged.

    Args:
        loader: yields tensors, or mappings, lists and tuples of them.
        device: "cuda", "cuda:1", "cpu", ...
        transform: called with each batch on the device, such as ``normalizers.normalize``; its result is yielded.

    Raises:
        ZarrCoreError: torch knows no such device, or ``transform`` cannot be called.

    Examples:
        >>> dataset = build_dataset({"kind": "point", "root": "store", "split": "train", "num_surface_points": 64})
        >>> loader = ResumableLoader(dataset, EpochBatchSampler.of(dataset, batch_size=2, seed=1))
        >>> for batch in to_device(loader, "cpu"):  # or "cuda"
        ...     pressure = batch["surface_pressure"]
    """
    return DeviceLoader(loader, device, transform)


class _CudaCopies:
    """Copies to one CUDA device on a stream of its own."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def start(self, batch: Any) -> tuple[Any, Any]:
        """Start the copy of a batch and return at once. Use the copy only after :meth:`finish`."""
        # PyTorch keeps released pinned memory until pending copies from it are done.
        pinned = _each_tensor(batch, lambda tensor: tensor if _is_ready(tensor) else tensor.pin_memory())
        with torch.cuda.stream(self._stream):
            copy = _each_tensor(pinned, lambda tensor: tensor.to(self._device, non_blocking=True))
        return copy, self._stream.record_event()

    def finish(self, started: tuple[Any, Any]) -> Any:
        """Make the current stream wait for the copy, and return the copied batch."""
        batch, copied = started
        computing = torch.cuda.current_stream(self._device)
        computing.wait_event(copied)  # waits for this copy only: the next one may still be running
        # The memory belongs to the copy stream, which must not reuse it while the current stream computes on it.
        _each_tensor(batch, lambda tensor: tensor.record_stream(computing))
        return batch


def _is_ready(tensor: Tensor) -> bool:
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
