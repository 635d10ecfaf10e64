"""The example labels ages as real or simulated, predicts held-out samples only, and learns."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.helpers.small_source import SHARED
from zarr_core.matrix import WideMatrix

pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).parents[2] / "examples" / "epigenetic_clock" / "main.py"
REAL = SHARED / "data" / "methylation" / "array"


@pytest.fixture(scope="module")
def example() -> Any:
    """The module of the example; processes that only collect its tests are spared its imports, which take a second."""
    return importlib.import_module("examples.epigenetic_clock.main")


def test_it_runs_on_the_small_table_of_the_repository(
    example: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--matrix", str(tmp_path / "matrix"), "--folds", "3"]
    example.main(options)
    printed = capsys.readouterr().out
    assert "28 samples x 3,000 CpGs; 0 samples were in the matrix before" in printed
    assert re.search(r"^first load [\d.]+ s, second load [\d.]+ ms: \d+ x$", printed, re.M)
    assert re.search(r"^GSE38608: 8 samples x 1,500 CpGs, 4 to 60 years, REAL ages", printed, re.M)
    assert re.search(r"^GSE55763: 16 samples x [\d,]+ CpGs, .* SIMULATED ages, as 16 of 16", printed, re.M)
    tables = re.findall(r"^\| all \|(.*)$", printed, re.M)
    assert [int(row.split("|")[1]) for row in tables] == [8, 16], "every sample was held out once"
    assert set(WideMatrix.open(tmp_path / "matrix").batches) >= {"GSE38608", "GSE55763_b0", "GSE55763_b1"}

    example.main(options)
    assert "28 samples were in the matrix before" in capsys.readouterr().out


def made_up(example: Any, tmp_path: Path, samples: int = 24, ages: np.ndarray | None = None) -> tuple:
    """A matrix and a cohort of it whose every third CpG goes with age."""
    random = np.random.default_rng(0)
    ages = random.permutation(np.linspace(10, 80, samples)) if ages is None else ages
    cpgs = [f"cg{number:02d}" for number in range(30)]
    betas = 0.5 + random.normal(0, 0.02, (samples, len(cpgs)))
    betas[:, ::3] += ages[:, None] / 400
    betas[random.random(betas.shape) < 0.05] = np.nan
    ids = [f"s{number}" for number in range(samples)]
    matrix = WideMatrix.create(tmp_path / "matrix", cpgs, {"beta": "float32"})
    matrix.append("b", ids, {"beta": betas.astype("float32")})
    return matrix, example.Cohort("made up", ids, cpgs, ages, True, "")


def test_a_clock_that_is_in_the_betas_is_found(example: Any, tmp_path: Path) -> None:
    matrix, cohort = made_up(example, tmp_path)
    folds = example.train(matrix, cohort, n_folds=4, seed=0)
    errors, guesses = (np.concatenate([getattr(f, name) for f in folds]) for name in ("errors", "guess_errors"))
    assert np.abs(errors).mean() < np.abs(guesses).mean() / 2
    shuffled = example.Cohort("", cohort.sample_ids, cohort.cpgs, cohort.ages[::-1].copy(), True, "")
    wrong = np.concatenate([fold.errors for fold in example.train(matrix, shuffled, n_folds=4, seed=0)])
    assert np.abs(wrong).mean() > 1.5 * np.abs(errors).mean(), "shuffled ages cannot be predicted"


def test_samples_of_one_age_stay_together(example: Any) -> None:
    ages = np.repeat([3.0, 20.0, 41.0, 60.0], 3)
    parts = example._split(ages, 3, seed=0)
    assert len(parts) == 3
    assert sorted(np.concatenate([held_out for _, held_out in parts])) == list(range(12))
    assert all(not set(ages[trained]) & set(ages[held_out]) for trained, held_out in parts)


def test_ages_are_simulated_only_if_some_are_missing(example: Any) -> None:
    random = np.random.default_rng(0)
    ids = [f"s{number}" for number in range(20)]
    samples = pd.DataFrame({"sample_id": ids, "batch_id": ["A_b0"] * 4 + ["A_b1"] * 4 + ["B"] * 8 + ["C"] * 4})
    samples["age"] = np.arange(20.0)
    samples.loc[2, "age"] = np.nan
    betas = pd.DataFrame(random.uniform(0, 1, (20, 40)), ids, [f"cg{number}" for number in range(40)])
    betas.iloc[:8, 0] = np.nan
    first, second = example.cohorts(samples, betas, seed=0)
    assert (first.name, len(first.sample_ids), first.real) == ("A", 8, False)
    assert first.ages_note.startswith("SIMULATED ages, as 1 of 8")
    assert "cg0" not in first.cpgs
    assert (second.name, second.real) == ("B", True)
    assert second.ages_note.startswith("REAL ages")
    assert second.ages.tolist() == list(range(8, 16))
    assert len(second.cpgs) == 40


@pytest.mark.skipif(not REAL.is_dir(), reason="the whole table lies beside some checkouts only, at ../shared")
def test_predictions_of_real_ages_beat_the_mean(example: Any, capsys: pytest.CaptureFixture[str]) -> None:
    example.main(["--data", str(REAL), "--folds", "3"])
    brain, blood = capsys.readouterr().out.split("GSE38608")[1].split("GSE55763")
    assert "REAL ages" in brain
    assert "SIMULATED ages, as 67 of 72" in blood
    for printed, better in ((brain, 0.7), (blood, 1.0)):
        (row,) = re.findall(r"^\| all \|(.*)\|$", printed, re.M)
        error, guess = map(float, row.split("|")[-2:])
        assert error < better * guess
