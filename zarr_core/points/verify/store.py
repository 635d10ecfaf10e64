"""Verification of a whole store: its objects against its manifest, optionally its rows against their source.

Every chunk is read and its checksum is checked. With a source, every array is compared with the file it was made from,
row by row, and the parameters of each sample with those that the source has. The stored order is known
(``zarr_core.format.shuffle``): stored row ``i`` is compared with source row ``permutation[i]``, so swapped rows are
found too. Samples that another program wrote may have any order: their rows are
compared as a multiset, all fields of a domain together.
"""

from __future__ import annotations

from collections.abc import Collection
from concurrent.futures import Executor
from dataclasses import replace
from functools import partial

from tqdm import tqdm

from zarr_core._util.arguments import check_names, whole_number
from zarr_core._util.processes import map_in_processes
from zarr_core.errors import SourceError, StoreError
from zarr_core.format.object_names import ZARR_JSON
from zarr_core.points.store.head import HEAD, load_manifest
from zarr_core.points.store.manifest import StoreManifest
from zarr_core.points.verify.generations import GenerationCheck, kept_sample_ids
from zarr_core.points.verify.report import FieldTally, Problem, VerificationReport
from zarr_core.points.verify.sample import check_sample, not_checked
from zarr_core.points.verify.source import ComparedSource, Item
from zarr_core.points.verify.statistics import StatisticsCheck
from zarr_core.sources.description import SourceDescription
from zarr_core.storage import Storage
from zarr_core.versioning.generations import archive_problem

__all__ = ["VerificationReport", "verify_store"]


def verify_store(
    store_root: str,
    *,
    source: str | ComparedSource | None = None,
    dataset_kind: str | SourceDescription | None = None,
    sample_ids: Collection[str] | None = None,
    deep: bool = False,
    workers: int = 1,
    executor: Executor | None = None,
    progress: bool = False,
) -> VerificationReport:
    """Check the objects, chunks and records of a store; optionally compare its rows with their source.

    Args:
        store_root: path or URL of the store.
        source: folder or URL of the files that the store was made from; None checks the store alone.
        dataset_kind: of the source; by default that of the store, if it comes with the library. Without it, the
            parameters of samples are not compared, and for a store with samples of another program, which record no
            files, it is guessed.
        sample_ids: only these samples; with ``deep``, samples that only an earlier generation holds are accepted too.
        deep: check the samples of all kept generations, not only of the current one; find objects that no generation
            names (unless ``sample_ids`` is given); and name the commit that added each damaged group.
        workers: processes.
        executor: works instead of processes, such as that of a cluster; it is not shut down.
        progress: show a progress bar.

    Returns:
        The report. Damage is a problem in the report, not an exception.

    Raises:
        UnknownFieldError: the store (with ``deep``, any kept generation of it) does not hold a requested sample.
        StoreError, ManifestError: there is no readable manifest.
        SourceError: another program wrote the samples, and the kind of the source cannot be guessed; or the kind is
            given without a source.

    Examples:
        >>> verify_store("store").ok
        True
    """
    workers = whole_number("workers", workers, 1)
    storage = Storage(store_root)
    manifest = load_manifest(storage)
    chosen = None if sample_ids is None else _held_ids(storage, manifest, sample_ids, deep)
    points = str(manifest.origin.get("points", ""))
    report = VerificationReport(against_source=source is not None, points=points)
    different = archive_problem(storage, HEAD, manifest) if manifest.generation else ""  # published stores have none
    if different:
        report.problems.append(Problem("", "", different))
    if source is None and dataset_kind is not None:
        raise SourceError("--dataset-kind (dataset_kind=) describes a source: give --source (source=), too")
    if isinstance(source, str):
        source = ComparedSource.open(source, manifest, dataset_kind, sample_ids)
    everything = GenerationCheck(storage, manifest)
    statistics = StatisticsCheck(storage)
    found: list[tuple[str, Problem]] = []  # with the path of the group
    for state, samples in everything.states() if deep else [(manifest, manifest.samples)]:
        report.generations += 1
        entries = []
        for sample_id, entry in sorted(samples.items()):
            if chosen is None or sample_id in chosen:
                entries.append(Item(sample_id, entry, source.found.get(sample_id) if source is not None else None))
        # Every task of a worker carries its own sample of the source.
        unlisted = None if source is None else replace(source, found={})
        check = partial(check_sample, storage, unlisted, state.shuffle_seed, state.domains)
        checks = map_in_processes(check, entries, workers, not_checked, executor)
        problems: list[Problem] = []
        for findings in tqdm(checks, total=len(entries), unit="sample", desc="verify", disable=not progress):
            if executor is not None and not findings.problems:
                try:
                    storage.check_shared(f"{samples[findings.sample_id].relpath}/{ZARR_JSON}")
                except StoreError as error:
                    findings.add("", str(error))
            report.samples += 1
            report.any_order += findings.any_order
            report.parameters += findings.parameters is True
            report.parameters_left_out += findings.parameters is False
            problems += findings.problems
            for name, tally in findings.fields.items():
                report.fields.setdefault(name, FieldTally()).add(tally)
        if chosen is None:
            of_statistics = statistics.problems(state, state.generation == manifest.generation)
            report.problems += [Problem("", "", message) for message in of_statistics]
        collected = everything.collected() if deep and problems else ()
        for problem in problems:
            relpath = samples[problem.sample_id].relpath
            if relpath not in collected:
                found.append((relpath, problem))
    commits: dict[str, str] = {}
    if deep:
        commits = everything.commits({relpath for relpath, _ in found})
        if sample_ids is None:
            everything.check_unnamed()
            report.unnamed = everything.unnamed
    report.problems += [replace(problem, commit=commits.get(relpath, "")) for relpath, problem in found]
    report.problems += [Problem("", "", message) for message in everything.problems]
    return report


def _held_ids(storage: Storage, manifest: StoreManifest, sample_ids: Collection[str], deep: bool) -> set[str]:
    """The requested samples; raises UnknownFieldError."""
    check_names("sample_ids", sample_ids)
    requested = set(sample_ids)
    missing = requested - manifest.samples.keys()
    if deep and missing:
        missing -= kept_sample_ids(storage, manifest)
    manifest.select(sample_ids=missing)  # raises the error if there are any
    return requested
