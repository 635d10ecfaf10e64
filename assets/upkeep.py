"""Garbage collection and deep verification of a store: assets without automation, run by their schedules or by hand."""

import hashlib
import time
from collections.abc import Collection, Iterator

import dagster as dg
from zarr_core.platform.assets.dataset import DatasetDeclaration
from zarr_core.platform.assets.declaration import Declaration
from zarr_core.platform.assets.tables import table
from zarr_core.platform.assets.zarr_samples import REPAIR_HINT
from zarr_core.platform.resources.pools import ConversionPool
from zarr_core.platform.resources.stores import StoreAccess
from zarr_core.platform.sensors.operating import if_red
from zarr_core.platform.sensors.schedules import scheduled

from zarr_core._util.redaction import redact
from zarr_core._util.units import format_size, parse_duration
from zarr_core.matrix.verify import verify_matrix
from zarr_core.points.verify.generations import kept_sample_ids
from zarr_core.points.verify.store import verify_store
from zarr_core.sources.left_out import some
from zarr_core.storage import Storage
from zarr_core.stores.kinds import head_if_any
from zarr_core.versioning.gc import collect_garbage

_DAY_SECONDS = 86_400
_DAYS_OF_A_MONTH = 31


def garbage_asset(declared: Declaration, store: str) -> dg.AssetsDefinition:
    """Deletes what no kept generation names, and records what that freed.

    Args:
        declared: the dataset.
        store: URL of its store or matrix.
    """

    @dg.asset(
        key=declared.key("garbage"),
        group_name=declared.name,
        description="Garbage collection: generations that were replaced more than `gc_grace` ago, and the objects that "
        f"only they name, are deleted from `{redact(store)}`. Its schedule runs if `gc_schedule` is declared."
        + if_red("where-is-the-reason", "read the last event of the run; the next run deletes what this one left"),
        output_required=False,
        kinds={"zarr"},
    )
    def garbage(context: dg.AssetExecutionContext) -> Iterator[dg.MaterializeResult]:
        storage = Storage(store)
        head = head_if_any(storage)
        if head is None:
            context.log.info(_nothing_yet(store))
            return
        report = collect_garbage(storage, head, parse_duration(declared.gc_grace))
        groups = sorted(report.prefixes.items(), key=lambda item: -item[1].bytes)
        context.log.info(f"freed {format_size(report.bytes)}; deleted generations {report.expired}")
        yield dg.MaterializeResult(
            metadata={
                "freed": format_size(report.bytes),
                "freed_bytes": report.bytes,
                "deleted_groups": len(groups),
                "deleted_generations": len(report.expired),
                "kept_generations": len(report.kept),
                "too_young": report.young,
                "objects_of_other_programs": report.foreign,
                "largest": table([{"group": name, "objects": g.objects, "bytes": g.bytes} for name, g in groups]),
            }
        )

    return garbage


def _nothing_yet(store: str) -> str:
    """What a run says of a dataset of which nothing was published so far. It succeeds, and materializes nothing."""
    return f"{redact(store)} holds no store yet: there is nothing to do"


def gc_schedules(declared: Declaration) -> list[dg.ScheduleDefinition]:
    """The schedule of the garbage collection, if one is declared."""
    if declared.gc_schedule is None:
        return []
    return [scheduled(f"{declared.name}_gc", declared.gc_schedule, f"Collects the garbage of {declared.name}.")]


def verification_schedules(declared: Declaration, days: int) -> list[dg.ScheduleDefinition]:
    """The schedule of the deep verification, if one is declared.

    Args:
        declared: the dataset.
        days: between two runs, at most; counted from the first day of each month, which always has one.
    """
    if declared.verify_within_days is None:
        return []
    cron = "0 1 * * *" if days == 1 else f"0 1 */{min(days, _DAYS_OF_A_MONTH)} * *"
    return [scheduled(f"{declared.name}_verify", cron, f"Verifies the chunks of {declared.name}.")]


