"""Training with Lightning: a data module over a store, and a run that resumes from its newest checkpoint."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor
from torchmetrics import MeanMetric

from zarr_core import EpochBatchSampler, ResumableLoader, build_dataset

sys.path.append(str(Path(__file__).parents[1]))
from common import loss_of, make_model, new_parser


class ZarrDataModule(lightning.LightningDataModule):
    """Loaders over the splits of a store.

    Lightning saves the position of the training loader in its checkpoints, because the loader has ``state_dict``.

    Args:
        config: of the dataset, without ``split``; see ``zarr_core.build_dataset``.
        batch_size: samples of a batch, of all processes together.
        evaluation: changes of the config for validation, such as other numbers of points.
        seed: of the order of the samples.
        num_threads: threads that read the next batches.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        batch_size: int,
        evaluation: Mapping[str, Any] | None = None,
        seed: int = 1,
        num_threads: int = 2,
    ) -> None:
        super().__init__()
        self.config, self.batch_size, self.evaluation = dict(config), batch_size, dict(evaluation or {})
        self.seed, self.num_threads = seed, num_threads

    def train_dataloader(self) -> ResumableLoader[Any]:
        """Another order and other points in each epoch."""
        dataset = build_dataset(self.config | {"split": "train"})
        sampler = EpochBatchSampler.of(dataset, self.batch_size, seed=self.seed)
        return ResumableLoader(dataset, sampler, num_threads=self.num_threads)

    def val_dataloader(self) -> ResumableLoader[Any]:
        """Each sample once, with the same points every time."""
        dataset = build_dataset(self.config | {"split": "val"} | self.evaluation)
        sampler = EpochBatchSampler.of(dataset, self.batch_size, shuffle=False, evaluation=True)
        return ResumableLoader(dataset, sampler, num_threads=self.num_threads)


class Surrogate(lightning.LightningModule):
    """A small network: pressure from position."""

    def __init__(self) -> None:
        super().__init__()
        self.model = make_model()
        self.error = MeanMetric()

    def training_step(self, batch: Mapping[str, Tensor]) -> Tensor:
        """The loss of a batch."""
        return loss_of(self.model, batch)

    def validation_step(self, batch: Mapping[str, Tensor]) -> None:
        """Log the error: the mean over samples, also if batches and parts of processes differ in size."""
        predicted = self.model(batch["volume_position"]).squeeze(-1)
        # A number that is logged with sync_dist=True is weighted with a rounded mean of the sizes of the parts.
        self.error((predicted - batch["volume_pressure"]).square().mean(), weight=len(predicted))
        self.log("error", self.error)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """The optimizer."""
        return torch.optim.Adam(self.parameters())


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, and write ``model.pt`` at the end."""
    parser = new_parser(__doc__)
    parser.add_argument("--devices", type=int, default=1, help="processes on this machine")
    options = parser.parse_args(arguments)

    config = {
        "kind": "point",
        "root": options.store,
        "fields": ["volume_position", "volume_pressure"],
        "num_volume_points": options.points,
    }
    module = Surrogate()
    data = ZarrDataModule(config, options.batch_size)
    checkpoints = ModelCheckpoint(options.out, "{step:08d}", every_n_train_steps=options.save_every, save_top_k=-1)
    trainer = lightning.Trainer(
        max_epochs=options.epochs,
        # Without any, Lightning does not always load the position of the loader. With it, it leaves out epochs after
        # checkpoints of an epoch's end; those of every_n_train_steps are right.
        max_steps=10**9,
        devices=options.devices,
        use_distributed_sampler=False,  # the loaders divide their batches among the processes themselves
        callbacks=[checkpoints],
        default_root_dir=options.out,
        logger=False,
        enable_progress_bar=False,
        num_sanity_val_steps=0,
    )
    newest = max(options.out.glob("*.ckpt"), default=None)  # their names have equal lengths
    trainer.fit(module, data, ckpt_path=newest)
    if trainer.is_global_zero:
        torch.save(module.model.state_dict(), options.out / "model.pt")


if __name__ == "__main__":
    main()
