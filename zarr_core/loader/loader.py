"""A DataLoader whose state counts the batches that the trainer has received."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

import torch
from torch.utils.data import DataLoader, Dataset, Sampler
from torch.utils.data._utils.pin_memory import pin_memory

from zarr_core._util.arguments import whole_number
from zarr_core._util.threads import map_in_threads
from zarr_core.errors import ZarrCoreError
from zarr_core.loader.epochs import epoch_setter, fetch_items
from zarr_core.loader.sampler import BUILT_ANEW, EpochBatchSampler, Shares

T = TypeVar("T")


class ResumableLoader(DataLoader[T]):
    """``torch.utils.data.DataLoader`` over an ``EpochBatchSampler`` that can be resumed.

    A batch counts as done once it has been yielded; batches that workers have prefetched do not count. The state is
    the same on all ranks, so saving one rank's is enough. It does not depend on the number of ranks and workers, which
    may differ when it is loaded.

    Args:
        dataset: map-style dataset.
        batch_sampler: the batches.
        num_threads: threads of this process that read the next batches, instead of worker processes; each reads
            ``prefetch_factor`` batches ahead (2 by default). The batches and states are the same. The dataset must be
            safe to share between threads, as those of this library are; draws without a seed depend on which thread
            comes first.
        options: arguments of DataLoader: ``num_workers``, ``persistent_workers``, ``pin_memory``, ...

    Raises:
        ZarrCoreError: ``batch_sampler`` is not an EpochBatchSampler, or cannot divide its batches among the ranks, such
            as fewer samples than ranks; or ``in_order=False``; or ``num_threads`` is given with ``num_workers``.

    Examples:
        >>> dataset = build_dataset({"kind": "point", "root": "store", "split": "train", "num_surface_points": 64})
        >>> sampler = EpochBatchSampler.of(dataset, batch_size=2, seed=1)
        >>> loader = ResumableLoader(dataset, sampler, num_threads=2)
        >>> for epoch in range(loader.epoch, 2):
        ...     loader.set_epoch(epoch)
        ...     for batch in loader:
        ...         state = loader.state_dict()  # load_state_dict(state) resumes after this batch
    """

    # accelerator.prepare leaves the loader as it is, because it divides batches among ranks itself, and
    # accelerator.save_state and load_state save and load its state.
    _is_accelerate_prepared = True
    use_stateful_dataloader = True

    def __init__(
        self, dataset: Dataset[T], batch_sampler: EpochBatchSampler, *, num_threads: int = 0, **options: Any
    ) -> None:
        if not isinstance(batch_sampler, EpochBatchSampler):
            raise ZarrCoreError(
                f"batch_sampler must be an EpochBatchSampler, not {type(batch_sampler).__name__}. {BUILT_ANEW}"
            )
        if not options.get("in_order", True):
            raise ZarrCoreError("in_order=False cannot be resumed: the order of its batches is not reproducible")
        if not batch_sampler.sets_epochs and epoch_setter(dataset) is not None:
            warnings.warn(
                "the sampler does not set the epoch of the dataset, so its draws cannot be reproduced; create the "
                "sampler with EpochBatchSampler.of(dataset, ...)",
                stacklevel=2,
            )
        batch_sampler.check_dataset(dataset)
        batch_sampler.share()  # before training begins, not when the first evaluation does
        self.num_threads = whole_number("num_threads", num_threads, 0)
        if num_threads:
            if options.get("num_workers"):
                raise ZarrCoreError("num_threads and num_workers both say who reads the batches; set one of them")
            # DataLoader takes it with worker processes only.
            self._batches_ahead = num_threads * whole_number("prefetch_factor", options.pop("prefetch_factor", 2), 1)
        self._batches = _Prefetched(batch_sampler)
        self._iterations = 0
        self._seeds_workers = options.get("generator") is None
        super().__init__(dataset, batch_sampler=self._batches, **options)
        self._sampler = batch_sampler

    def __iter__(self) -> Iterator[T]:  # type: ignore[override]
        """Yield the rest of the epoch after a state was loaded, else the whole epoch."""
        self._sampler.begin()
        epoch = self._sampler.epoch
        if self.num_threads:
            shares = Shares(self._sampler, self._sampler.position)
            batches = map_in_threads(self._read_batch, shares, self.num_threads, self._batches_ahead)
        else:
            self._batches.taken_by_loader = True
            try:
                self._seed_workers(epoch)
                batches = super().__iter__()
            finally:
                self._batches.taken_by_loader = False
                if self._seeds_workers:
                    self.generator = None  # torch cannot pass a generator to a spawned process, as the loader may be
        for position, batch in enumerate(_with_way_on(batches), self._sampler.position + 1):
            self._sampler.check_epoch(epoch)
            self._sampler.position = position
            yield batch

    def _seed_workers(self, epoch: int) -> None:
        """Give the worker processes new random numbers that ``torch.manual_seed`` repeats.

        DataLoader would take a number from torch's random generator, with and without worker processes. A model that
        uses it, as for dropout, would compute other numbers in a resumed epoch, which is begun once more.
        """
        if self._seeds_workers:
            seed = hash((torch.initial_seed(), epoch, self._iterations))
            self.generator = torch.Generator().manual_seed(seed & 0xFFFF_FFFF)
            self._iterations += 1

    def _read_batch(self, indices: list[int]) -> T:
        """What DataLoader does without worker processes."""
        batch: T = self.collate_fn(fetch_items(self.dataset, indices))
        if self.pin_memory and torch.cuda.is_available():
            batch = pin_memory(batch)  # type: ignore[no-untyped-call]
        return batch

    @property
    def epoch(self) -> int:
        """The current epoch."""
        return self._sampler.epoch

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of an epoch; a no-op for the current epoch, so a resumed run keeps its position."""
        self._sampler.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """The position of the trainer."""
        return self._sampler.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a saved state at the next iteration.

        Raises:
            ZarrCoreError: the state belongs to other data or other batches.
        """
        self._sampler.load_state_dict(state)


def _with_way_on(batches: Iterable[T]) -> Iterator[T]:
    """The batches; an error says how to go on with the one that failed."""
    try:
        yield from batches
    except Exception as error:
        error.add_note(
            "To go on with this batch: loader.load_state_dict(loader.state_dict()), then iterate again; without it, "
            "the next iteration is a whole epoch"
        )
        raise


class _Prefetched(Sampler[list[int]]):
    """The batches from a sampler's position on. Workers prefetch them without moving the position.

    Attributes:
        taken_by_loader: whether the loader itself starts an iteration.
    """

    def __init__(self, sampler: EpochBatchSampler) -> None:
        self._sampler = sampler
        self.taken_by_loader = False

    @property
    def sampler(self) -> Any:
        """See :attr:`EpochBatchSampler.sampler`."""
        return self._sampler.sampler

    def __iter__(self) -> Iterator[list[int]]:
        if not self.taken_by_loader:
            raise ZarrCoreError(
                "another loader was built from the parts of a ResumableLoader, as Accelerate's prepare_data_loader and "
                "skip_first_batches do; it would neither set epochs nor count batches. Iterate over the "
                "ResumableLoader itself, which accelerator.prepare leaves as it is; load_state_dict resumes it"
            )
        return Shares(self._sampler, self._sampler.position)

    def __len__(self) -> int:
        return len(self._sampler)
