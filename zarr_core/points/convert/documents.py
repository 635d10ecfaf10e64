"""Copies of a source's split files and blacklists in a store, for programs that read files."""

from __future__ import annotations

from collections.abc import Sequence

from zarr_core.errors import SourceError
from zarr_core.points.store.manifest import StoreManifest
from zarr_core.sources.selection import Selection, with_current_splits
from zarr_core.storage import Storage


def copy_documents(storage: Storage, selection: Selection) -> None:
    """Copy the split files and blacklists of the source to the store.

    The source is looked at again afterwards: another converter may have copied newer ones before these were written.
    """
    documents = selection.documents
    while True:
        for name, text in documents.items():
            storage.write(name, [text.encode()])
        try:
            if selection.source.split_documents() == documents:
                return
            now = with_current_splits(selection, ()).documents
        except SourceError:  # as of a disk that is not mounted any more
            return
        storage.delete([name for name in documents if name not in now])
        documents = now


def remove_stale_documents(
    storage: Storage, before: StoreManifest, after: StoreManifest, selections: Sequence[Selection]
) -> bool:
    """Delete copies of split files and blacklists that the source no longer has; whether there were any.

    Args:
        storage: of the store.
        before, after: the manifests that a commit replaced and wrote.
        selections: of each attempt to commit, whose documents were copied; the last one is that of ``after``.
    """
    last = selections[-1]
    if not last.source.lists_all_splits:
        return False
    description = last.source.description
    gone = before.splits.keys() - after.splits.keys()
    copied = {name for split, name in description.split_files.items() if split in gone}
    copied.update(description.blacklists if before.excluded else ())
    for selection in selections:
        copied.update(selection.documents)
    stale = [name for name in sorted(copied) if name not in last.documents and storage.exists(name)]
    if stale:
        storage.delete(stale)
    return bool(stale)
