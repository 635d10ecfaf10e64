"""Which samples a conversion is about: a kind of dataset, a place, and the splits asked for."""

from __future__ import annotations

import os
import warnings
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from zarr_core.errors import SourceError
from zarr_core.sources.aero import AeroDataset, AeroSource
from zarr_core.sources.description import SourceDescription, import_dotted, resolve_kind
from zarr_core.sources.sample import SampleSource, SourceSample
from zarr_core.sources.tree import SampleTree
from zarr_core.storage import is_local

DatasetKind = str | SourceDescription | type | AeroDataset


@dataclass(frozen=True)
class Selection:
    """What to convert.

    Attributes:
        source: where from.
        samples: the samples that are there and wanted, by id.
        present: every id that the source holds, wanted or not.
        splits: ids by split as the source lists them.
        excluded: ids that its blacklists take out of every split.
    """

    source: SampleSource
    samples: dict[str, SourceSample]
    present: frozenset[str]
    splits: dict[str, list[str]]
    excluded: frozenset[str]


def open_source(
    dataset_kind: DatasetKind,
    *,
    root: str | os.PathLike[str] | None = None,
    source_url: str | None = None,
    splits: Sequence[str] | None = None,
) -> SampleSource:
    """The source that a kind and a place name.

    Args:
        dataset_kind: short name, dotted path, YAML file, description, class, or a dataset object that needs no place.
        root: local folder; a class of another framework is opened there once a split, as ``cls(root=..., split=...)``.
        source_url: fsspec location whose samples are found by listing; of a class only its ``filemap`` is used.
        splits: splits to open another framework's class with.

    Raises:
        SourceError: neither or both places are given, or the kind cannot be opened there.
    """
    if not isinstance(dataset_kind, str | type | SourceDescription):
        return AeroSource({getattr(dataset_kind, "split", None) or "": dataset_kind})
    if (root is None) == (source_url is None):
        raise SourceError("give either a root (local folder, by split) or a source URL (found by listing)")
    if source_url is not None:
        return SampleTree(dataset_kind, source_url)
    assert root is not None
    if not is_local(os.fspath(root)):
        raise SourceError(f"root {os.fspath(root)!r} is a URL: give it as source URL")
    if not Path(root).is_dir():
        raise SourceError(f"root {os.fspath(root)!r} is not a folder")
    is_path = isinstance(dataset_kind, str) and "." in dataset_kind and not dataset_kind.endswith((".yaml", ".yml"))
    described = import_dotted(str(dataset_kind)) if is_path else dataset_kind
    if isinstance(described, type) and getattr(described, "description", None) is None:
        return _open_splits(described, os.fspath(root), splits or ("train", "val", "test"))
    return SampleTree(dataset_kind, root)


def _open_splits(dataset_class: type, root: str, splits: Sequence[str]) -> AeroSource:
    """Another framework's class, opened once a split; splits that it does not open with are skipped with a warning."""
    opened, errors = {}, {}
    for split in splits:
        try:
            opened[split] = dataset_class(root=root, split=split)
        except Exception as error:  # anything may come out of somebody else's constructor
            errors[split] = f"{type(error).__name__}: {error}"
    for split, reason in errors.items():
        warnings.warn(f"{dataset_class.__name__} has no split {split}; skipped ({reason})", stacklevel=2)
    if not opened:
        raise SourceError(
            f"{dataset_class.__name__}(root=..., split=...) opened with none of {', '.join(splits)}; "
            f"open it yourself and pass the object ({errors[splits[0]]})"
        )
    return AeroSource(opened)


def select_samples(
    source: SampleSource,
    splits: Sequence[str] | None = None,
    sample_ids: Collection[str] | None = None,
    limit: int | None = None,
) -> Selection:
    """Look at the source and choose.

    Samples of the splits asked for (of all its splits and beyond if none is named), those that are there; blacklisted
    ones never. Splits that the source does not have, and ids that it lists but does not hold, are each skipped with one
    warning.

    Args:
        source: where to look.
        splits: names of splits, None for everything that is there.
        sample_ids: only these.
        limit: at most so many.

    Raises:
        SourceError: none of the splits exists, or nothing is left to convert.
    """
    found = source.discover()
    by_split = source.splits(found)
    excluded = source.excluded()
    wanted: Collection[str] = found
    if splits is not None:
        wanted = _in_splits(source, splits, by_split, found, excluded)
    if sample_ids is not None:
        asked = set(sample_ids)
        wanted = [sample_id for sample_id in wanted if sample_id in asked]
    chosen = [sample_id for sample_id in wanted if sample_id in found and sample_id not in excluded][:limit]
    if not chosen:
        raise SourceError(
            f"{source.url} holds no sample to convert: {len(found)} folders fit {source.description.name}"
            f" ({source.description.samples} with {next(iter(source.description.fields.values())).filename} ...)"
        )
    samples = {sample_id: found[sample_id] for sample_id in chosen}
    return Selection(source, samples, frozenset(found), by_split, frozenset(excluded))


def _in_splits(
    source: SampleSource,
    splits: Sequence[str],
    by_split: dict[str, list[str]],
    found: Collection[str],
    excluded: Collection[str],
) -> list[str]:
    unsupported = [split for split in splits if split not in by_split]
    if len(unsupported) == len(splits):
        known = ", ".join(by_split) or "none"
        raise SourceError(f"{source.url} has no split {', '.join(splits)}; {source.description.name} has: {known}")
    if unsupported:
        warnings.warn(f"{source.description.name} has no split {', '.join(unsupported)}; skipped", stacklevel=2)
    listed = [i for split in splits if split in by_split for i in by_split[split] if i not in excluded]
    absent = [sample_id for sample_id in listed if sample_id not in found]
    if absent:
        known = ", ".join(split for split in splits if split in by_split)
        warnings.warn(
            f"{len(absent)} of the {len(listed)} ids listed for {known} are not at {source.url} and are skipped: "
            f"{', '.join(absent[:5])}{' ...' if len(absent) > 5 else ''}",
            stacklevel=2,
        )
    return list(dict.fromkeys(listed))


__all__ = ["DatasetKind", "Selection", "open_source", "resolve_kind", "select_samples"]
