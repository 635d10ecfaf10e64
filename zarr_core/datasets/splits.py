"""Selects the samples of a dataset: a split or part of one, optionally of some categories."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Collection, Container, Sequence

from zarr_core.errors import ZarrCoreError

_SPLIT = re.compile(r"(?P<name>[^\[\]]+)(?:\[(?P<part>[^\[\]]*)\])?")
_NUMBER = r"\s*(-?\d+)?\s*"
_PART = re.compile(rf"{_NUMBER}(?::{_NUMBER}(?::{_NUMBER})?)?")


def parse_split(split: str) -> tuple[str, slice | int | None]:
    """Parse "train", "train[0]", "test[:50]" or "train[10:20:2]" into the name and a Python index or slice.

    Raises:
        ZarrCoreError: the text has another form.
    """
    matched = _SPLIT.fullmatch(split.strip())
    if matched and matched["part"] is None:
        return matched["name"], None
    part = _PART.fullmatch(matched["part"]) if matched and matched["part"].strip() else None
    if not matched or not part:
        raise ZarrCoreError(f"split {split!r}: use a form such as train, train[0], test[:50] or train[10:20:2]")
    numbers = [None if number is None else int(number) for number in part.groups()]
    if ":" not in matched["part"]:
        return matched["name"], numbers[0]
    if numbers[2] == 0:
        raise ZarrCoreError(f"split {split!r}: the step cannot be 0")
    return matched["name"], slice(*numbers)


def take_part(sample_ids: Sequence[str], part: slice | int | None) -> list[str]:
    """Apply an index or slice to the samples of a split; an index gives one sample.

    Raises:
        ZarrCoreError: the index is out of range.
    """
    if part is None:
        return list(sample_ids)
    if isinstance(part, slice):
        return list(sample_ids[part])
    if not -len(sample_ids) <= part < len(sample_ids):
        raise ZarrCoreError(f"index {part} is out of range for {len(sample_ids)} samples")
    return [sample_ids[part]]


def category(sample_id: str) -> str:
    """The design family of a DrivAerNet sample: "E_S_WWC_WM" for "E_S_WWC_WM_005"."""
    return sample_id.rpartition("_")[0]


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
        categories: the categories to keep, as :func:`category` names them; None keeps all samples.
        where: the location, for messages.

    Raises:
        ZarrCoreError: no sample is selected.
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
    try:
        chosen = take_part(kept, part)
    except ZarrCoreError as error:
        raise ZarrCoreError(f"{where}: split {split!r}: {error}") from None
    if not chosen:
        reason = f"split {name!r} lists {len(wanted)} samples, of which {len(found)} exist"
        if categories is not None:
            have = ", ".join(sorted(set(map(category, found)))) or "none"
            reason += f" and {len(kept)} have a category of {', '.join(categories)} (the categories are: {have})"
        raise ZarrCoreError(f"{where}: {split!r} selects no sample: {reason}")
    return chosen
