"""OpenFOAM cases: mesh and fields of the latest time, ASCII or binary, reconstructed or decomposed, patches by name."""

from __future__ import annotations

import mmap
import re
from collections import defaultdict
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from zarr_core.sources.arrays import ArrayChoice
from zarr_core.sources.formats.files import SourceFile
from zarr_core.sources.formats.vtk import VtkMesh, check_patches, leaves, select_arrays, vtk_errors
from zarr_core.sources.left_out import note
from zarr_core.sources.limits import check_claim, most_claimed
from zarr_core.sources.patterns import TIME

# Name that VTK gives to the cells of a case, and prefix of its names of patches.
_CELLS, _PATCH = "internalMesh", "patch/"
# Folder with the files of several processors.
_COLLATED = re.compile(r"\bprocessors\d[^/]*")
# Faces between two processors, in the list of patches.
_BETWEEN = re.compile(rb"\bprocBoundary(\d+)to(\d+)")
_COMMENT = re.compile(rb"//[^\n]*|/\*.*?(?:\*/|\Z)", re.DOTALL)
_SETTING = re.compile(rb"(?<![^\s;{}])(stopAt|endTime)\s+([^\s;]+)\s*;")
# Names of times are rounded.
_SAME_TIME = 1e-5
# Directives that read other files or run code. OpenFOAM resolves them before it writes a result.
_DIRECTIVE = re.compile(rb"^[ \t]*#(?:s?include\w*|calc\w*|code\w*|eval\w*)", re.MULTILINE)
# First bytes of a compressed file.
_GZIP = b"\x1f\x8b"
# The length of a list, at the beginning of a line or behind its type.
_LENGTH = re.compile(rb"(?:^\s*|>\s*)(\d+)\s*[({]", re.MULTILINE)
# The name that the head of a file gives to its content.
_OBJECT = re.compile(rb"FoamFile\s*\{(?:[^}]*?;)?\s*object\s+\"?([^\s;\"]+)")
# A field of symmetric tensors, and a value in it that all of its cells or faces have.
_SYMMETRIC = re.compile(rb"\bclass\s+volSymmTensorField\b")
_UNIFORM = re.compile(rb"\buniform\s*\(([^()]*)\)")
# Components of OpenFOAM (XX XY XZ YY YZ ZZ) in the order of VTK (XX YY ZZ XY YZ XZ).
_OF_VTK = (0, 3, 5, 1, 4, 2)
# Bytes at each end of a file that are searched: the dictionaries stand before and after the numbers.
_SEARCHED = 1 << 20


def open_file(file: SourceFile, choices: Collection[ArrayChoice]) -> VtkMesh:
    """Read the mesh and the chosen fields; all of them without choices. A choice without patches means the cells.

    VTK sees a folder with the mesh and the latest time only, so it reads nothing else of the source.
    """
    from vtkmodules.vtkIOParallel import vtkPOpenFOAMReader

    for part in file.info.parts:
        if collated := _COLLATED.search(part.name):
            raise ValueError(
                f"its latest time is in {collated[0]}, the collated format; run reconstructPar -latestTime"
            )
    with file.local_tree() as case:
        end = _end_of_run(case / "system" / "controlDict")
        for path in case.rglob("*"):
            if path.is_file():
                _check(path)
                _correct(path)
        _move_meshes(case)
        has_mesh = (case / "constant" / "polyMesh").is_dir()
        folders = [] if has_mesh else case.glob("processor*")
        processors = {int(path.name.removeprefix("processor")): path for path in folders}
        _check_processors(processors, choices)
        _check_time([case, *processors.values()], end, choices)
        (case / "case.foam").touch()
        with vtk_errors():
            reader = vtkPOpenFOAMReader()
            reader.SetFileName(str(case / "case.foam"))
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
    cells = [block for block in blocks if block[0] == _CELLS]
    patches = [block for block in blocks if block[0] != _CELLS]
    return VtkMesh(cells, choices, patches)


def _correct(path: Path) -> None:
    """Change what VTK would misread: a field whose head has another name than its file, as that of a copy (p.orig) has,
    and uniform values of symmetric tensors, whose components it does not reorder as those of lists.
    """
    edits: list[tuple[int, int, bytes]] = []
    with path.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data:
        head, name = data[:_SEARCHED], path.name.encode()
        found = _OBJECT.search(head) if re.fullmatch(TIME, path.parent.name) else None
        if found and found[1] != name:
            edits.append((*found.span(1), name))
        for value in _UNIFORM.finditer(data) if _SYMMETRIC.search(head) else ():
            components = value[1].split()
            if len(components) == len(_OF_VTK):
                edits.append((*value.span(1), b" ".join(components[i] for i in _OF_VTK)))
        if not edits:
            return
        path.unlink()  # a link, or a copy
        with path.open("wb") as corrected:
            copied = 0
            for start, stop, text in edits:
                corrected.write(data[copied:start])
                corrected.write(text)
                copied = stop
            corrected.write(data[copied:])


def _move_meshes(case: Path) -> None:
    """Move the meshes of times to the folder "constant": of several times, VTK lists the fields of the first two."""
    for mesh in [*case.glob("*/polyMesh"), *case.glob("processor*/*/polyMesh")]:
        time = mesh.parent
        if time.name == "constant":
            continue
        constant = time.parent / "constant" / "polyMesh"
        constant.mkdir(parents=True, exist_ok=True)
        for path in list(mesh.iterdir()):
            path.rename(constant / path.name)
        mesh.rmdir()
        if not any(time.iterdir()):
            time.rmdir()


