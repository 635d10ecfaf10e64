"""Files of samples other than ``.pt``: which library reads which format, and one interface for all of them.

Such a file contains several arrays. A description says which of them make a field (``ArrayChoice``), the conversion
records that with the sample, and ``FieldLoader`` keeps the last file open for its next field.

The libraries are imported when a file is opened: ``import zarr_core`` needs none of them.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import platform
from collections.abc import Collection
from typing import Any, Protocol

import numpy as np

from zarr_core.errors import SourceError
from zarr_core.sources.arrays import CASE, PIECES, ROOTS, ArrayChoice, suffix_of
from zarr_core.sources.formats.contents import Contents, Mesh
from zarr_core.sources.formats.files import SourceFile

# Format by suffix: the module that reads it, the libraries that the module needs, and the extra that installs them.
_FORMATS: dict[str, tuple[str, tuple[str, ...], str]] = {
    ".npy": ("arrays", (), ""),
    ".npz": ("arrays", (), ""),
    ".csv": ("csv", (), ""),
    ".h5": ("hdf5", ("h5py",), "hdf5"),
    ".hdf5": ("hdf5", ("h5py",), "hdf5"),
    ".vtp": ("vtk", ("vtkmodules",), "vtk"),
    ".vtu": ("vtk", ("vtkmodules",), "vtk"),
    ".vtk": ("vtk", ("vtkmodules",), "vtk"),
    ".stl": ("vtk", ("vtkmodules",), "vtk"),
    **dict.fromkeys(ROOTS, ("vtk_pieces", ("vtkmodules",), "vtk")),
    ".cgns": ("cgns", ("vtkmodules", "h5py"), "vtk"),
    CASE: ("openfoam", ("vtkmodules",), "vtk"),
}
#: Suffixes of files that this package reads.
SUFFIXES = tuple(suffix for suffix in _FORMATS if suffix != CASE)


class OpenFile(Protocol):
    """A file whose arrays can be read one after another."""

    def values(self, choice: ArrayChoice) -> np.ndarray:
        """The chosen field, (points,) or (points, components).

        Raises:
            ValueError: the file does not contain it.
        """

    def contents(self) -> Contents:
        """What the file contains."""

    def mesh(self, choice: ArrayChoice) -> Mesh:
        """Points and cells of the chosen patches; raises ValueError if the file contains no mesh."""


def require_libraries(filenames: Collection[str]) -> None:
    """Raise SourceError if the library that reads one of these files is not installed."""
    for name in filenames:
        extra = missing_extra(name)
        if extra:
            raise SourceError(f"{name} cannot be read: pip install 'zarr-core[{extra}]'")


def missing_extra(filename: str) -> str:
    """The extra that installs the libraries that read a file; "" if they are installed, or none is needed."""
    _, libraries, extra = _FORMATS.get(suffix_of(filename), ("", (), ""))
    return extra if None in map(importlib.util.find_spec, libraries) else ""


def peek(file: SourceFile) -> Contents:
    """What a file contains; raises ValueError or SourceError as :func:`open_file`."""
    if file.suffix not in (*PIECES, *ROOTS):
        return open_file(file).contents()
    # Without VTK, and without a copy of a remote file.
    found: Contents = _module("vtk_xml" if file.suffix in PIECES else "vtk_pieces").peek(file)
    return found


def open_file(file: SourceFile, choices: Collection[ArrayChoice] = ()) -> OpenFile:
    """Open a file of a sample. Only the arrays of the choices are loaded; without choices only what it contains.

    Raises:
        ValueError: the file is truncated, damaged, or refused because reading it could run code.
        SourceError: the library that reads this format is not installed.
    """
    require_libraries([file.info.name])
    if file.suffix not in _FORMATS:
        raise ValueError(f"no reader for this format: use .pt, {', '.join(SUFFIXES)} or an OpenFOAM case")
    module = _module(_FORMATS[file.suffix][0])
    _return_freed_memory()  # the previous file's
    opened: OpenFile = module.open_file(file, choices)
    _return_freed_memory()  # the reader's
    return opened


def _module(name: str) -> Any:
    return importlib.import_module(f"{__name__}.{name}")


def _return_freed_memory() -> None:
    """Give freed memory back to the system. The C library of Linux (glibc) would keep it, which adds to the peak."""
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)
