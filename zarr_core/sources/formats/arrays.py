"""``.npy`` and ``.npz``: arrays of numbers, never pickled objects."""

from __future__ import annotations

import errno
import math
import tokenize
import zipfile
import zlib
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import IO

import numpy as np

from zarr_core.sources.arrays import ArrayChoice
from zarr_core.sources.formats.contents import Contents, FoundArray, Mesh
from zarr_core.sources.formats.files import SourceFile
from zarr_core.sources.left_out import note, some
from zarr_core.sources.limits import MAX_PARAMETER_NUMBERS, check_expansion

# What NumPy, zipfile and h5py raise for damaged bytes, besides ValueError.
_DAMAGE = (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, KeyError, tokenize.TokenError)


@contextmanager
def damaged(reason: str, *others: type[Exception]) -> Iterator[None]:
    """Raise ValueError for what libraries raise for damage, and for others; errors of a disk stay as they are."""
    expected: tuple[type[Exception], ...] = (*_DAMAGE, OSError, *others)
    try:
        yield
    except expected as error:
        cause = error if isinstance(error, OSError) else error.__context__  # that zipfile has replaced
        if isinstance(cause, OSError) and cause.errno not in (None, errno.EINVAL):  # EINVAL: a negative offset
            raise cause from None
        raise ValueError(f"{reason}: {error}") from error


def side_by_side(columns: Sequence[np.ndarray]) -> np.ndarray:
    """The arrays as components of one.

    Raises:
        ValueError: they have no common dtype that holds the whole numbers of all of them.
    """
    joined = columns[0] if len(columns) == 1 else np.column_stack(columns)
    for column in columns if joined.dtype.kind == "f" else ():
        if column.dtype.kind in "iu" and column.size and max(int(column.max()), -int(column.min())) > 2**53:
            raise ValueError(
                f"whole numbers beyond 2**53 cannot be joined with {joined.dtype}, which does not hold all of them; "
                "make a field of each array"
            )
    return joined


class ArrayFile:
    """A file that contains named arrays without a mesh."""

    def __init__(self, file: SourceFile) -> None:
        self._file = file

    def values(self, choice: ArrayChoice) -> np.ndarray:
        if choice.compute:
            raise ValueError("contains no mesh; name its arrays in `files` of the description, not in `meshes`")
        values = side_by_side(self._arrays(choice.arrays or ("",)))
        if values.dtype.kind not in "fiu":
            raise ValueError(f"contains {values.dtype}, expected numbers")
        values = values.astype(values.dtype.newbyteorder("="), copy=False)
        if choice.scale == 1:
            return values
        if values.dtype == np.float16:  # whose range and precision are for the values as they are in the file
            values = values.astype(np.float32)
        return values * choice.scale

    def contents(self) -> Contents:
        with self._file.stream() as opened, damaged("truncated or damaged"):
            found = self._shapes(opened)
        arrays, others = [], []
        for name, (shape, dtype) in found.items():
            if len(shape) in (1, 2) and dtype.kind in "fiu":
                arrays.append(FoundArray(name, "", shape[1] if len(shape) == 2 else 1, shape[0]))
            elif self._file.suffix != ".npz" or shape or dtype.kind not in "fiubU":  # else it is a parameter
                others.append(f"{name or 'its array'}: {dtype} {shape}")
        if others:
            reason = "a field is numbers, (points,) or (points, components); scalars are read from .json, .csv, .npz"
            note(f"left out, because {reason}", some(others))
        return Contents(tuple(arrays))

    def mesh(self, choice: ArrayChoice) -> Mesh:
        """Such a file contains no mesh: raises ValueError."""
        raise ValueError("contains no mesh; remove `connectivity`")

    def _arrays(self, names: Sequence[str]) -> list[np.ndarray]:
        with self._file.stream() as opened, damaged("truncated or damaged"):
            return [self._read(opened, name) for name in names]

    def _read(self, opened: IO[bytes], name: str) -> np.ndarray:
        size = self._file.info.size
        if self._file.suffix == ".npy":
            return _read_npy(opened, size, size)
        with _archive(opened) as archive:
            member = f"{name}.npy"
            if member not in archive.namelist():
                names = ", ".join(entry.removesuffix(".npy") for entry in archive.namelist())
                raise ValueError(f"has no array {name!r}; it has {names or 'none'}")
            with archive.open(member) as entry:
                return _read_npy(entry, archive.getinfo(member).file_size, size)

    def _shapes(self, opened: IO[bytes]) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
        if self._file.suffix == ".npy":
            return {"": _header(opened)[:2]}
        shapes = {}
        with _archive(opened) as archive:
            for member in archive.namelist():
                with archive.open(member) as entry:
                    shapes[member.removesuffix(".npy")] = _header(entry)[:2]
        return shapes


