"""A small DrivAerNet store with splits, blacklists and statistics."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from tests.helpers.beta_matrix import write_matrix
from tests.helpers.drivaernet_store import CHUNK, FIELDS, IDS
from tests.helpers.published_store import make_samples, write_published_store


@pytest.fixture(scope="module")
def samples() -> dict[str, dict[str, np.ndarray]]:
    made = make_samples(len(IDS))
    return dict(zip(IDS, made.values(), strict=True))


@pytest.fixture(scope="module")
def root(samples: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    store = write_published_store(tmp_path_factory.mktemp("datasets"), samples, CHUNK)
    (store / "train_design_ids.txt").write_text("\n".join([*IDS, "A_B_404", "A_B_405"]) + "\n")
    (store / "val_design_ids.txt").write_text("A_C_002\n")
    (store / "test_design_ids.txt").write_text("A_D_001\n")
    (store / "blacklist.txt").write_text("/home/someone/vtk/A_B_003.vtk\n")
    (store / "blacklist2.txt").write_text("A_B_405\n")
    statistics: dict[str, Any] = {"raw_pos_min": -3.0, "raw_pos_max": 140.0}
    for field in FIELDS:
        values = np.concatenate([fields[field] for fields in samples.values()]).astype(np.float64)
        logs = np.sign(values) * np.log1p(np.abs(values))
        for key, of in ((field, values), (f"{field}_logscale", logs)):
            mean, std = of.mean(0).tolist(), of.std(0, ddof=1).tolist()
            statistics |= (
                {f"{key}_mean": mean, f"{key}_std": std}
                if len(mean) > 1
                else {f"{key}_mean": mean[0], f"{key}_std": std[0]}
            )
    (store / "stats.yaml").write_text(yaml.safe_dump(statistics))
    return store


@pytest.fixture
def written(tmp_path: Path) -> tuple[str, np.ndarray]:
    url = str(tmp_path / "matrix")
    _, beta = write_matrix(url)
    return url, beta
