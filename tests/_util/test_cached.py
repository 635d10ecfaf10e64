from __future__ import annotations

import threading
from collections.abc import Callable

from zarr_core._util.cached import cached_property


class Counted:
    """A property that does something while it is calculated."""

    def __init__(self, meanwhile: Callable[[], None] = lambda: None) -> None:
        self.calls, self.meanwhile = 0, meanwhile

    @cached_property
    def value(self) -> int:
        self.calls += 1
        self.meanwhile()
        return self.calls


def test_a_property_is_calculated_once_for_each_instance() -> None:
    one, other = Counted(), Counted()
    assert (one.value, one.value, other.value) == (1, 1, 1)
    del one.value
    assert one.value == 2
    one.value = 7
    assert (one.value, one.calls) == (7, 2)
    assert isinstance(Counted.value, cached_property)


def test_another_instance_does_not_wait() -> None:
    """Or a child process would wait for a thread that only its parent has."""
    other = Counted()

    def read_another() -> None:
        thread = threading.Thread(target=lambda: other.value, daemon=True)
        thread.start()
        thread.join(60)

    assert Counted(read_another).value == 1
    assert vars(other)["value"] == 1
