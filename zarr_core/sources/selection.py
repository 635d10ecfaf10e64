"""Chooses the samples of a conversion from a dataset kind, a location and the requested splits."""

from __future__ import annotations

import inspect
import os
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from zarr_core._util.arguments import check_names
from zarr_core._util.commands import shell
from zarr_core.errors import SourceError, ZarrCoreError
from zarr_core.sources.description import SourceDescription
from zarr_core.sources.left_out import counted, some
from zarr_core.sources.objects import AeroDataset, AeroSource, ArraySource
from zarr_core.sources.resolve import import_dotted, shipped_name
from zarr_core.sources.sample import FoundSamples, SampleSource, SourceSample
from zarr_core.sources.tree import SampleTree
from zarr_core.storage import absolute, is_local

# Files that are hashed at a time.
_HASHING_THREADS = 8

DatasetKind = str | SourceDescription | type | AeroDataset | ArraySource


@dataclass(frozen=True)
class Selection:
    """The samples to convert.

    Attributes:
        source: the source of the samples.
        samples: the selected samples by id.
        present: every id that was listed, selected or not.
        splits: ids by split, as the source lists them.
        excluded: ids that the source's blacklists exclude from every split.
        documents: content of the source's split files and blacklists by name.
        notes: sentences that name what was left out: folders, files, splits, listed or requested ids.
        is_whole: whether the whole source was listed, not only requested samples.
    """

    source: SampleSource
    samples: dict[str, SourceSample]
    present: frozenset[str]
    splits: dict[str, list[str]]
    excluded: frozenset[str]
    documents: Mapping[str, str]
    notes: tuple[str, ...]
    is_whole: bool = True


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
        root: local folder. Another framework's class is opened there once per split, as ``cls(root=..., split=...)`` or
            ``cls(Config(kind=..., root=..., split=...))``, if its one argument is annotated with a config class.
        source_url: fsspec location, which is listed to find the samples. Only the ``filemap`` of a class is used.
        splits: splits to open another framework's class with.

    Raises:
        SourceError: neither or both of root and source_url are given, or the kind cannot be opened there.
    """
    check_names("splits", splits, error=SourceError)
    if isinstance(dataset_kind, str):
        dataset_kind = shipped_name(dataset_kind)
    if isinstance(dataset_kind, ArraySource):
        return dataset_kind
    if not isinstance(dataset_kind, str | type | SourceDescription):
        return AeroSource({getattr(dataset_kind, "split", None) or "": dataset_kind})
    if (root is None) == (source_url is None):
        raise SourceError("give either root (a local folder) or source_url (an fsspec location), not both")
    if source_url is not None:
        return SampleTree(dataset_kind, source_url)
    assert root is not None
    if not is_local(os.fspath(root)):
        raise SourceError(f"root {os.fspath(root)!r} is a URL; pass it as source_url instead")
    root = absolute(root)
    if not Path(root).is_dir():
        raise SourceError(f"root {root!r} is not a folder")
    is_path = isinstance(dataset_kind, str) and "." in dataset_kind and not dataset_kind.endswith((".yaml", ".yml"))
    described = import_dotted(str(dataset_kind)) if is_path else dataset_kind
    if isinstance(described, type) and getattr(described, "description", None) is None:
        return _open_splits(described, root, splits or ("train", "val", "test"))
    return SampleTree(dataset_kind, root)


def _open_splits(dataset_class: type, root: str, splits: Sequence[str]) -> AeroSource:
    """Open another framework's class once per split. The source names the splits that it does not open with."""
    opened = {}
    errors = {}
    for split in splits:
        try:
            opened[split] = _open_split(dataset_class, root, split)
        except Exception as error:  # another framework's constructor may raise anything
            errors[split] = f"{type(error).__name__}: {error}"
    name = dataset_class.__name__
    if not opened:
        raise SourceError(
            f"{name}(root=..., split=...) failed for every split of {', '.join(splits)} "
            f"({errors[splits[0]]}); create the dataset object and pass it instead"
        )
    return AeroSource(opened, [f"{name}(split={split!r}) failed: {reason}" for split, reason in errors.items()])


def _open_split(dataset_class: type, root: str, split: str) -> Any:
    """An object of another framework's class, whose constructor takes root and split, or one config that has them."""
    required = [p for p in inspect.signature(dataset_class).parameters.values() if p.default is p.empty]
    if len(required) == 1 and required[0].name != "root":
        config_class = inspect.signature(dataset_class, eval_str=True).parameters[required[0].name].annotation
        if isinstance(config_class, type) and config_class is not inspect.Parameter.empty:
            kind = f"{dataset_class.__module__}.{dataset_class.__qualname__}"
            return dataset_class(config_class(kind=kind, root=root, split=split))
    return dataset_class(root=root, split=split)


