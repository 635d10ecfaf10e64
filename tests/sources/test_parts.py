"""Every sample belongs to exactly one part, whichever process asks."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.examples import examples
from zarr_core.errors import SourceError
from zarr_core.sources.parts import Part

SLURM = {"SLURM_ARRAY_TASK_ID": "3", "SLURM_ARRAY_TASK_MIN": "1", "SLURM_ARRAY_TASK_COUNT": "8"}


@given(st.lists(st.text(min_size=1, max_size=20), max_size=30), st.integers(1, 9))
@settings(max_examples=examples(50))
def test_a_sample_belongs_to_exactly_one_part(sample_ids: list[str], count: int) -> None:
    parts = [Part(number, count) for number in range(count)]
    assert all(sum(part.has(sample_id) for part in parts) == 1 for sample_id in sample_ids)


def test_parts_are_about_equal() -> None:
    sizes = [sum(Part(number, 4).has(f"run_{n}") for n in range(4_000)) for number in range(4)]
    assert 900 < min(sizes) <= max(sizes) < 1_100


def test_the_parts_of_a_sample_never_change() -> None:
    """Processes of different versions of this package may work side by side."""
    assert [n for n in range(12) if Part(0, 3).has(f"run_{n}")] == [1, 3, 5, 6, 11]


@pytest.mark.parametrize(
    ("text", "environment", "part"),
    [
        ("0/2", {}, Part(0, 2)),
        ("1/2", SLURM, Part(1, 2)),
        ("auto", SLURM, Part(2, 8)),
        ("auto/16", SLURM, Part(2, 16)),
        ("auto", SLURM | {"SLURM_ARRAY_TASK_ID": "5", "SLURM_ARRAY_TASK_STEP": "2"}, Part(2, 8)),
        ("auto/4", {"JOB_COMPLETION_INDEX": "3"}, Part(3, 4)),
    ],
)
def test_texts(text: str, environment: dict[str, str], part: Part) -> None:
    assert Part.parse(text, environment) == part


@pytest.mark.parametrize(
    ("text", "environment", "message"),
    [
        ("2/2", {}, "there is no part 2 of 2"),
        ("0/0", {}, "there is no part 0 of 0"),
        ("1", {}, "is not NUMBER/COUNT"),
        ("-1/2", {}, "is not NUMBER/COUNT"),
        ("1/2/3", {}, "is not NUMBER/COUNT"),
        ("²/3", {}, "is not NUMBER/COUNT"),
        ("auto", {}, "neither SLURM_ARRAY_TASK_ID nor JOB_COMPLETION_INDEX is set"),
        ("auto", {"JOB_COMPLETION_INDEX": "0"}, "give auto/COUNT"),
        ("auto", SLURM | {"SLURM_ARRAY_TASK_ID": "4", "SLURM_ARRAY_TASK_STEP": "2"}, "regular step"),
        ("auto/2", {"JOB_COMPLETION_INDEX": "2"}, "there is no part 2 of 2"),
    ],
)
def test_texts_that_name_no_part(text: str, environment: dict[str, str], message: str) -> None:
    with pytest.raises(SourceError, match=message):
        Part.parse(text, environment)