def verification_asset(dataset: DatasetDeclaration) -> dg.AssetsDefinition:
    """Reads every chunk of a part of the samples per day, so that each is read within ``verify_within_days``."""

    @dg.asset(
        key=dataset.key("deep_verification"),
        group_name=dataset.name,
        description="Every chunk and object of a part of the samples, in all kept generations, compared with its "
        "checksum. Its daily schedule runs if `verify_within_days` is declared: each sample is then read within this "
        "number of days. Without it, a run reads all samples."
        + if_red("a-damaged-chunk", "convert the named samples again by force"),
        output_required=False,
        kinds={"zarr"},
    )
    def deep_verification(
        context: dg.AssetExecutionContext, stores: StoreAccess, conversion_pool: ConversionPool
    ) -> Iterator[dg.MaterializeResult]:
        manifest = stores.manifest_if_any(dataset.store)
        if manifest is None:
            context.log.info(_nothing_yet(dataset.store))
            return
        held = kept_sample_ids(stores.store(dataset.store), manifest)
        within, today = dataset.verify_within_days or 1, int(time.time() // _DAY_SECONDS)
        chosen = due_samples(held, _last_day(context), today, within)
        if chosen:
            with conversion_pool.executor(dataset.workers, dataset.pool) as executor:
                report = verify_store(dataset.store, sample_ids=chosen, deep=True, executor=executor)
            if not report.ok:
                rows = [{"sample": p.sample_id, "field": p.field, "problem": p.message} for p in report.problems]
                named = "; ".join(str(problem) for problem in report.problems[:5])
                gone = sorted({*report.damaged} - manifest.samples.keys())
                only_kept = f"; only earlier generations hold {some(gone)}: copy the objects back" if gone else ""
                hint = f"; {REPAIR_HINT}" if report.damaged else ""
                # Not recorded as done: the next run reads these samples again.
                raise dg.Failure(
                    f"{len(report.damaged)} of {len(chosen)} samples are damaged: {named}{hint}{only_kept}",
                    metadata={"problems": table(rows)},
                    allow_retries=False,
                )
        context.log.info(f"{len(chosen)} of {len(held)} samples verified")
        yield dg.MaterializeResult(
            metadata={
                "samples": len(chosen),
                "of": len(held),
                "generation": manifest.generation,
                "day": today,
            }
        )

    return deep_verification


def matrix_verification_asset(declared: Declaration, matrix: str) -> dg.AssetsDefinition:
    """Reads every chunk of a matrix and compares its two copies.

    Args:
        declared: the dataset.
        matrix: URL of its matrix.
    """

    @dg.asset(
        key=declared.key("deep_verification"),
        group_name=declared.name,
        description="Every chunk of the matrix, in all kept generations, compared with its checksum, and the two "
        "copies compared with each other. Its schedule runs at least every `verify_within_days`, if declared."
        + if_red("a-damaged-chunk", "copy the named objects back"),
        output_required=False,
        kinds={"zarr"},
    )
    def deep_verification(context: dg.AssetExecutionContext) -> Iterator[dg.MaterializeResult]:
        if head_if_any(Storage(matrix)) is None:
            context.log.info(_nothing_yet(matrix))
            return
        report = verify_matrix(matrix)
        if not report.ok:
            raise dg.Failure(
                f"the matrix is damaged: {'; '.join(report.problems[:5])}; copy the damaged objects back",
                metadata={"problems": table([{"problem": problem} for problem in report.problems])},
                allow_retries=False,
            )
        numbers = ("samples", "generations", "shards", "chunks", "bytes")
        size = {"size": format_size(report.bytes)}
        yield dg.MaterializeResult(metadata=size | {name: getattr(report, name) for name in numbers})

    return deep_verification


def due_samples(sample_ids: Collection[str], last_day: int, today: int, within: int) -> list[str]:
    """Samples to verify today: a part of them belongs to each day.

    Args:
        sample_ids: all samples.
        last_day: day of the last verification that succeeded, in days since 1970. Samples of the days since are due.
        today: in days since 1970.
        within: number of days in which each sample is verified once.
    """
    days = range(max(last_day + 1, today - within + 1), today + 1) or [today]
    parts = {day % within for day in days}
    return [i for i in sample_ids if int(hashlib.sha256(i.encode()).hexdigest()[:8], 16) % within in parts]


def _last_day(context: dg.AssetExecutionContext) -> int:
    event = context.instance.get_latest_materialization_event(context.asset_key)
    found = event.asset_materialization if event else None
    day = found.metadata["day"].value if found and "day" in found.metadata else 0
    return day if isinstance(day, int) else 0
