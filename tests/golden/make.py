"""The program that made the stores in this folder, each once; they are never made again.

They represent the stores that users have: every later version must read them. Those in folders named after a codec are
of version 0.1.0, the others of the first version that had what they are named after: packed samples, error bounds,
integers of 16 bits, and groups that declare their convention.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import torch

from zarr_core.format.codecs import CODECS
from zarr_core.points.convert.conversion import convert

BOUNDS = {"surface_position": 0.01, "surface_pressure": "1e-2std"}
KIND = "name: golden\nsamples: '*'\nfiles: {surface_position: position.pt, surface_pressure: pressure.pt}\n"


def make(store: Path, lowest: float = -10.0, **settings: Any) -> None:
    """Make a golden store.

    Args:
        store: where.
        lowest: pressure. The logarithms of pressures around 0 have the mean 0, but for an error in the last bit, which
            depends on the processor: those of -20 and above give equal bytes on equal processors only.
        settings: of the conversion.
    """
    with tempfile.TemporaryDirectory() as folder:
        sample = Path(folder, "data", "a")
        sample.mkdir(parents=True)
        torch.save(torch.arange(123.0).reshape(41, 3) / 8, sample / "position.pt")
        torch.save(torch.arange(41.0) + lowest, sample / "pressure.pt")
        (sample / "params.json").write_text('{"speed": 30.5}')
        for file in sample.iterdir():
            os.utime(file, (0, 0))
        Path(folder, "golden.yaml").write_text(KIND)
        Path(folder, "data", "train_design_ids.txt").write_text("a\n")
        convert(f"{folder}/golden.yaml", store, root=f"{folder}/data", chunk_points=8, **settings)
    (store / "manifest.json.lock").unlink(missing_ok=True)


def main() -> None:
    here = Path(__file__).parent
    stores: dict[Path, dict[str, Any]] = {}
    for codec in CODECS:
        stores[here / codec] = {"codec": codec, "shard_points": 16, "lowest": -20.0}
        stores[here / "packed" / codec] = {"codec": codec, "layout": "packed", "lowest": -20.0}
    for layout in ("directory", "packed"):
        stores[here / "bounded" / layout] = {"max_errors": BOUNDS, "layout": layout, "lowest": -20.0}
        stores[here / "bounded_int16" / layout] = {"max_errors": BOUNDS, "layout": layout, "lowest": -20.0}
        stores[here / "declared" / layout] = {"codec": "none", "layout": layout}
    stores[here / "sized" / "packed"] = {"codec": "none", "layout": "packed"}
    for store, settings in stores.items():
        if store.exists():
            print(f"{store} is there; golden stores are never replaced")
        else:
            make(store, **settings)


if __name__ == "__main__":
    main()
