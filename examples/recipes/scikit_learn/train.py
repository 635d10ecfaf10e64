"""A linear model of scikit-learn, trained batch by batch on a matrix that may be larger than memory."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import joblib
import numpy as np
from sklearn.linear_model import SGDRegressor

from zarr_core import EpochBatchSampler, MatrixDataset, ResumableLoader


def learn(model: SGDRegressor, batch: Mapping[str, np.ndarray], label: str) -> None:
    """One step on a batch: (samples, features) and (samples,)."""
    model.partial_fit(batch["beta"], batch[label])


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, and write ``model.joblib`` at the end."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("matrix")
    parser.add_argument("out", type=Path, help="folder of the checkpoint and of the trained model")
    parser.add_argument("--label", default="age", help="column of the matrix's metadata")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--save-every", type=int, default=100, help="steps from one checkpoint to the next")
    options = parser.parse_args(arguments)

    labels = MatrixDataset(options.matrix, columns=[options.label])
    labelled = ~np.isnan(labels.metadata[options.label].cast("float64").to_numpy())
    sample_ids = np.asarray(labels.sample_ids)[labelled]
    # The means of the samples that are trained on, and of no others. A feature that none of them has is left out.
    means = MatrixDataset(labels.matrix, sample_ids, value="beta").feature_means()
    measured = ~np.isnan(means)
    feature_ids = np.asarray(labels.feature_ids)[measured]
    dataset = MatrixDataset(
        labels.matrix, sample_ids, feature_ids, value="beta", columns=[options.label], impute=means[measured]
    )
    batches = ResumableLoader(dataset, EpochBatchSampler.of(dataset, options.batch_size, seed=1), num_threads=2)
    model = SGDRegressor(learning_rate="constant", eta0=1e-3, random_state=0)

    options.out.mkdir(parents=True, exist_ok=True)
    checkpoint = options.out / "checkpoint.joblib"
    step = 0
    if checkpoint.exists():
        saved = joblib.load(checkpoint)
        model = saved["model"]
        batches.load_state_dict(saved["batches"])
        step = saved["step"]

    for epoch in range(batches.epoch, options.epochs):
        batches.set_epoch(epoch)
        for tensors in batches:
            learn(model, {name: values.numpy() for name, values in tensors.items()}, options.label)
            step += 1
            if step % options.save_every == 0:
                joblib.dump({"model": model, "batches": batches.state_dict(), "step": step}, f"{checkpoint}.new")
                os.replace(f"{checkpoint}.new", checkpoint)
    joblib.dump(model, options.out / "model.joblib")


if __name__ == "__main__":
    main()
