"""Names what a listing of a source, or the reading of a sample, leaves out or finds odd, and the way out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

from zarr_core.sources.description import SourceDescription
from zarr_core.sources.formats import SUFFIXES

# Notes about the sample that is read, details by reason; None while nobody collects them.
_notes: ContextVar[dict[str, str] | None] = ContextVar("notes", default=None)


def some(names: Collection[str]) -> str:
    """The first five names, at most 200 printable characters of each, and how many more there are."""
    more = f" and {len(names) - 5:,} more" if len(names) > 5 else ""
    return ", ".join((name if name.isprintable() else ascii(name))[:200] for name in list(names)[:5]) + more


@contextmanager
def collected_notes() -> Iterator[dict[str, str]]:
    """Details by reason of the notes that this thread makes inside the block."""
    notes: dict[str, str] = {}
    token = _notes.set(notes)
    try:
        yield notes
    finally:
        _notes.reset(token)


def note(reason: str, detail: str) -> None:
    """Note something about the sample that is read.

    Args:
        reason: the same for every sample.
        detail: of this sample, such as "3 of 9".
    """
    notes = _notes.get()
    if notes is not None:
        known = notes.get(reason)
        notes[reason] = detail if known in (None, detail) else f"{known}; {detail}"


def notes_by_reason(notes: Mapping[str, Mapping[str, str]]) -> list[str]:
    """One sentence per reason, which names the samples, of the notes by sample."""
    by_reason: dict[str, list[str]] = {}
    for sample_id, own in sorted(notes.items()):
        for reason, detail in own.items():
            by_reason.setdefault(reason, []).append(f"{sample_id} ({detail})")
    return [f"{reason} (samples: {len(named):,}): {some(named)}" for reason, named in by_reason.items()]


class LeftOut:
    """Collects what one listing leaves out.

    Args:
        description: of the dataset.

    Attributes:
        bad_ids: folders whose names cannot be sample ids.
        empty: folders that match the description but contain no field file.
        elsewhere: folders that contain field files but do not match the description.
        repeated: folders whose sample id another folder has as well.
        dangling: links to files or folders that do not exist.
        regions: folders with an OpenFOAM case that has meshes of regions beside its own.
    """

    def __init__(self, description: SourceDescription) -> None:
        self._description = description
        self.bad_ids: list[str] = []
        self.empty: list[str] = []
        self.elsewhere: list[str] = []
        self.repeated: list[str] = []
        self.dangling: list[str] = []
        self.regions: list[str] = []
        self._used = {file.filename for file in description.fields.values()} | set(description.parameter_files)
        self._unused: Counter[str] = Counter()

    def count_unused(self, filenames: Iterable[str]) -> None:
        """Record the files of a folder that no field uses, such as ``Pressure.PT``."""
        self._unused.update(n for n in filenames if n not in self._used and n.lower().endswith((".pt", *SUFFIXES)))

    def sentences(self) -> tuple[str, ...]:
        """One sentence per reason to leave out folders, with the way out."""
        pattern = f"{self._description.subfolder}/{self._description.samples}".lstrip("/")
        files = some([file.filename for file in self._description.fields.values()])
        reasons = {
            "their names cannot be sample ids (letters, digits, _.+=@~- and blanks inside can); rename "
            "them": self.bad_ids,
            f"they match {pattern} but contain none of {files}": self.empty,
            f"they contain field files but do not match {pattern} (hidden folders never do); rename them, or change "
            "`samples` of the description": self.elsewhere,
            "another folder has the same sample id; remove one of the two": self.repeated,
            "they are links to nothing": self.dangling,
            "their OpenFOAM cases have further regions, which are not read; foamToVTK -region NAME writes one as files "
            "that are": self.regions,
        }
        return tuple(
            f"left out: {some([repr(name) for name in names])}: {reason}" for reason, names in reasons.items() if names
        )

    def unused(self) -> tuple[str, ...]:
        """One sentence that names the files that no field uses, if there are any."""
        if not self._unused:
            return ()
        counted = [f"{name} ({count:,})" for name, count in sorted(self._unused.items())]
        reason = f"no field of {self._description.name} uses these files (number of folders)"
        return (f"{reason}: {some(counted)}; add them to `files` of the description to convert them",)
