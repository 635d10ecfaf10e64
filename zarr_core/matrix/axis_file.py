"""Read the features of an axis from a file."""

from __future__ import annotations

import fsspec
import numpy as np

from zarr_core._util.redaction import printable_cause, redact
from zarr_core.errors import MatrixError
from zarr_core.matrix.axis import from_arrow, words


def read_feature_ids(url: str) -> np.ndarray:
    """The first column of a Parquet file (``.parquet``), or the words of any other file, without Python strings.

    Args:
        url: a local path or any fsspec URL.

    Returns:
        (features,) bytes (UTF-8), or int64 if the column of a Parquet file holds integers.

    Raises:
        MatrixError: the file cannot be read, or the column is neither of strings nor of integers.
    """
    import pyarrow as pa
    import pyarrow.parquet

    try:
        with fsspec.open(url, "rb") as file:
            if not url.endswith(".parquet"):
                return words(file.read())
            table = pyarrow.parquet.ParquetFile(file)
            first = table.schema_arrow.names[:1]
            batches = table.iter_batches(1 << 17, columns=first, use_threads=False)
            parts = [from_arrow(batch.column(0)) for batch in batches if first]
    except (OSError, pa.ArrowException) as error:
        message = f"features {redact(url)} cannot be read: {redact(str(error))}"
        raise MatrixError(message) from printable_cause(error)
    if not parts:
        raise MatrixError(f"features {redact(url)}: the file has no rows")
    return np.concatenate(parts)


def read_axis_ids(url: str, text: bool) -> np.ndarray:
    """The names of :func:`read_feature_ids` in the type of an axis: bytes, or int64 if not ``text``.

    Raises:
        MatrixError: the file cannot be read, or a name is no integer.
    """
    names = read_feature_ids(url)
    try:
        return names.astype("S" if text else np.int64, copy=False)
    except (ValueError, OverflowError) as error:
        raise MatrixError(f"the features of this matrix are integers: {error}") from error
