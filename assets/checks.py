"""Checks of the published store. A blocking check that fails keeps statistics and report from being made."""

import hashlib
import math
from collections import Counter
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import dagster as dg
from zarr_core.platform.assets.dataset import DatasetDeclaration
from zarr_core.platform.assets.manifest import refused_rows, split_rows
from zarr_core.platform.assets.source_checks import check_result, source_converted_check
from zarr_core.platform.assets.statistics import field_rows, statistics_split
from zarr_core.platform.assets.tables import table
from zarr_core.platform.assets.zarr_samples import FORCE_TAG
from zarr_core.platform.resources.stores import StoreAccess
from zarr_core.platform.sensors.behind import COMPLETE_CHECK, check_complete, held_samples
from zarr_core.platform.sensors.migration import CHECK, check_settings
from zarr_core.platform.sensors.observations import KnownItems
from zarr_core.platform.sensors.operating import if_red
from zarr_core.platform.sensors.pending import natural_order

from zarr_core._util.units import format_count
from zarr_core.errors import StoreError
from zarr_core.points.convert.writer import GroupWriter
from zarr_core.points.statistics import calculate_store_statistics, training_samples
from zarr_core.points.store.manifest import SampleEntry, StoreManifest
from zarr_core.points.verify.source import ComparedSource
from zarr_core.points.verify.store import VerificationReport, verify_store
from zarr_core.sources.left_out import some
from zarr_core.sources.selection import with_contents
from zarr_core.storage import Storage

_FLOAT16_MAX = 65504.0
# Metadata reads in flight.
_LOOKUPS = 16


def dataset_checks(dataset: DatasetDeclaration) -> list[dg.AssetChecksDefinition]:
    """Settings, source, equivalence, checksums, columns and splits of the manifest; plausibility of the statistics."""
    checks = (
        _settings,
        _samples_complete,
        _equivalence,
        _checksums,
        _converted_samples_fit,
        _split_ids,
        _statistics_plausible,
    )

    def held(stores: StoreAccess, known: KnownItems) -> set[str]:
        listing = stores.listing(dataset.kind, dataset.source, dataset.splits)
        return held_samples(known, stores.manifest_if_any(dataset.store), listing)

    of_the_source = source_converted_check(dataset, f"{dataset.name}_arrivals", "stores", held)
    return [of_the_source, *(check(dataset) for check in checks)]


def _settings(dataset: DatasetDeclaration) -> dg.AssetChecksDefinition:
    @dg.asset_check(
        asset=dataset.published,
        name=CHECK,
        description="The samples have the settings of the store, and the store those of its declaration. The sensor "
        f"`{dataset.name}_arrivals` reports this, too, when it changes."
        + if_red("changed-settings", f"run {dataset.migration_job}, or declare the settings of the store"),
    )
    def settings(context: dg.AssetCheckExecutionContext, stores: StoreAccess) -> dg.AssetCheckResult:
        listing = stores.listing(dataset.kind, dataset.source, dataset.splits)
        known = KnownItems(context.instance, dataset)
        return check_result(check_settings(known, dataset, stores.manifest_if_any(dataset.store), listing))

    return settings


def _samples_complete(dataset: DatasetDeclaration) -> dg.AssetChecksDefinition:
    @dg.asset_check(
        asset=dataset.published,
        name=COMPLETE_CHECK,
        description="No sample of the source lacks files for longer than `complete_within_hours` after its newest file "
        f"was written. The sensor `{dataset.name}_arrivals` reports this, too, when it changes."
        + if_red("a-failed-check", "upload what is missing, or delete the folders of these samples"),
    )
    def samples_complete(stores: StoreAccess) -> dg.AssetCheckResult:
        listing = stores.listing(dataset.kind, dataset.source, dataset.splits)
        return check_result(check_complete(listing, dataset.complete_within_hours, dataset.published))

    return samples_complete


def _equivalence(dataset: DatasetDeclaration) -> dg.AssetChecksDefinition:
    @dg.asset_check(
        asset=dataset.key("manifest"),
        name="equivalence",
        blocking=True,
        description="Some samples, newly published ones first, equal their source files row by row, and have their "
        "parameters." + if_red("a-damaged-chunk", "convert the named samples again by force"),
    )
    def equivalence(stores: StoreAccess) -> dg.AssetCheckResult:
        chosen = comparable(stores, dataset)
        if not chosen:
            return dg.AssetCheckResult(passed=True, description="no sample whose source is as it was at its conversion")
        # Listed before, so that the run lists its source once.
        found = stores.found(dataset.kind, dataset.source).samples
        tree = stores.source(dataset.kind, dataset.source)
        source = ComparedSource(Storage(dataset.source), tree, found)
        return _verified(chosen, verify_store(dataset.store, source=source, sample_ids=chosen))

    return equivalence


