"""Selects the samples of a dataset: a split or part of one, optionally of some categories."""

from __future__ import annotations

import hashlib
import json
import re
import warnings
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence

from zarr_core.errors import UnknownFieldError, ZarrCoreError
from zarr_core.points.store.manifest import StoreManifest

ALL = "all"
# Not a split, but the seed of the shares.
_SEED = "seed"

_NUMBER = r"\s*(-?\d+)?\s*"
_SPLIT = re.compile(rf"([^\[\]]+)(?:\[(?:\s*(-?\d+)\s*|{_NUMBER}:{_NUMBER}(?::{_NUMBER})?)\])?")


def parse_split(split: str) -> tuple[str, slice | int]:
    """Parse "train", "train[0]", "test[:50]" or "train[10:20:2]" into the name and a Python index or slice.

    Raises:
        ZarrCoreError: the text has another form.
    """
    matched = _SPLIT.fullmatch(split.strip())
    if not matched:
        raise ZarrCoreError(f"split {split!r}: use a form such as train, train[0], test[:50] or train[10:20:2]")
    name, index, *bounds = matched.groups()
    if index is not None:
        return name, int(index)
    start, stop, step = [None if number is None else int(number) for number in bounds]
    if step == 0:
        raise ZarrCoreError(f"split {split!r}: the step cannot be 0")
    return name, slice(start, stop, step)


def category(sample_id: str) -> str:
    """The design family of a DrivAerNet sample: "E_S_WWC_WM" for "E_S_WWC_WM_005"."""
    return sample_id.rpartition("_")[0]


def check_shares(shares: Mapping[str, float], split: str | None) -> None:
    """Raise ValueError if shares of splits cannot be taken, or do not have the split of a dataset."""
    of_splits = {name: share for name, share in shares.items() if name != _SEED}
    total = sum(of_splits.values())
    if not 0 < total <= 1 + 1e-9:
        raise ValueError(f"splits: the shares add up to {total:g}; they must add up to at most 1")
    if shares.get(_SEED, 0) % 1:
        raise ValueError(f"splits: seed must be a whole number, not {shares[_SEED]}")
    if split is None:
        raise ValueError("splits needs split, which of them to read")
    name = parse_split(split)[0]
    if name not in of_splits:
        raise ValueError(f"split {name!r} is not one of splits: {', '.join(of_splits)}")


def take_share(sample_ids: Iterable[str], shares: Mapping[str, float], split: str) -> list[str]:
    """The samples of a split that has a share of the samples; see ``StoreDatasetConfig.splits``.

    A digest of seed and id places each sample between 0 and 1, where the splits have intervals of their shares, the
    largest first: a config that was saved with its keys sorted has the same splits.
    """
    of_splits = {name: share for name, share in shares.items() if name != _SEED}
    seed = int(shares.get(_SEED, 0))
    start = 0.0
    for name in sorted(of_splits, key=lambda name: (of_splits[name], name), reverse=True):
        if name == split:
            break
        start += of_splits[name]
    taken = []
    for sample_id in sample_ids:
        key = json.dumps([seed, sample_id]).encode("ascii")
        digest = hashlib.blake2b(key, digest_size=8, person=b"zarr_core.split").digest()
        if start <= int.from_bytes(digest, "little") / 2**64 < start + shares[split]:
            taken.append(sample_id)
    return taken


def split_ids(manifest: StoreManifest, split: str, shares: Mapping[str, float], where: str) -> list[str]:
    """Ids of a split without blacklisted ones, including ids that the store does not hold.

    ``shares`` are for a store without splits; ``where`` is the location, for messages.
    """
    known = ", ".join(manifest.splits)
    if shares and known:
        raise ZarrCoreError(
            f"{where} has splits of its own ({known}), which `splits` of the config would replace; leave it out, and "
            "name one of them, or part of one: split: train[:80]"
        )
    if split in manifest.splits:
        return manifest.split_ids(split, present_only=False)
    usable = [sample_id for sample_id in manifest.samples if sample_id not in manifest.excluded]
    if shares:
        taken = take_share(usable, shares, split)
        if not taken:
            raise ZarrCoreError(
                f"{where}: none of {len(usable)} samples falls into {split!r}, whose share is {shares[split]:g}; take "
                "another seed, as in `splits: {train: 0.8, val: 0.2, seed: 1}`, or list sample_ids"
            )
        return taken
    if split == ALL:
        return usable
    if known:
        raise UnknownFieldError(f"{where} has no split {split!r}; its splits are {known}, and `split: all` reads all")
    raise UnknownFieldError(
        f"{where} has no split {split!r}: it has no splits. Choose its samples in the config: `split: all`, "
        "`sample_ids: [...]`, or shares such as `splits: {train: 0.8, val: 0.2}`"
    )


def choose_samples(
    split: str,
    listed: Callable[[str], Sequence[str]],
    present: Container[str],
    categories: Collection[str] | None,
    where: str,
) -> list[str]:
    """The samples of a dataset: present samples of the split and categories, then the requested part of them.

    Absent ids of the split are skipped with one warning.

    Args:
        split: name with or without a part, as for :func:`parse_split`.
        listed: returns the ids of a split without blacklisted ones; raises ZarrCoreError for an unknown split.
        present: ids that exist.
        categories: those to keep, as :func:`category` names them; None keeps all samples.
        where: the location, for messages.
    """
    name, part = parse_split(split)
    wanted = listed(name)
    found: list[str] = []
    missing: list[str] = []
    for sample_id in wanted:
        (found if sample_id in present else missing).append(sample_id)
    if missing:
        some = ", ".join(missing[:3]) + (", ..." if len(missing) > 3 else "")
        warnings.warn(
            f"{where}: {len(missing)} of {len(wanted)} samples of split {name!r} are absent and skipped ({some})",
            stacklevel=3,  # the caller that creates the dataset
        )
    kept = [sample_id for sample_id in found if categories is None or category(sample_id) in categories]
    if isinstance(part, slice):
        chosen = kept[part]
    elif -len(kept) <= part < len(kept):
        chosen = [kept[part]]
    else:
        raise ZarrCoreError(f"{where}: split {split!r}: index {part} is out of range for {len(kept)} samples")
    if not chosen:
        reason = f"split {name!r} lists {len(wanted)} samples, of which {len(found)} exist"
        if categories is not None:
            have = ", ".join(sorted(set(map(category, found)))) or "none"
            reason += f" and {len(kept)} have a category of {', '.join(categories)} (the categories are: {have})"
        raise ZarrCoreError(f"{where}: {split!r} selects no sample: {reason}")
    return chosen


def with_all_fields(
    sample_ids: Sequence[str], manifest: StoreManifest, fields: Collection[str], skip: bool, where: str
) -> list[str]:
    """The samples that have every field to be read; ``skip`` the others with a warning instead of an error."""
    shared, kept, example = dict.fromkeys(fields), [], ""
    for sample_id in sample_ids:
        missing = [field for field in fields if field not in manifest.fields_of(sample_id)]
        if not missing:
            kept.append(sample_id)
            continue
        example = example or f"{sample_id} has no {', '.join(missing)}"
        for field in missing:
            shared.pop(field, None)
    if not example:
        return kept
    lacking = len(sample_ids) - len(kept)
    reason = f"{where}: {lacking} of {len(sample_ids)} samples lack a field ({example})"
    if not skip or not kept:
        raise UnknownFieldError(
            f"{reason}; read what all of them have, fields={list(shared)}, or skip these samples, missing_fields='skip'"
        )
    warnings.warn(f"{reason} and are skipped", stacklevel=3)
    return kept
