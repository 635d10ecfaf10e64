"""Convert a dataset to a store: ``zarr-core convert``, or :func:`convert` in code.

A run looks at the source, leaves out what the store already has, converts the rest in worker processes, and commits
what came out. Interrupted anywhere, the next run goes on where it stopped.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from tqdm import tqdm

from zarr_core._util.units import format_size
from zarr_core.errors import SourceError
from zarr_core.points.convert_sample import ConversionResult, Status, convert_samples, quarantined
from zarr_core.points.manifest import StoreManifest
from zarr_core.points.publish import PublishReport, Results, commit_results, is_current, load_if_any
from zarr_core.points.settings import ConversionSettings
from zarr_core.points.writer import ZarrStoreWriter
from zarr_core.sources.aero import AeroDataset
from zarr_core.sources.description import SourceDescription
from zarr_core.sources.sample import SampleSource, SourceSample
from zarr_core.sources.selection import DatasetKind, Selection, open_source, select_samples

# A long conversion commits this often, so that its samples can be used, and survive it, before it ends.
_COMMIT_SECONDS = 60.0


@dataclass(frozen=True)
class ConversionReport:
    """What a run came to.

    Attributes:
        outcomes: one a selected sample.
        manifest: the store's state after it.
        seconds: time it took.
        retired: samples that the source holds no longer and that were taken out of the manifest, if that was asked for.
    """

    outcomes: list[ConversionResult]
    manifest: StoreManifest
    seconds: float
    retired: list[str]

    def having(self, status: Status) -> list[ConversionResult]:
        """The outcomes with a status."""
        return [outcome for outcome in self.outcomes if outcome.status == status]

    @property
    def ok(self) -> bool:
        """Whether something was converted, or everything was there already."""
        return bool(self.having("converted")) or len(self.having("up to date")) == len(self.outcomes)


def convert(
    dataset_kind: DatasetKind,
    store_root: str | os.PathLike[str],
    *,
    root: str | os.PathLike[str] | None = None,
    source_url: str | None = None,
    splits: Sequence[str] | None = None,
    sample_ids: Collection[str] | None = None,
    limit: int | None = None,
    dataset_name: str | None = None,
    retry_quarantined: bool = False,
    retire_vanished: bool = False,
    workers: int = 1,
    executor: Executor | None = None,
    progress: bool = False,
    **settings: Any,
) -> ConversionReport:
    """Convert what is missing or changed, and commit it.

    Args:
        dataset_kind: short name ("ahmedml"), dotted path, YAML file, description, class or dataset object.
        store_root: the store, a local path or fsspec URL.
        root: local folder of the dataset, converted by split.
        source_url: fsspec location of the dataset, found by listing and streamed without a local copy.
        splits: splits to convert; None: everything that is there.
        sample_ids: only these.
        limit: at most so many samples.
        dataset_name: name in the manifest; the kind's name where None.
        retry_quarantined: try refused samples again although nothing about them has changed.
        retire_vanished: take samples out of the manifest that the source no longer holds; not together with ``splits``,
            of which the others may not be looked at. Their bytes stay as long as a generation is kept that names them.
        workers: processes to convert in; 1 converts in this one. The result is the same byte for byte.
        executor: runs the conversions instead of ``workers`` processes; stays open.
        progress: show a progress bar.
        **settings: ``chunk_points``, ``shard_points``, ``values_dtype``, ``field_dtypes``, ``codec`` and
            ``shuffle_seed``, as in :class:`zarr_core.points.writer.ConversionSettings`.

    Raises:
        SourceError: the source cannot be used, or holds nothing to convert.
        StoreError: the store cannot be used; what was converted until then is committed.
    """
    if retire_vanished and splits is not None:
        raise SourceError("samples can be retired only when the whole source is looked at: give no splits")
    source = open_source(dataset_kind, root=root, source_url=source_url, splits=splits)
    return _convert(
        source,
        ZarrStoreWriter(store_root, ConversionSettings(**settings)),
        select_samples(source, splits, sample_ids, limit),
        dataset_name=dataset_name,
        retry_quarantined=retry_quarantined,
        retire_vanished=retire_vanished,
        workers=workers,
        executor=executor,
        progress=progress,
    )


def convert_aero_dataset(
    writer: ZarrStoreWriter, dataset: AeroDataset, *, workers: int = 1, executor: Executor | None = None
) -> ConversionReport:
    """Convert a dataset object of any framework: one with a ``filemap``, a ``_load`` and sample ids.

    Args:
        writer: where to and how.
        dataset: the object; its ``split``, if it has one, is kept in the store. ``workers > 1`` pickle it.
        workers, executor: as for :func:`convert`.
    """
    source = open_source(dataset)
    return _convert(source, writer, select_samples(source), workers=workers, executor=executor)


def convert_fsspec_source(
    writer: ZarrStoreWriter,
    description: str | SourceDescription | type,
    source_url: str,
    *,
    workers: int = 1,
    executor: Executor | None = None,
) -> ConversionReport:
    """Convert a tree of ``.pt`` files at any fsspec location.

    Args:
        writer: where to and how.
        description: kind of the dataset, see :func:`zarr_core.sources.resolve_kind`.
        source_url: its location.
        workers, executor: as for :func:`convert`.
    """
    source = open_source(description, source_url=source_url)
    return _convert(source, writer, select_samples(source), workers=workers, executor=executor)


def iter_convert(
    dataset_kind: DatasetKind,
    store_root: str | os.PathLike[str],
    *,
    root: str | os.PathLike[str] | None = None,
    source_url: str | None = None,
    splits: Sequence[str] | None = None,
    sample_ids: Collection[str] | None = None,
    retry_quarantined: bool = False,
    workers: int = 1,
    executor: Executor | None = None,
    **settings: Any,
) -> Iterator[ConversionResult]:
    """Convert what is missing or changed and yield each sample as it is done; commit nothing.

    :func:`zarr_core.points.publish.publish` commits. Arguments are those of :func:`convert`.
    """
    source = open_source(dataset_kind, root=root, source_url=source_url, splits=splits)
    writer = ZarrStoreWriter(store_root, ConversionSettings(**settings))
    selection = select_samples(source, splits, sample_ids)
    done, todo, writer = _plan(selection, writer, retry_quarantined)
    yield from done
    yield from convert_samples(source, writer, todo, retry_quarantined, workers, executor)


def _convert(
    source: SampleSource,
    writer: ZarrStoreWriter,
    selection: Selection,
    *,
    dataset_name: str | None = None,
    retry_quarantined: bool = False,
    retire_vanished: bool = False,
    workers: int = 1,
    executor: Executor | None = None,
    progress: bool = False,
) -> ConversionReport:
    started = committed_at = time.monotonic()
    outcomes, todo, writer = _plan(selection, writer, retry_quarantined)
    results = Results()

    def save(*, retire: bool = False) -> PublishReport:
        nonlocal results
        saved, results = results, Results()  # once only: by the next time others may have replaced what this run made
        report = commit_results(
            writer.storage, selection, writer.settings, saved, dataset_name=dataset_name, retire_vanished=retire
        )
        for at, outcome in enumerate(outcomes):
            if outcome.sample_id in report.collected:
                reason = "garbage collection took its group before it was committed; run again"
                outcomes[at] = ConversionResult(outcome.sample_id, "failed", reason=reason)
        return report

    with closing(convert_samples(source, writer, todo, retry_quarantined, workers, executor)) as running:
        try:
            for outcome in _shown(running, todo) if progress else running:
                outcomes.append(outcome)
                if outcome.written is not None:
                    results.written[outcome.sample_id] = outcome.written
                if outcome.quarantine is not None:
                    results.refused[outcome.sample_id] = outcome.quarantine
                if time.monotonic() - committed_at > _COMMIT_SECONDS:
                    save()
                    committed_at = time.monotonic()
        except BaseException:
            # However the run ends, interrupted or not, what has been converted is kept.
            if results.written or results.refused:
                save()
            raise
    report = save(retire=retire_vanished)
    return ConversionReport(outcomes, report.manifest, time.monotonic() - started, report.retired)


def _plan(
    selection: Selection, writer: ZarrStoreWriter, retry_quarantined: bool
) -> tuple[list[ConversionResult], list[SourceSample], ZarrStoreWriter]:
    """What the manifest already settles, what is to be done, and the writer that does it to the store as it is."""
    writer.settings.check_fields(selection.source.description.fields)
    manifest = load_if_any(writer.storage)
    done, todo = [], []
    for sample_id, sample in selection.samples.items():
        refusal = manifest.quarantine.get(sample_id) if manifest else None
        entry = manifest.samples.get(sample_id) if manifest else None
        if is_current(entry, sample.fingerprint, writer.settings.digest):
            done.append(ConversionResult(sample_id, "up to date"))
        elif is_current(refusal, sample.fingerprint, writer.settings.digest) and not retry_quarantined:
            assert refusal is not None
            done.append(quarantined(sample_id, refusal))
        else:
            todo.append(sample)
    return done, todo, writer.with_retention(manifest.retention) if manifest else writer


def _shown(outcomes: Iterable[ConversionResult], todo: Sequence[SourceSample]) -> Iterator[ConversionResult]:
    """Pass outcomes on, with a progress bar: samples, samples/s, time left, bytes read and written."""
    read = written = 0
    with tqdm(total=len(todo), unit="sample", dynamic_ncols=True) as bar:
        for outcome in outcomes:
            read, written = read + outcome.bytes_read, written + outcome.bytes_written
            bar.set_postfix_str(f"{format_size(read)} read, {format_size(written)} written", refresh=False)
            bar.update()
            yield outcome
