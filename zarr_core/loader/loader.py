"""A DataLoader whose state is what the trainer has received."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from torch.utils.data import DataLoader, Dataset, Sampler

from zarr_core.errors import ZarrCoreError
from zarr_core.loader.sampler import EpochBatchSampler, Shares

T = TypeVar("T")


class ResumableLoader(DataLoader[T]):
    """``torch.utils.data.DataLoader`` over an ``EpochBatchSampler``, with the state of it.

    A batch counts from the moment it is handed out, for the sampler, too. So a state saved while a batch is being
    trained on counts that batch as done, and none of those that workers have fetched ahead. It is the same on all
    ranks, so one rank's is enough, and holds no trace of ranks and workers: both may be others when it is loaded.

    Args:
        dataset: map-style.
        batch_sampler: what the batches are.
        options: of DataLoader: ``num_workers``, ``persistent_workers``, ``pin_memory``, ...

    Raises:
        ZarrCoreError: the sampler is of another kind, or batches shall come out of order.
    """

    def __init__(self, dataset: Dataset[T], batch_sampler: EpochBatchSampler, **options: Any) -> None:
        if not isinstance(batch_sampler, EpochBatchSampler):
            raise ZarrCoreError(f"batch_sampler must be an EpochBatchSampler, not {type(batch_sampler).__name__}")
        if not options.get("in_order", True):
            raise ZarrCoreError("in_order=False gives batches in an order that no state can describe")
        super().__init__(dataset, batch_sampler=_Uncounted(batch_sampler), **options)
        self._sampler = batch_sampler

    def __iter__(self) -> Iterator[T]:  # type: ignore[override]
        """What is left of the epoch; an iteration that begins after it, the whole epoch."""
        self._sampler.begin()
        for batch in super().__iter__():
            self._sampler.position += 1
            yield batch

    @property
    def epoch(self) -> int:
        """The current epoch."""
        return self._sampler.epoch

    def set_epoch(self, epoch: int) -> None:
        """As of the sampler: to the start of an epoch, or stay in the middle of the one that a state was loaded for."""
        self._sampler.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Where the trainer is."""
        return self._sampler.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state at the next iteration.

        Raises:
            ZarrCoreError: it is of other data or of other batches.
        """
        self._sampler.load_state_dict(state)


class _Uncounted(Sampler[list[int]]):
    """The batches from a sampler's position on, to be taken ahead of the trainer: taking them moves nothing."""

    def __init__(self, sampler: EpochBatchSampler) -> None:
        self._sampler = sampler

    def __iter__(self) -> Iterator[list[int]]:
        return iter(Shares(self._sampler, self._sampler.position).take, None)

    def __len__(self) -> int:
        return len(self._sampler)