def open_file(file: SourceFile, choices: Collection[ArrayChoice]) -> ArrayFile:
    """Open the file; its arrays are read one at a time."""
    return ArrayFile(file)


def read_parameters(file: SourceFile, fields: Collection[str] = ()) -> dict[str, np.ndarray]:
    """The scalars and small arrays of an ``.npz`` file by name, without those of the names in ``fields``.

    Other arrays are noted. Raises ValueError as :meth:`ArrayFile.contents`.
    """
    found, others = {}, []
    with file.stream() as opened, damaged("truncated or damaged"), _archive(opened) as archive:
        for member in archive.namelist():
            name = member.removesuffix(".npy")
            if name in fields:
                continue
            with archive.open(member) as entry:
                shape, dtype, _ = _header(entry)
            is_small = len(shape) <= 1 and 0 < math.prod(shape) <= MAX_PARAMETER_NUMBERS
            is_plain = dtype.kind in "fiub" or (dtype.kind == "U" and not shape)
            if not is_small or not is_plain:
                others.append(f"{name}: {dtype} {shape}")
                continue
            with archive.open(member) as entry:
                found[name] = _read_npy(entry, archive.getinfo(member).file_size, file.info.size)
    if others:
        reason = f"that are neither scalars nor lists of 1 to {MAX_PARAMETER_NUMBERS:,} numbers"
        note(f"arrays that no field uses, and {reason}, were left out", some(others))
    return found


def _archive(opened: IO[bytes]) -> zipfile.ZipFile:
    with damaged("truncated or not an .npz file", ValueError):
        return zipfile.ZipFile(opened)


def _header(opened: IO[bytes]) -> tuple[tuple[int, ...], np.dtype, bool]:
    """Shape, dtype, and whether in Fortran order; raises ValueError."""
    with damaged("truncated or not an array file", ValueError):
        version = np.lib.format.read_magic(opened)
        if version not in ((1, 0), (2, 0)):
            raise ValueError(f"version {version} of the format is not supported")
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran_order, dtype = read(opened)
        if min(shape, default=0) < 0:
            raise ValueError(f"shape {shape}")
    if dtype.hasobject:
        raise ValueError("rejected: contains pickled objects, and loading them could run code; save plain arrays")
    return shape, dtype, fortran_order


def _read_npy(opened: IO[bytes], n_bytes: int, size: int) -> np.ndarray:
    """The array of a file, or of a record of an archive, of ``n_bytes`` in a file of ``size``; raises ValueError."""
    shape, dtype, fortran_order = _header(opened)
    claimed = math.prod(shape) * dtype.itemsize
    if claimed > n_bytes:
        raise ValueError(f"truncated: claims an array of {claimed:,} bytes, and has {n_bytes:,}")
    check_expansion(claimed, size)
    # NumPy reads a stream in pieces of 256 KiB, each of which would be a request for a remote file.
    values = np.empty(shape[::-1] if fortran_order else shape, dtype)
    target = values.reshape(-1).view(np.uint8).data
    filled = 0
    while filled < len(target):
        count = opened.readinto(target[filled:])  # type: ignore[attr-defined]
        if not count:
            raise ValueError(f"truncated: {filled:,} of {len(target):,} bytes")
        filled += count
    return values.T if fortran_order else values
