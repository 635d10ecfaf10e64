"""Read the features of an axis from a file."""

from __future__ import annotations

import fsspec
import numpy as np

from zarr_core._util.redaction import printable_cause, redact
from zarr_core.errors import MatrixError


def read_feature_ids(url: str) -> list[str]:
    """The first column of a Parquet file (``.parquet``), or the words of any other file.

    Args:
        url: a local path or any fsspec URL.

    Raises:
        MatrixError: the file cannot be read.
    """
    import pyarrow as pa
    import pyarrow.parquet

    try:
        with fsspec.open(url, "rb") as file:
            if not url.endswith(".parquet"):
                words: list[str] = file.read().decode().split()
                return words
            columns = pyarrow.parquet.read_table(file)
    except (OSError, UnicodeDecodeError, pa.ArrowException) as error:
        message = f"features {redact(url)} cannot be read: {redact(str(error))}"
        raise MatrixError(message) from printable_cause(error)
    return [str(name) for name in columns.column(0).to_pylist()]


def read_axis_ids(url: str, text: bool) -> list[str] | np.ndarray:
    """The names of :func:`read_feature_ids` in the type of an axis: strings, or an int64 array if not ``text``.

    Raises:
        MatrixError: the file cannot be read, or a name is no integer.
    """
    names = read_feature_ids(url)
    if text:
        return names
    try:
        return np.array([int(name) for name in names], np.int64)
    except (ValueError, OverflowError) as error:
        raise MatrixError(f"the features of this matrix are integers: {error}") from error
