"""The recommendation, from measured numbers alone."""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import starmap
from typing import Any

from zarr_core._util.commands import shell
from zarr_core._util.units import format_size
from zarr_core.shootout.candidates import COLUMNS, OURS, Candidate
from zarr_core.storage import is_local

# A setting that is at most this much slower than the best one may be named instead, if the error bars overlap.
_TOLERANCE = 0.05
# A first epoch that is this much faster is named.
_FASTER_FIRST = 0.1
# Share of the time that is spent waiting for storage from which storage is called the bottleneck.
_BOTTLENECK = 0.5
_NOT_COMPARED = (
    "The leading settings were not measured again in turns, so that other load of the machine may have decided: repeat "
    "the shootout with a larger --budget, or fewer --tiers or --formats."
)


@dataclass
class Measurement:
    """One way to read on one tier.

    Attributes:
        tier: name.
        candidate: format and settings.
        reads: name of the draws.
        workers, prefetch, pin: of the DataLoader.
        rates: items per second of each repetition, in later epochs; items are samples, or features of a matrix.
        cold: whether ``rates`` are of epochs before each of which the files were dropped from memory.
        first: items per second of the first epoch; None if not measured.
        requests: to a URL per item; None if not counted.
        bytes, objects, inodes: per sample, on this tier.
        memory: median items per second from local files in memory; None if not measured.
        took: seconds that measuring ``rates`` took.
        turns: rates in turns with other leading settings.
        compared: whether ``rates`` are those of the turns, and it took part in all of them.
    """

    tier: str
    candidate: Candidate
    reads: str
    rates: list[float]
    workers: int = 0
    prefetch: int = 2
    pin: bool = False
    cold: bool = False
    first: float | None = None
    requests: float | None = None
    bytes: float = 0.0
    objects: float = 0.0
    inodes: float = 0.0
    memory: float | None = None
    took: float = 0.0
    turns: list[float] = field(default_factory=list)
    compared: bool = False

    @property
    def format(self) -> str:
        """Name of the format."""
        return self.candidate.format

    @property
    def median(self) -> float:
        """Items per second."""
        return statistics.median(self.rates)

    @property
    def low(self) -> float:
        """First quartile of the repetitions."""
        return _quantile(self.rates, 0.25)

    @property
    def high(self) -> float:
        """Third quartile of the repetitions."""
        return _quantile(self.rates, 0.75)

    @property
    def setting(self) -> str:
        """Format and settings in words."""
        parts = [self.format]
        if self.candidate.codec:
            parts += [f"chunk_{self.candidate.unit} {self.candidate.chunk}", self.candidate.codec]
        parts.append("no workers" if not self.workers else f"{self.workers} worker{'s' * (self.workers > 1)}")
        if self.workers and self.prefetch != 2:
            parts.append(f"prefetch_factor {self.prefetch}")
        if self.pin:
            parts.append("pinned memory")
        return ", ".join(parts)

    @property
    def waiting(self) -> dict[str, float | None]:
        """Share of the time that is spent waiting for storage: in the first epoch, and in later ones."""

        def share(rate: float | None) -> float | None:
            return None if rate is None or not self.memory else max(0.0, 1 - rate / self.memory)

        return {"first": share(self.first), "later": share(self.median)}

    def is_slower(self, best: Measurement) -> bool:
        """Whether it can be told from the best one, or is more than 5 % slower."""
        return self is not best and (self.high < best.low or self.median < (1 - _TOLERANCE) * best.median)

    def to_document(self) -> dict[str, Any]:
        """For JSON."""
        own = ("candidate", "took", "turns")
        stored = {each.name: getattr(self, each.name) for each in fields(self) if each.name not in own}
        chosen = self.candidate
        settings = {"format": chosen.format, "codec": chosen.codec, f"chunk_{chosen.unit}": chosen.chunk}
        return {
            **stored,
            **settings,
            "median": self.median,
            "low": self.low,
            "high": self.high,
            "waiting": self.waiting,
        }


