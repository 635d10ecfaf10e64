"""Exports a point store to tar shards that the ``webdataset`` library and :class:`ShardStream` read.

An item is a whole sample or one draw of it: the members ``<key>.json`` and ``<key>.<field>.npy``. Each shard is a
mixture of the whole export, and depends on nothing but the samples and the arguments.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import os
import uuid
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import partial

import google_crc32c
import numpy as np
from tqdm import tqdm

from zarr_core._util.arguments import INT64, check_mapping, whole_number
from zarr_core._util.digests import json_digest
from zarr_core._util.processes import map_in_processes
from zarr_core._util.redaction import redact
from zarr_core._util.units import parse_size
from zarr_core.errors import StoreError, ZarrCoreError
from zarr_core.exports.shard_index import INDEX, Item, Shard, ShardIndex, end, item_key, member, npy, read_index
from zarr_core.loader.permutation import Permutation
from zarr_core.points.read.reader import ZarrChunkReader
from zarr_core.storage import Storage
from zarr_core.storage.temporary import strip_temp_suffix

_SUFFIX = ".tar"
# Part of the digest of a shard's inputs: another number writes all shards again.
_VERSION = 1

_Planned = tuple[str, int | None]


def export_webdataset(
    store_root: str | os.PathLike[str],
    out: str | os.PathLike[str] | Storage,
    *,
    generation: int | str | None = None,
    split: str | None = None,
    sample_ids: Collection[str] | None = None,
    fields: Sequence[str] | None = None,
    num_points: Mapping[str, int | None] | None = None,
    draws_per_sample: int = 0,
    seed: int = 0,
    shards: int | None = None,
    shard_bytes: int | str = "256MiB",
    ranks: int = 1,
    loader_workers: int = 1,
    check: bool = False,
    workers: int = 1,
    executor: Executor | None = None,
    progress: bool = False,
) -> ShardIndex:
    """Write a store as tar shards and ``index.json``.

    The number of items of two shards differs by at most 1, and their bytes by at most the size of the largest item:
    items are sorted by size, and each run of as many items as there are shards is dealt to them in random order.

    An export that was interrupted is continued by the same call: finished shards are kept if their inputs have the same
    digest. Equal calls on equal stores write equal bytes. Memory per worker: one item, and a whole shard if ``out`` is
    not a local folder.

    Args:
        store_root: the store, a local path or URL.
        out: folder or URL of the shards, used by nothing else.
        generation: number or tag; the latest if None.
        split: only the samples of this split.
        sample_ids: only these samples; by default all, without those that a blacklist of the source excludes.
        fields: only these fields, by canonical name; by default all that a sample has, with a warning if samples
            differ in them.
        num_points: points to draw by domain; other domains are whole. Needs ``draws_per_sample``.
        draws_per_sample: items per sample: draws of ``num_points``, those of epochs 0, 1, ... with this seed. 0: whole
            samples.
        seed: of the draws, and of the order in the shards.
        shards: number of shards, a multiple of ``ranks`` x ``loader_workers``; by default by their size.
        shard_bytes: approximate size of a shard, such as 1GB, if ``shards`` is not given.
        ranks: of the training that will read the shards. Each of its workers gets equally many.
        loader_workers: DataLoader workers per rank of that training.
        check: compare finished shards with their SHA-256 instead of their size.
        workers: processes.
        executor: works instead of processes; it is not shut down.
        progress: show a progress bar on stderr.

    Returns:
        The index of the finished export.

    Raises:
        StoreError: there is no store or generation, or ``out`` holds something else.
        UnknownFieldError: the store has no such split, sample, field or domain.
        ZarrCoreError: an argument is out of range, or there are fewer items than shards.
        CorruptChunkError: stored bytes are missing or damaged.

    Examples:
        >>> len(export_webdataset("store", "shards", shards=2).shards)
        2
    """
    draws_per_sample = whole_number("draws_per_sample", draws_per_sample, 0)
    seed = whole_number("seed", seed, *INT64)
    if num_points is not None:
        check_mapping("num_points", num_points, "{'surface': 4096}")
    if bool(num_points) != bool(draws_per_sample):
        raise ZarrCoreError("draws need both draws_per_sample and num_points; whole samples need neither")
    target = out if isinstance(out, Storage) else Storage(out)
    reader = ZarrChunkReader(store_root, generation=generation)
    manifest = reader.manifest
    reader.check_num_points(num_points or {})
    chosen = _chosen_samples(reader, split, sample_ids)
    if fields is None:
        names = reader.fields
        _warn_of_missing_fields(reader, chosen)
    else:
        names = reader.check_fields(fields)
    task = _Task(
        store=reader.root,
        generation=manifest.generation or None,
        out=target,
        fields=None if fields is None else tuple(names),
        num_points=dict(num_points or {}),
        seed=seed,
        export=uuid.uuid4().hex,
    )
    # Draw after draw, so that the draws of a sample lie far apart in the dealing below.
    items: list[_Planned] = []
    for draw in range(draws_per_sample) if draws_per_sample else (None,):
        items += [(sample_id, draw) for sample_id in chosen]
    per_sample = {sample_id: _raw_bytes(reader, sample_id, names, task.num_points) for sample_id in chosen}
    sizes = [per_sample[sample_id] for sample_id, _ in items]
    count = _shard_count(shards, sum(sizes), len(items), parse_size(shard_bytes), ranks, loader_workers)
    plans = []
    for number, places in enumerate(deal(sizes, count, seed)):
        planned = [items[place] for place in places]
        groups = [manifest.samples[sample_id].relpath for sample_id, _ in planned]
        inputs = json_digest([_VERSION, planned, groups, task.fields, task.num_points, seed])
        plans.append(_Plan(f"{number:06d}{_SUFFIX}", inputs, planned))
    index = ShardIndex(
        store=Storage(store_root).identity,
        dataset=manifest.dataset_name,
        generation=manifest.generation,
        split=split,
        fields=tuple(names),
        num_points=task.num_points,
        draws_per_sample=draws_per_sample,
        seed=seed,
        plan=json_digest([plan.inputs for plan in plans]),
        planned=count,
    )
    finished = _finished(target, index, plans, check)
    if all(manifest.samples[sample_id].is_ours for sample_id in chosen):  # other paths of groups do not name content
        index = replace(index, shards=finished)
    target.write(INDEX, [index.to_json()])
    waiting = [plan for plan in plans if plan.name not in index.shards]
    try:
        with tqdm(total=count, initial=len(index.shards), unit="shard", desc="export", disable=not progress) as bar:
            for shard in map_in_processes(partial(_write_shard, task), waiting, workers, _failed, executor):
                if executor is not None:
                    target.check_shared(shard.name)
                finished = {**index.shards, shard.name: shard}
                index = replace(index, shards=dict(sorted(finished.items())))
                target.write(INDEX, [index.to_json()])
                bar.update()
    finally:
        _reader.cache_clear()
    target.sync()
    return index


def _chosen_samples(reader: ZarrChunkReader, split: str | None, sample_ids: Collection[str] | None) -> list[str]:
    """The samples to export; blacklisted ones only if they are named."""
    chosen = reader.manifest.select(split, sample_ids)
    if sample_ids is None:
        chosen = [sample_id for sample_id in chosen if sample_id not in reader.manifest.excluded]
    if not chosen:
        raise ZarrCoreError(f"{redact(reader.root)}: none of the requested samples is in the store")
    return chosen


def _warn_of_missing_fields(reader: ZarrChunkReader, chosen: Sequence[str]) -> None:
    """Warn if samples lack fields of others."""
    shared, lacking = set(reader.fields), []
    for sample_id in chosen:
        own = reader.manifest.fields_of(sample_id).keys()
        shared &= own
        if not own >= set(reader.fields):
            lacking.append(sample_id)
    if lacking:
        fields = [name for name in reader.fields if name in shared]
        warnings.warn(
            f"{redact(reader.root)}: {len(lacking)} of {len(chosen)} samples lack a field, such as {lacking[0]}: their "
            f"items cannot be in a batch with the others. Export what all of them have, fields={fields}",
            stacklevel=3,
        )


def deal(sizes: Sequence[int], shards: int, seed: int) -> list[list[int]]:
    """Numbers of the items of each shard, in the order in which they lie in it.

    Args:
        sizes: bytes of each item.
        shards: number of shards, at most as many as there are items.
        seed: of the order.
    """
    by_size = np.argsort(-np.asarray(sizes, np.int64), kind="stable")
    dealt: list[list[int]] = [[] for _ in range(shards)]
    for round_, first in enumerate(range(0, len(by_size), shards)):
        run = by_size[first : first + shards]
        chosen_shards = Permutation(shards, seed=seed, epoch=round_)(np.arange(len(run)))
        for item, shard in zip(run.tolist(), chosen_shards, strict=True):
            dealt[shard].append(item)
    shuffled = []
    for number, held in enumerate(dealt):
        order = Permutation(len(held), seed=seed, epoch=-1 - number)(np.arange(len(held)))
        shuffled.append([held[place] for place in order])
    return shuffled


def _shard_count(shards: int | None, total: int, items: int, shard_bytes: int, ranks: int, loader_workers: int) -> int:
    unit = whole_number("ranks", ranks, 1) * whole_number("loader_workers", loader_workers, 1)
    readers = f"{ranks} ranks x {loader_workers} workers"
    if unit > items:
        raise ZarrCoreError(f"{items} items are too few for {readers}: each needs a shard of its own")
    if shards is None:
        return unit * min(max(1, math.ceil(total / shard_bytes / unit)), items // unit)
    shards = whole_number("shards", shards, 1)
    if shards % unit:
        raise ZarrCoreError(f"{shards} shards are not a multiple of {readers}; use {-(-shards // unit) * unit}")
    if shards > items:
        raise ZarrCoreError(f"{items} items cannot fill {shards} shards; use at most {items // unit * unit}")
    return shards


def _raw_bytes(
    reader: ZarrChunkReader, sample_id: str, names: Sequence[str], num_points: Mapping[str, int | None]
) -> int:
    """Bytes of an item's arrays, in memory and in a tar."""
    entry = reader.manifest.samples[sample_id]
    total = 0
    for name, column in reader.manifest.fields_of(sample_id).items():
        if name not in names:
            continue
        domain = column.array_name.partition("/")[0]
        n_points = entry.domains[domain].n_points
        points = min(n_points, num_points.get(domain) or n_points)
        total += points * column.dim * np.dtype(column.dtype).itemsize
    return total


