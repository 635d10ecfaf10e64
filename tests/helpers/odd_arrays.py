"""Arrays as other libraries and careless programs pass them, each with the plain array that it means."""

from __future__ import annotations

import warnings
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


def odd_arrays(plain: np.ndarray) -> dict[str, tuple[Any, np.ndarray | None]]:
    """Arrays by what is odd about them.

    Args:
        plain: (rows, columns) of float32 or float64.

    Returns:
        Each with the array that it means, NaN where a value is missing; None if no plain array means the same.
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
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # prototypes of torch
        refused = {
            "object": plain.astype(object),
            "structured": np.ascontiguousarray(plain).view([("value", plain.dtype)]),
            "complex": plain.astype(complex),
            "text": plain.astype(str),
            "times": plain.astype("m8[s]"),
            "sparse": scipy.sparse.csr_array(np.nan_to_num(plain)),
            "sparse tensor": tensor.to_sparse(),
            "quantised tensor": torch.quantize_per_tensor(tensor.float(), 0.1, 0, torch.qint8),
            "nested tensor": torch.nested.nested_tensor(list(tensor)),
            "masked tensor": torch.masked.masked_tensor(tensor, torch.from_numpy(~mask)),
            "tensor without values": tensor.to("meta"),
            "complex tensor": tensor.to(torch.complex64),
            "8-bit tensor": tensor.to(torch.float8_e4m3fn),
            "unit": plain.view(WithUnit),
            "masked unit": np.ma.array(plain.view(WithUnit), mask=mask),
            "quantity": Quantity(plain),
            "matrix class": np.matrix(plain),
            "nothing": None,
            "ragged": [[1.0, 2.0], [3.0]],
            "table of text": pd.DataFrame(plain.astype(str)),
            "table with missing whole numbers": pd.DataFrame(mask).astype("Int64").mask(pd.DataFrame(mask)),
            "table with missing truth values": pd.DataFrame(plain > 0).astype("boolean").mask(pd.DataFrame(mask)),
            "table in another order": pd.DataFrame(plain, index=[n + 7 for n in reversed(range(len(plain)))]),
            "columns in another order": xr.DataArray(plain, {"x": np.arange(len(plain))[::-1] + 7}, dims=("x", "y")),
        }
        same = {
            "plain": plain,
            "masked nowhere": np.ma.array(plain),
            "big-endian": plain.astype(plain.dtype.newbyteorder(">")),
            "Fortran order": np.asfortranarray(plain),
            "every second": twice[::2, ::2],
            "backwards": plain[::-1, ::-1].copy()[::-1, ::-1],
            "read-only": read_only,
            "lists of arrays": list(plain),
            "tensor": tensor,
            "parameter": torch.nn.Parameter(tensor.clone()),
            "tensor with a gradient": tensor.clone().requires_grad_() * 1,
            "lists of tensors": list(tensor.clone().requires_grad_()),
            "conjugate": (tensor.to(torch.complex128) * 1j).conj().imag.neg().to(tensor.dtype),
            "table": pd.DataFrame(plain),
            "table with extension types": pd.DataFrame(plain).convert_dtypes(convert_integer=False).astype(plain.dtype),
            "dask": dask.array.from_array(plain, chunks=1),
            "xarray": xr.DataArray(plain, dims=("x", "y")),
        }
    partly = {
        "masked": masked,
        "masked, Fortran order": np.ma.array(np.asfortranarray(plain), mask=mask),
        "masked, big-endian": np.ma.array(plain.astype(plain.dtype.newbyteorder(">")), mask=mask),
        "lists of masked arrays": list(masked),
        "dask, masked": dask.array.from_array(masked, chunks=1),
    }
    return (
        {name: (array, None) for name, array in refused.items()}
        | {name: (array, plain) for name, array in same.items()}
        | {name: (array, missing) for name, array in partly.items()}
    )
