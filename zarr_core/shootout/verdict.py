"""The choice between the settings that were measured, the commands that apply it, and the reasons for it in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import filterfalse, starmap
from typing import Any

from zarr_core._util.commands import shell
from zarr_core._util.units import format_size
from zarr_core.points.store.settings import ConversionSettings
from zarr_core.shootout.candidates import COLUMNS, LOSSY, OURS
from zarr_core.shootout.measurement import Measurement, Measurements, bytes_of_all, choose
from zarr_core.storage import absolute

# A first epoch that is this much faster is named.
_FASTER_FIRST = 0.1
# Share of the time that is spent waiting for storage from which storage is called the bottleneck.
_BOTTLENECK = 0.5
# Samples of fewer chunks have few draws, if draws are whole chunks.
_FEW_CHUNKS = 50
_AS_MEASURED = "# measured with `dtype: stored` in the dataset's config, and torch.set_num_threads(1):"
_UNEQUAL = "# and `collate: pad` or `concat`, because some samples have fewer points than a draw:"
_NOT_COMPARED = (
    "The leading settings were not measured again in turns, so that other load of the machine may have decided: repeat "
    "the shootout with a larger --budget, or fewer --tiers or --formats."
)


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
        too_large: whether all samples exceed the memory of this machine.
        compared: measurements that hold the values of the samples, of files that lie where all samples would.
        left_out: those whose files could not be dropped from memory, though all samples exceed it.
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
    too_large: bool = False

    def __post_init__(self) -> None:
        self.samples: int = self.facts["samples_total"]
        self.words: Mapping[str, str] = self.facts["reads"]
        self.compared, self.left_out = Measurements(self.measured).exact, Measurements()
        self.reads = next(reads for reads in self.words if self.compared.where(reads=reads))
        if self.too_large:  # rates of files in memory tell nothing about data that do not fit into it
            of_storage = Measurements(filterfalse(self.is_in_memory, self.compared))
            if of_storage.where(reads=self.reads):
                self.left_out = Measurements(filter(self.is_in_memory, self.compared)).where(reads=self.reads)
                self.compared = of_storage
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


def format_rate(rate: float) -> str:
    """Items per second: a whole number, or three significant digits below 10."""
    return f"{rate:,.0f}" if rate >= 10 else f"{rate:.3g}"


def judge(case: Case) -> dict[str, Any]:
    """The verdict in words, with the numbers that it rests on."""
    limit = _bottleneck(case)
    return {
        "headline": f"{case.named.setting}, on {case.named.tier}. {limit}",
        "setting": case.named.to_document(),
        "by_tier": {tier: m.to_document() for tier, m in case.by_tier.items()},
        "store": None if case.own is None else case.own.to_document(),
        "bottleneck": limit,
        "reasons": list(_reasons(case)),
        "command": _commands(case),
    }


def _commands(case: Case) -> str:
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
        lines += starmap(shell, made)
        if case.facts["unit"] == "points":
            lines.append(_AS_MEASURED)
        if any(_smaller_samples(case)):
            lines.append(_UNEQUAL)
        lines.append(stored.loader.call(case.batch_size))
    return "\n".join(lines)


def _export(case: Case, m: Measurement, store: str) -> list[str]:
    export = m.candidate.export
    command = ["export", export, store, f"{case.target(m)}.{export}"]
    if m.loader.workers and export == "webdataset":  # each worker reads shards of its own
        command += ["--loader-workers", str(m.loader.workers)]
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
    elif changed and staged and (chosen.codec, chosen.chunk) == (facts["codec"], facts["chunk_points"]):
        # Only the layout differs, which a copy has without the files of the source.
        yield ["stage", place, "--source", source, "--layout", chosen.layout]
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


def _bottleneck(case: Case) -> str:
    """What limits the rate."""
    named = case.named
    slow = [tier for tier, m in case.by_tier.items() if (m.waiting["later"] or 0) >= _BOTTLENECK]
    better = [tier for tier in slow if named.median > case.by_tier[tier].high and case.is_local(named.tier)]
    if better:
        text = f"{' and '.join(better)} {'is' if len(better) == 1 else 'are'} the bottleneck"
        if case.is_short:
            return f"{text}, and {named.tier} has no room for all samples."
        return f"{text}: stage to {named.tier}."
    if named.tier in slow:
        return f"{named.tier} is the bottleneck."
    if named.memory is None:
        return "The bottleneck was not determined."
    if (named.waiting["first"] or 0) >= _BOTTLENECK:
        return f"{named.tier} is the bottleneck of the first epoch; later epochs read from memory."
    return "Decoding and copying are the bottleneck, not storage."


def _reasons(case: Case) -> Iterator[str]:
    """Sentences, the most important ones first."""
    named, by_tier = case.named, case.by_tier
    if case.too_large:
        yield _memory(case)
    yield _of_tier(case, named, "Recommended")
    if not named.compared and len(case.of_reads) > 1:
        yield _NOT_COMPARED
    if case.own is not None and named.format != OURS:
        more = ", versions and new draws in each epoch." if case.facts["unit"] == "points" else " and versions."
        yield (
            f"The best setting of a store here is {case.own.setting} on {case.own.tier}: {_rate(case, case.own)}. "
            f"It adds checksums{more}"
        )
    yield from _few_draws(case)
    yield from _smaller_samples(case)
    yield from _alternatives(case)
    yield from _first_epoch(case)
    for tier in case.tiers:
        if tier not in by_tier:
            yield f"{tier} was not compared: see what was not measured, and why."
        elif tier != named.tier:
            yield _of_tier(case, by_tier[tier], "Best")
    if len({m.format for m in case.of_reads}) == 1:
        yield f"No other format than {named.format} was compared: see what was not measured, and why."
    for m, store in case.others:
        text = f"To read {case.words[m.reads]}: {m.setting} on {m.tier}, {_rate(case, m)}."
        if store is not None and store is not m:
            text += f" Of stores, {store.setting} on {store.tier}: {format_rate(store.median)}/s."
        yield text
    for m in Measurements(case.measured).where(format=LOSSY):
        yield (
            f"{m.setting} on {m.tier} changes values within a bound, so that it is not compared with the settings "
            f"above: {format_size(m.bytes)} per sample, {_rate(case, m)}. See docs/error_bounds.md."
        )
    for reads, text in case.words.items():
        if not Measurements(case.measured).exact.where(reads=reads):
            yield f"How to read {text} was not measured: see what was not measured, and why."
    if case.is_short:
        yield (
            f"{named.format} needs {format_size(case.needed)} for {case.samples:,} samples: more "
            f"than the {format_size(case.free)} that are free on {named.tier}."
        )
    else:
        yield from _staging(case)
    yield _inodes(case)
    yield from _money(case)


def _few_draws(case: Case) -> Iterator[str]:
    """That draws of a store are whole chunks, of which a sample has few."""
    if case.own is None:
        return
    chunk = case.own.candidate.chunk
    for domain, wanted in case.facts.get("num_points", {}).items():
        chunks = case.facts["points"][domain][1] // chunk
        if 0 < chunks < _FEW_CHUNKS and wanted >= chunk:
            yield (
                f"With chunk_points {chunk} a draw of {wanted:,} points of {domain} is whole chunks: a sample has "
                f"about {chunks} different draws, which return in later epochs. With --chunk-points of twice the draw "
                "or more they differ (docs/choosing.md)."
            )


def _smaller_samples(case: Case) -> Iterator[str]:
    """That samples have fewer points than a draw."""
    for domain, wanted in case.facts.get("num_points", {}).items():
        fewest = case.facts["points"][domain][0]
        if fewest < wanted:
            yield (
                f"A draw of {wanted:,} points of {domain} is all points of a sample that has fewer; the smallest has "
                f"{fewest:,}. Batches of such samples need `collate: pad` or `concat` in the dataset's config."
            )


def _rate(case: Case, m: Measurement) -> str:
    first = f", {format_rate(m.first)} in the first epoch" if m.first else ""
    what = "epoch" if m.cold else "repetition"
    spread = f"quartiles {format_rate(m.low)} to {format_rate(m.high)} of {len(m.rates)} {what}s"
    if len(m.rates) == 1:
        spread = f"one {what}, so that its error is not known"
    return f"{format_rate(m.median)} {case.words[m.reads]}/s ({spread}{first})"


def _of_tier(case: Case, m: Measurement, rank: str) -> str:
    text = f"{rank} on {m.tier}: {m.setting}, {_rate(case, m)}."
    names = {"first": "the first epoch", "later": "each epoch" if m.cold else "later epochs"}
    shares = []
    for epoch, share in m.waiting.items():
        if share is not None:
            shares.append(f"{share:.0%} of the time in {names[epoch]}")
    return f"{text} It waits for storage {' and '.join(shares)}." if shares else text


def _memory(case: Case) -> str:
    size = format_size(bytes_of_all(case.facts))
    text = f"All samples take {size}, more than the memory of this machine, so that no epoch finds its files in memory"
    if any(map(case.is_in_memory, case.of_reads)):
        return f"{text}; but the files measured could not be dropped from memory: expect lower rates."
    text += ": local files were dropped from memory before each epoch."
    names: dict[str, None] = {}
    for m in case.left_out:
        names[f"{m.format} on {m.tier}" if m.tier in case.by_tier else m.tier] = None
    return f"{text} Not possible, and so not compared: {', '.join(names)}." if names else text


def _alternatives(case: Case) -> Iterator[str]:
    named, best = case.named, case.of_reads.comparable.fastest[0]
    if best is not named:
        if named.loader.workers != best.loader.workers:
            less = "fewer workers"
        elif named.loader.threads != best.loader.threads:
            less = "fewer threads"
        else:
            less = "fewer bytes" if best.loader.pin == named.loader.pin else "no pinned memory"
        yield (
            f"{best.setting} on {best.tier} was measured at {format_rate(best.median)}/s, within the error; the "
            f"setting named needs {less}."
        )
    others = Measurements(m for m in case.of_reads.where(tier=named.tier) if m.format != named.format)
    # Those that took part in some of the turns, too: a format that is clearly slower leaves them early.
    in_turns = Measurements(m for m in others if m.turns)
    for rival in (in_turns or others).fastest[:1]:
        share = rival.median / named.median
        if rival is not best:
            yield f"The next format on {named.tier} is {rival.setting}: {share:.2f} times as fast."


def _first_epoch(case: Case) -> Iterator[str]:
    best = max(case.of_reads.where(tier=case.named.tier), key=lambda m: m.first or 0)
    if case.named.first and best.first and best.first > (1 + _FASTER_FIRST) * case.named.first:
        yield (
            f"In the first epoch, and in each epoch of data that do not fit into memory, {best.setting} may be faster "
            f"on {best.tier}: {format_rate(best.first)} instead of {format_rate(case.named.first)}/s, each measured "
            "once."
        )


def _staging(case: Case) -> Iterator[str]:
    named, samples = case.named, case.samples
    if not case.is_local(named.tier) or named.tier not in case.copy_rates:
        return
    for tier, m in case.by_tier.items():
        saved = samples / m.median - samples / named.median
        if case.is_local(tier) or saved <= 0:
            continue
        # Reading all bytes from the bucket once, and writing them.
        size = samples * named.bytes
        epochs = (size / case.copy_rates[named.tier] + samples / m.median) / saved
        epochs = max(epochs, 1)
        yield f"Staging {format_size(size)} from {tier} to {named.tier} pays after about {epochs:.0f} epochs."


def _inodes(case: Case) -> str:
    named = case.named
    free = case.tiers[named.tier].get("inodes_free")
    needed = f"{named.format} needs {named.inodes:.3g} inodes and {format_size(named.bytes)} per sample"
    fewest = min(case.compared, key=lambda m: m.inodes)
    least = "no format measured needs fewer inodes"
    if fewest.inodes < named.inodes:
        name = fewest.format if fewest.format != named.format else fewest.candidate.label
        least = f"{name} needs the fewest inodes, {fewest.inodes:.3g}"
    if free and named.inodes * case.samples > free and not case.is_in_place(named):
        return f"{needed}: more than the {free:,} inodes that are free on {named.tier}; {least}."
    return f"{needed}; {least}."


def _money(case: Case) -> Iterator[str]:
    price = case.price_per_1000_gets
    for m in case.by_tier.values():
        if m.requests and price is not None:
            requests = m.requests * case.samples
            yield (
                f"An epoch of {case.samples:,} samples from {m.tier} costs {requests / 1000 * price:.3g} for "
                f"{requests:,.0f} requests."
            )
