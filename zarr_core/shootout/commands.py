"""The commands that apply a recommendation."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import starmap
from typing import Any

from zarr_core._util.commands import shell
from zarr_core.shootout.measurement import Measurement
from zarr_core.storage import is_local


@dataclass(frozen=True)
class Places:
    """Where the source lies, and where a store or an export of it would be made.

    Attributes:
        facts: of the workload.
        tiers: facts of each tier by name.
    """

    facts: Mapping[str, Any]
    tiers: Mapping[str, Mapping[str, Any]]

    def target(self, m: Measurement) -> str:
        """Of the dataset on the tier of a setting."""
        return f"{self.tiers[m.tier]['url'].rstrip('/')}/{self.facts['dataset_name']}"

    def is_source(self, place: str) -> bool:
        """Whether the source lies there."""
        return _absolute(place) == _absolute(self.facts["source"])

    def lies_on(self, m: Measurement) -> bool:
        """Whether the source lies below the tier's folder or URL."""
        return f"{_absolute(self.facts['source'])}/".startswith(f"{_absolute(self.tiers[m.tier]['url'])}/")

    def changes(self, m: Measurement) -> bool:
        """Whether a store has other settings than the source."""
        chosen = m.candidate
        return (chosen.codec, chosen.chunk) != (self.facts["codec"], self.facts[f"chunk_{self.facts['unit']}"])

    def is_in_place(self, m: Measurement) -> bool:
        """Whether the source is a store with these settings on the tier."""
        return self.facts["is_store"] and bool(m.candidate.codec) and not self.changes(m) and self.lies_on(m)


def _absolute(url: str) -> str:
    """A URL without a "/" at its end, or the absolute path of a local one."""
    return os.path.abspath(url.rpartition("://")[2]) if is_local(url) else url.rstrip("/")


def commands(places: Places, named: Measurement, own: Measurement | None, columns: bool, batch_size: int) -> str:
    """Shell commands and a line of Python, of the named setting if this library writes it, and of the best store.

    Args:
        places: of source and tiers.
        named: the recommended setting.
        own: the best setting of a store; None if none was measured.
        columns: whether a column-major copy of a matrix is the best store for another way to read.
        batch_size: samples per batch.
    """
    stored = named if named.candidate.codec else own
    made = [] if stored is None else list(_store(places, stored, columns))
    lines: list[str] = []
    if named.candidate.entry.export:
        first: list[list[str]] = []
        store = places.facts["source"]
        if not places.facts["is_store"]:  # an export needs a store: the best one, or one with the usual settings
            first = made or [_convert(places, named)]
            made, store = [], first[0][1]
        lines = [*starmap(shell, [*first, _export(places, named, store)]), named.loader.call(batch_size)]
        if stored is not None:
            lines.append("# or the best setting of a store:")
    elif stored is None:
        lines.append(named.loader.call(batch_size))
    elif stored is not named:
        lines.append(f"# zarr-core does not write {named.format}; the best setting of a store:")
    if stored is not None:
        lines += [*starmap(shell, made), stored.loader.call(batch_size)]
    return "\n".join(lines)


def _export(places: Places, m: Measurement, store: str) -> list[str]:
    export = m.candidate.entry.export
    command = ["export", export, store, f"{places.target(m)}.{export}"]
    if m.workers and export == "webdataset":  # each worker reads shards of its own
        command += ["--loader-workers", str(m.workers)]
    return command


def _store(places: Places, m: Measurement, columns: bool) -> Iterator[list[str]]:
    """Arguments of ``zarr-core`` that make a store with the settings of ``m`` on its tier."""
    facts, chosen = places.facts, m.candidate
    source, place = facts["source"], places.target(m)
    settings = [f"--chunk-{facts['unit']}", str(chosen.chunk), "--codec", chosen.codec]
    changed = places.changes(m)
    staged = not places.lies_on(m)
    if facts["unit"] == "features":
        if changed:
            if places.is_source(place):  # a copy with other settings is a new matrix
                place += f"-{chosen.chunk}-{chosen.codec.replace(':', '-')}"
            yield ["matrix", "reindex", source, place, *settings]
            staged = False
        if columns:
            yield ["matrix", place if changed else source, "--derive-columns"]
    elif not facts["is_store"]:
        yield [*_convert(places, m), *settings]
        staged = False
    elif changed:
        kind = ["--source", "SOURCE", "--dataset-kind", facts["dataset_kind"], "--reconvert"]
        yield ["convert", source, *kind, *settings]
    if staged:
        yield ["stage", place, "--source", source]


def _convert(places: Places, m: Measurement) -> list[str]:
    """Arguments of ``zarr-core`` that convert the source's files to a store on the tier."""
    place = places.target(m)
    if places.is_source(place):
        place += "-store"
    return ["convert", place, "--source", places.facts["source"], "--dataset-kind", places.facts["dataset_kind"]]
