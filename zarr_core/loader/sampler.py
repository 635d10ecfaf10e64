"""Assigns samples to batches and ranks, as a pure function of (seed, epoch, batch number), and resumes an epoch.

An epoch is a sequence of *global* batches that does not depend on ranks and workers; each rank takes its part of every
batch. So the position in an epoch is one number, the same on all ranks, and any number of ranks can resume from it.
"""

from __future__ import annotations

import reprlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from types import SimpleNamespace
from typing import Any

import numpy as np
from torch.utils.data import Sampler

from zarr_core._util.arguments import INT64, boolean, whole_number
from zarr_core._util.repeated import Repeated
from zarr_core.errors import ZarrCoreError
from zarr_core.loader.epochs import (
    DatasetEpochs,
    count_repetitions,
    draws_of,
    epoch_setter,
    fingerprint_of,
    generations_of,
)
from zarr_core.loader.permutation import Permutation
from zarr_core.loader.ranks import check_divided_once, rank_and_world
from zarr_core.loader.weights import SampleWeights

_STATE_VERSION = 1
# Includes all values of torch.initial_seed().
_SEEDS = (-(2**63), 2**64 - 1)
# Samples whose indices are computed together, which costs little more than computing one.
_LOOKAHEAD = 1024
# What to do if a framework builds a loader or its sampler anew.
BUILT_ANEW = (
    "Lightning builds loaders anew on several processes, unless Trainer(use_distributed_sampler=False) is set, and for "
    "predictions: give those a DataLoader(dataset, batch_size=8)"
)


