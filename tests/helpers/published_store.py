"""Stores as other programs write them: zarr-python and the published manifest keys only."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import zarr
import zarr.errors
from zarr.codecs import Crc32cCodec, ZstdCodec

Samples = Mapping[str, Mapping[str, np.ndarray]]  # sample id -> canonical field name -> (points, dim)


def make_samples(
    n_samples: int = 3, surface: int = 50, volume: int = 130, prefix: str = "run_", seed: int = 0
) -> dict[str, dict[str, np.ndarray]]:
    """Fields whose rows identify themselves: the first component of every field is the point's index."""
    rng = np.random.default_rng(seed)
    samples = {}
    for number in range(1, n_samples + 1):
        fields = {}
        for domain, n in (("surface", surface + number), ("volume", volume + number)):
            for name, dim in (("position", 3), ("pressure", 1), ("velocity", 3)):
                dtype = np.float32 if name == "position" else np.float16
                values = rng.normal(size=(n, dim)).astype(dtype)
                values[:, 0] = np.arange(n)
                fields[f"{domain}_{name}"] = values
        samples[f"{prefix}{number}"] = fields
    return samples


def write_published_store(
    root: Path,
    samples: Samples,
    chunk_points: int = 16,
    shard_points: int | None = None,
    checksum: bool = False,
    fingerprint: str | None = None,
    **manifest: object,
) -> Path:
    """Write a store.

    With ``checksum`` and ``fingerprint`` a reader takes it for a store of this library; further keyword arguments
    become keys of the manifest.
    """
    compressors = (ZstdCodec(), Crc32cCodec()) if checksum else (ZstdCodec(),)
    domains: dict[str, dict[str, object]] = {}
    entries: dict[str, dict[str, object]] = {}
    for sample_id, fields in samples.items():
        group = zarr.create_group(root / sample_id, zarr_format=3)
        grids = {}
        for canonical, values in fields.items():
            domain, _, name = canonical.partition("_")
            n, dim = values.shape
            shard = shard_points or -(-n // chunk_points) * chunk_points
            array = group.create_array(
                f"{domain}/{name}",
                shape=(n, dim),
                chunks=(chunk_points, dim),
                shards=(shard, dim),
                dtype=values.dtype,
                compressors=compressors,
            )
            array[:] = values
            grids[domain] = {
                "n_points": n,
                "chunk_points": chunk_points,
                "shard_points": shard,
                "n_chunks": -(-n // chunk_points),
            }
            layout = domains.setdefault(domain, {"position": f"{domain}_position", "arrays": {}})
            layout["arrays"][canonical] = {  # type: ignore[index]
                "array_name": f"{domain}/{name}",
                "field": canonical,
                "dtype": str(values.dtype),
                "dim": dim,
            }
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", zarr.errors.ZarrUserWarning
            )  # inline consolidated metadata is not in the spec
            zarr.consolidate_metadata(group.store)
        entries[sample_id] = {"relpath": sample_id, "domains": grids}
        if fingerprint is not None:
            entries[sample_id]["fingerprint"] = fingerprint
    document = {
        "dataset_name": "test",
        "format_version": 1,
        "shuffle_seed": 0,
        "coords_dtype": "float32",
        "values_dtype": "float16",
        "compressor": "zstd",
        "domains": domains,
        "samples": entries,
        **manifest,
    }
    (root / "manifest.json").write_text(json.dumps(document))
    return root
