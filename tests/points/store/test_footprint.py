"""What a summary says of the layouts of samples: what they take on a disk, and cost in a bucket."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from zarr_core import write_sample
from zarr_core.convert import convert
from zarr_core.info import format_store
from zarr_core.points.store.footprint import LayoutInfo
from zarr_core.points.store.head import load_manifest
from zarr_core.sources.description import SourceDescription
from zarr_core.stores.summary import StoreInfo, store_info


def write(root: str | Path, layout: Any, *sample_ids: str) -> StoreInfo:
    """Samples of three fields in two domains; returns the summary of their store."""
    arrays = {"surface_position": np.zeros((9, 3)), "surface_pressure": np.ones(9), "volume_position": np.ones((9, 3))}
    for sample_id in sample_ids:
        write_sample(root, sample_id, arrays, layout=layout)
    return store_info(root)


def test_inodes_are_those_of_the_disk(tmp_path: Path) -> None:
    info = write(tmp_path / "folders", "directory", "wing/a")
    group = tmp_path / "folders" / load_manifest(tmp_path / "folders").samples["wing/a"].relpath
    files = [path for path in group.rglob("*") if path.is_file()]
    inodes = 1 + 1 + len(list(group.rglob("*")))  # the folder of the sample, that of the group, and all below
    assert info.layouts == {"directory": LayoutInfo(1, len(files), inodes, 3)}
    assert f"layout      directory (1 sample, {inodes} inodes each)\n" in format_store(info)
    info = write(tmp_path / "packed", "packed", "a", "b")
    assert info.layouts == {"packed": LayoutInfo(2, 1, 2, 2)}
    assert "layout      packed (2 samples, 2 inodes each)\n" in format_store(info)


def test_objects_and_requests_are_those_of_the_bucket(memory_root: str) -> None:
    printed = format_store(write(f"{memory_root}/folders", "directory", "a"))
    assert "directory (1 sample, 9 objects each; a draw: 3 GETs, USD 1.20 per million draws if a " in printed
    printed = format_store(write(f"{memory_root}/packed", "packed", "a", "b"))
    assert (
        "packed (2 samples, 1 object each; a draw: 2 GETs, USD 0.80 per million draws if a million GETs cost 0.4)"
        in printed
    )


def test_units_of_fields_that_the_first_sample_lacks(tmp_path: Path) -> None:
    for sample_id in ("a", "b"):
        (tmp_path / "source" / sample_id).mkdir(parents=True)
        np.savez(tmp_path / "source" / sample_id / "mesh.npz", xyz=np.zeros((9, 3)), p=np.ones(9))
    np.savez(tmp_path / "source" / "b" / "heat.npz", q=np.ones(9))
    files = {
        "surface_position": {"file": "mesh.npz", "array": "xyz", "units": "m"},
        "surface_heat": {"file": "heat.npz", "array": "q", "units": "W m-2"},
    }
    described = {"name": "cars", "samples": "*", "files": files, "optional": ["surface_heat"]}
    convert(SourceDescription.model_validate(described), tmp_path / "store", root=tmp_path / "source")
    fields = store_info(tmp_path / "store").fields
    assert {name: field.units for name, field in fields.items()} == {"surface_position": "m", "surface_heat": "W m-2"}
