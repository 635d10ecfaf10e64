"""Every sample belongs to exactly one part, whichever process asks."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.examples import examples
from zarr_core.errors import SourceError
from zarr_core.sources.parts import Part


def slurm(task: int, first: int, last: int, count: int) -> dict[str, str]:
    """What Slurm sets in a task of an array."""
    values = {"ID": task, "MIN": first, "MAX": last, "COUNT": count, "STEP": 1}
    return {f"SLURM_ARRAY_TASK_{name}": str(value) for name, value in values.items()}


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
        ("1/2", slurm(3, 0, 7, 8), Part(1, 2)),
        ("auto", slurm(3, 0, 7, 8), Part(3, 8)),
        ("auto/16", slurm(3, 0, 15, 16), Part(3, 16)),
        ("auto/16", slurm(7, 3, 7, 2), Part(7, 16)),  # sbatch --array=3,7
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
        ("auto", slurm(3, 3, 3, 1), "array has 1 tasks, from 3 to 3, .*; give the number of parts: auto/COUNT"),
        ("auto", slurm(0, 0, 7, 2), "from 0 to 7"),
        ("auto", slurm(1, 1, 8, 8), "from 1 to 8"),
        ("auto", {"SLURM_ARRAY_TASK_ID": "0"}, "from . to ."),
        ("auto/16", slurm(16, 1, 16, 16), "task 16 has no part, .*--array=0-15"),
        ("auto/2", {"JOB_COMPLETION_INDEX": "2"}, "task 2 has no part"),
        ("auto/0", {"JOB_COMPLETION_INDEX": "2"}, "no part 2 of 0"),
        ("auto/x", slurm(0, 0, 1, 2), "is not NUMBER/COUNT"),
    ],
)
def test_texts_that_name_no_part(text: str, environment: dict[str, str], message: str) -> None:
    with pytest.raises(SourceError, match=message):
        Part.parse(text, environment)
