"""Reads ``.pt`` files from a disk or an object store: tensors only, never code."""

from __future__ import annotations

import errno
import io
import math
import pickle
import struct
import zipfile
from contextlib import nullcontext
from typing import Any

import torch

from zarr_core.storage import Storage, is_local

# Objects up to this size are fetched in one request, larger ones in pieces of this size: memory then holds the tensor
# and one piece.
_PIECE_BYTES = 32 * 2**20
# First and last bytes of a larger object, which are fetched once: torch's archives have all but the values there.
_EDGE_BYTES = 64 * 2**10


class RemoteFile(io.RawIOBase):
    """A seekable view of an object; reads fetch large pieces, except near its beginning and its end."""

    def __init__(self, storage: Storage, name: str, size: int) -> None:
        self._storage, self._name, self._size, self._position = storage, name, size, 0
        self._edges: dict[int, bytes] = {}

    def readable(self) -> bool:
        """True."""
        return True

    def seekable(self) -> bool:
        """True."""
        return True

    def tell(self) -> int:
        """Current offset in bytes."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Set the offset; fetches nothing."""
        self._position = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        return self._position

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer from the current offset."""
        target = memoryview(buffer).cast("B")[: max(self._size - self._position, 0)]
        for start in range(0, len(target), _PIECE_BYTES):
            piece = target[start : start + _PIECE_BYTES]
            begin = self._position + start
            piece[:] = self._read(begin, begin + len(piece))
        self._position += len(target)
        return len(target)

    def _read(self, start: int, stop: int) -> bytes:
        for edge in (0, max(self._size - _EDGE_BYTES, 0)):
            if edge <= start and stop <= edge + _EDGE_BYTES:
                if edge not in self._edges:
                    self._edges[edge] = self._storage.read(self._name, edge, min(edge + _EDGE_BYTES, self._size))
                return self._edges[edge][start - edge : stop - edge]
        return self._storage.read(self._name, start, stop)


def load_pt(storage: Storage, name: str, size: int) -> Any:
    """The content of a ``.pt`` file, loaded with ``weights_only=True``.

    Raises:
        ValueError: the file is truncated, is not a torch file, or contains more than tensors and plain containers.
    """
    file: Any
    if is_local(storage.root):
        file = storage.path(name)
    elif size <= _PIECE_BYTES:
        file = io.BytesIO(storage.read(name))
    else:
        file = RemoteFile(storage, name, size)
    _refuse_bombs(file, size)
    try:
        return torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        if "GLOBAL" in str(error):
            raise ValueError(
                "rejected: contains more than tensors, and loading it could run code; save plain tensors"
            ) from error
        raise ValueError("truncated or not a torch file") from error
    except OSError as error:
        # torch seeks to a negative offset in some truncated archives, which the system rejects with EINVAL.
        if error.errno != errno.EINVAL:
            raise
        raise ValueError("truncated or not a torch file") from error
    except MemoryError:
        raise
    except Exception as error:  # unpickling arbitrary bytes can raise anything, for example struct.error
        reason = (str(error).splitlines() or [repr(error)])[0]
        if "allocate memory" in reason:  # torch reports lack of memory as RuntimeError; the file may be sound
            raise MemoryError(reason) from error
        raise ValueError(f"truncated or not a torch file: {reason}") from error


def _refuse_bombs(file: Any, size: int) -> None:
    """Raise ValueError for an archive with compressed records: torch writes none, and they could be a zip bomb."""
    with open(file, "rb") if isinstance(file, str) else nullcontext(file) as opened:
        is_archive = opened.read(2) == b"PK"
        if is_archive:
            try:
                with zipfile.ZipFile(opened) as archive:
                    records = archive.infolist()
            except (zipfile.BadZipFile, ValueError, NotImplementedError, struct.error, OSError) as error:
                raise ValueError(f"truncated or not a torch file: {error}") from error
            if any(r.compress_type != zipfile.ZIP_STORED for r in records) or sum(r.file_size for r in records) > size:
                raise ValueError(
                    "rejected: contains compressed records, which could expand to any size; torch.save writes none"
                )
        opened.seek(0)


def load_point_tensor(storage: Storage, name: str, size: int) -> torch.Tensor:
    """The tensor in a ``.pt`` file; raises ValueError as :func:`load_pt`, and if the file contains anything else."""
    tensor = load_pt(storage, name, size)
    if not isinstance(tensor, torch.Tensor):
        raise ValueError(f"contains a {type(tensor).__name__}; expected one tensor")
    if tensor.is_nested or tensor.layout is not torch.strided or tensor.is_quantized:
        raise ValueError("contains a nested, sparse or quantised tensor; expected a dense one")
    if tensor.device.type != "cpu":
        raise ValueError(f"contains a tensor without values (device {tensor.device.type!r}); save it from the CPU")
    if tensor.numel() * tensor.element_size() > size:
        # Strides of zero let a few bytes claim any number of values.
        raise ValueError(f"claims {tensor.numel()} values, more than fit into its {size} bytes")
    return tensor.detach().resolve_neg().resolve_conj()


def scalars(data: Any, where: str) -> dict[str, Any]:
    """A flat dict of plain numbers and strings from a dict of scalars, which may be one-element tensors.

    Raises:
        ValueError: ``data`` is not a dict, or an entry is not a scalar or not finite.
    """
    if not isinstance(data, dict):
        raise ValueError(f"{where} contains a {type(data).__name__}; expected a dict of scalars")
    plain = {}
    for key, value in data.items():
        if isinstance(value, torch.Tensor) and value.numel() == 1:
            value = value.item()
        if not isinstance(value, int | float | str | bool | None):
            raise ValueError(f"{where}: {key!r} is not a scalar")
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{where}: {key!r} is {value}, which JSON cannot represent")
        plain[str(key)] = value
    return plain
