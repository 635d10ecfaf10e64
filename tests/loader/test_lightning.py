"""Lightning: a run that is resumed at the end of an epoch, or in the middle, equals the undisturbed one bit by bit."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from tests.helpers.loading import opened, seen
from zarr_core.loader import EpochBatchSampler, ResumableLoader

try:
    import lightning
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
        enable_checkpointing=False,
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


def test_a_plain_loader_that_is_resumed_in_the_middle_has_a_warning(store: Path, tmp_path: Path) -> None:
    place = tmp_path / "middle.ckpt"
    run(store, DataLoader, callbacks=[SaveAndEnd(place, 1)])
    with pytest.warns(UserWarning, match="your dataloader is not resumable"):
        run(store, DataLoader, begin=place)
