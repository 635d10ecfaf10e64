"""Normalization statistics of a store: merged from the moments that conversion recorded, or computed again.

Statistics belong to a generation and a split: ``statistics/<generation>/<split>.yaml`` and ``.json``, ``all`` for all
samples that no blacklist excludes. Datasets of a generation normalize with its statistics of the training split.
``stats.yaml`` and ``stats.json`` beside the manifest are a copy of those of the current generation. Arrays are read on
request (``--recompute``) and for samples without recorded moments, as other programs write them; 25,000 others cost
25,000 small metadata reads.
"""

from __future__ import annotations

import json
import math
import os
import warnings
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import yaml
from tqdm import tqdm

from zarr_core._util.arguments import check_names, whole_number
from zarr_core._util.documents import DocumentError, expect
from zarr_core._util.processes import map_in_processes
from zarr_core._util.redaction import redact
from zarr_core.errors import CorruptChunkError, StoreError, UnknownFieldError, ZarrCoreError
from zarr_core.format.array_metadata import group_arrays
from zarr_core.format.moments import FieldMoments
from zarr_core.format.names import POSITION
from zarr_core.format.object_names import ALL_SAMPLES, STATISTICS_JSON, STATISTICS_YAML, statistics_name
from zarr_core.points.read.scan import read_chunks
from zarr_core.points.statistics_files import training_split
from zarr_core.points.store.group import (
    METADATA_READS,
    read_group,
    recorded_attributes,
    recorded_moments,
    recorded_numbers,
)
from zarr_core.points.store.head import load_manifest, read_lines
from zarr_core.points.store.manifest import SampleEntry, StoreManifest
from zarr_core.sources.left_out import some
from zarr_core.storage import Storage

SampleMoments = dict[str, FieldMoments]

# Attributes of the moments of a field, by their name in the statistics.
_NAMES = {
    "mean": "mean",
    "std": "std",
    "min": "min",
    "max": "max",
    "count": "count",
    "logscale_mean": "log_mean",
    "logscale_std": "log_std",
}


def calculate_store_statistics(
    store_root: str | os.PathLike[str],
    *,
    split: str | None = None,
    split_file: str | None = None,
    sample_ids: Collection[str] | None = None,
    limit: int | None = None,
    fields: Collection[str] | None = None,
    exclude_fields: Sequence[str] | None = None,
    generation: int | str | None = None,
    recompute: bool = False,
    workers: int = 1,
    executor: Executor | None = None,
    read_concurrency: int = 1,
    progress: bool = False,
) -> dict[str, Any]:
    """Mean, standard deviation, extremes, count and logscale moments of fields and parameters, in units of the source.

    Args:
        store_root: path or URL of the store.
        split: only the samples of this split ("train"); by default all. Blacklisted ones are left out, unless
            ``sample_ids`` names them.
        split_file: only the samples listed in this file, one id per line; a bare name lies in the store's root.
            Blacklisted ids are left out; ids that the store lacks are skipped with one warning.
        sample_ids: only these samples; those that the store lacks are skipped with one warning.
        limit: at most this many samples, the first by id.
        fields: canonical names of the only fields.
        exclude_fields: canonical names of fields to leave out.
        generation: number or tag of the generation whose samples are meant; the latest by default.
        recompute: read every array instead of merging the recorded moments.
        workers: processes that recompute.
        executor: works instead of processes, such as that of a cluster; it is not shut down.
        read_concurrency: concurrent reads per process.
        progress: show a progress bar.

    Returns:
        ``{field}_mean``, ``_std`` (ddof = 1), ``_min``, ``_max``, ``_count``, ``_logscale_mean``, ``_logscale_std`` for
        every field in alphabetical order, and, without ``fields``, for every parameter (``drag_mean``); then
        ``raw_pos_min`` and ``raw_pos_max`` over all position fields. Values of a scalar are floats, those of a vector
        are lists with one float per component.

    Raises:
        UnknownFieldError: the store does not hold a requested split or field.
        ZarrCoreError: no sample or no field is selected, or a chunk is damaged.

    Examples:
        >>> calculate_store_statistics("store")["surface_pressure_count"]
        800
    """
    workers = whole_number("workers", workers, 1)
    read_concurrency = whole_number("read_concurrency", read_concurrency, 1)
    storage = Storage(store_root)
    manifest = load_manifest(storage, generation)
    wanted = _chosen_fields(storage, manifest, fields, exclude_fields)
    chosen = sorted(_chosen_samples(storage, manifest, split, split_file, sample_ids))
    if limit is not None:
        chosen = chosen[: whole_number("limit", limit, 1)]
    if not chosen:
        raise ZarrCoreError(f"{storage.url}: none of the requested samples is in the store")
    entries = [(sample_id, manifest.samples[sample_id]) for sample_id in chosen]
    moments: dict[str, SampleMoments | None] = dict.fromkeys(chosen)
    if not recompute:
        with ThreadPoolExecutor(workers * read_concurrency) as threads:
            found = threads.map(partial(_recorded_moments, storage), entries)
            shown = tqdm(found, "recorded statistics", len(entries), unit="sample", disable=not progress)
            moments.update(zip(chosen, shown, strict=True))
    unknown = [sample for sample in entries if moments[sample[0]] is None]
    if unknown:
        one = partial(_recomputed_moments, storage, read_concurrency, wanted)
        computed = map_in_processes(one, unknown, workers, _not_computed, executor)
        shown = tqdm(computed, "statistics of arrays", len(unknown), unit="sample", disable=not progress)
        for (sample_id, _), result in zip(unknown, shown, strict=True):
            moments[sample_id] = result
    known = list(filter(None, moments.values()))
    parameters = _parameters(known, manifest) if fields is None else set()
    return _flat(known, wanted, parameters - {*(exclude_fields or ())})