@dataclass(frozen=True)
class _Plan:
    """A shard to be written: its name, the digest of its inputs, and its items in order."""

    name: str
    inputs: str
    items: Sequence[_Planned]


@dataclass(frozen=True)
class _Task:
    """What every worker needs. ``fields`` None: all that a sample has. ``export`` tells calls apart."""

    store: str
    generation: int | None
    out: Storage
    fields: tuple[str, ...] | None
    num_points: Mapping[str, int | None]
    seed: int
    export: str

    def pieces_of(self, item: _Planned) -> Iterator[bytes]:
        """The tar members of an item, piece by piece."""
        sample_id, draw = item
        key = item_key(sample_id, draw)
        reader = _reader(self.store, self.generation, self.export)
        parameters = reader.read_attributes(sample_id).get("parameters", {})
        about = {"sample_id": sample_id, "draw": draw, "parameters": parameters}
        yield from member(f"{key}.json", [json.dumps(about, sort_keys=True).encode()])
        arrays = reader.read_sample(sample_id, self.num_points, self.fields, seed=self.seed, epoch=draw or 0)
        for field, values in arrays.items():
            yield from member(f"{key}.{field}.npy", npy(values))


@functools.lru_cache(maxsize=1)
def _reader(store: str, generation: int | None, export: str) -> ZarrChunkReader:
    """The reader of this process for one export: a manifest of many samples takes a while to parse."""
    return ZarrChunkReader(store, generation=generation)


