"""Copies one sample of a store into its staged copy. Every chunk is checked while it is copied."""

from __future__ import annotations

import errno

from zarr_core.errors import StoreError, ZarrCoreError
from zarr_core.points.stage.archive import ArchiveCopy
from zarr_core.points.stage.folder import FolderCopy
from zarr_core.points.stage.rewritten import RewrittenCopy
from zarr_core.points.stage.task import Item, StagedSample, StageTask

__all__ = ["StageTask", "StagedSample", "not_staged", "stage_sample"]

# Errors of the target after which no other sample can be copied either.
_FATAL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


def stage_sample(task: StageTask, item: Item) -> StagedSample:
    """Copy one sample. Errors of the sample are reported in the result and do not stop the other samples.

    Args:
        task: what to copy from where to where.
        item: the sample.

    Raises:
        StoreError: the target is full or read-only.
    """
    sample_id, entry, _ = item
    try:
        staged, copied, kept = _copy_of(task, item).copy()
    except ZarrCoreError as error:
        return StagedSample(sample_id, None, problem=str(error))
    except FileNotFoundError as error:
        problem = f"an object of {entry.relpath} is missing ({error}); if garbage collection removed it, stage again"
        return StagedSample(sample_id, None, problem=problem)
    except Exception as error:  # remote filesystems raise the errors of their clients, which have no common base
        if isinstance(error, OSError) and error.errno in _FATAL:
            raise StoreError(f"{task.target.url} cannot be written: {error}") from error
        return StagedSample(sample_id, None, problem=f"{type(error).__name__}: {error}")
    return StagedSample(sample_id, staged, copied, kept)


def not_staged(item: Item, error: Exception) -> StagedSample:
    """The result of a sample whose worker process died; raises the errors of :func:`stage_sample`."""
    if isinstance(error, StoreError):
        raise error
    return StagedSample(item[0], None, problem=str(error))


def _copy_of(task: StageTask, item: Item) -> ArchiveCopy | FolderCopy | RewrittenCopy:
    """How a sample is copied: as it is where that is what the copy shall have."""
    entry = item[1]
    if task.packs(entry) != (entry.head > 0) or task.cuts(entry):
        return RewrittenCopy(task, item)
    if not entry.head:
        return FolderCopy(task, item)
    arrays = {column.array_name for column in (entry.fields or {}).values()}
    return ArchiveCopy(task, item) if arrays and arrays <= task.arrays.keys() else RewrittenCopy(task, item)
