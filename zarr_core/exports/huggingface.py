"""Exports a store to a folder for the Hugging Face Hub: data that its ``datasets`` library loads, and a dataset card.

The layout and the metadata of the card follow https://huggingface.co/docs/hub/datasets-manual-configuration.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial, reduce
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from zarr_core.errors import StoreError, ZarrCoreError
from zarr_core.exports.matrix import MatrixRows, export_parquet
from zarr_core.exports.shard_index import INDEX
from zarr_core.exports.webdataset import export_webdataset
from zarr_core.matrix import WideMatrix
from zarr_core.points.store.head import load_manifest
from zarr_core.points.store.manifest import StoreManifest
from zarr_core.storage import Storage, is_local, local_path
from zarr_core.stores.sample_group import SampleGroup
from zarr_core.stores.summary import StoreInfo, store_info

CARD = "README.md"
_TAG = "zarr_core"
# Folder of unfinished files. Uploads to the Hub leave out what lies below .cache/huggingface.
_UNFINISHED = ".cache/huggingface/zarr_core"
# Types of parameters.
_TYPES = {bool: "bool", int: "int64", float: "float64", str: "string"}
# After the type of the numbers of a list.
_LIST = " list"
# Groups whose attributes are read at a time.
_READS = 32
# Split of the samples that no split of the store names.
_OTHERS = "others"
# Sizes of datasets in the metadata of a card: upper limits.
_SIZES = {1_000: "n<1K", 10_000: "1K<n<10K", 100_000: "10K<n<100K", 1_000_000: "100K<n<1M", 10**7: "1M<n<10M"}


def export_huggingface(
    store_root: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    fields: Sequence[str] | None = None,
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
    :func:`~zarr_core.exports.export_parquet`. An interrupted export is continued by the same call. The files that it
    had not finished lie in ``.cache/huggingface``, which uploads leave out, and the next call deletes them.

    The card declares the type of each field and of each parameter of all samples. A parameter that is a whole number
    in some samples and a fraction in others is float64, and one that is text in some samples is text. What a sample
    lacks is null.

    Args:
        store_root: the store, a local path or URL.
        out: folder or URL, used by nothing else; of a matrix a local folder.
        fields: only these fields by canonical name, or only these value tables; by default all that a sample has, with
            a warning if samples differ in them.
        generation: number or tag; the latest if None.
        license: identifier of the licence on the Hub, such as cc-by-4.0.
        description: what the dataset is, in a sentence.
        cite_as: citation, such as BibTeX.
        workers: processes.
        progress: show progress bars on stderr.

    Returns:
        Number of samples by split of the Hub.

    Raises:
        StoreError: there is no store or no such generation, or ``out`` holds something else.
        UnknownFieldError: the store has no such field or value table.
        ZarrCoreError: the Hub allows no such name of a split, or ``out`` is not a folder that can be written.
        CorruptChunkError: stored bytes are missing or damaged.
    """
    info = store_info(store_root, generation=generation)
    generation = info.generation or None  # later reads use the same, whatever is committed meanwhile
    target = _HubFolder(out)
    _check_card(target)
    # What an interrupted export has left.
    target.delete([name for name in target.list() if f"/{_UNFINISHED}/" in f"/{name}"])
    if fields is not None:
        info = replace(info, fields={name: one for name, one in info.fields.items() if name in fields})
    data: dict[str, Any] = {}
    if info.kind == "matrix":
        _check_shards(target, ())
        rows = MatrixRows(WideMatrix.open(store_root, generation), fields)
        _export_tables(rows, target, local_path(out), progress)
        data["configs"] = [_config(name, {"train": f"data/{name}.parquet"}) for name in ("samples", "features")]
        counts = {"train": len(rows.sample_ids)}
        use = _MATRIX
    else:
        manifest = load_manifest(store_root, generation)
        splits = _samples_of_splits(manifest)
        _check_shards(target, splits)
        for split, sample_ids in splits.items():
            export_webdataset(
                store_root,
                _HubFolder(f"{os.fspath(out).rstrip('/')}/data/{split}"),
                generation=generation,
                sample_ids=sample_ids,
                fields=fields,
                workers=workers,
                progress=progress,
            )
        exported = list(dict.fromkeys(chain.from_iterable(splits.values())))
        info = replace(info, samples=len(exported))
        data["dataset_info"] = {"features": _features(Storage(store_root), manifest, exported, info.fields)}
        data["configs"] = [_config("default", {split: f"data/{split}/*.tar" for split in splits})]
        counts = {split: len(sample_ids) for split, sample_ids in splits.items()}
        use = _POINTS.format(split=next(iter(splits)))
    target.write(CARD, [_card(info, counts, data, use, license, description, cite_as).encode()])
    return counts


def _export_tables(rows: MatrixRows, target: _HubFolder, folder: Path, progress: bool) -> None:
    """Write the tables of a matrix below ``.cache``, and move them to ``data/`` when they are complete."""
    written = export_parquet(rows, folder / _UNFINISHED, progress=progress)
    (folder / "data").mkdir(exist_ok=True)
    (folder / "data" / "samples.parquet").unlink(missing_ok=True)  # never cells beside names of others
    for name in ("features.parquet", "samples.parquet"):
        os.replace(written / name, folder / "data" / name)
    target.delete([f"{_UNFINISHED}/samples.parquet"])  # and the empty folders


class _HubFolder(Storage):
    """A folder whose unfinished files lie where an upload to the Hub leaves them out."""

    def write(self, name: str, pieces: Iterable[bytes]) -> int:
        """As ``Storage.write``."""
        if not is_local(self.root):
            return super().write(name, pieces)
        unfinished = f"{_UNFINISHED}/{name}"
        try:
            size = super().write(unfinished, pieces)
            os.replace(self.path(unfinished), self.path(name))
        finally:
            self.delete([unfinished])  # and the folders, unless another worker uses them
        return size


