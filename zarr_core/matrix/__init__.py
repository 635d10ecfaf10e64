"""The wide matrix: append-only Zarr arrays (samples x features) of a long warehouse table. See ``docs/matrix.md``."""

from zarr_core.matrix.wide import WideMatrix

__all__ = ["WideMatrix"]
