"""What the warehouse no longer has, but the matrix still holds."""

from __future__ import annotations

from collections.abc import Sequence

import dagster as dg

from sensors.dagster_internals.queries import latest_check
from zarr_core._util.commands import shell
from zarr_core.matrix import WideMatrix
from zarr_core.matrix.ingest.audit import withdrawn_batches

CHECK = "nothing_withdrawn"
_MOST = 10
_BATCH, _SAMPLE = "batch", "sample"


def withdrawal(matrix: str, batches: Sequence[str], samples: Sequence[str] = ()) -> str:
    """Withdrawn batches and samples, and the command that removes them; "" if there are none.

    Args:
        matrix: its location.
        batches, samples: what the matrix holds and the warehouse does not.
    """
    options = {"batches": batches, "samples": samples}
    named: list[str] = []
    for option, names in options.items():
        named += [f"--{option}", *names[:_MOST]] if names else []
    more = sum(max(0, len(names) - _MOST) for names in options.values())
    if not named:
        return ""
    counts = f"{len(batches)} batches, and {len(samples)} samples of other batches"
    others = f" (and {more} more)" if more else ""
    return (
        f"withdrawn from the warehouse, but still in the matrix: {counts}. "
        f"To remove them: `{shell('matrix', 'retire', matrix, *named)}`{others}"
    )


def check_withdrawn(
    asset: dg.AssetKey, matrix: str, batches: Sequence[str], samples: Sequence[str]
) -> dg.AssetCheckEvaluation:
    """The check of what was withdrawn: a warning, because a person decides whether the matrix may keep it.

    Args:
        asset: that the check belongs to.
        matrix: location of the matrix.
        batches, samples: what the matrix holds and the warehouse does not.
    """
    rows = [{"what": _BATCH, "name": name} for name in batches] + [{"what": _SAMPLE, "name": name} for name in samples]
    return dg.AssetCheckEvaluation(
        asset_key=asset,
        check_name=CHECK,
        passed=not rows,
        severity=dg.AssetCheckSeverity.WARN,
        description=withdrawal(matrix, batches, samples) or "none",
        metadata={
            "batches": len(batches),
            "samples": len(samples),
            "withdrawn": dg.MetadataValue.table([dg.TableRecord(row) for row in rows], _SCHEMA),
        },
    )


_SCHEMA = dg.TableSchema([dg.TableColumn("what"), dg.TableColumn("name")])


def check_again(
    instance: dg.DagsterInstance, asset: dg.AssetKey, shown: str, matrix: WideMatrix, batch_ids: Sequence[str]
) -> dg.AssetCheckEvaluation:
    """The check as it is now, without a query of the samples: after ``retire``, or when a batch is withdrawn.

    Withdrawn samples are those that the last evaluation found, and that the matrix still holds.

    Args:
        instance: that has the last evaluation.
        asset: that the check belongs to.
        shown: location of the matrix, without secrets.
        matrix: as it is now.
        batch_ids: every batch of the warehouse.
    """
    latest = latest_check(instance, dg.AssetCheckKey(asset, CHECK))
    table = latest.metadata.get("withdrawn") if latest else None
    records = table.records if isinstance(table, dg.TableMetadataValue) else []
    held = set(matrix.sample_ids)
    samples = [str(row.data["name"]) for row in records if row.data.get("what") == _SAMPLE]
    return check_withdrawn(
        asset, shown, withdrawn_batches(matrix, batch_ids), [name for name in samples if name in held]
    )
