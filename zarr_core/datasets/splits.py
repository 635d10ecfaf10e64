"""Which samples a dataset consists of: a split, part of a split, some categories."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Collection, Container, Sequence

from zarr_core.errors import ZarrCoreError

_SPLIT = re.compile(r"(?P<name>\w+)(?:\[(?P<part>[^\[\]]*)\])?")
_NUMBER = r"\s*(-?\d+)?\s*"
_PART = re.compile(rf"{_NUMBER}(?::{_NUMBER}(?::{_NUMBER})?)?")


def parse_split(split: str) -> tuple[str, slice | int | None]:
    """Name and part of "train", "train[0]", "test[:50]" or "train[10:20:2]", as Python would take it of a list.

    Raises:
        ZarrCoreError: the text is none of these.
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
    """The part of a split's samples that its notation names; a single number gives one sample.

    Raises:
        ZarrCoreError: there are not so many samples.
    """
    if part is None:
        return list(sample_ids)
    if isinstance(part, slice):
        return list(sample_ids[part])
    if not -len(sample_ids) <= part < len(sample_ids):
        raise ZarrCoreError(f"no sample number {part}: there are {len(sample_ids)}")
    return [sample_ids[part]]


def category(sample_id: str) -> str:
    """The family of designs that a sample belongs to: "E_S_WWC_WM" of "E_S_WWC_WM_005"."""
    return sample_id.rpartition("_")[0]


def keep_categories(sample_ids: Sequence[str], categories: Collection[str] | None) -> list[str]:
    """The samples of these categories; all where none are named."""
    return [sample_id for sample_id in sample_ids if categories is None or category(sample_id) in categories]


def choose_samples(
    split: str,
    listed: Callable[[str], Sequence[str]],
    present: Container[str],
    categories: Collection[str] | None,
    where: str,
) -> list[str]:
    """The samples of a dataset: those of the split that are there and of the right category, then the part asked for.

    Args:
        split: name with or without a part, as for :func:`parse_split`.
        listed: ids of a split by its name, blacklisted ones left out; raises ZarrCoreError for an unknown split.
        present: ids that exist.
        categories: as for :func:`keep_categories`.
        where: the location, for messages.

    Raises:
        ZarrCoreError: no sample is left. Ids that are listed and absent are left out with one warning.
    """
    name, part = parse_split(split)
    wanted = listed(name)
    found = [sample_id for sample_id in wanted if sample_id in present]
    if len(found) < len(wanted):
        missing = [sample_id for sample_id in wanted if sample_id not in present]
        some = ", ".join(missing[:3]) + (", ..." if len(missing) > 3 else "")
        warnings.warn(
            f"{where}: {len(missing)} of {len(wanted)} samples of split {name!r} are absent and left out ({some})",
            stacklevel=3,  # points at whoever makes the dataset
        )
    kept = keep_categories(found, categories)
    try:
        chosen = take_part(kept, part)
    except ZarrCoreError as error:
        raise ZarrCoreError(f"{where}: split {split!r}: {error}") from None
    if not chosen:
        reason = f"split {name!r} lists {len(wanted)} samples, {len(found)} of them are there"
        if categories is not None:
            have = ", ".join(sorted({category(sample_id) for sample_id in found})) or "none"
            reason += f", {len(kept)} are of the categories {', '.join(categories)} (there are: {have})"
        raise ZarrCoreError(f"{where}: no sample left for {split!r}: {reason}")
    return chosen
