"""How many examples property tests try, and which ones.

By default the same few in every run, so that a run of the tests does not depend on luck or on how busy the machine is.
``ZARR_CORE_EXAMPLES=20`` tries 20 times as many, new ones each time, as ``make attack`` does.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

_TIMES = int(os.environ.get("ZARR_CORE_EXAMPLES", "1"))


def examples(count: int) -> int:
    """What a test passes to Hypothesis as ``max_examples``, given what is enough for everyday use."""
    return count * _TIMES


settings.register_profile(
    "zarr_core",
    max_examples=examples(100),
    derandomize=_TIMES == 1,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("zarr_core")
