"""OpenFOAM cases: mesh and fields of the latest time, ASCII or binary, reconstructed or decomposed, patches by name."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

from zarr_core.sources.arrays import ArrayChoice
from zarr_core.sources.formats.files import local_tree
from zarr_core.sources.formats.vtk import VtkMesh, leaves, select_arrays, vtk_errors
from zarr_core.sources.sample import FileInfo
from zarr_core.storage import Storage

# Name that VTK gives to the cells of a case, and prefix of its names of patches.
_CELLS, _PATCH = "internalMesh", "patch/"
# Directives that read other files or run code. OpenFOAM resolves them before it writes a result.
_DIRECTIVE = re.compile(rb"^[ \t]*#(?:s?include\w*|calc\w*|code\w*|eval\w*)", re.MULTILINE)
# Bytes at each end of a file that are searched: the dictionaries stand before and after the numbers.
_SEARCHED = 1 << 20


def open_file(storage: Storage, folder: str, info: FileInfo, choices: Collection[ArrayChoice]) -> OpenFoamCase:
    """Read the mesh and the chosen fields; all of them without choices.

    VTK sees a folder with the mesh and the latest time only, so it reads nothing else of the source.
    """
    from vtkmodules.vtkIOParallel import vtkPOpenFOAMReader

    with local_tree(storage, folder, info) as case:
        for path in case.rglob("*"):
            if path.is_file():
                _check(path)
        (case / "case.foam").touch()
        with vtk_errors():
            reader = vtkPOpenFOAMReader()
            reader.SetFileName(str(case / "case.foam"))
            has_mesh = (case / "constant" / "polyMesh").is_dir()
            reader.SetCaseType(reader.RECONSTRUCTED_CASE if has_mesh else reader.DECOMPOSED_CASE)
            reader.SetCreateCellToPoint(False)
            reader.UpdateInformation()
            times = reader.GetTimeValues()
            if times is not None and times.GetNumberOfValues():
                reader.SetTimeValue(times.GetValue(times.GetNumberOfValues() - 1))
            _select_patches(reader, choices)
            select_arrays(reader, choices)
            reader.Update()
            blocks = list(leaves(reader.GetOutput()))
    return OpenFoamCase(blocks)


class OpenFoamCase(VtkMesh):
    """The cells of a case and its patches. A choice without patches means the cells."""

    def _chosen(self, choice: ArrayChoice) -> list[Any]:
        return super()._chosen(choice if choice.patches else choice.model_copy(update={"patches": (_CELLS,)}))


def _select_patches(reader: Any, choices: Collection[ArrayChoice]) -> None:
    names = [reader.GetPatchArrayName(i) for i in range(reader.GetNumberOfPatchArrays())]
    wanted = {f"{_PATCH}{patch}" for choice in choices for patch in choice.patches}
    if missing := sorted(wanted.difference(names)):
        known = ", ".join(name.removeprefix(_PATCH) for name in names if name.startswith(_PATCH))
        raise ValueError(f"has no patch {missing[0].removeprefix(_PATCH)!r}; it has {known or 'none'}")
    if any(not choice.patches for choice in choices):
        wanted.add(_CELLS)
    for name in names:
        chosen = name in wanted if choices else name == _CELLS or name.startswith(_PATCH)
        reader.SetPatchArrayStatus(name, int(chosen))


def _check(path: Path) -> None:
    """Raise ValueError for a file of a case that is empty or contains directives."""
    size = path.stat().st_size
    if not size:
        raise ValueError(f"{path.name} is empty")
    with path.open("rb") as opened:
        searched = opened.read(_SEARCHED)
        opened.seek(max(size - _SEARCHED, len(searched)))
        searched += b"\n" + opened.read()
    if found := _DIRECTIVE.search(searched):
        directive = found[0].decode().strip()
        raise ValueError(f"rejected: {path.name} contains {directive}, which could read other files or run code")
