"""Checks of the loaded matrix. Nothing is derived from a matrix whose cells differ from the warehouse.

What was withdrawn from the warehouse is a warning: whether the matrix may keep it is for a person to decide.
"""

import hashlib
from collections.abc import Iterator
from itertools import chain

import dagster as dg
from zarr_core.platform.assets.source_checks import check_result, source_converted_check
from zarr_core.platform.assets.tables import table
from zarr_core.platform.assets.wide_matrix.declaration import MatrixDeclaration
from zarr_core.platform.resources.warehouses import WarehouseAccess
from zarr_core.platform.sensors.behind import held_batches
from zarr_core.platform.sensors.observations import KnownItems
from zarr_core.platform.sensors.operating import if_red
from zarr_core.platform.sensors.withdrawn import CHECK as WITHDRAWN
from zarr_core.platform.sensors.withdrawn import check_withdrawn, samples_found_before

from zarr_core._util.units import format_count
from zarr_core.errors import ZarrCoreError
from zarr_core.matrix import WideMatrix
from zarr_core.matrix.ingest.audit import audit_batches, withdrawn_batches, withdrawn_samples
from zarr_core.matrix.store.axis import FeatureAxis
from zarr_core.matrix.store.batch_names import home_of


def matrix_checks(declared: MatrixDeclaration) -> list[dg.AssetChecksDefinition]:
    """Checks of the axis, and of some batches compared with the warehouse."""

    def held(warehouses: WarehouseAccess, known: KnownItems) -> set[str] | None:
        return held_batches(warehouses.matrix_if_any(declared.matrix), known.registered)

    of_the_source = source_converted_check(declared, f"{declared.name}_batches", "warehouses", held)
    return [of_the_source, _axis_hash(declared), _batches_equal_the_warehouse(declared)]


def _axis_hash(declared: MatrixDeclaration) -> dg.AssetChecksDefinition:
    @dg.asset_check(
        asset=declared.published,
        name="axis_hash",
        blocking=True,
        description="The names of the features have the sha256 that the head of the matrix says, and are the declared "
        "ones." + if_red("a-failed-check", "correct the declared features, or copy the axis back"),
    )
    def axis_hash(warehouses: WarehouseAccess) -> dg.AssetCheckResult:
        try:
            axis = warehouses.matrix(declared.matrix).feature_ids  # reading them compares them with the head's sha256
            if declared.features is not None:
                given = warehouses.feature_ids(declared.features, declared.warehouse)
                if FeatureAxis(given) != axis:
                    raise ZarrCoreError("the declared features are not those that the matrix was made with")
        except ZarrCoreError as error:
            return dg.AssetCheckResult(passed=False, description=str(error))
        found = hashlib.sha256(axis.to_npy()).hexdigest()
        return dg.AssetCheckResult(passed=True, description=f"sha256 {found[:16]}", metadata={"sha256": found})

    return axis_hash


def _batches_equal_the_warehouse(declared: MatrixDeclaration) -> dg.AssetChecksDefinition:
    """Three checks in one, because they need the same unload."""
    cells = dg.AssetCheckSpec(
        "cells_loaded",
        asset=declared.published,
        blocking=True,
        description="Of some batches, the latest first: as many cells as the warehouse has rows with a value, and each "
        "holds what its row says."
        + if_red("a-failed-check", "see which batch differs; a corrected batch is loaded again by itself"),
    )
    doubles = dg.AssetCheckSpec(
        "no_doubles",
        asset=declared.published,
        blocking=True,
        description="Of the same batches: no cell has two rows in the warehouse, and no sample is in two batches."
        + if_red("a-failed-check", "remove the double rows from the warehouse"),
    )

    withdrawn = dg.AssetCheckSpec(
        WITHDRAWN,
        asset=declared.published,
        description="The warehouse still has every batch of the matrix, and every sample of the same batches. A sample "
        "that it lacked is named until it is retired or back."
        + if_red("what-was-withdrawn", "run the command that the check prints, or put the batch back"),
    )

    @dg.multi_asset_check(specs=[cells, doubles, withdrawn], name=f"{declared.name}__batches_equal_the_warehouse")
    def batches_equal_the_warehouse(
        context: dg.AssetCheckExecutionContext, warehouses: WarehouseAccess
    ) -> Iterator[dg.AssetCheckResult]:
        matrix = warehouses.matrix(declared.matrix)
        warehouse = warehouses.warehouse(declared.warehouse)
        present = warehouse.batch_ids()
        gone = withdrawn_batches(matrix, set(present))
        # The batches that an earlier evaluation has audited may not be among those of this one.
        missing = samples_found_before(context.instance, declared.published, matrix, set(present))
        try:
            missing = withdrawn_samples(warehouse, matrix, set(missing), set(present))
            audits = audit_batches(warehouse, matrix, choose(matrix, present, declared.checked_batches))
        except ZarrCoreError as error:
            before = check_withdrawn(declared.published, declared.shown_matrix, gone, missing)
            for spec in (cells, doubles, withdrawn):
                yield dg.AssetCheckResult(
                    passed=False,
                    asset_key=spec.asset_key,
                    check_name=spec.name,
                    description=str(error),
                    metadata=before.metadata if spec is withdrawn else {},
                )
            return
        missing = list(dict.fromkeys(chain(missing, *(audit.withdrawn for audit in audits))))
        yield check_result(check_withdrawn(declared.published, declared.shown_matrix, gone, missing))
        rows = []
        losses: list[str] = []
        twice: list[str] = []
        for audit in audits:
            losses += audit.losses
            twice += audit.doubles
            for value, found in audit.values.items():
                counts = {"rows": found.rows, "cells": found.cells, "doubled": found.doubled}
                rows.append({"batch": audit.batch_id, "value": value, **counts})
        for spec, wrong in ((cells, losses), (doubles, twice)):
            yield dg.AssetCheckResult(
                passed=not wrong,
                asset_key=spec.asset_key,
                check_name=spec.name,
                description="; ".join(wrong[:3])
                or f"{format_count(len(audits), 'batches')}, {sum(row['rows'] for row in rows):,} rows",
                metadata={"batches": len(audits), "problems": len(wrong), "counted": table(rows)},
            )

    return batches_equal_the_warehouse


def choose(matrix: WideMatrix, warehouse_batches: list[str], most: int) -> list[str]:
    """Choose batches to check: the latest of the matrix, and as many of the others, by turns over the generations.

    Samples that joined a batch after it was loaded are in a batch of the matrix named "<batch>@<digest>".
    """
    known = set(warehouse_batches)
    appended = [home_of(name, known) for name in matrix.batches]
    latest_first = [name for name in dict.fromkeys(reversed(appended)) if name is not None]

    def turn(name: str) -> str:
        return hashlib.sha256(f"{matrix.generation} {name}".encode()).hexdigest()

    return latest_first[:most] + sorted(latest_first[most:], key=turn)[:most]
