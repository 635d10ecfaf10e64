"""Which samples make which batch, on which rank: a pure function of (seed, epoch, number of the batch).

The unit is the *global* batch. An epoch is a row of them that knows of no ranks and no workers; a rank takes its share
of each. So the place in an epoch is one number, the same on all ranks, and another number of ranks can go on from it.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from torch.utils.data import Sampler

from zarr_core.errors import ZarrCoreError
from zarr_core.loader.permutation import Permutation
from zarr_core.loader.ranks import rank_and_world

_STATE_VERSION = 1
# Samples whose place in the order is computed together: it costs little more than computing one.
_LOOKAHEAD = 1024


class EpochBatchSampler(Sampler[list[int]]):
    """Batches of indices for ``DataLoader(dataset, batch_sampler=...)``; resumable, on any number of ranks.

    Global batch g has the samples at places ``g * batch_size`` and on of the epoch's order, and rank r of w takes the
    r-th of w equal parts. Every rank gets the same number of batches. Where the batches do not divide the samples:

    * by default the last batch is filled up with the first samples of the same epoch, which so occur twice;
    * ``drop_last=True``: the incomplete batch is left out (other samples in other epochs);
    * ``evaluation=True``: every sample exactly once. As few batches as possible, of equal size or one less; ranks'
      parts are equal or one less, too, so weight what you average by the number of samples.

    Training wants equal parts, so there ``batch_size`` must be a multiple of the number of ranks.

    The state counts the batches that were taken from the sampler. The workers of a plain DataLoader take some ahead of
    the trainer; ``ResumableLoader`` counts what the trainer has, and so does torchdata's ``StatefulDataLoader`` in a
    state of its own.

    Args:
        dataset_size: number of samples.
        batch_size: samples of a global batch, all ranks together.
        seed: of the order.
        drop_last: leave the incomplete batch out.
        shuffle: a new order each epoch; otherwise that of the dataset.
        evaluation: count each sample once.
        fingerprint: of what is trained on; a state of another is refused.
        on_epoch: called with the epoch whenever its first batch is about to be taken, such as ``dataset.set_epoch``.
        replica: gives (rank, number of ranks), asked when an iteration starts. Where not every rank has data of its
            own, as in tensor parallelism, give the data-parallel ones.

    Attributes:
        epoch: the current one.
        position: global batches of it that were taken; under ``ResumableLoader``, that the trainer has.

    Raises:
        ZarrCoreError: the numbers leave no batch, or contradict each other.
    """

    def __init__(
        self,
        dataset_size: int,
        batch_size: int,
        seed: int = 0,
        drop_last: bool = False,
        *,
        shuffle: bool = True,
        evaluation: bool = False,
        fingerprint: str = "",
        on_epoch: Callable[[int], None] | None = None,
        replica: Callable[[], tuple[int, int]] = rank_and_world,
    ) -> None:
        for name, value in (("dataset_size", dataset_size), ("batch_size", batch_size)):
            if value < 1:
                raise ZarrCoreError(f"{name} must be 1 or more, not {value}")
        if evaluation and drop_last:
            raise ZarrCoreError("evaluation=True counts every sample, drop_last=True does not: choose one")
        if drop_last and dataset_size < batch_size:
            raise ZarrCoreError(f"drop_last leaves nothing of {dataset_size} samples in batches of {batch_size}")
        self.dataset_size = dataset_size
        self.batch_size = batch_size
        self.seed = seed
        self.drop_last = drop_last
        self.shuffle = shuffle
        self.evaluation = evaluation
        self.fingerprint = fingerprint
        self.epoch = 0
        self._on_epoch = on_epoch
        self._replica = replica
        self.position = 0
        self._resumes = False  # the next iteration goes on at the position instead of starting the epoch

    @classmethod
    def of(cls, dataset: Any, batch_size: int, **settings: Any) -> EpochBatchSampler:
        """The sampler of a dataset: its size, its ``fingerprint`` and its ``set_epoch``, where it has them.

        Args:
            dataset: any map-style dataset; one object for each sampler, as each sets its epoch.
            batch_size: samples of a global batch.
            settings: as for the constructor.
        """
        settings.setdefault("fingerprint", getattr(dataset, "fingerprint", ""))
        settings.setdefault("on_epoch", getattr(dataset, "set_epoch", None))
        return cls(len(dataset), batch_size, **settings)

    def __len__(self) -> int:
        """Batches of a whole epoch, on every rank."""
        whole, rest = divmod(self.dataset_size, self.batch_size)
        return whole if self.drop_last or not rest else whole + 1

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of an epoch; in the current one, stay at the place that a loaded state has set."""
        if epoch != self.epoch:
            self.epoch, self.position, self._resumes = epoch, 0, False

    def __iter__(self) -> BatchIterator:
        return BatchIterator(self)

    def state_dict(self) -> dict[str, Any]:
        """Where the run is: a few numbers, the same on all ranks."""
        return self.state_at(self.epoch, self.position)

    def state_at(self, epoch: int, position: int) -> dict[str, Any]:
        """The state after so many batches of an epoch."""
        return {
            "version": _STATE_VERSION,
            "epoch": epoch,
            "position": position,
            "seed": self.seed,
            **self._must_agree(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a state was saved: with its seed and epoch, on any number of ranks.

        The next iteration gives what is left of the epoch, which is nothing if its last batch was done.

        Raises:
            ZarrCoreError: the state is of other data or of other batches, or is none of a sampler.
        """
        ours = self._must_agree()
        numbers = ("epoch", "position", "seed")
        of_sampler = (
            isinstance(state, Mapping)
            and state.get("version") == _STATE_VERSION
            and state.keys() >= ours.keys()
            and all(type(state.get(name)) is int and abs(state[name]) < 2**63 for name in numbers)
        )
        if not of_sampler:
            said = reprlib.repr(state)
            raise ZarrCoreError(f"not the state of an EpochBatchSampler (version {_STATE_VERSION}): {said}")
        if state["fingerprint"] != self.fingerprint:
            raise ZarrCoreError(
                f"the saved state is of other data: it was trained on [{state['fingerprint']}], this is "
                f"[{self.fingerprint}]. Open the store as it was (generation=...), or start a new run"
            )
        if different := [f"{name} {state[name]} (here {ours[name]})" for name in ours if state[name] != ours[name]]:
            raise ZarrCoreError(f"the saved state is of other batches: {', '.join(different)}. Use the saved settings")
        epoch, position = state["epoch"], state["position"]
        if not 0 <= position <= len(self):
            raise ZarrCoreError(f"the saved state is at batch {position} of {len(self)}")
        self.seed = state["seed"]
        if position == len(self) and self.epoch == epoch + 1:
            # The end of an epoch is the start of the next, where set_epoch has already gone.
            epoch, position = self.epoch, 0
        self.epoch, self.position, self._resumes = epoch, position, True

    def _must_agree(self) -> dict[str, Any]:
        return {
            "dataset_size": self.dataset_size,
            "batch_size": self.batch_size,
            "drop_last": self.drop_last,
            "shuffle": self.shuffle,
            "evaluation": self.evaluation,
            "fingerprint": self.fingerprint,
        }

    # --- for those who iterate ----------------------------------------------------------------------------------------

    @property
    def start(self) -> int:
        """Batch at which the next iteration starts."""
        return self.position if self._resumes else 0

    def begin(self) -> None:
        """Start an iteration: tell the dataset its epoch."""
        self.position, self._resumes = self.start, False
        if self._on_epoch is not None:
            self._on_epoch(self.epoch)

    def share(self) -> tuple[int, int]:
        """(rank, number of ranks), checked against the batches.

        Raises:
            ZarrCoreError: the batches cannot be shared between so many ranks.
        """
        rank, world = self._replica()
        if self.evaluation:
            smallest = self.dataset_size // len(self)
            if smallest < world:
                raise ZarrCoreError(
                    f"evaluating {self.dataset_size} samples in batches of up to {self.batch_size} leaves some of "
                    f"{world} ranks without a sample of a batch of {smallest}. Take batch_size >= {2 * world}, "
                    f"or fewer ranks for fewer than {world} samples"
                )
        elif self.batch_size % world:
            raise ZarrCoreError(
                f"batch_size {self.batch_size}, of all ranks together, is not a multiple of {world} ranks. Change one, "
                "or, if unequal parts do no harm, use evaluation=True"
            )
        return rank, world

    def places(self, batch: int, rank: int, world: int) -> tuple[int, int]:
        """A rank's part of a global batch, as a half-open range of places in the order.

        Places from ``dataset_size`` on are those from 0 again.
        """
        first, size = batch * self.batch_size, self.batch_size
        if self.evaluation:
            first, stop = (number * self.dataset_size // len(self) for number in (batch, batch + 1))
            size = stop - first
        return first + rank * size // world, first + (rank + 1) * size // world


class BatchIterator(Iterator[list[int]]):
    """One pass over an epoch's batches of this rank. Its state is what torchdata's ``StatefulDataLoader`` saves."""

    def __init__(self, sampler: EpochBatchSampler) -> None:
        self._sampler = sampler
        # A DataLoader makes two iterators and uses one: nothing happens before the first batch is asked for.
        self._shares: Shares | None = None

    def __next__(self) -> list[int]:
        if self._shares is None:
            self._sampler.begin()
            self._shares = Shares(self._sampler, self._sampler.position)
        batch = self._shares.take()
        if batch is None:
            raise StopIteration
        self._sampler.position = self._shares.position
        return batch

    def state_dict(self) -> dict[str, Any]:
        """The sampler's state after the batches that this iterator gave."""
        if self._shares is None:
            return self._sampler.state_at(self._sampler.epoch, self._sampler.start)
        return self._sampler.state_at(self._shares.epoch, self._shares.position)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state; see the sampler."""
        self._sampler.load_state_dict(state)
        self._shares = None


class Shares:
    """A rank's parts of the batches of an epoch from a position on, every ``step``-th of them."""

    def __init__(self, sampler: EpochBatchSampler, position: int, step: int = 1) -> None:
        self.epoch = sampler.epoch
        self.position = position
        self._sampler = sampler
        self._step = step
        self._rank, self._world = sampler.share()
        self._order = Permutation(sampler.dataset_size, seed=sampler.seed, epoch=sampler.epoch)
        self._ready: list[list[int]] = []  # the next ones, in reverse

    def take(self) -> list[int] | None:
        """Indices of the next part; None at the end of the epoch."""
        if not self._ready:
            self._ready = self._compute()[::-1]
        if not self._ready:
            return None
        self.position += self._step
        return self._ready.pop()

    def _compute(self) -> list[list[int]]:
        sampler = self._sampler
        many = max(1, _LOOKAHEAD * self._world // sampler.batch_size)
        batches = range(self.position, len(sampler), self._step)[:many]
        parts = [np.arange(*sampler.places(batch, self._rank, self._world)) for batch in batches]
        if not parts:
            return []
        indices = np.concatenate(parts) % sampler.dataset_size
        if sampler.shuffle:
            indices = self._order(indices)
        cuts = np.cumsum([len(part) for part in parts])[:-1]
        return [part.tolist() for part in np.split(indices, cuts)]