def _checksums(dataset: DatasetDeclaration) -> dg.AssetChecksDefinition:
    @dg.asset_check(
        asset=dataset.key("manifest"),
        name="checksums",
        blocking=True,
        description="Every chunk of some samples has the checksum that it was written with, and every object is there."
        + if_red("a-damaged-chunk", "convert the named samples again by force"),
    )
    def checksums(stores: StoreAccess) -> dg.AssetCheckResult:
        chosen = choose(stores, dataset, 4 * dataset.checked_samples)
        return _verified(chosen, verify_store(dataset.store, sample_ids=chosen))

    return checksums


def _converted_samples_fit(dataset: DatasetDeclaration) -> dg.AssetChecksDefinition:
    @dg.asset_check(
        asset=dataset.key("manifest"),
        name="converted_samples_fit",
        description="No converted sample was refused because its fields differ from those of the other samples."
        + if_red("a-sample-that-cannot-be-converted", "mend the named samples at the source"),
    )
    def converted_samples_fit(stores: StoreAccess) -> dg.AssetCheckResult:
        manifest = stores.manifest(dataset.store)
        # Those of the store, not the declared ones: a group's name is a digest of the settings it was written with.
        settings = stores.settings(dataset.store, dataset.settings)
        writer = GroupWriter(dataset.store, settings, manifest.retention)
        with ThreadPoolExecutor(_LOOKUPS) as pool:
            found = pool.map(lambda item: writer.find(item[0], item[1].fingerprint), manifest.quarantine.items())
        # These have a group, and a green partition. The conversion of other refused samples failed.
        misfits = {}
        for (sample_id, refusal), result in zip(manifest.quarantine.items(), found, strict=True):
            if isinstance(result, SampleEntry):
                misfits[sample_id] = refusal
        rows = refused_rows(misfits)
        reasons = []
        for sample_id, why in misfits.items():
            reasons.append(f"{sample_id}: {why.explanation}")
        return dg.AssetCheckResult(
            passed=not misfits,
            description="; ".join(reasons[:3]) or "every converted sample has the fields of the store",
            metadata={"refused": len(misfits), **({"problem_list": table(rows)} if rows else {})},
        )

    return converted_samples_fit


def _split_ids(dataset: DatasetDeclaration) -> dg.AssetChecksDefinition:
    @dg.asset_check(
        asset=dataset.key("manifest"),
        name="split_ids_present",
        description="Every sample is in one split, and every split has samples in the store."
        + if_red("a-failed-check", "mend the split files, or declare allow_samples_without_split"),
    )
    def split_ids_present(stores: StoreAccess) -> dg.AssetCheckResult:
        manifest = stores.manifest(dataset.store)
        rows = split_rows(manifest)
        places = Counter(i for split in manifest.splits for i in manifest.split_ids(split))
        twice = sorted(sample_id for sample_id, splits in places.items() if splits > 1)
        unused = sorted(manifest.samples.keys() - places.keys() - manifest.excluded, key=natural_order) if rows else []
        problems = [f"{format_count(len(twice), 'samples')} in more than one split: {some(twice)}"] if twice else []
        if unused and not dataset.allow_samples_without_split:
            problems.append(
                f"{len(unused)} of {len(manifest.samples)} samples are in no split: {some(unused)}. List them in a "
                "split, or declare allow_samples_without_split: true"
            )
        problems += [f"no sample of split {row['split']} is in the store" for row in rows if not row["in the store"]]
        in_splits = f"{len(places)} of {len(manifest.samples)} samples in {len(rows)} splits"
        return dg.AssetCheckResult(
            passed=not problems,
            # A split may fill up later; a sample in two splits stays wrong.
            severity=dg.AssetCheckSeverity.ERROR if twice else dg.AssetCheckSeverity.WARN,
            description="; ".join(problems) or (in_splits if rows else "the source has no splits"),
            metadata={
                "splits": table(rows),
                "in_no_split": len(unused),
                **({"samples_in_no_split": table([{"sample": sample_id} for sample_id in unused])} if unused else {}),
            },
        )

    return split_ids_present