class EpochBatchSampler(Sampler[list[int]]):
    """Batches of indices for ``DataLoader(dataset, batch_sampler=...)``, resumable on any number of ranks.

    Global batch g consists of the samples at positions ``g * batch_size`` to ``(g + 1) * batch_size`` of the epoch's
    order. Rank r of w takes the r-th of w equal parts. Every rank gets the same number of batches. If ``batch_size``
    does not divide ``dataset_size``:

    * by default the last batch is completed with the first samples of the same epoch, which then occur twice, with
      other points (:class:`zarr_core._util.repeated.Repeated`);
    * with ``drop_last=True`` the incomplete batch is dropped (different samples in different epochs);
    * with ``evaluation=True`` every sample occurs exactly once, in as few batches as possible. Batch sizes differ by at
      most one, and so do the parts of the ranks: weight averages by the number of samples.

    For training, all parts must be equal: ``batch_size`` must be a multiple of the number of ranks.

    Call :meth:`set_epoch` before each epoch. If it is never called, the first iteration is epoch 0, and each further
    one is the next epoch; with ``evaluation=True`` each is epoch 0, so that evaluations use the same points.

    The state counts the batches taken from the sampler. The workers of a plain DataLoader take batches ahead of the
    trainer. ``ResumableLoader`` counts the batches that the trainer has received, and so does the state of torchdata's
    ``StatefulDataLoader``.

    Args:
        dataset_size: number of samples.
        batch_size: samples per global batch, that is of all ranks together.
        seed: seed of the order, -2**63 to 2**64 - 1.
        drop_last: drop the incomplete batch.
        shuffle: whether each epoch has its own order; otherwise the order of the dataset.
        evaluation: whether every sample occurs exactly once.
        fingerprint: identifies the data; a state with another fingerprint is rejected.
        weights: how often each sample occurs, relative to the others: a number per sample, at least 0. An epoch has as
            many samples as without weights. In each epoch, a sample occurs as often as its share says, up to one, and
            on average over epochs exactly; samples of equal weight do so together as well. Each repetition has other
            points.
        classes: instead of ``weights``, a label per sample. All classes occur equally often.
        on_epoch: called with the epoch before its first batch is taken, for example ``dataset.set_epoch``.
        replica: returns (rank, number of ranks); called at the start of an iteration. With tensor or pipeline
            parallelism, pass the data-parallel rank and size.

    Attributes:
        weights: the shares of the samples; None if all occur equally often.
        epoch: the current epoch.
        position: number of global batches taken in this epoch; under ``ResumableLoader``, received by the trainer.

    Raises:
        ZarrCoreError: an argument is out of range, or arguments contradict each other.

    Examples:
        >>> sampler = EpochBatchSampler(5, batch_size=2, seed=1)
        >>> [len(batch) for batch in sampler]
        [2, 2, 2]
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
        weights: Any = None,
        classes: Sequence[Any] | None = None,
        on_epoch: Callable[[int], None] | None = None,
        replica: Callable[[], tuple[int, int]] = rank_and_world,
    ) -> None:
        if isinstance(dataset_size, Sampler):
            name = type(dataset_size).__name__
            raise ZarrCoreError(f"dataset_size is a {name}: the sampler was built anew around it. {BUILT_ANEW}")
        dataset_size = whole_number("dataset_size", dataset_size, 1)
        batch_size = whole_number("batch_size", batch_size, 1)
        drop_last = boolean("drop_last", drop_last)
        shuffle = boolean("shuffle", shuffle)
        evaluation = boolean("evaluation", evaluation)
        if not isinstance(fingerprint, str):
            raise ZarrCoreError(f"fingerprint must be a string, not {reprlib.repr(fingerprint)}")
        if evaluation and drop_last:
            raise ZarrCoreError("evaluation=True uses every sample and drop_last=True does not: choose one")
        self.weights = SampleWeights.of(dataset_size, weights, classes)
        if evaluation and self.weights is not None:
            raise ZarrCoreError("evaluation=True uses every sample once: weights and classes are for training")
        if drop_last and dataset_size < batch_size:
            raise ZarrCoreError(
                f"drop_last=True drops all {dataset_size} samples; use batch_size <= {dataset_size}, not {batch_size}"
            )
        if not evaluation and dataset_size < batch_size:
            warnings.warn(
                f"batch_size={batch_size} is more than the {dataset_size} samples: each batch repeats samples, with "
                f"other points if points are drawn. Use batch_size <= {dataset_size}, or evaluation=True for each "
                "sample once",
                stacklevel=2,
            )
        if on_epoch is not None and not callable(on_epoch):
            raise ZarrCoreError(f"on_epoch must be a function, not {reprlib.repr(on_epoch)}")
        if not callable(replica):
            raise ZarrCoreError(f"replica must be a function, not {reprlib.repr(replica)}")
        self.dataset_size = dataset_size
        self.batch_size = batch_size
        self.seed = whole_number("seed", seed, *_SEEDS)
        self.drop_last = drop_last
        self.shuffle = shuffle
        self.evaluation = evaluation
        self.fingerprint = fingerprint
        self._draws = ""  # what the points of the dataset depend on; "" if that is unknown
        self._generations = ""  # where the data lie, for the message of a state of other data
        self.epoch = 0
        self._on_epoch = on_epoch
        self._replica = replica
        self.position = 0
        self._resumes = False  # whether the next iteration starts at the position instead of at the first batch
        self._begun = False  # whether an iteration of this epoch has begun
        self._loaded = False  # whether a state was loaded, and no iteration has begun since
        self._after_end = False  # whether the last iteration is the first one after a loaded state of an epoch's end
        self._advanced = False  # whether it followed the epoch before without set_epoch or follow
        self._selected: int | None = None  # the epoch of the last set_epoch

    @classmethod
    def of(cls, dataset: Any, batch_size: int, **settings: Any) -> EpochBatchSampler:
        """Create the sampler of a dataset, with the dataset's ``fingerprint`` and ``set_epoch`` if it has them.

        Both are also found within ``Subset``, ``ConcatDataset`` and other wrappers that hold datasets in an attribute
        ``dataset`` or ``datasets``. A dataset in another attribute is not reached, which causes a warning.

        Args:
            dataset: any map-style dataset. Each sampler needs a dataset object of its own, because it sets the epoch.
            batch_size: samples per global batch.
            settings: further arguments of the constructor.

        Raises:
            ZarrCoreError: the dataset has no length, or a ``Subset`` no whole numbers; or as for the constructor.
        """
        if not hasattr(dataset, "__len__"):
            raise ZarrCoreError(f"dataset must be a map-style dataset with a length, not {reprlib.repr(dataset)}")
        count_repetitions(dataset)
        settings.setdefault("fingerprint", fingerprint_of(dataset))
        if "on_epoch" not in settings:
            settings["on_epoch"] = epoch_setter(dataset)
        sampler = cls(len(dataset), batch_size, **settings)
        sampler._draws = draws_of(dataset)
        sampler._generations = generations_of(dataset)
        return sampler

    def __len__(self) -> int:
        """Number of batches per epoch, the same on every rank."""
        whole, rest = divmod(self.dataset_size, self.batch_size)
        return whole if self.drop_last or not rest else whole + 1

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of an epoch; a no-op for the current epoch, so a resumed run keeps its position.

        Raises:
            ZarrCoreError: the epoch is before that of a state that was just loaded.
        """
        epoch = whole_number("epoch", epoch, *INT64)
        if self._resumes and epoch < self.epoch:
            raise ZarrCoreError(
                f"set_epoch({epoch}) would discard the loaded state, which is in epoch {self.epoch}. If a wrapper of "
                f"the loader counts epochs, as that of Accelerate does, call its set_epoch({self.epoch}) first"
            )
        self._selected = epoch
        self._go_to(epoch)

    def _go_to(self, epoch: int) -> None:
        """Go to the start of an epoch, unless it is the current one."""
        if epoch == self.epoch:
            return
        left = len(self) - self.position
        if self._resumes and self.position and left:
            warnings.warn(
                f"{left} of {len(self)} batches of epoch {self.epoch} are left out: the loaded state is in the middle "
                f"of it, and epoch {epoch} begins. To train on them, begin with the epoch of the state: loader.epoch",
                stacklevel=3,
            )
        self.epoch, self.position, self._resumes = epoch, 0, False

    @property
    def sampler(self) -> Any:
        """Where Lightning, Fabric and Accelerate look for a ``set_epoch``: ``loader.batch_sampler.sampler``."""
        return SimpleNamespace(set_epoch=self.follow)

    @property
    def sets_epochs(self) -> bool:
        """Whether the sampler sets the epoch of a dataset."""
        return self._on_epoch is not None

    def __iter__(self) -> BatchIterator:
        if self._replica()[1] > 1:
            check_divided_once()
        return BatchIterator(self)

    def state_dict(self) -> dict[str, Any]:
        """The position in the epoch: a few numbers, the same on all ranks."""
        return self.state_at(self.epoch, self.position)

    def state_at(self, epoch: int, position: int) -> dict[str, Any]:
        """The state after ``position`` batches of an epoch."""
        state = {"version": _STATE_VERSION, "epoch": epoch, "position": position, "seed": self.seed, **self._settings}
        return state | {"data": self._generations} if self._generations else state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a saved state, with its seed and epoch, on any number of ranks.

        The next iteration yields the rest of the epoch, which is empty after the last batch.

        Raises:
            ZarrCoreError: the state belongs to other data or other batches, or is not a state of a sampler.
        """
        ours = self._settings
        try:
            epoch, position, seed = _numbers(state)
            of_sampler = state.get("version") == _STATE_VERSION and state.keys() >= ours.keys() - {"weights", "draws"}
        except ZarrCoreError:
            of_sampler = False
        if not of_sampler:
            raise ZarrCoreError(
                f"not a state of an EpochBatchSampler (version {_STATE_VERSION}): {reprlib.repr(state)}"
            )
        if state["fingerprint"] != self.fingerprint:
            saved = state.get("data")  # not in states of earlier versions
            way_out = f"Open the saved generation{f' ({saved})' if saved else ''} with the same fields and normalizers"
            if saved and saved == self._generations:
                way_out = f"Both are {saved}: use the saved fields, samples and normalizers, unless it is a new store"
            raise ZarrCoreError(
                f"the saved state belongs to other data: [{state['fingerprint']}], not [{self.fingerprint}]. "
                f"{way_out}, or start a new run"
            )
        # Only the states of a weighted epoch name weights. Earlier versions did not record draws.
        different = []
        for name in ours | {"weights": None}:
            if state.get(name) != ours.get(name) and (name != "draws" or name in state):
                different.append(f"{name} {state.get(name)} (here {ours.get(name)})")
        if different:
            raise ZarrCoreError(f"the saved state has other settings: {', '.join(different)}. Use the saved ones")
        if not 0 <= position <= len(self):
            raise ZarrCoreError(f"the saved state is invalid: batch {position} of {len(self)}")
        self.seed = seed
        if position == len(self) and self.epoch == epoch + 1:
            # The end of an epoch is the start of the next one, which set_epoch has already selected.
            epoch, position = self.epoch, 0
        self._after_end = position in (0, len(self))
        self.epoch, self.position, self._resumes, self._begun = epoch, position, True, False
        self._loaded = True

    @property
    def _settings(self) -> dict[str, Any]:
        """The arguments that the batches depend on."""
        names = ("dataset_size", "batch_size", "drop_last", "shuffle", "evaluation", "fingerprint")
        settings = {name: getattr(self, name) for name in names}
        if self._draws:
            settings["draws"] = self._draws
        return settings if self.weights is None else settings | {"weights": self.weights.digest}

    # --- for iterators ------------------------------------------------------------------------------------------------

    @property
    def _advances(self) -> bool:
        """Whether the next iteration is the next epoch."""
        return self._selected is None and not self.evaluation

    @property
    def start(self) -> tuple[int, int]:
        """Epoch and batch at which the next iteration starts."""
        if self._resumes:
            return self.epoch, self.position
        return self.epoch + (self._begun and self._advances), 0

    def begin(self) -> None:
        """Start an iteration: set the position, and the epoch of the dataset."""
        epoch, self.position = self.start
        self._after_end = self._after_end and self._loaded
        self._advanced = epoch > self.epoch
        self.epoch, self._resumes, self._begun, self._loaded = epoch, False, True, False
        if self._on_epoch is not None:
            self._on_epoch(self.epoch)

    def follow(self, epoch: int) -> None:
        """Make an epoch that a framework has counted the next one, unless the caller sets epochs.

        Fabric counts from 0 also after a state was loaded, so a number that is too small is not followed, and neither
        is one that the loader is at already because Lightning's ``CombinedLoader`` began it again within an epoch.

        Raises:
            ZarrCoreError: an epoch after that of a loaded state would be left out, whole or but for its first batch.
        """
        first = self.epoch + (self.position == len(self))
        passed_over = self._loaded and self.position in (0, len(self))
        # Without a validation in between, Lightning takes a batch before it goes on.
        left_early = self._after_end and not self._loaded and self.position == 1
        if self._advances and epoch > first and (passed_over or left_early):
            raise ZarrCoreError(
                f"epoch {first} would be left out{', but for its first batch' if left_early else ''}: it comes next "
                f"after the loaded state, and the trainer goes on to epoch {epoch}. Lightning does so with max_steps "
                "if the checkpoint was saved at the end of an epoch. Resume from one of "
                "ModelCheckpoint(every_n_train_steps=...), or of ModelCheckpoint(save_on_train_epoch_end=False) of a "
                "run with validation; or, without max_steps, from a copy of that checkpoint from before this resume, "
                "because Lightning may have saved it anew"
            )
        if self._advances and (epoch > self.epoch or (epoch == self.epoch and not self._advanced)):
            self._go_to(epoch)
            self._begun = False

    def load_late(self, state: Mapping[str, Any]) -> None:
        """Load a state when an iteration begins, which may be after ``set_epoch``, as torchdata does.

        A later epoch that ``set_epoch`` has selected begins at its start. torchdata also loads the state of an epoch
        that has ended, perhaps one from the middle of it, and then begins another iteration.
        """
        self.load_state_dict(state)
        if self._selected is not None and self._selected > state["epoch"]:
            self.epoch, self.position, self._resumes = self._selected, 0, False

    def check_dataset(self, dataset: Any) -> None:
        """Raise ZarrCoreError if the epochs go to another dataset object than this one."""
        if isinstance(self._on_epoch, DatasetEpochs):
            self._on_epoch.check_dataset(dataset)

    def check_epoch(self, epoch: int) -> None:
        """Raise ZarrCoreError if sampler or dataset have another epoch by now than the one of an iteration."""
        if epoch != self.epoch:
            raise ZarrCoreError(
                f"epoch {self.epoch} began, or set_epoch selected it, while epoch {epoch} was read: states would count "
                "the batches of one as those of the other. Leave the loop over an epoch before the next one"
            )
        if isinstance(self._on_epoch, DatasetEpochs):
            self._on_epoch.check(epoch)

    def share(self) -> tuple[int, int]:
        """(rank, number of ranks) of this process.

        Raises:
            ZarrCoreError: the batches cannot be divided among the ranks, or there is no such rank.
        """
        rank, world = self._replica()
        if not 0 <= rank < world:
            raise ZarrCoreError(f"replica returned ({rank}, {world}), not (rank, number of ranks), rank from 0 on")
        if self.evaluation:
            smallest = self.dataset_size // len(self)
            if smallest < world:
                way_out = f"batch_size >= {2 * world}" if self.dataset_size >= world else "fewer ranks"
                raise ZarrCoreError(
                    f"evaluating {self.dataset_size} samples with batch_size={self.batch_size} makes a batch of "
                    f"{smallest}, but each of {world} ranks needs a sample of every batch. Use {way_out}"
                )
        elif self.batch_size % world:
            raise ZarrCoreError(
                f"batch_size={self.batch_size} (of all ranks together) is not a multiple of {world} ranks. Use a "
                "multiple, or evaluation=True, and weight the loss of each rank by its number of samples"
            )
        return rank, world

    def places(self, batch: int, rank: int, world: int) -> tuple[int, int]:
        """A rank's part of a global batch, as a half-open range of positions in the order.

        Positions are modulo ``dataset_size``.
        """
        first, size = batch * self.batch_size, self.batch_size
        if self.evaluation:
            first = batch * self.dataset_size // len(self)
            size = (batch + 1) * self.dataset_size // len(self) - first
        return first + rank * size // world, first + (rank + 1) * size // world


class BatchIterator(Iterator[list[int]]):
    """One pass over an epoch's batches of this rank. torchdata's ``StatefulDataLoader`` saves its state."""

    def __init__(self, sampler: EpochBatchSampler) -> None:
        self._sampler = sampler
        # A DataLoader creates two iterators and uses one, so nothing happens before the first batch is requested.
        self._shares: Shares | None = None

    def __next__(self) -> list[int]:
        if self._shares is None:
            self._sampler.begin()
            self._shares = Shares(self._sampler, self._sampler.position)
        batch = next(self._shares)
        self._sampler.check_epoch(self._shares.epoch)
        self._sampler.position = self._shares.position
        return batch

    def state_dict(self) -> dict[str, Any]:
        """The sampler's state after the batches that this iterator has yielded."""
        if self._shares is None:
            return self._sampler.state_at(*self._sampler.start)
        return self._sampler.state_at(self._shares.epoch, self._shares.position)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a state; see :meth:`EpochBatchSampler.load_late`."""
        self._sampler.load_late(state)
        self._shares = None


class Shares(Iterator[list[int]]):
    """The indices of a rank's parts of every ``step``-th batch of an epoch, from a position on."""

    def __init__(self, sampler: EpochBatchSampler, position: int, step: int = 1) -> None:
        self.epoch = sampler.epoch
        self.position = position
        self._sampler = sampler
        self._step = step
        self._rank, self._world = sampler.share()
        self._order = Permutation(sampler.dataset_size, seed=sampler.seed, epoch=sampler.epoch)
        self._occurrences = None if sampler.weights is None else sampler.weights.epoch(sampler.seed, sampler.epoch)
        self._ready: list[list[int]] = []  # the next parts, reversed

    def __next__(self) -> list[int]:
        if not self._ready:
            self._ready = self._compute()[::-1]
        if not self._ready:
            raise StopIteration
        self.position += self._step
        return self._ready.pop()

    def _compute(self) -> list[list[int]]:
        sampler = self._sampler
        many = max(1, _LOOKAHEAD * self._world // sampler.batch_size)
        batches = range(self.position, len(sampler), self._step)[:many]
        parts = [np.arange(*sampler.places(batch, self._rank, self._world)) for batch in batches]
        if not parts:
            return []
        places = np.concatenate(parts)
        repetitions, indices = np.divmod(places, sampler.dataset_size)
        if sampler.shuffle:
            indices = self._order(indices)
        if self._occurrences is not None:
            indices, repetitions = self._occurrences.at(indices, repetitions)
        chosen: list[int] = indices.tolist()
        for place in np.flatnonzero(repetitions):
            chosen[place] = Repeated(chosen[place], int(repetitions[place]))
        taken = iter(chosen)
        return [list(islice(taken, len(part))) for part in parts]


def _numbers(state: Any) -> tuple[int, int, int]:
    """Epoch, position and seed of a state; raises ZarrCoreError."""
    if not isinstance(state, Mapping):
        raise ZarrCoreError("a state is a mapping")
    epoch = whole_number("epoch", state.get("epoch"), *INT64)
    position = whole_number("position", state.get("position"), *INT64)
    return epoch, position, whole_number("seed", state.get("seed"), *_SEEDS)
