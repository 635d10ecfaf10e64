"""The compressor pcodec, of the package of the same name, with the settings of all stores.

The bytes are those of numcodecs' codec of this name, which does not tell whether a frame had as many values as were
wanted.
"""

from __future__ import annotations

from functools import cache
from types import ModuleType

import numpy as np

from zarr_core._util.extras import extra
from zarr_core.errors import StoreError

#: Options of numcodecs' codec. Neighbouring points are not similar, so that their differences are no shorter.
OPTIONS = {"mode_spec": "classic", "delta_spec": "none"}


def compress(values: np.ndarray, level: int) -> bytes:
    """A frame of the values of a C-contiguous array; raises StoreError if the package is not installed."""
    standalone = _standalone()
    from pcodec import ChunkConfig, DeltaSpec, ModeSpec

    config = ChunkConfig(compression_level=level, mode_spec=ModeSpec.classic(), delta_spec=DeltaSpec.none())
    frame: bytes = standalone.simple_compress(values.reshape(-1), config)
    return frame


def decompress(data: bytes | np.ndarray, out: np.ndarray) -> None:
    """Decode a frame into a C-contiguous array; raises ValueError if it is damaged or has other values, StoreError."""
    standalone = _standalone()
    try:
        progress = standalone.simple_decompress_into(bytes(data), out.reshape(-1))
    except (RuntimeError, TypeError) as error:
        raise ValueError(str(error)) from error
    if progress.n_processed != out.size or not progress.finished:
        raise ValueError(f"its frame does not end after {out.size} values")


@cache  # importing again takes 4 microseconds, and decoding a chunk of 4,096 values 8
def _standalone() -> ModuleType:
    """Functions for frames; raises StoreError if the package is not installed."""
    with extra("pcodec", "the codec pcodec needs a package", StoreError):
        from pcodec import standalone
    module: ModuleType = standalone
    return module
