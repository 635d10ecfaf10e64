"""Train an age model across folds from a warehouse, through a wide matrix: ``README.md`` has the figures.

The first load pays for the pivot of the long table; everything after it (each fold, each sweep, each later run) reads
the matrix.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.impute import SimpleImputer
from sklearn.linear_model import ElasticNetCV
from sklearn.model_selection import GroupKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from zarr_core import DuckDBWarehouse, MatrixDataset, MatrixLoader, WideMatrix
from zarr_core.errors import StoreError

DATA = Path(__file__).parents[1] / "data" / "methylation"
MEASURED = 0.9  # the model uses a CpG if this share of the cohort's samples has a value
LEAST_SAMPLES = 8  # smallest cohort that a model is trained on
# Simulated ages: computed from this many CpGs, plus noise.
CHOSEN_CPGS, MEAN_AGE, SPREAD, NOISE = 20, 50.0, 12.0, 3.0


@dataclass(frozen=True)
class Cohort:
    """Samples of one study, of one platform and tissue.

    Attributes:
        name: of the study.
        sample_ids: of its samples.
        cpgs: CpGs that nearly all of the samples have a value of.
        ages: in years, one per sample.
        real: whether the ages were measured, rather than simulated from the betas.
        ages_note: origin of the ages, for people.
    """

    name: str
    sample_ids: list[str]
    cpgs: list[str]
    ages: np.ndarray
    real: bool
    ages_note: str


@dataclass(frozen=True)
class Fold:
    """Results of one fold.

    Attributes:
        trained, held_out: numbers of samples.
        cpgs: with a weight in the model.
        errors: predicted minus true age of the held-out samples, in years.
        guess_errors: the same, with the mean age of the training samples as the prediction.
        reading: seconds for reading both parts from the matrix.
    """

    trained: int
    held_out: int
    cpgs: int
    errors: np.ndarray
    guess_errors: np.ndarray
    reading: float


def open_matrix(url: Path, data: Path) -> WideMatrix:
    """Open the matrix; if there is none, create it with the features of the data."""
    try:
        return WideMatrix.open(url)
    except StoreError:
        return WideMatrix.create(url, pd.read_parquet(data / "cpgs.parquet").iloc[:, 0].tolist())


def cohorts(samples: pd.DataFrame, betas: pd.DataFrame, seed: int) -> list[Cohort]:
    """The studies that are large enough, with real ages where every sample has one, and simulated ones elsewhere.

    Args:
        samples: ``sample_id``, ``batch_id`` and ``age``; a batch is named after its study, "GSE55763_b1".
        betas: (samples, CpGs), named.
        seed: of the simulation.
    """
    found = []
    for name, group in samples.groupby(samples["batch_id"].str.split("_b").str[0]):
        if len(group) < LEAST_SAMPLES:
            continue
        mine = betas.loc[group["sample_id"]]
        mine = mine.loc[:, mine.notna().mean() >= MEASURED]
        real = bool(group["age"].notna().all())
        if real:
            ages, ages_note = group["age"].to_numpy(float), "REAL ages, as the study gives them"
        else:
            ages = simulate_ages(mine, np.random.default_rng(seed))
            ages_note = (
                f"SIMULATED ages, as {group['age'].isna().sum()} of {len(group)} real ones are missing: computed from "
                f"{CHOSEN_CPGS} CpGs of real betas, and noise of {NOISE:.0f} years"
            )
        found.append(Cohort(str(name), mine.index.tolist(), mine.columns.tolist(), ages, real, ages_note))
    return found


def simulate_ages(betas: pd.DataFrame, random: np.random.Generator) -> np.ndarray:
    """Ages computed from some of the CpGs: a weighted sum of standardised real betas, plus noise."""
    filled = betas.fillna(betas.mean())
    varying = filled.columns[filled.std() > 0.02]  # more than the noise of the array
    chosen = filled[random.choice(varying, min(CHOSEN_CPGS, len(varying)), replace=False)]
    score = ((chosen - chosen.mean()) / chosen.std()).to_numpy() @ random.normal(size=chosen.shape[1])
    ages = MEAN_AGE + SPREAD * (score - score.mean()) / score.std() + random.normal(0, NOISE, len(score))
    return np.clip(ages, 0, None)


def train(matrix: WideMatrix, cohort: Cohort, n_folds: int, seed: int) -> list[Fold]:
    """Fit on all but one part of the samples and predict that part, for each part.

    Samples of one age stay in one fold: in studies of several tissues they may be of one person. All that is learned
    from data, imputed means and scales included, is learned inside the fold.
    """
    folds = []
    for trained, held_out in _split(cohort.ages, n_folds, seed):
        started = time.perf_counter()
        x, x_held_out = (_read(matrix, cohort, places) for places in (trained, held_out))
        reading = time.perf_counter() - started
        ages, inner = cohort.ages[trained], _split(cohort.ages[trained], 3, seed)
        net = ElasticNetCV(l1_ratio=0.5, alphas=10, eps=1e-2, tol=1e-2, cv=inner)
        model = make_pipeline(SimpleImputer(), StandardScaler(), net).fit(x, ages)
        truth = cohort.ages[held_out]
        errors, guess_errors = model.predict(x_held_out) - truth, ages.mean() - truth
        folds.append(Fold(len(trained), len(held_out), int(np.count_nonzero(net.coef_)), errors, guess_errors, reading))
    return folds


def _split(ages: np.ndarray, n_folds: int, seed: int) -> list[tuple[np.ndarray, np.ndarray]]:
    folds = GroupKFold(min(n_folds, len(np.unique(ages))), shuffle=True, random_state=seed)
    return list(folds.split(ages, groups=ages))


def _read(matrix: WideMatrix, cohort: Cohort, places: np.ndarray) -> np.ndarray:
    """(samples, CpGs) of some of the cohort's samples, NaN where missing."""
    return MatrixDataset(matrix, [cohort.sample_ids[place] for place in places], cohort.cpgs).to_numpy()


