"""What the warehouse no longer has, but the matrix still holds; and what was retired from the matrix."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import islice

import dagster as dg
from zarr_core.platform.sensors.dagster_internals.evaluations import last_evaluation
from zarr_core.platform.sensors.deadline import within_the_tick
from zarr_core.platform.sensors.overview import Row, when

from zarr_core._util.commands import shell
from zarr_core._util.units import format_count
from zarr_core.errors import ZarrCoreError
from zarr_core.matrix import WideMatrix
from zarr_core.matrix.ingest.audit import withdrawn_batches
from zarr_core.matrix.store.batch_names import home_of
from zarr_core.matrix.store.head import HEAD
from zarr_core.matrix.store.state import Retired
from zarr_core.sources.left_out import some
from zarr_core.storage import Storage
from zarr_core.versioning.history import Commit, commits

CHECK = "nothing_withdrawn"
_MOST = 10
_BATCH, _SAMPLE = "batch", "sample"
# Commits in which the times of retirements are looked for.
_MOST_COMMITS = 100
# What was retired when it was looked for last, and the times that were found, by the location of the matrix.
_looked_up: dict[str, tuple[Retired, dict[str, float]]] = {}


def withdrawal(matrix: str, batches: Sequence[str], samples: Sequence[str] = ()) -> str:
    """Withdrawn batches and samples, and the command that removes them; "" if there are none.

    Args:
        matrix: its location.
        batches, samples: what the matrix holds and the warehouse does not.
    """
    named = _options(batches, samples)
    if not named:
        return ""
    more = max(0, len(batches) - _MOST) + max(0, len(samples) - _MOST)
    counts = f"{format_count(len(batches), 'batches')}, and {format_count(len(samples), 'samples')} of other batches"
    others = f" (and {more} more)" if more else ""
    return (
        f"withdrawn from the warehouse, but still in the matrix: {counts}. "
        f"To remove them: `{shell('matrix', 'retire', matrix, *named)}`{others}"
    )


def _options(batches: Sequence[str], samples: Sequence[str]) -> list[str]:
    """The first batches and samples as options of ``zarr-core matrix retire``."""
    options: list[str] = []
    for option, names in (("--batches", batches), ("--samples", samples)):
        if names:
            options += [option, *names[:_MOST]]
    return options


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

    Args:
        instance: that has the last evaluation.
        asset: that the check belongs to.
        shown: location of the matrix, without secrets.
        matrix: as it is now.
        batch_ids: every batch of the warehouse.
    """
    samples = samples_found_before(instance, asset, matrix, batch_ids)
    return check_withdrawn(asset, shown, withdrawn_batches(matrix, batch_ids), samples)


def samples_found_before(
    instance: dg.DagsterInstance, asset: dg.AssetKey, matrix: WideMatrix, batch_ids: Collection[str]
) -> list[str]:
    """Withdrawn samples that the last evaluation of the check has found, and that the matrix still holds.

    Without those of withdrawn batches, which are named as a whole. Arguments as for :func:`check_again`.
    """
    latest = last_evaluation(instance, dg.AssetCheckKey(asset, CHECK))
    table = latest.metadata.get("withdrawn") if latest else None
    records = table.records if isinstance(table, dg.TableMetadataValue) else []
    held: set[str] = set()
    for name, sample_ids in matrix.batches.items():
        if home_of(name, batch_ids) is not None:
            held.update(sample_ids)
    samples = [str(row.data["name"]) for row in records if row.data.get("what") == _SAMPLE]
    return [name for name in samples if name in held]


def retired_row(url: str, shown: str, matrix: WideMatrix) -> Row:
    """The row of the overview that names retired batches and samples, and the command that allows them again.

    Args:
        url: location of the matrix.
        shown: the same without secrets.
        matrix: as it is now.
    """
    retired = matrix.retired
    named = _options(list(retired.batches), retired.samples)
    if not named:
        return "retired", "none", ""
    times = within_the_tick(f"reading the history of {shown}", lambda: _retirement_times(url, retired))
    texts = []
    if retired.batches:
        batches = []
        for name, sample_ids in retired.batches.items():
            at = f"; {when(times[name])}" if name in times else ""
            batches.append(f"{name} ({format_count(len(sample_ids), 'samples')}{at})")
        texts.append(f"{format_count(len(batches), 'batches')}: {some(batches)}")
    if retired.samples:
        texts.append(f"{format_count(len(retired.samples), 'samples')} of other batches: {some(retired.samples)}")
    texts.append(f"the matrix holds {format_count(len(matrix.sample_ids), 'samples')} now")
    command = shell("matrix", "retire", shown, *named, "--undo")
    return "retired", "; ".join(texts), f"nothing; `{command}` allows them again"


def _retirement_times(url: str, retired: Retired) -> dict[str, float]:
    """Times of the commits that retired batches, in seconds since 1970; without those that are not known any more."""
    latest = _looked_up.get(url)
    if latest is not None and latest[0] == retired:
        return latest[1]
    found: dict[str, float] = {}
    try:
        for commit in islice(commits(Storage(url), HEAD), _MOST_COMMITS):
            for name in _retired_by(commit):
                home = home_of(name, retired.batches)
                if home is not None:
                    found.setdefault(home, commit.committed)
            if found.keys() == retired.batches.keys():
                break
    except (ZarrCoreError, OSError):
        return found  # garbage collection, or damage of an earlier generation; the next tick looks again
    _looked_up[url] = retired, found
    return found


def _retired_by(commit: Commit) -> Iterator[str]:
    """Batches and samples that a commit retired."""
    for change in commit.changes:
        if change.what == "retired":
            yield from change.names
