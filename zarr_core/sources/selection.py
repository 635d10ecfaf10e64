"""Chooses the samples of a conversion from a dataset kind, a location and the requested splits."""

from __future__ import annotations

import os
import warnings
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from zarr_core._util.arguments import check_names
from zarr_core.errors import SourceError
from zarr_core.sources.aero import AeroDataset, AeroSource
from zarr_core.sources.description import SourceDescription
from zarr_core.sources.resolve import import_dotted
from zarr_core.sources.sample import SampleSource, SourceSample
from zarr_core.sources.tree import SampleTree
from zarr_core.storage import is_local

DatasetKind = str | SourceDescription | type | AeroDataset


@dataclass(frozen=True)
class Selection:
    """The samples to convert.

    Attributes:
        source: the source of the samples.
        samples: the selected samples by id.
        present: every id that the source has, selected or not.
        splits: ids by split, as the source lists them.
        excluded: ids that the source's blacklists exclude from every split.
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
    """Open the source of a dataset kind at a location.

    Args:
        dataset_kind: short name, dotted path, YAML file, description, class, or a dataset object (needs no location).
        root: local folder. Another framework's class is opened there once per split: ``cls(root=..., split=...)``.
        source_url: fsspec location, which is listed to find the samples. Only the ``filemap`` of a class is used.
        splits: splits to open another framework's class with.

    Raises:
        SourceError: neither or both of root and source_url are given, or the kind cannot be opened there.
    """
    check_names("splits", splits, error=SourceError)
    if not isinstance(dataset_kind, str | type | SourceDescription):
        return AeroSource({getattr(dataset_kind, "split", None) or "": dataset_kind})
    if (root is None) == (source_url is None):
        raise SourceError("give either root (a local folder) or source_url (an fsspec location), not both")
    if source_url is not None:
        return SampleTree(dataset_kind, source_url)
    assert root is not None
    if not is_local(os.fspath(root)):
        raise SourceError(f"root {os.fspath(root)!r} is a URL; pass it as source_url instead")
    if not Path(root).is_dir():
        raise SourceError(f"root {os.fspath(root)!r} is not a folder")
    is_path = isinstance(dataset_kind, str) and "." in dataset_kind and not dataset_kind.endswith((".yaml", ".yml"))
    described = import_dotted(str(dataset_kind)) if is_path else dataset_kind
    if isinstance(described, type) and getattr(described, "description", None) is None:
        return _open_splits(described, os.fspath(root), splits or ("train", "val", "test"))
    return SampleTree(dataset_kind, root)


def _open_splits(dataset_class: type, root: str, splits: Sequence[str]) -> AeroSource:
    """Open another framework's class once per split; skip splits that it does not open with, with a warning."""
    opened, errors = {}, {}
    for split in splits:
        try:
            opened[split] = dataset_class(root=root, split=split)
        except Exception as error:  # another framework's constructor may raise anything
            errors[split] = f"{type(error).__name__}: {error}"
    for split, reason in errors.items():
        warnings.warn(f"{dataset_class.__name__} has no split {split}; skipped ({reason})", stacklevel=2)
    if not opened:
        raise SourceError(
            f"{dataset_class.__name__}(root=..., split=...) failed for every split of {', '.join(splits)} "
            f"({errors[splits[0]]}); create the dataset object and pass it instead"
        )
    return AeroSource(opened)


def select_samples(
    source: SampleSource,
    splits: Sequence[str] | None = None,
    sample_ids: Collection[str] | None = None,
    limit: int | None = None,
) -> Selection:
    """List a source and select samples.

    Selects the present samples of the given splits (without ``splits``, every present sample), never blacklisted ones.
    Splits that the source does not have, and listed ids that it does not have, are skipped with one warning each.

    Args:
        source: the source to list.
        splits: names of splits; None selects every present sample.
        sample_ids: select only these ids.
        limit: maximum number of samples.

    Raises:
        SourceError: none of the splits exists, or no sample is selected.
    """
    check_names("splits", splits, error=SourceError)
    check_names("sample_ids", sample_ids, error=SourceError)
    found = source.discover()
    by_split = source.splits(found)
    excluded = source.excluded()
    wanted: Collection[str] = found
    if splits is not None:
        wanted = _in_splits(source, splits, by_split, found, excluded)
    if sample_ids is not None:
        requested = set(sample_ids)
        wanted = [sample_id for sample_id in wanted if sample_id in requested]
    chosen = [sample_id for sample_id in wanted if sample_id in found and sample_id not in excluded][:limit]
    if not chosen:
        raise SourceError(
            f"{source.url} has no sample to convert: {len(found)} folders match {source.description.name}"
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
