"""Arrays for xarray whose values are read when they are used. Needs xarray, so it is imported on use."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr
from xarray.backends import BackendArray
from xarray.core import indexing


class LazyArray(BackendArray):  # type: ignore[misc]
    """An array of known shape and dtype.

    Args:
        shape, dtype: of the array.
        read: returns the values at a key, which has an integer or a slice for each axis, as NumPy's basic indexing.
        lists: whether ``read`` also takes integer arrays, each for its own axis. Otherwise a selection of single
            positions reads the range from the first to the last of them.
    """

    def __init__(
        self, shape: tuple[int, ...], dtype: Any, read: Callable[[tuple[Any, ...]], np.ndarray], *, lists: bool = False
    ) -> None:
        self.shape, self.dtype = shape, np.dtype(dtype)
        self._read, self._lists = read, lists

    def __getitem__(self, key: Any) -> Any:
        support = indexing.IndexingSupport.OUTER if self._lists else indexing.IndexingSupport.BASIC
        return indexing.explicit_indexing_adapter(key, self.shape, support, self._read)


def lazy_variable(
    dimensions: Sequence[str],
    array: LazyArray,
    attributes: Mapping[str, Any] | None = None,
    blocks: Sequence[Any] | None = None,
) -> Any:
    """The ``xarray.Variable`` of a lazy array; of dask blocks of these lengths, as ``Variable.chunk`` takes them."""
    variable = xr.Variable(tuple(dimensions), indexing.LazilyIndexedArray(array), dict(attributes or {}))
    return variable if blocks is None else variable.chunk(dict(zip(dimensions, blocks, strict=True)))