def _write_shard(task: _Task, plan: _Plan) -> Shard:
    items: list[Item] = []
    whole = hashlib.sha256()

    def pieces(hashing: Executor) -> Iterator[bytes]:
        offset = 0
        for planned in plan.items:
            content = list(task.pieces_of(planned))
            hashed = [hashing.submit(whole.update, piece) for piece in content]
            checksum = 0
            for piece in content:
                checksum = google_crc32c.extend(checksum, piece)
                yield piece
            wait(hashed)  # so that the arrays of one item at a time are in memory
            size = sum(map(len, content))
            items.append(Item(*planned, offset, size, checksum))
            offset += size
        last = end(offset)
        whole.update(last)
        yield last

    # SHA-256 takes as long as reading the store; OpenSSL computes it without Python's global lock.
    with ThreadPoolExecutor(1) as hashing:
        size = task.out.write(plan.name, pieces(hashing))
    return Shard(plan.name, plan.inputs, whole.hexdigest(), size, tuple(items))


def _failed(plan: _Plan, error: Exception) -> Shard:
    if isinstance(error, ZarrCoreError | OSError):
        raise error
    raise StoreError(f"{plan.name} cannot be written: {error}") from error


def _finished(target: Storage, index: ShardIndex, plans: Sequence[_Plan], check: bool) -> dict[str, Shard]:
    """Shards that an earlier call finished.

    Raises:
        StoreError: the target holds another export, or tar files of something else.
    """
    before = read_index(target)
    there = target.list()
    if before is None:
        others = [name for name in there if name.endswith(_SUFFIX)]
        if others:
            raise StoreError(f"{target.url} holds {others[0]}, which no export to it has written; use another folder")
        return {}
    if before.plan != index.plan:
        raise StoreError(
            f"{target.url} holds another export ({before.dataset}, generation {before.generation}, {before.planned} "
            "shards): the samples or the arguments differ. Write to another folder, or delete this one"
        )
    target.delete([name for name in there if strip_temp_suffix(name)[1]])  # of an export that was killed
    inputs = {plan.name: plan.inputs for plan in plans}
    finished = {}
    for name, shard in before.shards.items():
        if inputs.get(name) != shard.inputs or there.get(name) != shard.bytes:
            continue
        if not check or hashlib.sha256(target.read(name)).hexdigest() == shard.sha256:
            finished[name] = shard
    return finished