def _quantile(values: Sequence[float], share: float) -> float:
    """Interpolated linearly between the sorted values."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = ordered[int(place)]
    return below + (place % 1) * (ordered[min(int(place) + 1, len(ordered) - 1)] - below)


def choose(measured: Iterable[Measurement]) -> Measurement:
    """The recommended one: the fastest, or one that cannot be told from it and needs less.

    Among those whose error bars overlap with the fastest one's and whose median is within 5 %, the one with the fewest
    workers, then the fewest bytes. If some were compared in turns, only those.
    """
    found = _comparable(measured)
    best = best_of(found)
    equal = [m for m in found if not m.is_slower(best)]
    return min(equal, key=lambda m: (m.workers, m.pin, m.bytes, -m.median))


def _comparable(measured: Iterable[Measurement]) -> list[Measurement]:
    """Those that were compared in turns; all if none was."""
    found = list(measured)
    return [m for m in found if m.compared] or found


def best_of(measured: Iterable[Measurement]) -> Measurement:
    """The one with the largest median."""
    return max(measured, key=lambda m: m.median)


def exceeds_memory(facts: Mapping[str, Any], memory_bytes: int | None) -> bool:
    """Whether all samples of a workload take more bytes than the memory has, so that no epoch finds its files in it."""
    return memory_bytes is not None and facts["bytes_raw"] / facts["samples"] * _samples(facts) > memory_bytes


def _samples(facts: Mapping[str, Any]) -> int:
    """Samples of the whole dataset, or those measured if its number is not known."""
    found: int = facts["samples_total"] or facts["samples"]
    return found


def judge(
    measured: Sequence[Measurement],
    tiers: Mapping[str, Mapping[str, Any]],
    facts: Mapping[str, Any],
    copy_rates: Mapping[str, float],
    *,
    batch_size: int,
    price_per_1000_gets: float | None = None,
    memory_bytes: int | None = None,
) -> dict[str, Any]:
    """The verdict in words, with the numbers that it rests on.

    Args:
        measured: everything that was measured; at least one.
        tiers: facts of each tier by name.
        facts: of the workload.
        copy_rates: bytes per second that were written to each tier.
        batch_size: samples per batch.
        price_per_1000_gets: of an object store.
        memory_bytes: of this machine.
    """
    words = facts["reads"]
    reads = next(reads for reads in words if any(m.reads == reads for m in measured))
    too_large = exceeds_memory(facts, memory_bytes)
    unmeasured = [text for other, text in words.items() if not any(m.reads == other for m in measured)]
    # Rates of files in memory tell nothing about data that do not fit into it. Objects of a URL are never kept there.
    of_storage = [m for m in measured if m.cold or not tiers[m.tier]["local"]]
    left_out: list[Measurement] = []
    if too_large and any(m.reads == reads for m in of_storage):
        left_out = [m for m in measured if m.reads == reads and m not in of_storage]
        measured = of_storage
    of_reads = [m for m in measured if m.reads == reads]
    # The best setting for each of the other draws, and the best store for it.
    others = [
        (choose(found), choose(of_stores) if (of_stores := [m for m in found if m.format in (OURS, COLUMNS)]) else None)
        for other in words
        if other != reads and (found := [m for m in measured if m.reads == other])
    ]
    named = choose(of_reads)
    by_tier = {tier: choose(found) for tier in tiers if (found := [m for m in of_reads if m.tier == tier])}
    stores = [m for m in of_reads if m.format == OURS]
    own = choose(stores) if stores else None
    shortage = _shortage(named, facts, tiers)
    bottleneck = _bottleneck(named, by_tier, tiers, bool(shortage))
    reasons = [
        *_memory(too_large, of_reads, left_out, tiers, facts),
        _tier_sentence(named, words, "Recommended"),
        *(() if named.compared or len(of_reads) == 1 else [_NOT_COMPARED]),
        *_alternatives(named, of_reads),
        *_first_epoch(named, of_reads),
        *(_tier_sentence(m, words, "Best") for tier, m in by_tier.items() if tier != named.tier),
        *(_other_sentence(m, store, words) for m, store in others),
        *(f"How to read {text} was not measured: see what was not measured, and why." for text in unmeasured),
        *(() if shortage else _staging(named, by_tier, tiers, facts, copy_rates)),
        *shortage,
        *_inodes(named, measured, tiers, facts),
        *_money(by_tier.values(), price_per_1000_gets, facts),
    ]
    if own is not None and named.format != OURS:
        reasons.insert(
            1 + too_large + (_NOT_COMPARED in reasons),
            f"The best setting of a store here is {own.setting} on {own.tier}: {_rate(own, words)}. It adds checksums"
            + (", versions and new draws in each epoch." if facts["unit"] == "points" else " and versions."),
        )
    return {
        "headline": f"{named.setting}, on {named.tier}. {bottleneck}",
        "setting": named.to_document(),
        "by_tier": {tier: m.to_document() for tier, m in by_tier.items()},
        "store": None if own is None else own.to_document(),
        "bottleneck": bottleneck,
        "reasons": reasons,
        "command": _command(named, own, [store for _, store in others if store], facts, tiers, batch_size),
    }


def format_rate(rate: float) -> str:
    """Items per second: a whole number, or three significant digits below 10."""
    return f"{rate:,.0f}" if rate >= 10 else f"{rate:.3g}"


def _rate(m: Measurement, words: Mapping[str, str]) -> str:
    first = f", {format_rate(m.first)} in the first epoch" if m.first else ""
    what = "epoch" if m.cold else "repetition"
    spread = f"quartiles {format_rate(m.low)} to {format_rate(m.high)} of {len(m.rates)} {what}s"
    if len(m.rates) == 1:
        spread = f"one {what}, so that its error is not known"
    return f"{format_rate(m.median)} {words[m.reads]}/s ({spread}{first})"


def _bottleneck(
    named: Measurement,
    by_tier: Mapping[str, Measurement],
    tiers: Mapping[str, Mapping[str, Any]],
    short: bool,
) -> str:
    slow = [tier for tier, m in by_tier.items() if (m.waiting["later"] or 0) >= _BOTTLENECK]
    better = [tier for tier in slow if named.median > by_tier[tier].high and tiers[named.tier]["local"]]
    if better:
        text = f"{' and '.join(better)} {'is' if len(better) == 1 else 'are'} the bottleneck"
        return f"{text}, and {named.tier} has no room for all samples." if short else f"{text}: stage to {named.tier}."
    if named.tier in slow:
        return f"{named.tier} is the bottleneck."
    if named.memory is None:
        return "The bottleneck was not determined."
    if (named.waiting["first"] or 0) >= _BOTTLENECK:
        return f"{named.tier} is the bottleneck of the first epoch; later epochs read from memory."
    return "Decoding and copying are the bottleneck, not storage."


def _tier_sentence(m: Measurement, words: Mapping[str, str], rank: str) -> str:
    text = f"{rank} on {m.tier}: {m.setting}, {_rate(m, words)}."
    names = {"first": "the first epoch", "later": "each epoch" if m.cold else "later epochs"}
    shares = [f"{share:.0%} of the time in {names[epoch]}" for epoch, share in m.waiting.items() if share is not None]
    return f"{text} It waits for storage {' and '.join(shares)}." if shares else text


def _alternatives(named: Measurement, found: Sequence[Measurement]) -> list[str]:
    best = best_of(_comparable(found))
    if best is not named:
        less = "fewer bytes" if named.workers == best.workers else "fewer workers"
        if named.workers == best.workers and best.pin != named.pin:
            less = "no pinned memory"
        return [
            f"{best.setting} on {best.tier} was measured at {format_rate(best.median)}/s, within the error; the "
            f"setting named needs {less}."
        ]
    others = [m for m in found if m.format != named.format and m.tier == named.tier]
    if not others:
        return []
    # Those that took part in some of the turns, too: a format that is clearly slower leaves them early.
    rival = best_of([m for m in others if m.turns] or others)
    return [f"The next format on {named.tier} is {rival.setting}: {rival.median / named.median:.2f} times as fast."]


def _first_epoch(named: Measurement, found: Sequence[Measurement]) -> list[str]:
    timed = [m for m in found if m.first and m.tier == named.tier]
    best = max(timed, key=lambda m: m.first or 0, default=named)
    if not named.first or not best.first or best.first <= (1 + _FASTER_FIRST) * named.first:
        return []
    return [
        f"In the first epoch, and in each epoch of data that do not fit into memory, {best.setting} is faster on "
        f"{best.tier}: {format_rate(best.first)} instead of {format_rate(named.first)}/s."
    ]


def _staging(
    named: Measurement,
    by_tier: Mapping[str, Measurement],
    tiers: Mapping[str, Mapping[str, Any]],
    facts: Mapping[str, Any],
    copy_rates: Mapping[str, float],
) -> list[str]:
    samples = _samples(facts)
    sentences = []
    for tier, m in by_tier.items():
        if tiers[tier]["local"] or not tiers[named.tier]["local"] or named.tier not in copy_rates:
            continue
        saved = samples / m.median - samples / named.median
        if saved <= 0:
            continue
        # Reading all bytes from the bucket once, and writing them.
        whole = samples * named.bytes
        epochs = (whole / copy_rates[named.tier] + samples / m.median) / saved
        sentences.append(
            f"Staging {format_size(whole)} from {tier} to {named.tier} pays after about {max(epochs, 1):.0f} epochs."
        )
    return sentences


def _memory(
    too_large: bool,
    found: Sequence[Measurement],
    left_out: Sequence[Measurement],
    tiers: Mapping[str, Mapping[str, Any]],
    facts: Mapping[str, Any],
) -> list[str]:
    if not too_large:
        return []
    size = format_size(facts["bytes_raw"] / facts["samples"] * _samples(facts))
    text = f"All samples take {size}, more than the memory of this machine, so that no epoch finds its files in memory"
    if any(tiers[m.tier]["local"] and not m.cold for m in found):
        return [f"{text}; but the files measured could not be dropped from memory: expect lower rates."]
    text += ": local files were dropped from memory before each epoch."
    compared = {m.tier for m in found}
    names = dict.fromkeys(f"{m.format} on {m.tier}" if m.tier in compared else m.tier for m in left_out)
    return [f"{text} Not possible, and so not compared: {', '.join(names)}." if names else text]


def _other_sentence(m: Measurement, store: Measurement | None, words: Mapping[str, str]) -> str:
    text = f"To read {words[m.reads]}: {m.setting} on {m.tier}, {_rate(m, words)}."
    if store is None or store is m:
        return text
    return f"{text} Of stores, {store.setting} on {store.tier}: {format_rate(store.median)}/s."


def _shortage(named: Measurement, facts: Mapping[str, Any], tiers: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Free bytes of the tier, if they are fewer than the named setting needs for all samples."""
    free, needed = tiers[named.tier].get("bytes_free"), named.bytes * _samples(facts)
    if free is None or needed <= free or _is_in_place(named, facts, tiers):
        return []
    return [
        f"{named.format} needs {format_size(needed)} for {_samples(facts):,} samples: more than the "
        f"{format_size(free)} that are free on {named.tier}."
    ]


