"""Small long tables in the layout of the real ones, and the wide matrix that pandas makes of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

BATCHES = {"b-1": ["s3", "s1"], "001": ["s'4", "s2", "s:5"]}
FEATURES = [f"cg{number:03d}" for number in range(40)]


def write_long(root: Path, batches: Mapping[str, Sequence[str]] = BATCHES, seed: int = 0, **columns: str) -> str:
    """Write one Parquet file per batch, with absent rows and null values; returns the glob pattern of the files.

    Args:
        root: folder for them.
        batches: samples by batch.
        seed: of the values.
        columns: other names of columns by the usual ones.
    """
    rng = np.random.default_rng(seed)
    for batch_id, sample_ids in batches.items():
        rows = pd.DataFrame([(s, f) for s in sample_ids for f in FEATURES], columns=["sample_id", "cpg_id"])
        rows["beta"] = rng.random(len(rows)).astype("float32")
        rows["coverage"] = pd.array(rng.integers(1, 300, len(rows)), dtype="Int32")
        rows = rows[rng.random(len(rows)) < 0.8].sample(frac=1, random_state=seed)
        rows.loc[rng.random(len(rows)) < 0.1, "coverage"] = pd.NA
        rows.loc[rng.random(len(rows)) < 0.1, "beta"] = np.nan
        folder = root / f"{columns.get('batch_id', 'batch_id')}={batch_id}"
        folder.mkdir(parents=True, exist_ok=True)
        rows.rename(columns=columns).to_parquet(folder / f"part-{len(list(folder.iterdir()))}.parquet", index=False)
    return f"{root}/*/*.parquet"


def pivoted(root: Path, sample_ids: Sequence[str], feature_ids: Sequence[str], value: str) -> np.ndarray:
    """The table as (samples, features) float32, by pandas alone; refuses doubled rows."""
    parts = [pd.read_parquet(file) for file in sorted(root.glob("*/*.parquet"))]
    rows = pd.concat([part[["sample_id", "cpg_id", value]] for part in parts])
    wide = rows.pivot(index="sample_id", columns="cpg_id", values=value)
    return wide.reindex(index=list(sample_ids), columns=list(feature_ids)).to_numpy("float32", na_value=np.nan)
