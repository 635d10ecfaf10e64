"""Lightning: a run that is resumed at the end of an epoch, or in the middle, equals the undisturbed one bit by bit."""

from __future__ import annotations

import contextlib
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from tests.helpers.loading import opened, seen
from zarr_core.errors import ZarrCoreError
from zarr_core.loader import EpochBatchSampler, ResumableLoader

try:
    import lightning
    from lightning.pytorch.callbacks import ModelCheckpoint
except (ImportError, RuntimeError) as error:  # RuntimeError: torchvision was built for another torch
    pytest.skip(f"Lightning cannot be imported: {error}", allow_module_level=True)

EPOCHS = 4


class Module(lightning.LightningModule):
    """Predicts a field of its own; remembers the draws of each epoch, and those of validation."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(3, 1)
        self.trained: dict[int, list[Any]] = {}
        self.validated: list[Any] = []

    def training_step(self, batch: Any, _: int) -> Any:
        self.trained.setdefault(self.current_epoch, []).append(seen(batch))
        return self.layer(batch["volume_position"] / 100).square().mean()

    def validation_step(self, batch: Any, _: int) -> None:
        self.validated.append(seen(batch))

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=0.01)


class Killed(Exception):
    """Ends a run behind a checkpoint."""


class SaveAndEnd(lightning.Callback):
    """Saves a checkpoint behind a step, as ``ModelCheckpoint(every_n_train_steps=...)`` does, and ends the run."""

    def __init__(self, place: Path, step: int) -> None:
        self.place, self.step = place, step

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        if trainer.global_step == self.step:
            trainer.save_checkpoint(self.place)
            raise Killed


def run(store: Path, kind: Any, *, begin: Path | None = None, callbacks: Any = (), **options: Any) -> Any:
    """Train until the end of some epoch, perhaps from a checkpoint on; the module and the trainer."""
    dataset, other = opened(store), opened(store, split="train[:4]")
    loader = kind(dataset, batch_sampler=EpochBatchSampler.of(dataset, 4, seed=5))
    evaluated = kind(other, batch_sampler=EpochBatchSampler.of(other, 2, shuffle=False, evaluation=True))
    module = Module()
    trainer = lightning.Trainer(
        accelerator="cpu",
        logger=False,
        enable_checkpointing=any(isinstance(callback, ModelCheckpoint) for callback in callbacks),
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        num_sanity_val_steps=0,
        callbacks=list(callbacks),
        **{"max_epochs": EPOCHS} | options,
    )
    with contextlib.suppress(Killed):
        trainer.fit(module, loader, evaluated, ckpt_path=None if begin is None else str(begin))
    return module, trainer


def weights(module: Module) -> list[Any]:
    return [values.tolist() for values in module.state_dict().values()]


@pytest.fixture(scope="module")
def whole(store: Path) -> Module:
    module: Module = run(store, ResumableLoader)[0]
    return module


@pytest.mark.parametrize("kind", [ResumableLoader, DataLoader, StatefulDataLoader])
def test_a_run_resumed_at_the_end_of_an_epoch_equals_the_undisturbed_one(
    store: Path, tmp_path: Path, whole: Module, kind: Any
) -> None:
    first, trainer = run(store, kind, max_epochs=2)
    trainer.save_checkpoint(tmp_path / "end.ckpt")
    second, _ = run(store, kind, begin=tmp_path / "end.ckpt")
    assert first.trained | second.trained == whole.trained
    assert len({str(epoch) for epoch in whole.trained.values()}) == EPOCHS
    assert weights(second) == weights(whole)
    assert first.validated + second.validated == whole.validated
    assert whole.validated[:2] * EPOCHS == whole.validated, "each validation has the points of epoch 0"


@pytest.mark.parametrize("kind", [ResumableLoader, StatefulDataLoader])
@pytest.mark.parametrize("step", [1, 3, 5])
def test_a_run_resumed_in_the_middle_equals_the_undisturbed_one(
    store: Path, tmp_path: Path, whole: Module, kind: Any, step: int
) -> None:
    place = tmp_path / "middle.ckpt"
    first, _ = run(store, kind, callbacks=[SaveAndEnd(place, step)], max_steps=10**9)
    second, _ = run(store, kind, begin=place)
    for epoch, batches in whole.trained.items():
        assert first.trained.get(epoch, []) + second.trained.get(epoch, []) == batches, epoch
    assert weights(second) == weights(whole)


def test_a_run_with_max_steps_resumed_several_times_equals_the_undisturbed_one(
    store: Path, tmp_path: Path, whole: Module
) -> None:
    begin = None
    trained: dict[int, list[Any]] = {}
    for step in (3, 5, 6, 9, 10, -1):  # 3, 6 and 9 are last batches of their epochs
        place = tmp_path / f"{step}.ckpt"
        part, _ = run(store, ResumableLoader, begin=begin, callbacks=[SaveAndEnd(place, step)], max_steps=10**9)
        begin = place
        for epoch, batches in part.trained.items():
            trained.setdefault(epoch, []).extend(batches)
    assert trained == whole.trained
    assert weights(part) == weights(whole)


# When Lightning saves, and with which limit of steps a run resumed from there continues where it was saved. Some limit
# makes Lightning load the position of the loader; without one it does so within an epoch only.
SAVES = {
    "each step": ({"every_n_train_steps": 1}, 10**9),
    "end of validation": ({"save_on_train_epoch_end": False}, 10**9),
    "end of validation, no limit": ({"save_on_train_epoch_end": False}, -1),
    "end of epoch, no limit": ({"save_on_train_epoch_end": True}, -1),
}


@pytest.mark.filterwarnings("ignore:The dirpath has changed")
@pytest.mark.parametrize("when", SAVES)
def test_a_run_continues_from_each_checkpoint_and_from_those_of_the_resumed_run(
    store: Path, tmp_path: Path, whole: Module, when: str
) -> None:
    options, steps = SAVES[when]
    batches = in_order(whole)

    def train(name: str, begin: Path | None = None) -> tuple[Module, list[tuple[Path, int]]]:
        keep = ModelCheckpoint(tmp_path / name, "{step}", save_top_k=-1, **options)
        module, _ = run(store, ResumableLoader, begin=begin, callbacks=[keep], max_steps=steps)
        places = [(place, int(place.stem.removeprefix("step="))) for place in (tmp_path / name).glob("*.ckpt")]
        return module, sorted(places, key=itemgetter(1))

    module, saved = train("undisturbed")
    assert in_order(module) == batches
    assert len(saved) == (len(batches) if when == "each step" else EPOCHS)
    for place, step in saved[:-1]:
        module, again = train(f"from {step}", place)
        assert in_order(module) == batches[step:], (when, step)
        assert weights(module) == weights(whole), (when, step)
        place, step = again[0]
        module, _ = train(f"again from {step}", place)
        assert in_order(module) == batches[step:], (when, step, "resumed twice")


@pytest.mark.parametrize("validation", [0, 1.0])
def test_a_checkpoint_that_makes_lightning_leave_out_an_epoch_is_refused(
    store: Path, tmp_path: Path, validation: float
) -> None:
    keep = ModelCheckpoint(tmp_path, "{step}", save_top_k=-1, save_on_train_epoch_end=True)
    settings: dict[str, Any] = {"max_steps": 10**9, "limit_val_batches": validation}
    run(store, ResumableLoader, callbacks=[keep], **settings)
    with pytest.raises(ZarrCoreError, match="epoch 1 would be left out.*save_on_train_epoch_end=False"):
        run(store, ResumableLoader, begin=tmp_path / "step=3.ckpt", **settings)


def in_order(module: Module) -> list[Any]:
    """The draws of every batch that was trained on."""
    return [batch for epoch in sorted(module.trained) for batch in module.trained[epoch]]


def test_a_plain_loader_that_is_resumed_in_the_middle_has_a_warning(store: Path, tmp_path: Path) -> None:
    place = tmp_path / "middle.ckpt"
    run(store, DataLoader, callbacks=[SaveAndEnd(place, 1)])
    with pytest.warns(UserWarning, match="your dataloader is not resumable"):
        run(store, DataLoader, begin=place)
