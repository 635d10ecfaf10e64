"""Names what a listing of a source, or the reading of a sample, leaves out or finds odd, and the way out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

from zarr_core.sources.arrays import suffix_of
from zarr_core.sources.description import SourceDescription
from zarr_core.sources.formats import SUFFIXES

# Notes about the sample that is read, details by reason; None while nobody collects them.
_notes: ContextVar[dict[str, str] | None] = ContextVar("notes", default=None)


def some(names: Collection[str]) -> str:
    """The first five names, at most 200 printable characters of each, and how many more there are."""
    shown = [(name if name.isprintable() else ascii(name))[:200] for name in list(names)[:5]]
    more = f" and {len(names) - 5:,} more" if len(names) > 5 else ""
    return ", ".join(shown) + more


def counted(reason: str, names: Collection[str]) -> list[str]:
    """One sentence: the reason, how many names there are, and the first of them; none without names."""
    return [f"{reason} ({len(names)}): {some(names)}"] if names else []


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
    """Note a reason, the same for every sample, and a detail of the sample that is read, such as "3 of 9"."""
    notes = _notes.get()
    if notes is not None and notes.setdefault(reason, detail) != detail:
        notes[reason] += f"; {detail}"


def notes_by_reason(notes: Mapping[str, Mapping[str, str]]) -> list[str]:
    """One sentence per reason, which names the samples, of the notes by sample."""
    by_reason: dict[str, list[str]] = {}
    for sample_id, own in sorted(notes.items()):
        for reason, detail in own.items():
            by_reason.setdefault(reason, []).append(f"{sample_id} ({detail})")
    sentences = []
    for reason, named in by_reason.items():
        sentences.append(f"{reason} (samples: {len(named):,}): {some(named)}")
    return sentences


# Ends of names of files with fields or scalars that are not read: their sample would lack them without a word.
_OTHERS = (".parquet", ".mat", ".nc", ".exo", ".e", ".case", ".vti", ".vts", ".vtr", "params.yaml", "params.yml")

# Why folders and links are left out, and the way out; in the order in which they are named.
_REASONS = {
    "bad id": "their names cannot be sample ids (letters, digits, _.+=@~- and blanks inside can; "
    "16 hexadecimal digits and .zip, the name of a packed sample, cannot); rename them",
    "empty": "they match {pattern} but contain none of {files}",
    "elsewhere": "they contain field files but do not match {pattern} (hidden folders never do); rename them, or "
    "change `samples` of the description",
    "repeated": "another folder has the same sample id; remove one of the two",
    "dangling": "they are links to nothing",
    "above": "they are links to a folder that contains them",
    "regions": "their OpenFOAM cases have further regions, which are not read; foamToVTK -region NAME writes one as "
    "files that are",
}


class LeftOut:
    """Collects what one listing leaves out."""

    def __init__(self, description: SourceDescription) -> None:
        self._description = description
        self._names: dict[str, list[str]] = {reason: [] for reason in _REASONS}
        self._unused: Counter[str] = Counter()

    def add(self, reason: str, name: str) -> None:
        """Record a folder or link with one of the reasons above."""
        self._names[reason].append(repr(name))

    def count_unused(self, folder: str, filenames: Iterable[str]) -> None:
        """Record the files of a folder that nothing uses, such as ``Pressure.PT``, or a table."""
        subfolder = self._description.subfolder
        for name in filenames:
            is_used = name.removeprefix(f"{subfolder}/") in self._description.used_names
            if not is_used and name.lower().endswith((".pt", ".json", *SUFFIXES, *_OTHERS)):
                self._unused[name] += 1

    def sentences(self) -> tuple[str, ...]:
        """One sentence per reason to leave out folders, with the way out."""
        pattern = f"{self._description.subfolder}/{self._description.samples}".lstrip("/")
        files = some(list(dict.fromkeys(file.filename for file in self._description.fields.values())))
        found = []
        for reason, names in self._names.items():
            if names:
                found.append(f"left out: {some(names)}: {_REASONS[reason].format(pattern=pattern, files=files)}")
        return tuple(found)

    def unused(self) -> tuple[str, ...]:
        """One sentence that names the files that nothing uses, if there are any."""
        if not self._unused:
            return ()
        names = [f"{name} ({count:,})" for name, count in sorted(self._unused.items())]
        reason = f"no field or table of {self._description.name} uses these files (number of folders)"
        way_out = "add them to `files` of the description to convert them, a table to `tables` with its column of ids"
        suffixes = set(map(suffix_of, self._unused))
        if not suffixes.isdisjoint((".csv", ".json", ".npz")):
            way_out += ", scalars of a sample to `parameters`"
        if ".csv" in suffixes:
            way_out += ", points of a CSV file by its columns, as in `{file: a.csv, array: [x, y, z]}`"
        if any(name.lower().endswith(_OTHERS) for name in self._unused):
            way_out += "; first write other formats as .npz or .vtu files, and scalars as .json files"
        return (f"{reason}: {some(names)}; {way_out}",)
