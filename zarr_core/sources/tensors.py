"""Reading ``.pt`` files: tensors only, never code, from a disk or straight from an object store."""

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

# Objects up to this size are fetched whole, in one request; larger ones in pieces of this size, so that a tensor and
# one piece are all that is ever held.
_PIECE_BYTES = 32 * 2**20


class RemoteFile(io.RawIOBase):
    """A seekable view of an object that fetches what is read, in large pieces."""

    def __init__(self, storage: Storage, name: str, size: int) -> None:
        self._storage, self._name, self._size, self._position = storage, name, size, 0

    def readable(self) -> bool:
        """Always."""
        return True

    def seekable(self) -> bool:
        """Always."""
        return True

    def tell(self) -> int:
        """Current offset in bytes."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move; nothing is fetched."""
        self._position = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        return self._position

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer from the current offset."""
        target = memoryview(buffer).cast("B")[: max(self._size - self._position, 0)]
        for start in range(0, len(target), _PIECE_BYTES):
            piece = target[start : start + _PIECE_BYTES]
            begin = self._position + start
            piece[:] = self._storage.read(self._name, begin, begin + len(piece))
        self._position += len(target)
        return len(target)


def load_pt(storage: Storage, name: str, size: int) -> Any:
    """What a ``.pt`` file holds, with ``weights_only=True``.

    Raises:
        ValueError: the file is truncated, is not a torch file, or holds more than tensors and plain containers; the
            message says which.
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
            raise ValueError("refused: holds more than tensors, and loading it could run code") from error
        raise ValueError("truncated or not a torch file") from error
    except OSError as error:
        # torch looks for the end of the archive before the beginning of some truncated files, and the system objects.
        if error.errno != errno.EINVAL:
            raise
        raise ValueError("truncated or not a torch file") from error
    except MemoryError:
        raise
    except Exception as error:  # an unpickler that is fed with noise raises anything, struct.error for one
        reason = (str(error).splitlines() or [repr(error)])[0]
        if "allocate memory" in reason:  # what torch says in a RuntimeError is not the file's fault
            raise MemoryError(reason) from error
        raise ValueError(f"truncated or not a torch file: {reason}") from error


def _refuse_bombs(file: Any, size: int) -> None:
    """Raise ValueError for an archive whose records unfold to more than the file; torch writes none that are packed."""
    with open(file, "rb") if isinstance(file, str) else nullcontext(file) as opened:
        is_archive = opened.read(2) == b"PK"
        if is_archive:
            try:
                with zipfile.ZipFile(opened) as archive:
                    records = archive.infolist()
            except (zipfile.BadZipFile, ValueError, NotImplementedError, struct.error, OSError) as error:
                raise ValueError(f"truncated or not a torch file: {error}") from error
            if any(r.compress_type != zipfile.ZIP_STORED for r in records) or sum(r.file_size for r in records) > size:
                raise ValueError("holds packed records, which would unfold to any amount of memory")
        opened.seek(0)


def load_point_tensor(storage: Storage, name: str, size: int) -> torch.Tensor:
    """The tensor of a ``.pt`` file that holds one, raises ValueError as :func:`load_pt` does."""
    tensor = load_pt(storage, name, size)
    if not isinstance(tensor, torch.Tensor):
        raise ValueError(f"holds a {type(tensor).__name__} where one tensor belongs")
    if tensor.is_nested or tensor.layout is not torch.strided or tensor.is_quantized:
        raise ValueError("holds a nested, sparse or quantised tensor where a dense one belongs")
    if tensor.device.type != "cpu":
        raise ValueError(f"holds a tensor without values, for the device {tensor.device.type!r}")
    if tensor.numel() * tensor.element_size() > size:
        # Strides of zero or compressed records: a few bytes that would unfold to any amount of memory.
        raise ValueError(f"claims {tensor.numel()} values, more than its {size} bytes can hold")
    return tensor.detach().resolve_neg().resolve_conj()


def scalars(data: Any, where: str) -> dict[str, Any]:
    """A flat dict of plain numbers and strings from a dict of scalars (one-element tensors included).

    Raises:
        ValueError: it is no dict, or an entry is not a scalar, or not finite.
    """
    if not isinstance(data, dict):
        raise ValueError(f"{where} holds a {type(data).__name__} where a dict of scalars belongs")
    plain = {}
    for key, value in data.items():
        if isinstance(value, torch.Tensor) and value.numel() == 1:
            value = value.item()
        if not isinstance(value, int | float | str | bool | None):
            raise ValueError(f"{where}: {key!r} is not a scalar")
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{where}: {key!r} is {value}, which JSON cannot hold")
        plain[str(key)] = value
    return plain
