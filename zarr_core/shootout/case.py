"""The choice between the settings that were measured, and the commands that apply it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import starmap
from typing import Any

from zarr_core._util.commands import shell
from zarr_core.points.store.settings import ConversionSettings
from zarr_core.shootout.candidates import COLUMNS, OURS
from zarr_core.shootout.measurement import Measurement, Measurements, bytes_of_all, choose
from zarr_core.storage import absolute


@dataclass
class Case:
    """Measurements, where the source and the tiers lie, and the choice that follows from them.

    Attributes:
        measured: everything that was measured; at least one.
        tiers: facts of each tier by name.
        facts: of the workload.
        copy_rates: bytes per second that were written to each tier.
        batch_size: samples per batch.
        price_per_1000_gets: of an object store.
        memory_bytes: of this machine.
        too_large: whether all samples exceed the memory.
        compared: measurements that hold the values of the samples, of files that lie where all samples would.
        left_out: those whose files could not be dropped from memory, though all samples exceed it.
        unmeasured: ways to read that were not measured, in words.
        reads: name of the draws that the recommendation is for.
        of_reads: measurements of them.
        named: the recommended setting.
        by_tier: the best setting of each tier.
        own: the best setting of a store; None if none was measured.
        others: the best setting for each other way to read, and the best store for it.
        needed: bytes of all samples in the recommended setting.
        free: bytes that are free on its tier.
    """

    measured: Sequence[Measurement]
    tiers: Mapping[str, Mapping[str, Any]]
    facts: Mapping[str, Any]
    copy_rates: Mapping[str, float]
    batch_size: int
    price_per_1000_gets: float | None = None
    memory_bytes: int | None = None

    def __post_init__(self) -> None:
        self.samples: int = self.facts["samples_total"]
        self.words: Mapping[str, str] = self.facts["reads"]
        self.too_large = self.memory_bytes is not None and bytes_of_all(self.facts) > self.memory_bytes
        self.compared, self.left_out = Measurements(self.measured).exact, Measurements()
        there = {m.reads for m in self.compared}
        self.unmeasured = [text for reads, text in self.words.items() if reads not in there]
        self.reads = next(filter(there.__contains__, self.words))
        if self.too_large:  # rates of files in memory tell nothing about data that do not fit into it
            of_storage = Measurements(m for m in self.compared if not self.is_in_memory(m))
            if of_storage.where(reads=self.reads):
                in_memory = Measurements(m for m in self.compared if self.is_in_memory(m))
                self.compared, self.left_out = of_storage, in_memory.where(reads=self.reads)
        self.of_reads = self.compared.where(reads=self.reads)
        self.named = choose(self.of_reads)
        self.by_tier: dict[str, Measurement] = {}
        for tier in self.tiers:
            if found := self.of_reads.where(tier=tier):
                self.by_tier[tier] = choose(found)
        stores = self.of_reads.where(format=OURS)
        self.own = choose(stores) if stores else None
        self.others: list[tuple[Measurement, Measurement | None]] = []
        for reads in self.words:
            found = self.compared.where(reads=reads)
            if found and reads != self.reads:
                of_stores = [*found.where(format=OURS), *found.where(format=COLUMNS)]
                self.others.append((choose(found), choose(of_stores) if of_stores else None))
        self.needed = self.named.bytes * self.samples
        self.free = self.tiers[self.named.tier].get("bytes_free", self.needed)

    def is_local(self, tier: str) -> bool:
        """Whether a tier is a local folder."""
        local: bool = self.tiers[tier]["local"]
        return local

    def is_in_memory(self, m: Measurement) -> bool:
        """Whether later epochs found their files in memory; objects of a URL are never kept there."""
        return self.is_local(m.tier) and not m.cold

    @property
    def is_short(self) -> bool:
        """Whether the tier of the recommended setting has no room for all samples."""
        return self.needed > self.free and not self.is_in_place(self.named)

    def target(self, m: Measurement) -> str:
        """Of the dataset on the tier of a setting."""
        return f"{self.tiers[m.tier]['url'].rstrip('/')}/{self.facts['dataset_name']}"

    def is_source(self, place: str) -> bool:
        """Whether the source lies there."""
        return absolute(place).rstrip("/") == absolute(self.facts["source"]).rstrip("/")

    def lies_on(self, m: Measurement) -> bool:
        """Whether the source lies below the tier's folder or URL."""
        source, tier = absolute(self.facts["source"]), absolute(self.tiers[m.tier]["url"])
        return f"{source.rstrip('/')}/".startswith(f"{tier.rstrip('/')}/")

    def changes(self, m: Measurement) -> bool:
        """Whether a store has other settings than the source."""
        chosen = m.candidate
        own = self.facts["codec"], self.facts[f"chunk_{self.facts['unit']}"], self.facts.get("layout", chosen.layout)
        return (chosen.codec, chosen.chunk, chosen.layout) != own

    def is_in_place(self, m: Measurement) -> bool:
        """Whether the source is a store with these settings on the tier."""
        return self.facts["is_store"] and bool(m.candidate.codec) and not self.changes(m) and self.lies_on(m)


def commands(case: Case) -> str:
    """Shell commands and a line of Python, of the named setting if this library writes it, and of the best store."""
    named = case.named
    stored = named if named.candidate.codec else case.own
    made = [] if stored is None else list(_store(case, stored))
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


def _store(case: Case, m: Measurement) -> Iterator[list[str]]:
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
        if any(store is not None and store.format == COLUMNS for _, store in case.others):
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
