"""The page docs/views.md is executed: every line of its Python."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from zarr_core import WideMatrix, ZarrChunkReader, write_sample

for library in ("xarray", "dask.array", "tensorstore"):
    pytest.importorskip(library, reason="needs the extras views and tensorstore")

PAGE = Path(__file__).parents[2] / "docs" / "views.md"


def test_the_page(tmp_path: Path) -> None:
    points = {"surface_position": np.random.rand(5200, 3), "surface_pressure": np.random.rand(5200)}
    write_sample(tmp_path / "store", "run_1", points, split="train", parameters={"speed": 30.5})
    matrix = WideMatrix.create(tmp_path / "betas", ["cg00000029", "cg2"], {"beta": "float32", "coverage": "float32"})
    cells = np.random.rand(2, 2).astype(np.float32)
    matrix.append("b", ["GSM1", "GSM7"], {"beta": cells, "coverage": cells})
    names: dict[str, Any] = {}
    for text in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL):
        exec(text.replace("s3://bucket", str(tmp_path)), names)
    pressure = ZarrChunkReader(tmp_path / "store").read_sample("run_1")["surface_pressure"]
    np.testing.assert_array_equal(names["surface"]["pressure"].values, pressure)
    np.testing.assert_array_equal(names["other"].result(), pressure[5000:5100])
    np.testing.assert_array_equal(names["values"], pressure[:4096, 0])
    np.testing.assert_array_equal(names["dataset"]["beta"].values, cells)
    np.testing.assert_array_equal(names["betas"].read().result(), cells)