def _statistics_plausible(dataset: DatasetDeclaration) -> dg.AssetChecksDefinition:
    @dg.asset_check(
        asset=dataset.key("statistics"),
        name="plausible",
        blocking=True,
        description="All numbers are finite, no field is constant, means lie between extremes, counts are right."
        + if_red("a-failed-check", "look at the named field at the source"),
    )
    def plausible(stores: StoreAccess) -> dg.AssetCheckResult:
        manifest = stores.manifest(dataset.store)
        numbers = calculate_store_statistics(
            dataset.store, split=statistics_split(manifest), generation=manifest.generation, read_concurrency=16
        )
        problems = implausible(manifest, numbers)
        return dg.AssetCheckResult(
            passed=not problems,
            description="; ".join(problems[:5]) or f"{len(manifest.fields)} fields",
            metadata={"problems": len(problems)},
        )

    return plausible


def implausible(manifest: StoreManifest, numbers: dict[str, Any]) -> list[str]:
    """List the contradictions in the statistics."""
    problems = []
    split = statistics_split(manifest)
    ids = training_samples(manifest, split)
    for field, column in manifest.fields.items():
        domain = column.array_name.partition("/")[0]
        points = 0
        for sample_id in ids:
            grid = manifest.samples[sample_id].domains.get(domain)
            points += 0 if grid is None else grid.n_points
        if numbers[f"{field}_count"] != points:
            problems.append(f"{field}: {numbers[f'{field}_count']} values of {points} points")
    for row in field_rows(manifest, numbers):
        name, mean, std, low, high = row.values()
        if not all(map(math.isfinite, (mean, std, low, high))):
            problems.append(f"{name}: not finite")
        elif low == high or std <= 0:  # sums of equal numbers are rounded: their deviation may not be 0
            problems.append(f"{name}: constant {mean:g}")
        elif not low <= mean <= high:
            problems.append(f"{name}: mean {mean:g} outside {low:g} to {high:g}")
        elif max(-low, high) >= _FLOAT16_MAX and manifest.fields[name.partition("[")[0]].dtype == "float16":
            problems.append(f"{name}: reaches the end of float16")
    return problems


def comparable(stores: StoreAccess, dataset: DatasetDeclaration) -> list[str]:
    """Choose samples to compare whose source is still there, and as it was when they were converted."""
    manifest = stores.manifest(dataset.store)
    found = stores.found(dataset.kind, dataset.source).samples
    candidates = set()
    for sample_id in manifest.samples.keys() & found.keys():
        is_as_it_was = manifest.samples[sample_id].fingerprint == found[sample_id].fingerprint
        if is_as_it_was or manifest.fingerprints != "version":
            candidates.add(sample_id)
    chosen = choose(stores, dataset, dataset.checked_samples, candidates)
    tree = stores.source(dataset.kind, dataset.source)
    # The listing may be as old as the run.
    chosen = [sample_id for sample_id in chosen if tree.is_unchanged(found[sample_id])]
    if manifest.fingerprints != "content":
        return chosen
    # Fingerprints of contents are compared for the chosen samples only, because that reads every file of a sample.
    # A sample that cannot be read stays: its comparison reports why.
    read, _ = with_contents(tree, {sample_id: found[sample_id] for sample_id in chosen})
    return [i for i in chosen if i not in read or read[i].fingerprint == manifest.samples[i].fingerprint]


def choose(
    stores: StoreAccess, dataset: DatasetDeclaration, most: int, among: Collection[str] | None = None
) -> list[str]:
    """Choose samples to check: those new in this generation, then the others by turns over the generations."""
    manifest = stores.manifest(dataset.store)
    try:
        before = stores.manifest(dataset.store, manifest.generation - 1).samples if manifest.generation > 1 else {}
    except StoreError:
        before = {}

    def order(sample_id: str) -> tuple[bool, str]:
        published_before = sample_id in before and before[sample_id].relpath == manifest.samples[sample_id].relpath
        return published_before, hashlib.sha256(f"{manifest.generation} {sample_id}".encode()).hexdigest()

    return sorted((i for i in manifest.samples if among is None or i in among), key=order)[:most]


def _verified(chosen: list[str], report: VerificationReport) -> dg.AssetCheckResult:
    problems = []
    for problem in report.problems:
        problems.append({"sample": problem.sample_id, "field": problem.field, "problem": problem.message})
    found = "; ".join(str(problem) for problem in report.problems[:3])
    if report.damaged:
        found += f". To repair: convert {', '.join(report.damaged[:25])} again in a run with the tag {FORCE_TAG} = true"
    return dg.AssetCheckResult(
        passed=report.ok,
        description=found or f"{report.samples} samples, {report.arrays} arrays, {report.chunks} chunks",
        metadata={
            "samples": len(chosen),
            "arrays": report.arrays,
            "chunks": report.chunks,
            "problems": len(problems),
            "checked": ", ".join(chosen[:25]),
            **({"problem_list": table(problems)} if problems else {}),
        },
    )