def table(folds: Sequence[Fold]) -> str:
    """A Markdown table with one row per fold, and one for all folds."""
    header = "fold | trained on | held out | CpGs in the model | mean error, years | guessing the mean age, years"
    lines = [f"| {header} |", "|---" * 6 + "|"]
    for number, fold in enumerate(folds, start=1):
        cells = f"{number} | {fold.trained} | {fold.held_out} | {fold.cpgs}"
        lines.append(f"| {cells} | {_mean_size(fold.errors):.1f} | {_mean_size(fold.guess_errors):.1f} |")
    errors, guesses = (np.concatenate([getattr(fold, name) for fold in folds]) for name in ("errors", "guess_errors"))
    lines.append(f"| all | | {len(errors)} | | {_mean_size(errors):.1f} | {_mean_size(guesses):.1f} |")
    return "\n".join(lines)


def _mean_size(errors: np.ndarray) -> float:
    return float(np.abs(errors).mean())


def main(arguments: list[str] | None = None) -> None:
    """Load twice, train on each cohort, print the times and the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, default=DATA, help="folder with long/, cpgs.parquet and samples.csv")
    parser.add_argument("--matrix", type=Path, help="where to keep the matrix; by default it is not kept")
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    samples = pd.read_csv(options.data / "samples.csv", dtype={"sample_id": str, "batch_id": str})
    samples = samples.reindex(columns=["sample_id", "batch_id", "age"])
    sample_ids = samples["sample_id"].tolist()
    with tempfile.TemporaryDirectory() as temporary:
        matrix = open_matrix(options.matrix or Path(temporary) / "matrix", options.data)
        loader = MatrixLoader(DuckDBWarehouse(f"{options.data}/long/*/*.parquet"), matrix)
        there = len(set(sample_ids) & set(matrix.sample_ids))
        seconds = []
        for _ in range(2):
            started = time.perf_counter()
            values = loader.load(sample_ids)
            seconds.append(time.perf_counter() - started)
        betas = pd.DataFrame(values, sample_ids, np.asarray(matrix.feature_ids))
        print(f"{values.shape[0]:,} samples x {values.shape[1]:,} CpGs; {there} samples were in the matrix before")
        print(f"first load {seconds[0]:.2f} s, second load {1000 * seconds[1]:.1f} ms: {seconds[0] / seconds[1]:.0f} x")
        for cohort in cohorts(samples, betas, options.seed):
            folds = train(matrix, cohort, options.folds, options.seed)
            size = f"{len(cohort.sample_ids)} samples x {len(cohort.cpgs):,} CpGs"
            years = f"{cohort.ages.min():.0f} to {cohort.ages.max():.0f} years"
            print(f"\n{cohort.name}: {size}, {years}, {cohort.ages_note}\n\n{table(folds)}\n")
            reading = sum(fold.reading for fold in folds)
            print(f"Reading from the matrix: {reading:.2f} s for all {len(folds)} folds.")


if __name__ == "__main__":
    main()
