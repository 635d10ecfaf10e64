"""The commands that apply a recommendation."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import starmap

from zarr_core._util.commands import shell
from zarr_core.points.store.settings import ConversionSettings
from zarr_core.shootout.measurement import Case, Measurement


def commands(case: Case, named: Measurement, own: Measurement | None, columns: bool) -> str:
    """Shell commands and a line of Python, of the named setting if this library writes it, and of the best store.

    Args:
        case: what was measured.
        named: the recommended setting.
        own: the best setting of a store; None if none was measured.
        columns: whether a column-major copy of a matrix is the best store for another way to read.
    """
    stored = named if named.candidate.codec else own
    made = [] if stored is None else list(_store(case, stored, columns))
    lines: list[str] = []
    if named.candidate.export:
        first: list[list[str]] = []
        store = case.facts["source"]
        if not case.facts["is_store"]:  # an export needs a store: the best one, or one with the usual settings
            first = made or [_convert(case, named)]
            made, store = [], first[0][1]
        lines = [*starmap(shell, [*first, _export(case, named, store)]), named.loader.call(case.batch_size)]
        if stored is not None:
            lines.append("# or the best setting of a store:")
    elif stored is None:
        lines.append(named.loader.call(case.batch_size))
    elif stored is not named:
        lines.append(f"# zarr-core does not write {named.format}; the best setting of a store:")
    if stored is not None:
        lines += [*starmap(shell, made), stored.loader.call(case.batch_size)]
    return "\n".join(lines)


def _export(case: Case, m: Measurement, store: str) -> list[str]:
    export = m.candidate.export
    command = ["export", export, store, f"{case.target(m)}.{export}"]
    if m.workers and export == "webdataset":  # each worker reads shards of its own
        command += ["--loader-workers", str(m.workers)]
    return command


def _store(case: Case, m: Measurement, columns: bool) -> Iterator[list[str]]:
    """Arguments of ``zarr-core`` that make a store with the settings of ``m`` on its tier."""
    facts, chosen = case.facts, m.candidate
    source, place = facts["source"], case.target(m)
    settings = [f"--chunk-{facts['unit']}", str(chosen.chunk), "--codec", chosen.codec]
    usual = facts.get("layout", ConversionSettings.layout)
    if chosen.layout and {chosen.layout, usual} != {ConversionSettings.layout}:
        settings += ["--layout", chosen.layout]
    changed = case.changes(m)
    staged = not case.lies_on(m)
    if facts["unit"] == "features":
        if changed:
            if case.is_source(place):  # a copy with other settings is a new matrix
                place += f"-{chosen.chunk}-{chosen.codec.replace(':', '-')}"
            yield ["matrix", "reindex", source, place, *settings]
            staged = False
        if columns:
            yield ["matrix", place if changed else source, "--derive-columns"]
    elif not facts["is_store"]:
        yield [*_convert(case, m), *settings]
        staged = False
    elif changed:
        kind = ["--source", "SOURCE", "--dataset-kind", facts["dataset_kind"], "--reconvert"]
        yield ["convert", source, *kind, *settings]
    if staged:
        yield ["stage", place, "--source", source]


def _convert(case: Case, m: Measurement) -> list[str]:
    """Arguments of ``zarr-core`` that convert the source's files to a store on the tier."""
    place = case.target(m)
    if case.is_source(place):
        place += "-store"
    return ["convert", place, "--source", case.facts["source"], "--dataset-kind", case.facts["dataset_kind"]]