def _parameters(samples: Iterable[SampleMoments], manifest: StoreManifest) -> set[str]:
    """Names of the parameters that samples have moments of; those that differ in their length are left out."""
    lengths: dict[str, set[int]] = {}
    for sample in samples:
        for name in sample.keys() - manifest.fields.keys():
            lengths.setdefault(name, set()).add(len(sample[name].mean))
    unequal = sorted(name for name, found in lengths.items() if len(found) > 1)
    if unequal:
        warnings.warn(
            f"parameters whose number of components differs between samples have no statistics: {some(unequal)}",
            stacklevel=3,
        )
    return lengths.keys() - set(unequal)


def _chosen_fields(
    storage: Storage, manifest: StoreManifest, fields: Collection[str] | None, exclude_fields: Collection[str] | None
) -> set[str]:
    """Names of the fields to include."""
    known = f"fields are {', '.join(manifest.fields)}"
    for argument, names in (("fields", fields), ("exclude_fields", exclude_fields)):
        check_names(argument, names, error=UnknownFieldError)
        for name in names or ():
            if name not in manifest.fields:
                raise UnknownFieldError(f"{storage.url}: no field {name!r}; {known}")
    wanted = {*(manifest.fields if fields is None else fields)} - {*(exclude_fields or ())}
    if not wanted:
        raise ZarrCoreError(f"{storage.url}: no field is left; {known}")
    return wanted


def _chosen_samples(
    storage: Storage,
    manifest: StoreManifest,
    split: str | None,
    split_file: str | None,
    sample_ids: Collection[str] | None,
) -> set[str]:
    """Ids of the samples to include; all are in the store."""
    check_names("sample_ids", sample_ids)
    chosen = set(training_samples(manifest, split) if sample_ids is None else manifest.select(split))
    listed = {} if sample_ids is None else {"sample_ids": set(sample_ids)}
    if split_file is not None:
        listed[split_file] = set(_lines(storage, split_file)) - set(manifest.excluded)
    for where, ids in listed.items():
        missing = sorted(ids - set(manifest.samples))
        if missing:
            counts = f"{len(missing)} of {len(ids)} listed samples"
            warnings.warn(f"{where}: {counts} are not in the store and were skipped ({some(missing)})", stacklevel=3)
        chosen &= ids
    return chosen


def training_samples(manifest: StoreManifest, split: str | None) -> list[str]:
    """Ids of the stored samples of a split, or of all, that no blacklist excludes: those that a dataset of it has."""
    return [sample_id for sample_id in manifest.select(split) if sample_id not in manifest.excluded]


def _lines(storage: Storage, split_file: str) -> list[str]:
    """Lines of a text file that are not empty: a bare name lies in the store's root, any other is a path or URL."""
    folder, _, name = split_file.rpartition("/")
    place = Storage(folder or "/") if "/" in split_file else storage
    lines = read_lines(place, name)
    if lines is None:
        raise ZarrCoreError(f"there is no split file {name!r} in {place.url}")
    return lines


def _recorded_moments(storage: Storage, sample: tuple[str, SampleEntry]) -> SampleMoments | None:
    """The moments in a sample's attributes: one small read. None if there are none, as in stores of other programs."""
    sample_id, entry = sample
    document = read_group(storage, entry)
    try:
        recorded = recorded_attributes(document)
        if recorded is not None and "moments" in recorded:
            return {**_parameter_moments(recorded), **recorded_moments(recorded)}
    except DocumentError as error:
        raise StoreError(
            f"{sample_id}: the moments in {entry.relpath}/zarr.json cannot be read ({error}); use --recompute, or "
            "convert the sample again with --force"
        ) from error
    return None


