"""The recommendation, from measured numbers alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from zarr_core._util.units import format_size
from zarr_core.shootout.candidates import COLUMNS, LOSSY, OURS
from zarr_core.shootout.commands import commands
from zarr_core.shootout.measurement import Case, Measurement, Measurements, bytes_of_all, choose, number_of_samples

# A first epoch that is this much faster is named.
_FASTER_FIRST = 0.1
# Share of the time that is spent waiting for storage from which storage is called the bottleneck.
_BOTTLENECK = 0.5
_NOT_COMPARED = (
    "The leading settings were not measured again in turns, so that other load of the machine may have decided: repeat "
    "the shootout with a larger --budget, or fewer --tiers or --formats."
)


def format_rate(rate: float) -> str:
    """Items per second: a whole number, or three significant digits below 10."""
    return f"{rate:,.0f}" if rate >= 10 else f"{rate:.3g}"


def judge(case: Case) -> dict[str, Any]:
    """The verdict in words, with the numbers that it rests on."""
    found = _Judgement(case)
    bottleneck = found.bottleneck()
    columns = any(store is not None and store.format == COLUMNS for _, store in found.others)
    return {
        "headline": f"{found.named.setting}, on {found.named.tier}. {bottleneck}",
        "setting": found.named.to_document(),
        "by_tier": {tier: m.to_document() for tier, m in found.by_tier.items()},
        "store": None if found.own is None else found.own.to_document(),
        "bottleneck": bottleneck,
        "reasons": list(found.reasons()),
        "command": commands(case, found.named, found.own, columns),
    }


class _Judgement:
    """The choice, and the sentences that explain it.

    Attributes:
        of_reads: measurements of what the recommendation is for.
        left_out: those whose files could not be dropped from memory, though all samples exceed it.
        named: the recommended setting.
        by_tier: the best setting of each tier.
        own: the best setting of a store; None if none was measured.
        others: the best setting for each other way to read, and the best store for it.
    """

    def __init__(self, case: Case) -> None:
        self.case, self.facts, self.tiers = case, case.facts, case.tiers
        self.words: Mapping[str, str] = case.facts["reads"]
        self.samples, self.size = number_of_samples(case.facts), bytes_of_all(case.facts)
        self.too_large = case.memory_bytes is not None and self.size > case.memory_bytes
        self.measured = Measurements(case.measured).exact
        there = {m.reads for m in self.measured}
        self.unmeasured = [text for reads, text in self.words.items() if reads not in there]
        self.reads = next(filter(there.__contains__, self.words))
        self.left_out = Measurements()
        if self.too_large:
            self._leave_out()
        self.of_reads = self.measured.where(reads=self.reads)
        self.named = choose(self.of_reads)
        self.by_tier: dict[str, Measurement] = {}
        for tier in self.tiers:
            if found := self.of_reads.where(tier=tier):
                self.by_tier[tier] = choose(found)
        stores = self.of_reads.where(format=OURS)
        self.own = choose(stores) if stores else None
        self.others: list[tuple[Measurement, Measurement | None]] = []
        for reads in self.words:
            found = self.measured.where(reads=reads)
            if found and reads != self.reads:
                of_stores = [*found.where(format=OURS), *found.where(format=COLUMNS)]
                self.others.append((choose(found), choose(of_stores) if of_stores else None))
        self.needed = self.named.bytes * self.samples
        self.free = self.tiers[self.named.tier].get("bytes_free", self.needed)
        self.is_short = self.needed > self.free and not self.case.is_in_place(self.named)

    def _leave_out(self) -> None:
        """Rates of files in memory tell nothing about data that do not fit into it."""
        of_storage = Measurements()
        of_memory = Measurements()
        for m in self.measured:  # objects of a URL are never kept in memory
            (of_storage if m.cold or not self._is_local(m.tier) else of_memory).append(m)
        if of_storage.where(reads=self.reads):
            self.measured, self.left_out = of_storage, of_memory.where(reads=self.reads)

    def _is_local(self, tier: str) -> bool:
        local: bool = self.tiers[tier]["local"]
        return local

    def bottleneck(self) -> str:
        """What limits the rate."""
        named = self.named
        slow = [tier for tier, m in self.by_tier.items() if (m.waiting["later"] or 0) >= _BOTTLENECK]
        better = [tier for tier in slow if named.median > self.by_tier[tier].high and self._is_local(named.tier)]
        if better:
            text = f"{' and '.join(better)} {'is' if len(better) == 1 else 'are'} the bottleneck"
            if self.is_short:
                return f"{text}, and {named.tier} has no room for all samples."
            return f"{text}: stage to {named.tier}."
        if named.tier in slow:
            return f"{named.tier} is the bottleneck."
        if named.memory is None:
            return "The bottleneck was not determined."
        if (named.waiting["first"] or 0) >= _BOTTLENECK:
            return f"{named.tier} is the bottleneck of the first epoch; later epochs read from memory."
        return "Decoding and copying are the bottleneck, not storage."

    def reasons(self) -> Iterator[str]:
        """Sentences, the most important ones first."""
        named, by_tier = self.named, self.by_tier
        if self.too_large:
            yield self._memory()
        yield self._of_tier(named, "Recommended")
        if not named.compared and len(self.of_reads) > 1:
            yield _NOT_COMPARED
        if self.own is not None and named.format != OURS:
            more = ", versions and new draws in each epoch." if self.facts["unit"] == "points" else " and versions."
            yield (
                f"The best setting of a store here is {self.own.setting} on {self.own.tier}: {self._rate(self.own)}. "
                f"It adds checksums{more}"
            )
        yield from self._alternatives()
        yield from self._first_epoch()
        for tier, m in by_tier.items():
            if tier != named.tier:
                yield self._of_tier(m, "Best")
        for m, store in self.others:
            text = f"To read {self.words[m.reads]}: {m.setting} on {m.tier}, {self._rate(m)}."
            if store is not None and store is not m:
                text += f" Of stores, {store.setting} on {store.tier}: {format_rate(store.median)}/s."
            yield text
        for m in Measurements(self.case.measured).where(format=LOSSY):
            yield (
                f"{m.setting} on {m.tier} changes values within a bound, so that it is not compared with the settings "
                f"above: {format_size(m.bytes)} per sample, {self._rate(m)}. See docs/error_bounds.md."
            )
        for text in self.unmeasured:
            yield f"How to read {text} was not measured: see what was not measured, and why."
        if self.is_short:
            yield (
                f"{named.format} needs {format_size(self.needed)} for {self.samples:,} samples: more "
                f"than the {format_size(self.free)} that are free on {named.tier}."
            )
        else:
            yield from self._staging()
        yield self._inodes()
        yield from self._money()

    def _rate(self, m: Measurement) -> str:
        first = f", {format_rate(m.first)} in the first epoch" if m.first else ""
        what = "epoch" if m.cold else "repetition"
        spread = f"quartiles {format_rate(m.low)} to {format_rate(m.high)} of {len(m.rates)} {what}s"
        if len(m.rates) == 1:
            spread = f"one {what}, so that its error is not known"
        return f"{format_rate(m.median)} {self.words[m.reads]}/s ({spread}{first})"

    def _of_tier(self, m: Measurement, rank: str) -> str:
        text = f"{rank} on {m.tier}: {m.setting}, {self._rate(m)}."
        names = {"first": "the first epoch", "later": "each epoch" if m.cold else "later epochs"}
        shares = []
        for epoch, share in m.waiting.items():
            if share is not None:
                shares.append(f"{share:.0%} of the time in {names[epoch]}")
        return f"{text} It waits for storage {' and '.join(shares)}." if shares else text

    def _memory(self) -> str:
        text = f"All samples take {format_size(self.size)}, more than the memory of this machine, so that no epoch "
        text += "finds its files in memory"
        if any(self._is_local(m.tier) and not m.cold for m in self.of_reads):
            return f"{text}; but the files measured could not be dropped from memory: expect lower rates."
        text += ": local files were dropped from memory before each epoch."
        names: dict[str, None] = {}
        for m in self.left_out:
            names[f"{m.format} on {m.tier}" if m.tier in self.by_tier else m.tier] = None
        return f"{text} Not possible, and so not compared: {', '.join(names)}." if names else text

    def _alternatives(self) -> Iterator[str]:
        named, best = self.named, self.of_reads.comparable.fastest[0]
        if best is not named:
            if named.workers != best.workers:
                less = "fewer workers"
            elif named.threads != best.threads:
                less = "fewer threads"
            else:
                less = "fewer bytes" if best.loader.pin == named.loader.pin else "no pinned memory"
            yield (
                f"{best.setting} on {best.tier} was measured at {format_rate(best.median)}/s, within the error; the "
                f"setting named needs {less}."
            )
            return
        others = Measurements(m for m in self.of_reads.where(tier=named.tier) if m.format != named.format)
        # Those that took part in some of the turns, too: a format that is clearly slower leaves them early.
        in_turns = Measurements(m for m in others if m.turns)
        for rival in (in_turns or others).fastest[:1]:
            share = rival.median / named.median
            yield f"The next format on {named.tier} is {rival.setting}: {share:.2f} times as fast."

    def _first_epoch(self) -> Iterator[str]:
        best = max(self.of_reads.where(tier=self.named.tier), key=lambda m: m.first or 0)
        if self.named.first and best.first and best.first > (1 + _FASTER_FIRST) * self.named.first:
            yield (
                f"In the first epoch, and in each epoch of data that do not fit into memory, {best.setting} is faster "
                f"on {best.tier}: {format_rate(best.first)} instead of {format_rate(self.named.first)}/s."
            )

    def _staging(self) -> Iterator[str]:
        named, samples = self.named, self.samples
        if not self._is_local(named.tier) or named.tier not in self.case.copy_rates:
            return
        for tier, m in self.by_tier.items():
            saved = samples / m.median - samples / named.median
            if self._is_local(tier) or saved <= 0:
                continue
            # Reading all bytes from the bucket once, and writing them.
            size = samples * named.bytes
            epochs = (size / self.case.copy_rates[named.tier] + samples / m.median) / saved
            epochs = max(epochs, 1)
            yield f"Staging {format_size(size)} from {tier} to {named.tier} pays after about {epochs:.0f} epochs."

    def _inodes(self) -> str:
        named = self.named
        free = self.tiers[named.tier].get("inodes_free")
        needed = f"{named.format} needs {named.inodes:.3g} inodes and {format_size(named.bytes)} per sample"
        fewest = min(self.measured, key=lambda m: m.inodes)
        least = "no format measured needs fewer inodes"
        if fewest.inodes < named.inodes:
            name = fewest.format if fewest.format != named.format else fewest.candidate.label
            least = f"{name} needs the fewest inodes, {fewest.inodes:.3g}"
        if free and named.inodes * self.samples > free and not self.case.is_in_place(named):
            return f"{needed}: more than the {free:,} inodes that are free on {named.tier}; {least}."
        return f"{needed}; {least}."

    def _money(self) -> Iterator[str]:
        price = self.case.price_per_1000_gets
        for m in self.by_tier.values():
            if m.requests and price is not None:
                requests = m.requests * self.samples
                yield (
                    f"An epoch of {self.samples:,} samples from {m.tier} costs {requests / 1000 * price:.3g} for "
                    f"{requests:,.0f} requests."
                )