def select_samples(
    source: SampleSource,
    splits: Sequence[str] | None = None,
    sample_ids: Collection[str] | None = None,
    found: FoundSamples | None = None,
) -> Selection:
    """List a source and select samples.

    Selects the present samples of the given splits (without ``splits``, every present sample), never blacklisted ones.
    The selection's notes name everything that is left out.

    Args:
        source: the source to list.
        splits: names of splits; None selects every present sample.
        sample_ids: select only these ids.
        found: a listing of the source that was just made, of ``sample_ids`` at least. By default, the source is listed.

    Raises:
        SourceError: none of the splits exists, or no sample is selected.
    """
    check_names("splits", splits, error=SourceError)
    check_names("sample_ids", sample_ids, error=SourceError)
    found = source.find() if found is None else found
    present = frozenset(found.samples)
    requested = present if sample_ids is None else set(sample_ids)
    by_split = source.splits(found.samples)
    excluded = source.excluded()
    documents = source.split_documents()
    unknown = [split for split in splits or () if split not in by_split]
    if splits is not None and len(unknown) == len(splits):
        known = ", ".join(by_split) or "none"
        raise SourceError(f"{source.url} has no split {', '.join(splits)}; {source.description.name} has: {known}")
    chosen_splits = by_split if splits is None else {split: by_split[split] for split in splits if split in by_split}
    wanted: Iterable[str] = found.samples if splits is None else chain.from_iterable(chosen_splits.values())
    chosen = (present & requested) - excluded
    samples = {sample_id: found.samples[sample_id] for sample_id in wanted if sample_id in chosen}
    notes = [*found.left_out, *found.unused]
    if unknown:
        notes.append(f"{source.description.name} has no split {', '.join(unknown)}; skipped")
    if found.is_whole:
        notes += _absent(source, chosen_splits, found.samples, excluded)
    notes += overlaps(by_split, excluded)
    notes += _outside_splits(source, by_split, found.samples, excluded)
    notes += counted("samples on a blacklist", [sample_id for sample_id in found.samples if sample_id in excluded])
    if found.is_whole:
        notes += counted("ids on a blacklist that the source does not have", sorted(excluded - present))
    no_files = [name for name in source.description.blacklists if name not in documents]
    if no_files:
        notes.append(f"there is no {' and no '.join(no_files)} beside the samples")
    notes += counted(f"requested samples that are not at {source.url}", sorted(requested - present))
    if not samples:
        first = next(iter(source.description.fields.values())).filename
        reason = f"{len(found.samples)} folders match {source.description.samples} and contain {first} ..."
        hint = f"`{shell('inspect', source.url)}` says what it could be"
        raise SourceError("; ".join([f"{source.url} has no sample to convert: {reason}", *notes, hint]))
    blacklisted = frozenset(excluded)
    return Selection(source, samples, present, by_split, blacklisted, documents, tuple(notes), found.is_whole)


def with_all_present(selection: Selection) -> Selection:
    """The selection, after the rest of its source was listed. Its samples stay as they were listed before."""
    if selection.is_whole:
        return selection
    present = frozenset(selection.source.find().samples)
    return replace(selection, present=present, splits=selection.source.splits(present), is_whole=True)


def with_current_splits(selection: Selection, arrived: Collection[str]) -> Selection:
    """The selection with the splits, excluded ids and split files that its source has now. Does not list all of it.

    ``arrived`` are ids that others have committed since the listing. Those that the source does not have, as of
    ``write_sample``, are in no split of it. Raises SourceError if the source no longer has any selected sample.
    """
    source = selection.source
    documents = source.split_documents()
    # All files of a folder that is not mounted any more are missing, which is no reason to drop the splits.
    if selection.documents.keys() - documents.keys() and not source.discover(selection.samples):
        raise SourceError(f"{source.url} has neither its split files nor the selected samples any more")
    splits = source.splits(selection.present)
    others = selection.present.union(arrived)
    if source.splits(others) != splits:
        splits = source.splits(selection.present.union(source.discover(sorted(others - selection.present))))
    return replace(selection, splits=splits, excluded=frozenset(source.excluded()), documents=documents)


def _absent(
    source: SampleSource, splits: Mapping[str, list[str]], found: Collection[str], excluded: set[str]
) -> list[str]:
    """Ids that the splits list but the source does not have."""
    listed = set().union(*splits.values()) - excluded
    absent = [i for i in dict.fromkeys(chain.from_iterable(splits.values())) if i in listed and i not in found]
    if not absent:
        return []
    return [
        f"{len(absent)} of the {len(listed)} ids listed for {', '.join(splits)} are not at {source.url} and are "
        f"skipped: {some(absent)}"
    ]


def overlaps(splits: Mapping[str, Collection[str]], excluded: Collection[str]) -> list[str]:
    """A sentence that names the samples in more than one split, if there are any."""
    splits_of: dict[str, list[str]] = defaultdict(list)
    for split, ids in splits.items():
        for sample_id in ids:
            splits_of[sample_id].append(split)
    several = []
    for sample_id, names in splits_of.items():
        if len(names) > 1 and sample_id not in excluded:
            several.append(f"{sample_id} ({', '.join(names)})")
    return counted("samples in more than one split", several)


def _outside_splits(
    source: SampleSource, splits: Mapping[str, list[str]], found: Collection[str], excluded: set[str]
) -> list[str]:
    """Samples in no split, or a source without splits."""
    if not source.lists_all_splits:
        return []
    if not splits:
        missing = ", ".join(source.description.split_files.values()) or "the files of splits that a description names"
        other = 'in its description, `splits: {rule: files, filename: "{split}.txt"}` names others'
        return [f"the source has no splits: there is none of {missing}; {other}"]
    inside = excluded.union(*splits.values())
    return counted("samples in no split", [sample_id for sample_id in found if sample_id not in inside])


def with_contents(
    source: SampleSource, samples: Mapping[str, SourceSample]
) -> tuple[dict[str, SourceSample], dict[str, str]]:
    """Samples with the SHA-256 of each of their files, and why the others could not be read, both by id.

    Reads every file. Fingerprints of such samples are the same for copies of the files.
    """

    def hashed(sample: SourceSample) -> SourceSample | str:
        try:
            return source.with_content(sample)
        except (OSError, ZarrCoreError) as error:
            return f"{type(error).__name__}: {error}"

    found: dict[str, SourceSample] = {}
    unreadable: dict[str, str] = {}
    with ThreadPoolExecutor(_HASHING_THREADS) as pool:
        for sample_id, result in zip(samples, pool.map(hashed, samples.values()), strict=True):
            if isinstance(result, str):
                unreadable[sample_id] = result
            else:
                found[sample_id] = result
    return found, unreadable