def _check_card(target: Storage) -> None:
    """Raise StoreError for a ``README.md`` that no export has written. Cards have a tag in their metadata."""
    if target.exists(CARD):
        head = target.read(CARD).decode(errors="replace").split("---")
        if len(head) < 3 or head[0].strip() or f"- {_TAG}\n" not in head[1]:
            raise StoreError(f"{target.url} holds a {CARD} that no export has written; use another folder")


def _check_shards(target: Storage, splits: Collection[str]) -> None:
    """Raise StoreError for shards of a split that is no longer exported: an upload would take them along."""
    for name in target.list("data"):
        folder = name.removesuffix(f"/{INDEX}")
        if folder != name and folder.removeprefix("data/") not in splits:
            raise StoreError(f"{target.url} holds {folder} of an earlier export, which this one lacks; delete {folder}")


def _samples_of_splits(manifest: StoreManifest) -> dict[str, list[str]]:
    """Samples by split of the Hub: all but those that a blacklist of the source excludes."""
    splits: dict[str, list[str]] = {}
    for name in manifest.splits:
        sample_ids = manifest.select(name, None)
        if not sample_ids:
            continue
        if not re.fullmatch(r"\w+(\.\w+)*", name) or name == "all":
            raise ZarrCoreError(f"split {name!r}: the Hub allows letters, digits, _ and ., and not 'all'")
        splits[name] = sample_ids
    named = manifest.excluded.union(*splits.values())
    others = [sample_id for sample_id in manifest.samples if sample_id not in named]
    if others:
        name = _OTHERS if splits else "train"
        if name in splits:
            raise ZarrCoreError(f"split {name!r} has the name that samples without a split get")
        splits[name] = others
    if not splits:
        raise ZarrCoreError("the store has no samples")
    return splits


def _features(
    storage: Storage, manifest: StoreManifest, sample_ids: Sequence[str], fields: Collection[str]
) -> list[dict[str, Any]]:
    """The columns of the shards with their types, as a card declares them.

    Without them, Hugging Face's library takes the types of the first five samples for those of all.
    """
    dtypes: dict[str, np.dtype] = {}
    for sample_id in sample_ids:
        for name, column in manifest.fields_of(sample_id).items():
            if name in fields:
                dtypes[name] = np.result_type(dtypes.get(name, column.dtype), column.dtype)
    types: dict[str, str | None] = {}
    with ThreadPoolExecutor(_READS) as threads:
        for group in threads.map(partial(SampleGroup, storage, manifest), sample_ids):
            for name, value in group.parameters.items():
                types[name] = _common_type(types.get(name), value)
    parameters: list[dict[str, str]] = []
    for name, kind in types.items():
        element = (kind or "string").removesuffix(_LIST)
        parameters.append({"name": name, "dtype" if kind is None or kind == element else "list": element})
    about = [
        {"name": "sample_id", "dtype": "string"},
        {"name": "draw", "dtype": "int64"},
        {"name": "parameters", "struct": parameters},
    ]
    arrays = [{"name": f"{name}.npy", "list": {"list": str(dtype)}} for name, dtype in dtypes.items()]
    keys = [{"name": name, "dtype": "string"} for name in ("__key__", "__url__")]
    return [*arrays, {"name": "json", "struct": about}, *keys]


def _common_type(before: str | None, value: Any) -> str | None:
    """Name of the type that holds a parameter and the earlier ones; None of nulls alone."""
    if value is None:
        return before
    if isinstance(value, list):
        kind = f"{reduce(_common_type, value, None)}{_LIST}"
    else:
        kind = _TYPES.get(type(value), "string")
    if kind == "int64" and not -(2**63) <= value < 2**63:
        kind = "float64"
    if before in (None, kind):
        return kind
    for of_kind in ("", _LIST):
        if {before, kind} == {f"int64{of_kind}", f"float64{of_kind}"}:
            return f"float64{of_kind}"
    return "string"


def _config(name: str, paths: Mapping[str, str]) -> dict[str, Any]:
    return {"config_name": name, "data_files": [{"split": split, "path": path} for split, path in paths.items()]}


def _card(
    info: StoreInfo,
    counts: Mapping[str, int],
    data: Mapping[str, Any],
    use: str,
    license: str,
    description: str,
    cite_as: str,
) -> str:
    """The dataset card: metadata as YAML, and text."""
    name = info.name or info.store.rstrip("/").rpartition("/")[2]
    head: dict[str, Any] = {"pretty_name": name}
    if license:
        head["license"] = license.lower()
    size = next((label for limit, label in _SIZES.items() if info.samples < limit), "n>10M")
    head |= {"size_categories": [size], "tags": [_TAG, info.kind], **data}
    lines = [f"---\n{yaml.safe_dump(head, sort_keys=False, allow_unicode=True)}---\n\n# {name}\n"]
    if description:
        lines.append(f"{description}\n")
    lines.append(f"{info.samples:,} samples, exported from generation {info.generation} of a store of zarr_core.\n")
    lines.append("| field | dtype | components | units |\n|---|---|---|---|")
    for field, one in info.fields.items():
        lines.append(f"| {field} | {one.dtype} | {one.components} | {one.units} |")
    lines.append("\n| split | samples |\n|---|---|")
    for split, count in counts.items():
        lines.append(f"| {split} | {count:,} |")
    citation = f"\n## Citation\n\n```\n{cite_as}\n```\n" if cite_as else ""
    lines.append(use + citation)
    return "\n".join(lines)


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
