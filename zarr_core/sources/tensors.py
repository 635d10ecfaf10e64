"""Reads ``.pt`` files from a disk or an object store: tensors only, never code."""

from __future__ import annotations

import errno
import io
from contextlib import nullcontext
from typing import Any

import torch

from zarr_core._util.plain_arrays import plain_tensor
from zarr_core.sources.pickles import RefusedError, check_pt
from zarr_core.sources.reading import WHOLE_BYTES, RemoteFile, read_listed
from zarr_core.sources.sample import FileInfo
from zarr_core.storage import Storage, is_local


def load_pt(storage: Storage, name: str, info: FileInfo) -> Any:
    """The content of a ``.pt`` file, checked and then loaded with ``weights_only=True``.

    Raises:
        ValueError: the file is truncated, is not a torch file, or contains more than tensors and plain containers.
        SourceError: it is not the version that was listed (see :mod:`zarr_core.sources.reading`).
    """
    file: Any
    if is_local(storage.root):
        file = storage.path(name)
    elif info.size <= WHOLE_BYTES:
        file = io.BytesIO(read_listed(storage, name, info))
    else:
        file = RemoteFile(storage, name, info)
    try:
        with open(file, "rb") if isinstance(file, str) else nullcontext(file) as opened:
            check_pt(opened)
            opened.seek(0)
        return torch.load(file, map_location="cpu", weights_only=True)
    except OSError as error:
        # torch seeks to a negative offset in some truncated archives, which the system rejects with EINVAL.
        if error.errno != errno.EINVAL:
            raise
        raise ValueError("truncated or not a torch file") from error
    except MemoryError:
        raise
    except Exception as error:  # unpickling arbitrary bytes can raise anything, for example struct.error
        if isinstance(file, RemoteFile) and file.error is not None:  # torch hides it behind an error of its own
            raise file.error from None
        if isinstance(error, RefusedError):
            raise
        reason = (str(error).splitlines() or [repr(error)])[0]
        if "allocate memory" in reason:  # torch reports lack of memory as RuntimeError; the file may be sound
            raise MemoryError(reason) from error
        raise ValueError(f"truncated or not a torch file: {reason:.300}") from error


def load_point_tensor(storage: Storage, name: str, info: FileInfo) -> torch.Tensor:
    """The tensor in a ``.pt`` file; raises as :func:`load_pt`, and ValueError if the file contains anything else."""
    tensor = load_pt(storage, name, info)
    if isinstance(tensor, torch.Tensor) and tensor.numel() * tensor.element_size() > info.size:
        # Strides of zero let a few bytes claim any number of values.
        raise ValueError(f"claims {tensor.numel()} values, more than fit into its {info.size} bytes")
    return plain_tensor(tensor)
