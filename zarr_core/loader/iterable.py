"""The order of EpochBatchSampler as an iterable dataset."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch.utils.data import IterableDataset, get_worker_info

from zarr_core._util.shared_epoch import SharedEpoch
from zarr_core.errors import ZarrCoreError
from zarr_core.loader.epochs import epoch_setter, fetch_items
from zarr_core.loader.ranks import check_divided_once, rank_and_world, rank_and_world_of_launcher
from zarr_core.loader.sampler import EpochBatchSampler, Shares


class ZarrIterableDataset(IterableDataset[Any]):
    """Samples of a map-style dataset in the order of an ``EpochBatchSampler``, split between ranks and workers.

    ``DataLoader(ZarrIterableDataset(dataset, batch_size), batch_size=batch_size // ranks)`` yields the batches of the
    sampler with any number of workers: each worker takes whole batches in turn. All ranks get the same number of
    samples. With ``evaluation=True`` they could not, so it is refused on several ranks: evaluate with an
    ``EpochBatchSampler``, whose batches are equally many on each rank.

    torchdata's ``StatefulDataLoader`` saves and resumes it within an epoch. The state of one rank can be loaded on any
    number of ranks, with the same number of workers per rank.

    Call :meth:`set_epoch` before each epoch. Otherwise every epoch has the order of epoch 0, and points that cannot be
    reproduced.

    Args:
        dataset: map-style dataset. Its ``__getitems__``, ``set_epoch`` and ``fingerprint`` are used if they exist;
            within ``Subset`` and other wrappers as well.
        batch_size: samples per global batch, that is of all ranks together.
        settings: arguments of the sampler: ``seed``, ``drop_last``, ``shuffle``, ``evaluation``, ``fingerprint``,
            ``weights``, ``classes``.

    Examples:
        >>> dataset = build_dataset({"kind": "point", "root": "store", "split": "train", "num_surface_points": 64})
        >>> len(list(ZarrIterableDataset(dataset, batch_size=2, seed=1)))
        4
    """

    def __init__(self, dataset: Any, batch_size: int, **settings: Any) -> None:
        self.dataset = dataset
        self._sampler = EpochBatchSampler.of(dataset, batch_size, on_epoch=None, replica=self._replica, **settings)
        self._trainer_replica: tuple[int, int] | None = None
        self._epoch = SharedEpoch()
        self._set_dataset_epoch = epoch_setter(dataset)

    def __len__(self) -> int:
        """Number of samples per epoch on this rank."""
        rank, world = self._sampler.share()
        size = 0
        for batch in range(len(self._sampler)):
            start, stop = self._sampler.places(batch, rank, world)
            size += stop - start
        return size

    @property
    def epoch(self) -> int:
        """The epoch of the next iteration."""
        return self._epoch.value or 0

    @property
    def epoch_is_set(self) -> bool:
        """Whether :meth:`set_epoch` was called."""
        return self._epoch.value is not None

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration, in all workers: another order and other points."""
        check_divided_once()  # with workers, Accelerate's dispatcher is not among the callers of __iter__
        self._epoch.set(epoch)
        if self._set_dataset_epoch is not None:
            self._set_dataset_epoch(epoch)

    def __iter__(self) -> SampleIterator:
        check_divided_once()
        self._sampler.set_epoch(self.epoch)
        return SampleIterator(self, self._sampler)

    def _replica(self) -> tuple[int, int]:
        # A spawned worker lacks the trainer's process group, so the pickled dataset carries rank and world size.
        carried = None if get_worker_info() is None or self._trainer_replica == (0, 1) else self._trainer_replica
        rank, world = rank_and_world_of_launcher() or carried or rank_and_world()
        if self._sampler.evaluation and world > 1:
            # A DataLoader cuts samples into batches of one size, so ranks with other numbers get other numbers of them.
            raise ZarrCoreError(
                f"evaluation=True gives {world} ranks different numbers of batches here; use an EpochBatchSampler with "
                "evaluation=True, which gives each rank the same number, as batch_sampler of a ResumableLoader"
            )
        return rank, world

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_trainer_replica": rank_and_world()}


class SampleIterator(Iterator[Any]):
    """The samples of one worker on one rank. ``StatefulDataLoader`` saves the state of each worker's iterator."""

    def __init__(self, samples: ZarrIterableDataset, sampler: EpochBatchSampler) -> None:
        self._samples = samples
        self._sampler = sampler
        worker = get_worker_info()
        self._first, self._step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        self._position = self._first
        self._shares: Shares | None = None
        self._waiting: list[Any] = []  # remaining samples of the current batch, reversed

    def __next__(self) -> Any:
        if self._shares is None:
            self._sampler.begin()
            self._shares = Shares(self._sampler, self._position, self._step)
        if not self._waiting:
            self._waiting = list(fetch_items(self._samples.dataset, next(self._shares)))[::-1]
        return self._waiting.pop()

    def state_dict(self) -> dict[str, Any]:
        """The position of this worker, and the number of samples left of its current batch."""
        position = self._position if self._shares is None else self._shares.position
        epoch = self._sampler.epoch if self._shares is None else self._shares.epoch
        return {
            "sampler": self._sampler.state_at(epoch, min(position, len(self._sampler))),
            "position": position,
            "step": self._step,
            "left": len(self._waiting),
            "epoch_set": self._samples.epoch_is_set,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a state.

        Raises:
            ZarrCoreError: the state belongs to other data or batches or another number of workers, or was saved within
                a batch.
        """
        if state["step"] != self._step:
            raise ZarrCoreError(
                f"the state was saved with {state['step']} workers; this loader has {self._step}. Use {state['step']}"
            )
        if state["left"]:
            raise ZarrCoreError("the state was saved within a batch; give the DataLoader the batch size of one rank")
        self._sampler.load_late(state["sampler"])
        self._position, self._shares, self._waiting = self._first, None, []
        if self._sampler.epoch == state["sampler"]["epoch"]:
            self._position = state["position"]
            if state.get("epoch_set", True):
                self._samples.set_epoch(self._sampler.epoch)
