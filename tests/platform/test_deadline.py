"""What a sensor waits for ends before its tick, with the name of the service."""

from __future__ import annotations

import threading

import dagster as dg
import pytest
from zarr_core.platform.sensors.deadline import TICK_SECONDS, within_the_tick


def test_work_that_hangs_is_named_and_not_started_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TICK_SECONDS, "0.2")
    answered, started = threading.Event(), []

    def listing() -> str:
        started.append("listing")
        answered.wait()
        return "3 samples"

    for _ in range(2):
        with pytest.raises(dg.Failure, match="listing s3://bucket has not ended within 0 seconds: does the"):
            within_the_tick("listing s3://bucket", listing)
    assert started == ["listing"], "one thread waits for the service"
    answered.set()
    monkeypatch.setenv(TICK_SECONDS, "60")
    assert within_the_tick("listing s3://bucket", listing) == "3 samples"
    assert len(started) == 2


def test_an_error_is_raised_as_it_is() -> None:
    with pytest.raises(KeyError, match="bucket"):
        within_the_tick("listing s3://bucket", lambda: {}["bucket"])
    assert within_the_tick("listing s3://bucket", lambda: 1) == 1
