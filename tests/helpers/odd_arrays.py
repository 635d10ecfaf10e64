"""Arrays as other libraries and careless programs pass them, each with the plain array that it means."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

#: Keys of :func:`odd_arrays`, for the parameters of tests: collecting them then imports no further library.
ODD = (
    "object",
    "structured",
    "complex",
    "text",
    "times",
    "sparse",
    "sparse tensor",
    "quantised tensor",
    "nested tensor",
    "masked tensor",
    "tensor without values",
    "complex tensor",
    "8-bit tensor",
    "unit",
    "masked unit",
    "quantity",
    "matrix class",
    "nothing",
    "ragged",
    "table of text",
    "table with missing whole numbers",
    "table with missing truth values",
    "table in another order",
    "columns in another order",
    "plain",
    "masked nowhere",
    "big-endian",
    "Fortran order",
    "every second",
    "backwards",
    "read-only",
    "lists of arrays",
    "tensor",
    "parameter",
    "tensor with a gradient",
    "lists of tensors",
    "conjugate",
    "table",
    "table with extension types",
    "dask",
    "xarray",
    "masked",
    "masked, Fortran order",
    "masked, big-endian",
    "lists of masked arrays",
    "dask, masked",
)


class WithUnit(np.ndarray):
    """As astropy's and unyt's arrays: a subclass whose unit ``np.asarray`` drops."""


class Quantity:
    """As pint's: not an array, but NumPy makes one of it."""

    units = "m"

    def __init__(self, magnitude: np.ndarray) -> None:
        self.magnitude = magnitude

    def __array__(self, *_: Any, **__: Any) -> np.ndarray:
        return self.magnitude


def odd_arrays(plain: np.ndarray) -> dict[str, tuple[Callable[[], Any], np.ndarray | None]]:
    """Arrays by what is odd about them.

    Args:
        plain: (rows, columns) of float32 or float64.

    Returns:
        For each a function that makes it, since most tests want one, and the array that it means, NaN where a value is
        missing; None if no plain array means the same.
    """
    import dask.array
    import pandas as pd
    import scipy.sparse
    import xarray as xr

    mask = np.zeros(plain.shape, bool)
    mask[0, -1] = mask[-1, 0] = True
    missing = np.where(mask, plain.dtype.type(np.nan), plain)
    masked = np.ma.array(plain, mask=mask)
    tensor = torch.from_numpy(plain.copy())
    twice = np.repeat(np.repeat(plain, 2, axis=0), 2, axis=1)
    read_only = plain.copy()
    read_only.flags.writeable = False
    refused: dict[str, Callable[[], Any]] = {
        "object": lambda: plain.astype(object),
        "structured": lambda: np.ascontiguousarray(plain).view([("value", plain.dtype)]),
        "complex": lambda: plain.astype(complex),
        "text": lambda: plain.astype(str),
        "times": lambda: plain.astype("m8[s]"),
        "sparse": lambda: scipy.sparse.csr_array(np.nan_to_num(plain)),
        "sparse tensor": lambda: tensor.to_sparse(),
        "quantised tensor": lambda: torch.quantize_per_tensor(tensor.float(), 0.1, 0, torch.qint8),
        "nested tensor": lambda: torch.nested.nested_tensor(list(tensor)),
        "masked tensor": lambda: torch.masked.masked_tensor(tensor, torch.from_numpy(~mask)),
        "tensor without values": lambda: tensor.to("meta"),
        "complex tensor": lambda: tensor.to(torch.complex64),
        "8-bit tensor": lambda: tensor.to(torch.float8_e4m3fn),
        "unit": lambda: plain.view(WithUnit),
        "masked unit": lambda: np.ma.array(plain.view(WithUnit), mask=mask),
        "quantity": lambda: Quantity(plain),
        "matrix class": lambda: np.matrix(plain),
        "nothing": lambda: None,
        "ragged": lambda: [[1.0, 2.0], [3.0]],
        "table of text": lambda: pd.DataFrame(plain.astype(str)),
        "table with missing whole numbers": lambda: pd.DataFrame(mask).astype("Int64").mask(pd.DataFrame(mask)),
        "table with missing truth values": lambda: pd.DataFrame(plain > 0).astype("boolean").mask(pd.DataFrame(mask)),
        "table in another order": lambda: pd.DataFrame(plain, index=[n + 7 for n in reversed(range(len(plain)))]),
        "columns in another order": lambda: xr.DataArray(
            plain, {"x": np.arange(len(plain))[::-1] + 7}, dims=("x", "y")
        ),
    }
    same = {
        "plain": lambda: plain,
        "masked nowhere": lambda: np.ma.array(plain),
        "big-endian": lambda: plain.astype(plain.dtype.newbyteorder(">")),
        "Fortran order": lambda: np.asfortranarray(plain),
        "every second": lambda: twice[::2, ::2],
        "backwards": lambda: plain[::-1, ::-1].copy()[::-1, ::-1],
        "read-only": lambda: read_only,
        "lists of arrays": lambda: list(plain),
        "tensor": lambda: tensor,
        "parameter": lambda: torch.nn.Parameter(tensor.clone()),
        "tensor with a gradient": lambda: tensor.clone().requires_grad_() * 1,
        "lists of tensors": lambda: list(tensor.clone().requires_grad_()),
        "conjugate": lambda: (tensor.to(torch.complex128) * 1j).conj().imag.neg().to(tensor.dtype),
        "table": lambda: pd.DataFrame(plain),
        "table with extension types": lambda: (
            pd.DataFrame(plain).convert_dtypes(convert_integer=False).astype(plain.dtype)
        ),
        "dask": lambda: dask.array.from_array(plain, chunks=1),
        "xarray": lambda: xr.DataArray(plain, dims=("x", "y")),
    }
    partly = {
        "masked": lambda: masked,
        "masked, Fortran order": lambda: np.ma.array(np.asfortranarray(plain), mask=mask),
        "masked, big-endian": lambda: np.ma.array(plain.astype(plain.dtype.newbyteorder(">")), mask=mask),
        "lists of masked arrays": lambda: list(masked),
        "dask, masked": lambda: dask.array.from_array(masked, chunks=1),
    }
    return (
        {name: (_quiet(make), None) for name, make in refused.items()}
        | {name: (make, plain) for name, make in same.items()}
        | {name: (make, missing) for name, make in partly.items()}
    )


def _quiet(make: Callable[[], Any]) -> Callable[[], Any]:
    """The function without the warnings of torch's prototypes."""

    def quiet() -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return make()

    return quiet
