"""Which byte ranges one request fetches together."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from zarr_core.format.ranges import coalesce

ranges = st.lists(
    st.builds(
        lambda name, start, size, number: (name, start, None if size is None or start < 0 else start + size, number),
        st.sampled_from("ab"),
        st.integers(-3, 60),
        st.none() | st.integers(0, 20),
        st.integers(),
    )
)


@given(ranges, st.integers(0, 10), st.integers(0, 60), st.booleans())
def test_groups_hold_every_range_once_and_are_as_large_as_the_limits_allow(
    given_ranges: list[tuple[str, int, int | None, int]], max_gap: int, max_bytes: int, ascending: bool
) -> None:
    if ascending:
        given_ranges.sort(key=lambda each: each[:2])
    groups = coalesce(given_ranges, max_gap, max_bytes)
    assert [each for group in groups for each in group] == given_ranges

    def joinable(group: list[tuple[str, int, int | None, int]], name: str, start: int, stop: int | None) -> bool:
        last_stop = group[-1][2]
        if last_stop is None or stop is None or name != group[-1][0]:
            return False
        return 0 <= start - last_stop <= max_gap and stop - group[0][1] <= max_bytes

    for group in groups:
        for place in range(1, len(group)):
            assert joinable(group[:place], *group[place][:3])
    for group, following in itertools.pairwise(groups):
        assert not joinable(group, *following[0][:3])


def test_neighbours_without_limits() -> None:
    assert coalesce([("a", 0, 4), ("a", 4, 9), ("a", 10, 12), ("b", 12, 13)]) == [
        [("a", 0, 4), ("a", 4, 9)],
        [("a", 10, 12)],
        [("b", 12, 13)],
    ]
    assert coalesce([]) == []