def _inodes(
    named: Measurement,
    measured: Sequence[Measurement],
    tiers: Mapping[str, Mapping[str, Any]],
    facts: Mapping[str, Any],
) -> list[str]:
    free = tiers[named.tier].get("inodes_free")
    fewest = min(measured, key=lambda m: m.inodes)
    needed = f"{named.format} needs {named.inodes:.3g} inodes and {format_size(named.bytes)} per sample"
    least = "no format measured needs fewer inodes"
    if fewest.inodes < named.inodes:
        name = fewest.format if fewest.format != named.format else fewest.candidate.label
        least = f"{name} needs the fewest inodes, {fewest.inodes:.3g}"
    if free and named.inodes * _samples(facts) > free and not _is_in_place(named, facts, tiers):
        return [f"{needed}: more than the {free:,} inodes that are free on {named.tier}; {least}."]
    return [f"{needed}; {least}."]


def _is_in_place(m: Measurement, facts: Mapping[str, Any], tiers: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether the source is a store with these settings on the tier."""
    return facts["is_store"] and bool(m.candidate.codec) and not _changes(m, facts) and _lies_on(m, facts, tiers)


def _changes(m: Measurement, facts: Mapping[str, Any]) -> bool:
    """Whether a store has other settings than the source."""
    chosen = m.candidate
    return (chosen.codec, chosen.chunk) != (facts["codec"], facts[f"chunk_{facts['unit']}"])


def _lies_on(m: Measurement, facts: Mapping[str, Any], tiers: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether the source lies below the tier's folder or URL."""
    return f"{_absolute(facts['source'])}/".startswith(f"{_absolute(tiers[m.tier]['url'])}/")


def _absolute(url: str) -> str:
    """A URL without a "/" at its end, or the absolute path of a local one."""
    return os.path.abspath(url.rpartition("://")[2]) if is_local(url) else url.rstrip("/")


def _money(found: Iterable[Measurement], price: float | None, facts: Mapping[str, Any]) -> list[str]:
    samples = _samples(facts)
    if price is None:
        return []
    return [
        f"An epoch of {samples:,} samples from {m.tier} costs {m.requests * samples / 1000 * price:.3g} for "
        f"{m.requests * samples:,.0f} requests."
        for m in found
        if m.requests
    ]


def _command(
    named: Measurement,
    own: Measurement | None,
    others: Sequence[Measurement],
    facts: Mapping[str, Any],
    tiers: Mapping[str, Mapping[str, Any]],
    batch_size: int,
) -> str:
    """Shell commands and a line of Python, of the named setting if this library writes it, and of the best store."""
    export = named.candidate.entry.export
    stored = named if named.candidate.codec else own
    made = [] if stored is None else list(_store_commands(stored, others, facts, tiers))
    loader = _loader(named, batch_size)
    lines = []
    if export:
        store, first = facts["source"], []
        if not facts["is_store"]:  # an export needs a store: the best one, or one with the usual settings
            first = made or [_convert(named, facts, tiers)]
            made, store = [], first[0][1]
        folder = tiers[named.tier]["url"].rstrip("/")
        command = ["export", export, store, f"{folder}/{facts['dataset_name']}.{export}"]
        if named.workers and export == "webdataset":  # each worker reads shards of its own
            command += ["--loader-workers", str(named.workers)]
        lines = [*starmap(shell, [*first, command]), loader]
    if stored is None:
        return "\n".join(lines or [loader])
    if export:
        lines.append("# or the best setting of a store:")
    elif stored is not named:
        lines.append(f"# zarr-core does not write {named.format}; the best setting of a store:")
    return "\n".join([*lines, *starmap(shell, made), _loader(stored, batch_size)])


def _loader(m: Measurement, batch_size: int) -> str:
    more = f", prefetch_factor={m.prefetch}" if m.workers else ""
    pinned = ", pin_memory=True" if m.pin else ""
    return f"DataLoader(dataset, batch_size={batch_size}, num_workers={m.workers}{more}{pinned})"


def _store_commands(
    m: Measurement,
    others: Sequence[Measurement],
    facts: Mapping[str, Any],
    tiers: Mapping[str, Mapping[str, Any]],
) -> Iterator[list[str]]:
    """Arguments of ``zarr-core`` that make a store with the settings of ``m`` on its tier."""
    place = f"{tiers[m.tier]['url'].rstrip('/')}/{facts['dataset_name']}"
    source, chosen = facts["source"], m.candidate
    settings = [f"--chunk-{facts['unit']}", str(chosen.chunk), "--codec", chosen.codec]
    changed, there = _changes(m, facts), _lies_on(m, facts, tiers)
    if facts["unit"] == "features":
        if changed:
            if _absolute(place) == _absolute(source):  # a copy with other settings is a new matrix
                place += f"-{chosen.chunk}-{chosen.codec.replace(':', '-')}"
            yield ["matrix", "reindex", source, place, *settings]
        if any(other.format == COLUMNS for other in others):
            yield ["matrix", place if changed else source, "--derive-columns"]
        if not (changed or there):
            yield ["stage", place, "--source", source]
        return
    if not facts["is_store"]:
        yield [*_convert(m, facts, tiers), *settings]
        return
    if changed:
        kind = ["--source", "SOURCE", "--dataset-kind", facts["dataset_kind"], "--reconvert"]
        yield ["convert", source, *kind, *settings]
    if not there:
        yield ["stage", place, "--source", source]


def _convert(m: Measurement, facts: Mapping[str, Any], tiers: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Arguments of ``zarr-core`` that convert the source's files to a store on the tier."""
    place = f"{tiers[m.tier]['url'].rstrip('/')}/{facts['dataset_name']}"
    if _absolute(place) == _absolute(facts["source"]):
        place += "-store"
    return ["convert", place, "--source", facts["source"], "--dataset-kind", facts["dataset_kind"]]
