"""Which files of a folder belong to an OpenFOAM case."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from zarr_core.sources.sample import FileInfo, combined

#: Name of the folder of a time.
TIME = r"-?\d+(?:\.\d*)?(?:e[+-]?\d+)?"
#: Folders below a sample's folder that a case has.
CASE_DEPTH = 3
# Folder of a processor, or of several (collated).
_PROCESSOR = r"processor(?:\d+|(?P<collated>s\d+(?:_\d+-\d+)?))/"
# Files of a case below its folder: meshes, and fields of times. Hidden files and backups are not fields.
_OF_CASE = re.compile(
    rf"system/controlDict|(?P<processor>{_PROCESSOR})?"
    rf"(?:(?:constant|(?P<moved>{TIME}))/polyMesh/(?P<mesh>\w+(?:\.gz)?)|(?P<time>{TIME})/[^/.][^/]*(?<!~))"
)
# A file of a mesh. That of a region lies in a folder with the region's name, which is neither "constant" nor a time.
_OF_MESH = re.compile(
    rf"(?:(?P<case>.*?)/)??(?:{_PROCESSOR})?(?:constant|{TIME})/"
    r"(?:(?P<region>(?!constant/)[A-Za-z_][^/]*)/)?polyMesh/\w+(?:\.gz)?"
)


class _CaseFile(NamedTuple):
    """A file of a case, and what its path tells."""

    info: FileInfo
    processor: str  # its folder, or ""
    collated: bool  # whether that folder has the files of several processors
    mesh: str  # name of a file of a mesh, or ""
    time: float | None  # of a field, and of a mesh that moves


def case_of(pattern: str, files: Mapping[str, FileInfo]) -> FileInfo | None:
    """A case: its mesh and the fields of its latest time; None if there is no mesh.

    Files outside the folders of processors are left out if these folders have a later time. Folders that contain the
    files of several processors (collated) are left out unless they have the latest time.
    """
    own = list(_files_of_case(pattern.removeprefix("./"), files))
    if not _has_mesh(own):
        return None
    whole = [file for file in own if not file.processor]
    collated = [file for file in own if file.collated]
    decomposed = [file for file in own if file.processor and not file.collated]
    control = [file for file in whole if not file.mesh and file.time is None]
    chosen = whole + decomposed
    if not _has_mesh(chosen) or _latest(collated) > max(_latest(whole), _latest(decomposed)):
        chosen = collated + control
    elif _latest(decomposed) > _latest(whole):
        chosen = decomposed + control
    return combined(pattern, sorted(_at_latest_time(chosen), key=lambda info: info.name))


def meshes_of_cases(paths: Iterable[str]) -> dict[str, set[str]]:
    """Names of the regions that have meshes by folder of a case; "" for the mesh of no region."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in paths:
        if hit := _OF_MESH.fullmatch(path):
            found[hit["case"] or ""].add(hit["region"] or "")
    return found


def several_regions(regions: Iterable[str]) -> str:
    """The regions of a case, and the way out."""
    names = ", ".join(sorted(filter(None, regions)))
    return f"the regions {names}, which are not read: write each with foamToVTK -region NAME, and describe its files"


def _files_of_case(folder: str, files: Mapping[str, FileInfo]) -> Iterator[_CaseFile]:
    for name, info in files.items():
        found = _OF_CASE.fullmatch(name[len(folder) :]) if name.startswith(folder) else None
        if found:
            time = found["moved"] or found["time"]
            own_time = None if time is None else float(time)
            yield _CaseFile(info, found["processor"] or "", bool(found["collated"]), found["mesh"] or "", own_time)


def _has_mesh(files: Iterable[_CaseFile]) -> bool:
    return any(file.mesh for file in files)


def _times_of_fields(files: Iterable[_CaseFile]) -> list[float]:
    return [file.time for file in files if file.time is not None and not file.mesh]


def _latest(files: list[_CaseFile]) -> float:
    """The latest time with fields; minus infinity without fields, or without a mesh."""
    return max(_times_of_fields(files), default=-math.inf) if _has_mesh(files) else -math.inf


def _at_latest_time(files: list[_CaseFile]) -> list[FileInfo]:
    """The fields of the latest time, and each file of the mesh from the newest time until then."""
    latest = max(_times_of_fields(files), default=math.inf)
    kept: list[FileInfo] = []
    newest: dict[tuple[str, str], tuple[float, FileInfo]] = {}
    for file in files:
        if not file.mesh:
            if file.time in (None, latest):
                kept.append(file.info)
            continue
        time = -math.inf if file.time is None else file.time
        place = file.processor, file.mesh
        if time <= latest and (place not in newest or newest[place][0] <= time):
            newest[place] = time, file.info
    return kept + [info for _, info in newest.values()]
