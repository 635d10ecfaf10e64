"""What a file of a solver contains, independent of its format."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np


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