def _parameter_moments(recorded: dict[str, Any]) -> SampleMoments:
    """Moments of the parameters of a sample that are numbers or lists of numbers, each of one point."""
    moments: SampleMoments = {}
    for name, value in expect(dict, recorded.get("parameters", {}), "parameters").items():
        numbers = recorded_numbers(value)
        if numbers is not None:
            moments[name] = FieldMoments.of(np.array([numbers], dtype=np.float64))
    return moments


def _recomputed_moments(
    storage: Storage, read_concurrency: int, wanted: Collection[str], sample: tuple[str, SampleEntry]
) -> SampleMoments:
    """Moments of a sample's arrays, computed chunk by chunk in order."""
    sample_id, entry = sample
    document = read_group(storage, entry)
    moments = _parameter_moments(recorded_attributes(document) or {})
    for array, layout in group_arrays(document).items():
        field = array.replace("/", "_")
        if field not in wanted:
            continue
        for chunk in read_chunks(storage, f"{entry.relpath}/{array}", layout, read_concurrency):
            if chunk.rows is None:
                where = f"shard {chunk.shard}" if chunk.number is None else f"chunk {chunk.number}"
                raise CorruptChunkError(f"{sample_id}, {field}: {where}: {chunk.problem}")
            part = FieldMoments.of(chunk.rows)
            moments[field] = moments[field].merge(part) if field in moments else part
    return moments


def _not_computed(sample: tuple[str, SampleEntry], error: Exception) -> SampleMoments:
    if isinstance(error, ZarrCoreError):
        raise error
    raise ZarrCoreError(f"{sample[0]}: {error}") from error


def _flat(samples: Iterable[SampleMoments], fields: set[str], parameters: set[str]) -> dict[str, Any]:
    """Merge samples in the order given (otherwise the last bits would depend on timing) and name the results."""
    total: SampleMoments = {}
    for sample in samples:
        for field, moments in sample.items():
            if field not in fields and field not in parameters:
                continue
            lengths = {len(moments.mean), len(total.get(field, moments).mean)}
            if len(lengths) > 1:
                raise StoreError(
                    f"{field}: samples of the store have different numbers of components: {sorted(lengths)}"
                )
            total[field] = total[field].merge(moments) if field in total else moments
    flat: dict[str, Any] = {}
    for field, moments in sorted(total.items()):
        for name, attribute in _NAMES.items():
            value = getattr(moments, attribute)
            if isinstance(value, np.ndarray):
                components = value.astype(float).tolist()
                value = components[0] if len(components) == 1 else components
            flat[f"{field}_{name}"] = value
    named = [total[field] for field in fields & total.keys() if field.endswith(f"_{POSITION}")]
    positions = [moments for moments in named if len(moments.mean) > 1]
    if positions:
        flat["raw_pos_min"] = min(float(moments.min.min()) for moments in positions)
        flat["raw_pos_max"] = max(float(moments.max.max()) for moments in positions)
    return flat


def to_yaml(statistics: dict[str, Any], heading: str) -> bytes:
    """The statistics as YAML, one line per key, with a heading as comment."""
    body = yaml.safe_dump(statistics, sort_keys=False, default_flow_style=None, width=math.inf)
    return f"# {heading}\n{body}".encode()


def to_json(statistics: dict[str, Any]) -> bytes:
    """The statistics as JSON, one line per key."""
    lines = (f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in statistics.items())
    return ("{\n" + ",\n".join(lines) + "\n}\n").encode()