def _end_of_run(control: Path) -> float | None:
    """Time at which the solver should stop, by ``system/controlDict``; None if it does not tell.

    VTK gets an empty dictionary: it needs none of the entries, which often include other files.
    """
    if not control.exists():
        return None
    with control.open("rb") as opened:
        found = _SETTING.findall(_COMMENT.sub(b"", opened.read(_SEARCHED)))
    entries = dict(reversed(found))  # the first of each: function objects come later
    control.unlink()
    control.write_text("FoamFile { version 2.0; format ascii; class dictionary; object controlDict; }\n")
    try:
        return float(entries[b"endTime"]) if entries.get(b"stopAt", b"endTime") == b"endTime" else None
    except (KeyError, ValueError):
        return None


def _check_processors(processors: Mapping[int, Path], choices: Collection[ArrayChoice]) -> None:
    """Raise ValueError if a decomposed case lacks a processor, or one of them a field that the others have."""
    named = set(range(len(processors)))  # a higher number shows that one of these is missing
    fields: dict[str, set[int]] = defaultdict(set)
    for number, folder in processors.items():
        for path in folder.glob("constant/polyMesh/boundary"):
            for pair in _BETWEEN.findall(path.read_bytes()):
                named.update(map(int, pair))
        for file in folder.glob("*/*"):
            if file.is_file():
                fields[f"{file.parent.name}/{file.name}"].add(number)
    if missing := sorted(named - processors.keys()):
        raise ValueError(f"processor{missing[0]} is missing, which belongs to the decomposed case; upload it")
    arrays = _arrays_of(choices)
    for name, having in sorted(fields.items()):
        lacking = sorted(processors.keys() - having)
        if lacking and (not choices or name.partition("/")[2] in arrays):
            raise ValueError(
                f"processor{lacking[0]} has no {name}, which processor{min(having)} has: the processors have different "
                "latest times or fields; upload the missing files, or delete the incomplete time"
            )


def _arrays_of(choices: Collection[ArrayChoice]) -> set[str]:
    return set().union(*(choice.arrays for choice in choices))


def _check_time(folders: Collection[Path], end: float | None, choices: Collection[ArrayChoice]) -> None:
    """Raise ValueError for fields that are initial conditions, and note a time before the end of the run."""
    times: list[float] = []
    for folder in folders:
        times += [float(path.name) for path in folder.iterdir() if re.fullmatch(TIME, path.name)]
    if not times or (choices and not _arrays_of(choices)):
        return
    latest = max(times)
    if latest == 0 and choices:
        raise ValueError("never ran: its latest time is 0; if these are results, give their folder another number")
    if end is not None and latest < end - abs(end) * _SAME_TIME:
        note("the latest time is before endTime in system/controlDict", f"{latest:g} of {end:g}")


def _select_patches(reader: Any, choices: Collection[ArrayChoice]) -> None:
    names = [reader.GetPatchArrayName(i) for i in range(reader.GetNumberOfPatchArrays())]
    patches = [name.removeprefix(_PATCH) for name in names if name.startswith(_PATCH)]
    wanted: set[str] = set()
    for choice in choices:
        check_patches(choice, patches)
        wanted.update(choice.patches or [_CELLS])
    if not choices:
        wanted = {_CELLS, *patches}
    for name in names:
        reader.SetPatchArrayStatus(name, int(name.removeprefix(_PATCH) in wanted))


def _check(path: Path) -> None:
    """Raise ValueError for a file of a case that is empty or compressed, has directives, or claims more than fits."""
    size = path.stat().st_size
    if not size:
        raise ValueError(f"{path.name} is empty")
    with path.open("rb") as opened:
        searched = opened.read(_SEARCHED)
        if searched.startswith(_GZIP):  # VTK would read it, whatever its name, but the checks below cannot
            raise ValueError(f"{path.name} is compressed: decompress the case with gunzip -r first")
        opened.seek(max(size - _SEARCHED, len(searched)))
        searched += b"\n" + opened.read()
    if found := _DIRECTIVE.search(searched):
        directive = found[0].decode().strip()
        raise ValueError(f"rejected: {path.name} contains {directive}, which could read other files or run code")
    lengths = list(_LENGTH.finditer(searched))
    for length in lengths:
        check_claim(int(length[1]), size)
    if path.name in ("owner", "neighbour") and lengths:
        _check_labels(path, searched[: lengths[0].start()], lengths[0].end(), int(lengths[0][1]))


def _check_labels(path: Path, header: bytes, start: int, count: int) -> None:
    """Raise ValueError for numbers of cells that are too large: VTK allocates as many cells."""
    size = path.stat().st_size
    with path.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data:
        if re.search(rb"format\s+binary", header):
            label = np.dtype("<i8" if b"label=64" in header else "<i4")
            labels = np.frombuffer(data[start : start + count * label.itemsize], label)
            check_claim(int(labels.max(initial=0)), size)
        elif found := re.search(rb"\d{%d,}" % (len(str(most_claimed(size))) + 1), data[start:]):
            check_claim(int(found[0][:100]), size)
