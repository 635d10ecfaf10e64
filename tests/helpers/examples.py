"""Number and choice of the examples of property tests.

By default the same few in every run, so that results depend neither on chance nor on the load of the machine.
``ZARR_CORE_EXAMPLES=20`` runs 20 times as many, new ones each time, as ``make attack`` does.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from zarr_core.format.array_metadata import ArrayLayout
from zarr_core.format.codecs import CODECS, Codec

_TIMES = int(os.environ.get("ZARR_CORE_EXAMPLES", "1"))


# Names of folders that can be sample ids, some with blanks.
SAMPLE_NAMES = st.from_regex(r"[\w+=@~-][\w.+=@~-]{0,3}( {1,2}[\w.+=@~-]{1,4}){0,2}", fullmatch=True)


#: Layouts of small arrays.
LAYOUTS = st.builds(
    lambda n, dim, chunk, chunks, dtype, codec, checksum: ArrayLayout(
        n, dim, min(chunk, n), min(chunk, n) * chunks, dtype, Codec.parse(codec), checksum
    ),
    n=st.integers(1, 200),
    dim=st.sampled_from([1, 3]),
    chunk=st.integers(1, 60),
    chunks=st.integers(1, 5),
    dtype=st.sampled_from(["float16", "float32", "float64"]),
    codec=st.sampled_from(CODECS),
    checksum=st.booleans(),
)


def examples(count: int) -> int:
    """``max_examples`` for Hypothesis, given the number for everyday use."""
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