def write_statistics(
    store_root: str,
    statistics: dict[str, Any],
    *,
    of: str,
    split: str | None = None,
    generation: int | None = None,
    output_yaml: str | None = None,
    output_json: str | None = None,
) -> list[str]:
    """Record the statistics of a generation's split in the store, or write them to other files.

    The store keeps them as ``statistics/<generation>/<split>.yaml`` and ``.json``. Those that training normalizes with
    (see :func:`training_split`, in the current generation) are then copied to ``stats.yaml`` and ``stats.json``.

    Args:
        store_root: path or URL of the store.
        statistics: result of :func:`calculate_store_statistics`.
        of: description of the samples ("split train"), for the heading of the YAML.
        split: split of the samples; None for all samples.
        generation: number of the generation of the samples. Without it and other files, only ``stats.yaml`` and
            ``stats.json`` are written, which datasets use in stores of other programs, which have no generations.
        output_yaml: path or URL of a YAML file to write instead.
        output_json: path or URL of a JSON file to write instead.

    Returns:
        The files written, without credentials.

    Raises:
        ZarrCoreError: the store records statistics by generation and none is given, or the split's name cannot be part
            of a file name.
    """
    as_yaml = to_yaml(statistics, f"Normalisation statistics of {of}, by zarr_core.statistics")
    as_json = to_json(statistics)
    written: list[str] = []
    for target, data in ((output_yaml, as_yaml), (output_json, as_json)):
        if target is not None:
            folder, slash, name = target.rpartition("/")
            Storage(folder or slash or ".").write(name, [data])
            written.append(redact(target))
    if written:
        return written
    storage = Storage(store_root)
    recorded = _recorded_name(storage, split, generation)
    storage.write(f"{recorded}.json", [as_json])
    storage.write(f"{recorded}.yaml", [as_yaml])  # last: it tells that both are there
    names = [f"{recorded}.yaml", f"{recorded}.json"]
    return _urls(store_root, names if generation is None else names + publish_statistics(storage))


def _urls(store_root: str, names: Iterable[str]) -> list[str]:
    return [redact(f"{store_root.rstrip('/')}/{name}") for name in names]


def publish_statistics(storage: Storage) -> list[str]:
    """Make the files beside the manifest a copy of the statistics of the current generation, if it has them.

    Others may commit and do the same meanwhile. Each writer looks again after it has written, so the last generation
    wins. Returns the names of the files written.
    """
    written: dict[str, None] = {}
    while True:
        current = load_manifest(storage)
        for name in (STATISTICS_YAML, STATISTICS_JSON):
            recorded = statistics_name(current.generation, training_split(current))
            try:
                data = storage.read(f"{recorded}.{name.rpartition('.')[2]}")
            except FileNotFoundError:
                return list(written)
            if not storage.exists(name) or storage.read(name) != data:
                storage.write(name, [data])
                written[name] = None
        if load_manifest(storage).generation == current.generation:
            return list(written)


def _recorded_name(storage: Storage, split: str | None, generation: int | None) -> str:
    """Name, without suffix, of the statistics that the store itself keeps."""
    if generation is None:
        if load_manifest(storage).generation:
            raise ZarrCoreError(
                f"{storage.url} records statistics by generation and split: pass generation= and split=, or the file "
                "to write"
            )
        return STATISTICS_YAML.removesuffix(".yaml")
    if split == ALL_SAMPLES or (split is not None and "/" in split):
        raise ZarrCoreError(
            f"statistics of a split named {split!r} cannot be recorded in a store; pass a file to write"
        )
    return statistics_name(generation, split)


def recorded_statistics(
    storage: Storage, manifest: StoreManifest, split: str | None, known: dict[str, SampleMoments | None]
) -> dict[str, Any] | None:
    """The statistics of a split, merged from the recorded moments; None if a sample has none, or there is no sample.

    ``known`` has the moments of groups that were read before, and gets those that are read now. Raises ZarrCoreError if
    the moments of a sample cannot be read.
    """
    entries = [(sample_id, manifest.samples[sample_id]) for sample_id in sorted(training_samples(manifest, split))]
    unread = [(sample_id, entry) for sample_id, entry in entries if entry.relpath not in known]
    with ThreadPoolExecutor(METADATA_READS) as threads:
        read = threads.map(partial(_recorded_moments, storage), unread)
        known |= zip((entry.relpath for _, entry in unread), read, strict=True)
    recorded = list(filter(None, (known[entry.relpath] for _, entry in entries)))
    if not recorded or len(recorded) < len(entries):
        return None
    return _flat(recorded, {*manifest.fields}, _parameters(recorded, manifest))


def record_training_statistics(store_root: str, manifest: StoreManifest) -> list[str]:
    """Record the statistics that datasets of a generation normalize with, and their copy beside the manifest.

    What the store has is not written again. They are merged from the recorded moments, so they equal those of
    :func:`calculate_store_statistics`. Nothing is recorded where arrays would have to be read, or where the store has
    no sample of the training split. Returns the files written, without credentials; raises ZarrCoreError if the moments
    of a sample cannot be read.
    """
    split = training_split(manifest)
    storage = Storage(store_root)
    if storage.exists(f"{statistics_name(manifest.generation, split)}.yaml"):
        # A process that recorded them may have died before it did this.
        return _urls(store_root, publish_statistics(storage))
    statistics = recorded_statistics(storage, manifest, split, {})
    if statistics is None:
        return []
    of = f"split {split}" if split else "all samples"
    return write_statistics(store_root, statistics, of=of, split=split, generation=manifest.generation)
