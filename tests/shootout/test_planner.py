"""A planner of measurements keeps its budget; time is a number here."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable

from hypothesis import given, settings
from hypothesis import strategies as st

from zarr_core.errors import StoreError
from zarr_core.shootout.planner import MeasurementError, Planner, Step


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def step(clock: Clock, name: str, took: float, priority: int = 0, guess: float = 1.0, kind: str = "") -> Step:
    def work(_: float) -> None:
        clock.now += took

    return Step((priority,), name, work, kind or name, guess)


@settings(max_examples=30)
@given(st.lists(st.tuples(st.integers(0, 3), st.floats(0.1, 9)), max_size=9), st.floats(1, 60))
def test_the_budget_is_kept_if_no_step_takes_longer_than_expected(
    steps: list[tuple[int, float]], budget: float
) -> None:
    clock = Clock()
    planner = Planner(budget, clock)
    planner.add(step(clock, str(n), took, priority, took, f"{n}") for n, (priority, took) in enumerate(steps))
    planner.run()
    assert clock.now <= 100 + budget + 1e-6
    ran = len(steps) - len(planner.not_run)
    assert ran or not any(took <= budget - 1e-6 for _, took in steps)


def test_what_steps_of_a_kind_took_decides_whether_the_next_one_fits() -> None:
    clock = Clock()
    planner = Planner(10, clock)
    planner.add(step(clock, f"slow {n}", 4, kind="slow") for n in range(4))
    planner.add([step(clock, "quick", 1, priority=1)])
    planner.run()
    assert [name for name, _ in planner.not_run] == ["slow 2", "slow 3"]
    assert planner.not_run[0][1] == "about 4.0 s are needed, and 2.0 s of the budget were left"
    assert clock.now == 109, "a shorter step that still fits is run"


def test_a_repetition_that_does_not_fit_is_not_named() -> None:
    clock = Clock()
    planner = Planner(1, clock)
    planner.add([dataclasses.replace(step(clock, "again", 5, guess=5), repeats=True)])
    planner.run()
    assert planner.not_run == []
    assert clock.now == 100


def test_steps_of_a_priority_leave_time_for_others() -> None:
    clock = Clock()
    planner = Planner(10, clock, parts={1: 0.6, 2: 0.8})
    planner.add(step(clock, f"{priority}.{n}", 1, priority) for priority in (1, 2, 3) for n in range(8))
    clock.now += 5  # before the run, as of taking samples
    planner.run()
    assert [name for name, _ in planner.not_run] == [
        *(f"1.{n}" for n in range(3, 8)),
        *(f"2.{n}" for n in range(1, 8)),
        *(f"3.{n}" for n in range(1, 8)),
    ]
    assert planner.not_run[0][1].endswith("0.0 s of the budget were left for this kind of measurement")
    assert planner.not_run[-1][1].endswith("0.0 s of the budget were left")
    assert clock.now == 110


def test_important_steps_run_first_and_steps_may_add_steps() -> None:
    clock, seen = Clock(), []

    def noting(name: str, *more: Step) -> Callable[[float], Iterable[Step]]:
        def work(end: float) -> Iterable[Step]:
            assert end == 110
            seen.append(name)
            return more

        return work

    last = Step((9,), "last", noting("last"), "", 1)
    second = Step((2,), "second", noting("second"), "", 1)
    planner = Planner(10, clock)
    planner.add([last, Step((1,), "first", noting("first", second), "", 1)])
    planner.run()
    assert seen == ["first", "second", "last"]


def test_a_step_that_fails_is_named_and_does_not_stop_the_others() -> None:
    clock = Clock()

    def failing(error: Exception) -> Callable[[float], None]:
        def work(_: float) -> None:
            raise error

        return work

    planner = Planner(10, clock)
    errors = [StoreError("no space\nleft"), MeasurementError("ValueError: wrong"), OSError("gone")]
    planner.add(Step((n,), f"step {n}", failing(error), "", 1) for n, error in enumerate(errors))
    planner.add([step(clock, "other", 1, priority=5)])
    planner.run()
    assert planner.not_run == [
        ("step 0", "no space left"),
        ("step 1", "ValueError: wrong"),
        ("step 2", "gone"),
    ]
    assert clock.now == 101
