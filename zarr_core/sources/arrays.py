"""Which arrays of a file make a field: the part of a description that a conversion records with each sample."""

from __future__ import annotations

import os
from typing import Annotated, Any, Literal

import pydantic

#: Stands for a suffix in the names of OpenFOAM cases, which are folders.
CASE = "/"
#: Suffixes of VTK files that name the files of their pieces, and of the pieces that are read.
ROOTS, PIECES = (".pvtu", ".pvtp", ".vtm"), (".vtu", ".vtp")


def suffix_of(name: str) -> str:
    """The suffix that decides the format, in lower case; "/" for an OpenFOAM case."""
    return CASE if name.endswith(CASE) else os.path.splitext(name)[1].lower()


def _several(value: Any) -> Any:
    return (value,) if isinstance(value, str | dict) else value


#: Validator: one name, or one mapping, stands for a list with it only.
ONE_OR_SEVERAL = pydantic.BeforeValidator(_several)
#: One name, or the names of a vector's components.
Names = Annotated[tuple[str, ...], ONE_OR_SEVERAL]


class ArrayChoice(pydantic.BaseModel):
    """A field of a file with several arrays.

    Attributes:
        arrays: name of the array, or of the arrays that hold one component each.
        compute: a field that is computed from the mesh instead.
        at: whether a row is a cell or a point of the mesh; "" in a file without a mesh.
        patches: only these parts of the boundary; none: the whole file, or the volume of an OpenFOAM case.
        scale: factor of the values.
        units: of the values after scaling.
        keep_mesh: of a position: whether the store keeps the mesh of the domain.
        match: name of the field with the positions of this domain, if it lies in another file. Both files have the same
            points, perhaps in another order, so rows are matched by their positions.
    """

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    arrays: Names = ()
    compute: Literal["", "position", "normals", "area"] = ""
    at: Literal["", "cells", "points"] = ""
    patches: Names = ()
    scale: float = 1.0
    units: str = ""
    keep_mesh: bool = False
    match: str = ""

    def to_document(self) -> dict[str, Any]:
        """The values that are not the defaults, as JSON."""
        return self.model_dump(mode="json", exclude_defaults=True)
