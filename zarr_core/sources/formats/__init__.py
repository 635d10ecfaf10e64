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
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from zarr_core.errors import SourceError
from zarr_core.sources.arrays import CASE, PIECES, ROOTS, suffix_of

if TYPE_CHECKING:
    from zarr_core.sources.arrays import ArrayChoice
    from zarr_core.sources.formats.files import SourceFile

# Format by suffix: the module that reads it, the libraries that the module needs, and the extra that installs them.
_FORMATS: dict[str, tuple[str, tuple[str, ...], str]] = {
    ".npy": ("arrays", (), ""),
    ".npz": ("arrays", (), ""),
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


class MissingArrayError(ValueError):
    """A file lacks the array of a field."""

    def __init__(self, array: str, at: str, names: Iterable[str | None]) -> None:
        super().__init__(f"has no array {array!r} at its {at}; it has {', '.join(filter(None, names)) or 'none'}")
        self.array = array


@dataclass(frozen=True)
class FoundArray:
    """One array of a file.

    Attributes:
        name: in the file.
        at: "cells" or "points" of a mesh; "" in a file without a mesh.
        components: values per point.
        rows: number of points; None if it is not known before the array is read.
    """

    name: str
    at: str
    components: int
    rows: int | None


@dataclass(frozen=True)
class Contents:
    """What a file contains.

    Attributes:
        arrays: its arrays.
        points, cells: size of its mesh, 0 without one.
        patches: names of the parts of its boundary.
        dimension: 2 for a surface, 3 for a volume, 0 if it is not known.
        complete: whether all of the file was looked at.
    """

    arrays: tuple[FoundArray, ...]
    points: int = 0
    cells: int = 0
    patches: tuple[str, ...] = ()
    dimension: int = 0
    complete: bool = True


@dataclass(frozen=True, eq=False)
class Mesh:
    """Points and cells of one domain, in the order of the solver.

    Attributes:
        points: (points, 3), float32 or float64.
        connectivity: numbers of the points of all cells, one cell after another, int64.
        offsets: (cells + 1,), int64: cell i has the points ``connectivity[offsets[i]:offsets[i + 1]]``.
        types: (cells,), uint8: shape of each cell, as VTK numbers them (5 triangle, 7 polygon, 12 hexahedron,
            42 polyhedron). A polyhedron lists its points once, without its faces.
        at: "cells" or "points": to which of them a row of ``fields`` belongs.
        fields: values by canonical name, in the order of the cells or points.
    """

    points: np.ndarray
    connectivity: np.ndarray
    offsets: np.ndarray
    types: np.ndarray
    at: str = "cells"
    fields: dict[str, np.ndarray] = field(default_factory=dict)


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
