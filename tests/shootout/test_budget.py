"""A budget of measurements is kept; time is a number here."""

from __future__ import annotations

import math
from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from zarr_core.errors import StoreError
from zarr_core.shootout.budget import Budget, MeasurementError


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def passing(self, seconds: float) -> Callable[[float], None]:
        def measure(_: float) -> None:
            self.now += seconds

        return measure


@settings(max_examples=30)
@given(st.lists(st.floats(0.1, 9), max_size=9), st.floats(1, 60))
def test_the_budget_is_kept_if_nothing_takes_longer_than_expected(took: list[float], seconds: float) -> None:
    clock = Clock()
    budget = Budget(seconds, clock)
    for number, each in enumerate(took):
        budget.take(str(number), str(number), each, clock.passing(each))
    assert clock.now <= 100 + seconds + 1e-6
    ran = len(took) - len(budget.left_out)
    assert ran or not any(each <= seconds - 1e-6 for each in took)


def test_what_others_of_a_kind_took_decides_whether_the_next_one_fits() -> None:
    clock = Clock()
    budget = Budget(10, clock)
    for number in range(4):
        budget.take(f"slow {number}", "slow", 1.0, clock.passing(4))
    budget.take("quick", "quick", 1.0, clock.passing(1))
    assert [name for name, _ in budget.left_out] == ["slow 2", "slow 3"]
    assert budget.left_out[0][1] == "about 4.0 s are needed, and 2.0 s of the budget were left"
    assert clock.now == 109, "a shorter one that still fits is taken"


def test_a_repetition_that_does_not_fit_is_not_named() -> None:
    clock = Clock()
    budget = Budget(1, clock)
    budget.take("again", "again", 5, clock.passing(5), is_repeated=True)
    assert budget.left_out == []
    assert clock.now == 100


def test_measurements_leave_time_for_those_that_follow() -> None:
    clock = Clock()
    budget = Budget(5, clock)
    for number, part in enumerate((0.6, 0.8, 1), 1):
        budget.allow(part)
        for each in range(8):
            budget.take(f"{number}.{each}", str(number), 1, clock.passing(1))
    assert [name for name, _ in budget.left_out] == [
        *(f"1.{n}" for n in range(3, 8)),
        *(f"2.{n}" for n in range(1, 8)),
        *(f"3.{n}" for n in range(1, 8)),
    ]
    assert budget.left_out[0][1].endswith("0.0 s of the budget were left for this kind of measurement")
    assert budget.left_out[-1][1].endswith("0.0 s of the budget were left")
    assert clock.now == 105


def test_a_measurement_is_shown_and_told_when_to_end() -> None:
    seen: list[object] = []
    budget = Budget(10, Clock(), show=lambda name, left: seen.append((name, left)))
    budget.take("one", "", 1, seen.append)
    assert seen == [("one", 10), 110]


def test_one_that_fails_is_named_and_does_not_stop_the_others() -> None:
    def failing(error: Exception) -> Callable[[float], None]:
        def measure(_: float) -> None:
            raise error

        return measure

    clock = Clock()
    budget = Budget(math.inf, clock)
    for number, error in enumerate([StoreError("no space\nleft"), MeasurementError("ValueError: wrong"), OSError("x")]):
        budget.take(f"step {number}", "", 1, failing(error))
    budget.take("other", "", 1, clock.passing(1))
    assert budget.left_out == [
        ("step 0", "no space left"),
        ("step 1", "ValueError: wrong"),
        ("step 2", "x"),
    ]
    assert clock.now == 101
