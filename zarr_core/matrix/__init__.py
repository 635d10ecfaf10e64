"""The wide matrix: an append-only (samples x features) cache of a long warehouse table. See ``docs/matrix.md``."""

from zarr_core.matrix.wide import WideMatrix

__all__ = ["WideMatrix"]
