"""Exports a store to a folder for the Hugging Face Hub: data that its ``datasets`` library loads, and a dataset card.

The layout and the metadata of the card follow https://huggingface.co/docs/hub/datasets-manual-configuration.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import yaml

from zarr_core.errors import StoreError, ZarrCoreError
from zarr_core.exports.matrix_rows import MatrixRows, local_path
from zarr_core.exports.parquet import export_parquet
from zarr_core.exports.webdataset import export_webdataset
from zarr_core.matrix import WideMatrix
from zarr_core.points.head import load_manifest
from zarr_core.points.manifest import StoreManifest
from zarr_core.storage import Storage
from zarr_core.stores.info import StoreInfo, store_info

CARD = "README.md"
_TAG = "zarr_core"
# Split of the samples that no split of the store names.
_OTHERS = "others"
# Sizes of datasets in the metadata of a card: upper limits.
_SIZES = {1_000: "n<1K", 10_000: "1K<n<10K", 100_000: "10K<n<100K", 1_000_000: "100K<n<1M", 10**7: "1M<n<10M"}


def export_huggingface(
    store_root: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    generation: int | str | None = None,
    license: str = "",
    description: str = "",
    cite_as: str = "",
    workers: int = 1,
    progress: bool = False,
) -> Mapping[str, int]:
    """Write ``README.md`` and ``data/``, as a dataset repository of the Hub has them.

    Of a point store, ``data/<split>/`` has the tar shards of :func:`~zarr_core.exports.export_webdataset`, whole
    samples; samples without a split are the split ``others``, and those of a store without splits ``train``. Samples
    that a blacklist of the source excludes are left out. Of a wide matrix, ``data/`` has the files of
    :func:`~zarr_core.exports.export_parquet`. An interrupted export is continued by the same call.

    Args:
        store_root: the store, a local path or URL.
        out: folder or URL, used by nothing else; of a matrix a local folder.
        generation: number or tag; the latest if None.
        license: identifier of the Hub, such as cc-by-4.0.
        description: of the dataset, in a sentence.
        cite_as: citation, such as BibTeX.
        workers: processes.
        progress: show progress bars on stderr.

    Returns:
        Number of samples by split of the Hub.

    Raises:
        StoreError: there is no store or no such generation, or ``out`` holds something else.
        ZarrCoreError: the Hub allows no such name of a split, or ``out`` is not a folder that can be written.
        CorruptChunkError: stored bytes are missing or damaged.
    """
    info = store_info(store_root, generation=generation)
    generation = info.generation or None  # later reads use the same, whatever is committed meanwhile
    target = Storage(out)
    _check_card(target)
    if info.kind == "points":
        manifest = load_manifest(store_root, generation)
        splits = _samples_of_splits(manifest)
        info = replace(info, samples=len({i for sample_ids in splits.values() for i in sample_ids}))
        for split, sample_ids in splits.items():
            export_webdataset(
                store_root,
                f"{os.fspath(out).rstrip('/')}/data/{split}",
                generation=generation,
                sample_ids=sample_ids,
                workers=workers,
                progress=progress,
            )
        counts = {split: len(sample_ids) for split, sample_ids in splits.items()}
        configs = [_config("default", {split: f"data/{split}/*.tar" for split in splits})]
        use = _POINTS.format(split=next(iter(splits)))
    else:
        rows = MatrixRows(WideMatrix.open(store_root, generation))
        export_parquet(rows, local_path(out) / "data", progress=progress)
        counts = {"train": len(rows.sample_ids)}
        configs = [_config(name, {"train": f"data/{name}.parquet"}) for name in ("samples", "features")]
        use = _MATRIX
    target.write(CARD, [_card(info, counts, configs, use, license, description, cite_as).encode()])
    return counts


def _check_card(target: Storage) -> None:
    """Raise StoreError for a ``README.md`` that no export has written. Cards have a tag in their metadata."""
    if target.exists(CARD):
        head = target.read(CARD).decode(errors="replace").split("---")
        if len(head) < 3 or head[0].strip() or f"- {_TAG}\n" not in head[1]:
            raise StoreError(f"{target.url} holds a {CARD} that no export has written; use another folder")


def _samples_of_splits(manifest: StoreManifest) -> dict[str, list[str]]:
    """Samples by split of the Hub: all but those that a blacklist of the source excludes."""
    splits = {name: manifest.select(name, None) for name in manifest.splits}
    splits = {name: sample_ids for name, sample_ids in splits.items() if sample_ids}
    for name in splits:
        if not re.fullmatch(r"\w+(\.\w+)*", name) or name == "all":
            raise ZarrCoreError(f"split {name!r}: the Hub allows letters, digits, _ and ., and not 'all'")
    named = {sample_id for sample_ids in splits.values() for sample_id in sample_ids}
    if others := [sample_id for sample_id in manifest.samples if sample_id not in named | manifest.excluded]:
        name = _OTHERS if splits else "train"
        if name in splits:
            raise ZarrCoreError(f"split {name!r} has the name that samples without a split get")
        splits[name] = others
    if not splits:
        raise ZarrCoreError("the store has no samples")
    return splits


def _config(name: str, paths: Mapping[str, str]) -> dict[str, Any]:
    return {"config_name": name, "data_files": [{"split": split, "path": path} for split, path in paths.items()]}


def _card(
    info: StoreInfo,
    counts: Mapping[str, int],
    configs: list[dict[str, Any]],
    use: str,
    license: str,
    description: str,
    cite_as: str,
) -> str:
    name = info.name or info.store.rstrip("/").rpartition("/")[2]
    size = next((label for limit, label in _SIZES.items() if info.samples < limit), "n>10M")
    metadata = {
        "pretty_name": name,
        **({"license": license.lower()} if license else {}),
        "size_categories": [size],
        "tags": [_TAG, info.kind],
        "configs": configs,
    }
    head = yaml.safe_dump(metadata, sort_keys=False, allow_unicode=True)
    rows = [f"| {key} | {one.dtype} | {one.components} | {one.units} |" for key, one in info.fields.items()]
    splits = [f"| {split} | {count:,} |" for split, count in counts.items()]
    citation = f"\n## Citation\n\n```\n{cite_as}\n```\n" if cite_as else ""
    return "\n".join(
        [
            f"---\n{head}---\n\n# {name}\n",
            *([description + "\n"] if description else []),
            f"{info.samples:,} samples, exported from generation {info.generation} of a store of zarr_core.\n",
            "| field | dtype | components | units |\n|---|---|---|---|",
            *rows,
            "\n| split | samples |\n|---|---|",
            *splits,
            use + citation,
        ]
    )


_POINTS = """
## Use

```python
from datasets import load_dataset

samples = load_dataset("OWNER/NAME", split="{split}", streaming=True)  # surface_pressure.npy, ..., json
```

```python
from zarr_core import ShardStream

stream = ShardStream("hf://datasets/OWNER/NAME/data/{split}", batch_size=8)
```
"""
_MATRIX = """
## Use

```python
from datasets import load_dataset

samples = load_dataset("OWNER/NAME", "samples", split="train")  # a row per sample, a list of numbers per value table
features = load_dataset("OWNER/NAME", "features", split="train")["feature"]  # in the order of the lists
```
"""
