"""Arrays from outside as plain ones. What a plain array cannot express is refused by name, never dropped.

Masks, units, labels and sparse or quantised storage are part of what an array means, and ``np.asarray`` drops them.
Whatever takes arrays calls one of these functions first.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch

_NUMBERS = "biuf"
_SCALARS = {bool, int, float, str, bytes}


def plain_array(values: Any, *, numbers: bool = True, masked_is_nan: bool = False) -> np.ndarray:
    """The values as a plain NumPy array of this machine's byte order; without a copy where that is possible.

    Args:
        values: array of any library, tensor, or nested lists of numbers or arrays.
        numbers: accept only real numbers and truth values. Otherwise the caller looks at the dtype.
        masked_is_nan: masked elements become NaN. Otherwise they are refused.

    Raises:
        ValueError: a plain array cannot hold the values. The message continues a sentence that begins with their name.
    """
    torch = sys.modules.get("torch")  # whoever has a tensor has imported it
    if torch is not None and isinstance(values, torch.Tensor):
        tensor = plain_tensor(values)
        try:
            values = tensor.numpy()
        except TypeError as error:
            raise ValueError(f"is {tensor.dtype}, which NumPy does not have; pass values.float()") from error
    elif isinstance(values, (list, tuple)) and not set(map(type, values)) <= _SCALARS:
        # NumPy would drop the masks of the elements.
        values = [
            plain_array(value, numbers=numbers, masked_is_nan=masked_is_nan) if _is_array(value) else value
            for value in values
        ]
    if hasattr(values, "compute"):  # dask drops the mask of what it computes for NumPy
        values = values.compute()
    if hasattr(values, "magnitude") and hasattr(values, "units"):
        raise ValueError("has a unit, which is not stored; pass values.magnitude in the unit that you want to store")
    try:
        array = np.asanyarray(values)  # unlike np.asarray, keeps the mask that a conversion returns
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"is not an array of numbers: {error}") from error
    if numbers and array.dtype.kind not in _NUMBERS:
        raise ValueError(f"is {_described(values, array)}, not an array of numbers{_way_out(values, array)}")
    array = _unmasked(array, masked_is_nan) if isinstance(array, np.ma.MaskedArray) else array
    if type(array) not in (np.ndarray, np.memmap):
        name = type(array).__name__
        raise ValueError(f"is a {name}, and a plain array does not keep what this class means; pass np.asarray(values)")
    return np.asarray(array) if array.dtype.isnative else np.asarray(array.astype(array.dtype.newbyteorder("=")))


def plain_tensor(values: Any) -> torch.Tensor:
    """The values as a dense tensor in this machine's memory, without gradients; without a copy where that is possible.

    Raises:
        ValueError: they are not a tensor, or a plain one cannot hold them; worded as by :func:`plain_array`.
    """
    import torch

    if not isinstance(values, torch.Tensor):
        raise ValueError(f"is a {type(values).__name__}, not a tensor")
    if values.is_nested or values.layout is not torch.strided or values.is_quantized:
        raise ValueError("is a nested, sparse or quantised tensor; expected a dense one")
    if type(values) not in (torch.Tensor, torch.nn.Parameter):
        name = type(values).__name__
        raise ValueError(f"is a {name}, and a plain tensor does not keep what this class means; pass a torch.Tensor")
    if values.device.type == "meta":
        raise ValueError("is a tensor without values (device 'meta'); expected one with values")
    return values.detach().cpu().resolve_neg().resolve_conj()


def check_labels(values: Any, *axes: Callable[[], Iterable[Any]]) -> None:
    """Raise ValueError if a table of pandas, polars or xarray has other labels than its axes, or in another order.

    Arrays without labels, and axes that are only counted, have the order in which they are given. Each of ``axes``
    returns the labels of an axis; those of further axes do not matter.
    """
    for own, expected in zip(_labels(values), axes, strict=False):
        if own is None or type(own).__name__ == "RangeIndex":
            continue
        listed = list(own)
        if listed != list(range(len(listed))) and listed != list(expected()):
            raise ValueError(
                f"is a {type(values).__name__} with labels such as {listed[0]!r}, which are not those of this axis in "
                "this order; select them in this order, and pass the result's .to_numpy()"
            )


def _labels(values: Any) -> list[Any]:
    """The labels of each axis; None for an axis without any."""
    if hasattr(values, "dims") and hasattr(values, "indexes"):  # xarray
        return [values.indexes.get(dim) for dim in values.dims]
    if callable(getattr(values, "index", None)):  # the method of a list
        return []
    return [getattr(values, "index", None), getattr(values, "columns", None)]


def _is_array(value: Any) -> bool:
    return isinstance(value, (list, tuple)) or (hasattr(value, "__array__") and not isinstance(value, np.generic))


def _unmasked(array: np.ma.MaskedArray[Any, Any], masked_is_nan: bool) -> np.ndarray:
    values, masked = array.data, np.ma.getmaskarray(array)
    if not masked.any():
        return values
    if not masked_is_nan or values.dtype.kind != "f":
        count = f"{int(masked.sum()):,} of {masked.size:,} values"
        raise ValueError(f"is a masked array, and its mask is not stored ({count}); fill them, or leave them out")
    filled = values.copy()
    filled[masked] = np.nan
    return filled


def _described(values: Any, array: np.ndarray) -> str:
    own = type(values).__name__
    if array.dtype.names:
        return f"a structured array of {', '.join(array.dtype.names)}"
    return f"an array of {array.dtype}" if own == type(array).__name__ else f"a {own} of {array.dtype}"


def _way_out(values: Any, array: np.ndarray) -> str:
    if array.dtype.names:
        return f"; pass one of its fields, such as values[{array.dtype.names[0]!r}]"
    if hasattr(values, "toarray"):
        return "; pass values.toarray()"
    if hasattr(values, "to_numpy") and array.dtype.kind == "O":
        return "; pass values.to_numpy(dtype, na_value=float('nan'))"
    return ""
