"""The program that made the stores in this folder, once, with version 0.1.0; they are never made again.

They represent the stores that users have: every later version must read them.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import torch

from zarr_core.format.codecs import CODECS
from zarr_core.points.convert.conversion import convert

KIND = "name: golden\nsamples: '*'\nfiles: {surface_position: position.pt, surface_pressure: pressure.pt}\n"


def main() -> None:
    here = Path(__file__).parent
    with tempfile.TemporaryDirectory() as folder:
        sample = Path(folder, "data", "a")
        sample.mkdir(parents=True)
        torch.save(torch.arange(123.0).reshape(41, 3) / 8, sample / "position.pt")
        torch.save(torch.arange(41.0) - 20, sample / "pressure.pt")
        (sample / "params.json").write_text('{"speed": 30.5}')
        for file in sample.iterdir():
            os.utime(file, (0, 0))
        Path(folder, "golden.yaml").write_text(KIND)
        Path(folder, "data", "train_design_ids.txt").write_text("a\n")
        for codec in CODECS:
            if (here / codec).exists():
                sys.exit(f"{here / codec} is there; golden stores are never replaced")
            convert(
                f"{folder}/golden.yaml",
                here / codec,
                root=f"{folder}/data",
                chunk_points=8,
                shard_points=16,
                codec=codec,
            )
            (here / codec / "manifest.json.lock").unlink(missing_ok=True)


if __name__ == "__main__":
    main()
