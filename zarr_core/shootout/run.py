"""Plans and takes all measurements of a shootout."""

from __future__ import annotations

import math
import statistics
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from itertools import chain, zip_longest
from operator import itemgetter
from pathlib import Path
from typing import Any, get_args

import torch
from tqdm import tqdm

from zarr_core.errors import SourceError, ZarrCoreError
from zarr_core.format.codecs import BOUNDED_CODEC, DEFAULT_CODEC, Codec
from zarr_core.matrix.store.head import HEAD as MATRIX
from zarr_core.points.store.settings import ConversionSettings, Layout
from zarr_core.reports import cores, environment, memory_bytes
from zarr_core.shootout.budget import Budget, MeasurementError
from zarr_core.shootout.candidates import BOUNDED, LOSSY, NO_WORKERS, OURS, Candidate, Loader, codecs
from zarr_core.shootout.loading import Reading, Timer, Timing
from zarr_core.shootout.measurement import Measurement, Measurements, bytes_of_all, choose
from zarr_core.shootout.request import ShootoutRequest
from zarr_core.shootout.tiers import Tier, local_copy
from zarr_core.shootout.turns import leaders, take_turns
from zarr_core.shootout.verdict import Case, format_rate, judge
from zarr_core.shootout.workload import Workload, take_matrix, take_points
from zarr_core.storage import Storage

# Seconds of a repetition, at least and at most, and its part of the budget.
_SHORTEST, _LONGEST, _PART = 0.05, 0.5, 1 / 1200
# Part of the budget that one measurement may take: a slow one then has fewer repetitions, and no further epoch.
_SHARE = 1 / 30
# Part of the budget that taking the samples may use, and that one copy to a tier may use.
_TAKING, _COPYING = 1 / 4, 1 / 4
# Part of the budget that is left for the page.
_RESERVE = 0.03
_REPETITIONS = 5
# How many of the fastest settings of a tier are measured with threads and with workers.
_WITH_WORKERS = 3
# How many times as fast as one thread n threads may be, as a multiple of n. The rest is the error of measurement.
_SPEEDUP = 1.1
# How close to the fastest a codec is that is measured with all chunk sizes.
_NEAR = 0.7


def measure_all(request: ShootoutRequest) -> dict[str, Any]:
    """Everything that the budget allows; the content of ``shootout.json``.

    Raises:
        ZarrCoreError: nothing could be measured; the message has the first reason.
        StoreError, SourceError: the source or a tier cannot be used.
    """
    with ExitStack() as cleanup:
        bar = cleanup.enter_context(tqdm(total=request.budget, desc="shootout", disable=not request.progress))

        def show(name: str, left: float) -> None:
            bar.n = request.budget - left
            bar.set_postfix_str(f"{left:.0f} s of the budget left; {name}")

        began = time.monotonic()
        tiers = [cleanup.enter_context(Tier(name, place)) for name, place in request.tiers.items()]
        folder = Path(cleanup.enter_context(tempfile.TemporaryDirectory(prefix="zarr-core-shootout-")))
        workload = take_workload(request, folder, began + _TAKING * request.budget)
        left = request.budget * (1 - _RESERVE) - (time.monotonic() - began)
        run = _Run(request, Budget(left, show=show), tiers, workload, folder)
        run.measure()
        return run.report()


def take_workload(request: ShootoutRequest, folder: Path, end: float = math.inf) -> Workload:
    """Samples of whatever is at the source, below a local folder.

    Args:
        request: of the shootout.
        folder: local.
        end: time of ``time.monotonic`` after which no further samples are taken.

    Raises:
        ZarrCoreError: there is nothing to measure, or no format of that name.
        StoreError, SourceError: the source cannot be read.
    """
    is_matrix = Storage(request.source).exists(MATRIX.name)
    workload = (take_matrix if is_matrix else take_points)(request, folder, end)
    known = [entry.name for entry in workload.entries]
    for name in request.formats or ():
        if name not in known:
            raise ZarrCoreError(f"no format {name!r}; formats are {', '.join(known)}")
    return workload


class _Run:
    """State of one shootout.

    Attributes:
        measured: so far.
        absent: what cannot be measured, and why.
        reads: name of the draws that the recommendation is for.
    """

    def __init__(
        self, request: ShootoutRequest, budget: Budget, tiers: list[Tier], workload: Workload, folder: Path
    ) -> None:
        self.request, self.budget, self.workload = request, budget, workload
        self.tiers = {tier.name: tier for tier in tiers}
        self.measured = Measurements()
        self.absent: list[tuple[str, str]] = []
        self.local_copy = partial(local_copy, workload.samples, folder)
        self._seconds = min(max(request.budget * _PART, _SHORTEST), _LONGEST)
        # Measurements of the other draws: importance, tier, candidate, and draws.
        self._further: list[tuple[int, Tier, Candidate, str]] = []
        facts = workload.facts
        self.reads, self.unit = next(iter(workload.draws)), facts["unit"]
        try:
            self.codec = str(Codec.parse(facts["codec"]))
        except SourceError:  # another program has written the store, with a codec that this library does not write
            self.codec = str(Codec.parse(DEFAULT_CODEC))
        self.layout = facts.get("layout", ConversionSettings.layout)
        self.entries = {entry.name: entry for entry in workload.entries}
        if facts["other_fields"]:
            self._leave_out(f"{facts['other_fields']} samples", "their fields differ from those of the first sample")
        if self.unit == "features" and "selected" not in workload.draws:
            whole = f"the matrix has {facts['features']:,}: whole samples have them all"
            self._leave_out(f"samples of {facts['num_features']:,} features", whole)
        memory = memory_bytes()
        self.too_large = memory is not None and bytes_of_all(facts) > memory

    def _leave_out(self, what: str, reason: str) -> None:
        self.absent.append((what, reason))

    def measure(self) -> None:
        """Important measurements first, each with the time that those before it may not use."""
        for part, measure in (
            (0.55, self._formats),
            (0.62, self._layouts),
            (0.62, self._codecs),
            (0.62, self._chunks),
            (0.68, self._workers),
            (0.68, self._prefetch),
            (0.68, self._decoding),
            (0.8, self._further_draws),
            (0.97, self._turns),
            (1, self._missing_memory),
        ):
            self.budget.allow(part)
            measure()

    # --- what is measured

    def _formats(self) -> None:
        """Each format on each tier."""
        for place, entry in enumerate(self.workload.entries):
            if self.request.formats is not None and entry.name not in self.request.formats:
                continue
            if not entry.installed:
                self._leave_out(entry.name, f"{entry.package} is not installed")
                continue
            for tier in self.tiers.values():
                if tier.local or entry.make().remote:
                    self._all_draws(place, tier, self._candidate(entry))
                else:
                    self._leave_out(f"{entry.name} on {tier.name}", "it reads local files only")

    def _layouts(self) -> None:
        """The other layouts of a point store, each read in all ways."""
        if self.unit == "points" and self.measured.where(format=OURS):
            for tier in self.tiers.values():
                for layout in get_args(Layout):
                    if layout != self.layout:
                        self._all_draws(0, tier, self._candidate(self.entries[OURS], layout=layout))

    def _codecs(self) -> None:
        """Codecs, with the fastest layout of each tier."""
        for tier in self.tiers.values():
            for best in self._of(tier).where(format=OURS).fastest[:1]:
                layout = best.candidate.layout
                for codec in codecs(self.codec)[1:]:
                    self._measure(tier, self._candidate(self.entries[OURS], codec, layout=layout))
                if self.unit == "points" and BOUNDED.installed:
                    self._measure(tier, self._candidate(BOUNDED, BOUNDED_CODEC, layout=layout))
        if self.unit == "points" and self.measured.where(format=OURS) and not BOUNDED.installed:
            self._leave_out(LOSSY, f"{BOUNDED.package} is not installed")

    def _chunks(self) -> None:
        """Chunk sizes, with the fastest codecs of each tier."""
        fast = []
        for tier in self.tiers.values():
            stores = self._of(tier).where(format=OURS).fastest
            fast.append([m for m in stores if m.median >= _NEAR * stores[0].median])
        for m in _firsts_first(fast):
            for size in self.workload.chunk_sizes[1:]:
                chosen = self._candidate(self.entries[OURS], m.candidate.codec, size, m.candidate.layout)
                self._measure(self.tiers[m.tier], chosen)

    def _workers(self) -> None:
        """The fastest settings with threads and with workers.

        More than one of them only if they can be the fastest: n are at most n times as fast as one.
        """
        for m in _firsts_first(map(self._fastest, self.tiers.values())):
            tier = self.tiers[m.tier]
            for one, *more in self._loaders(m):
                self._measure(tier, m.candidate, loader=one)
                found = self._of(tier)
                alone = found.where(candidate=m.candidate, loader=one)
                for loader in more:
                    if alone and _SPEEDUP * loader.parallel * alone[0].median < found.fastest[0].median:
                        what = f"{m.candidate.label}, {loader.words}, on {tier.name}"
                        rate = format_rate(alone[0].median)
                        self._leave_out(what, f"cannot be the fastest: {one.words} made {rate}/s")
                    else:
                        self._measure(tier, m.candidate, loader=loader)

    def _loaders(self, m: Measurement) -> Iterator[list[Loader]]:
        """Threads to compare, and workers; in ascending numbers. Threads come first: they take less time to measure."""
        counts = worker_counts(self._most_workers(m))
        reason = m.candidate.make().without_threads
        if reason:
            self._leave_out(f"{m.format} on {m.tier} with threads", reason)
        else:
            yield [Loader(threads=count) for count in counts]
        yield list(map(Loader, counts))

    def _most_workers(self, m: Measurement) -> int | None:
        """Workers or threads of a format that have something to read; None if any number has."""
        limits = []
        if m.candidate.make().streams:
            shards = len(list(self.local_copy(m.candidate).glob("*.tar")))
            limits.append((shards, f"the samples measured make {shards} shards"))
        if m.cold:  # only one epoch is timed
            batches = self._reading(m, "").epoch
            limits.append((batches, f"an epoch of the samples measured has {batches} batches"))
        if not limits:
            return None
        most, reason = min(limits)
        if most < worker_counts()[-1]:
            what = f"{m.format} on {m.tier} with more than {most} workers or threads"
            self._leave_out(what, f"{reason}; --limit sets their number")
        return most

    def _prefetch(self) -> None:
        """Deeper prefetching and pinned memory, where threads or workers are not slower than none."""
        if not torch.cuda.is_available():
            self._leave_out("pinned memory", "there is no CUDA device")
        for tier in self.tiers.values():
            for best in self._of(tier).fastest[:1]:
                if best.loader.parallel:
                    self._measure(tier, best.candidate, loader=replace(best.loader, prefetch=4))
                    if torch.cuda.is_available():
                        self._measure(tier, best.candidate, loader=replace(best.loader, pin=True))

    def _decoding(self) -> None:
        """The fastest settings, read from local files in memory: what is left without storage."""
        for tier in self.tiers.values():
            for m in self._fastest(tier)[:1]:
                self._measure_in_memory(m)
                self._measure_in_memory(self._of(tier).fastest[0])

    def _further_draws(self) -> None:
        for _, tier, chosen, reads in sorted(self._further, key=itemgetter(0)):
            self._measure(tier, chosen, reads)

    def _turns(self) -> None:
        take_turns([leaders(self._of(tier)) for tier in self.tiers.values()], self.budget, self._again)

    def _missing_memory(self) -> None:
        for tier in self.tiers.values():
            found = self._of(tier)
            if found and choose(found).memory is None:
                self._measure_in_memory(choose(found))

    # --- how it is measured

    def _candidate(self, format: Candidate, codec: str = "", chunk: int = 0, layout: str = "") -> Candidate:
        """A format with settings; by default those of the source."""
        return format.with_settings(codec or self.codec, chunk or self.workload.chunk_sizes[0], layout or self.layout)

    def _all_draws(self, place: int, tier: Tier, chosen: Candidate) -> None:
        """Measure the draws that the recommendation is for; the others later, in the order of their places."""
        for reads in chosen.reads or self.workload.draws:
            if reads == self.reads:
                self._measure(tier, chosen)
            else:
                self._further.append((place, tier, chosen, reads))

    def _measure(self, tier: Tier, chosen: Candidate, reads: str = "", loader: Loader = NO_WORKERS) -> None:
        """A measurement, if there is time; by default of the draws that the recommendation is for."""
        m = Measurement(tier.name, chosen, reads or self.reads, [], loader)
        settings = f", {loader.words}" if loader.parallel else ""
        name = f"{m.reads}: {chosen.label}{settings}, on {tier.name}"
        kind = f"{tier.name} {m.reads} {bool(loader.workers)} {chosen.copy not in tier.copies}"
        self.budget.take(name, kind, 3 + 3 * loader.workers, partial(self._measure_on, tier, m))

    def _measure_on(self, tier: Tier, m: Measurement, end: float) -> None:
        self._put(tier, m.candidate, end)
        began = time.monotonic()
        timing = self._time_cold(m, tier, end)
        m.cold = timing is not None
        dropped = m.cold or (not m.loader.workers and tier.drop_from_cache(m.candidate.copy))
        timing = timing or self._timer(m, tier.place(m.candidate.copy), end).epochs(cold=not m.loader.workers)
        m.took = time.monotonic() - began
        # Some filesystems lie in memory, and some of networks are not on a block device: then files may not be dropped.
        dropped = dropped and timing.from_device is not False
        if not m.loader.workers:
            tier.dropped = tier.dropped or dropped
        m.rates = timing.rates
        m.first = timing.first if dropped or not tier.local else None
        m.requests = None if tier.local or m.loader.parallel else timing.requests
        samples, found = self.workload.facts["samples"], tier.copies[m.candidate.copy]
        m.bytes = found["bytes"] / samples
        m.objects = found["objects"] / samples
        m.inodes = found["inodes"] / samples
        self.measured.append(m)

    def _put(self, tier: Tier, chosen: Candidate, end: float) -> None:
        if chosen.copy in tier.copies:
            return
        if tier.too_slow:  # another copy would use up the budget as well
            raise MeasurementError(tier.too_slow)
        tier.put(chosen.copy, self.local_copy(chosen), min(end - time.monotonic(), _COPYING * self.request.budget))

    def _timer(self, m: Measurement, place: str, end: float) -> Timer:
        end = min(end, time.monotonic() + _SHARE * self.request.budget)
        return Timer(self._reading(m, place), end, _REPETITIONS, self._seconds)

    def _time_cold(self, m: Measurement, tier: Tier, end: float) -> Timing | None:
        """Epochs whose files are dropped from memory before, if all data do not fit into it; None if that is not so."""
        # What workers read from devices is not known here: a measurement without them has shown that files are dropped.
        can_drop = not m.loader.workers or tier.dropped
        drop = partial(tier.drop_from_cache, m.candidate.copy)
        if not (self.too_large and tier.local and can_drop and drop()):
            return None
        timing = self._timer(m, tier.place(m.candidate.copy), end).first_epochs(drop)
        return None if timing.from_device is False else timing

    def _reading(self, m: Measurement, place: str) -> Reading:
        ready = str(self.local_copy(m.candidate))
        return Reading(m.candidate, place, self.workload.draws[m.reads], self.request.batch_size, m.loader, ready)

    def _measure_in_memory(self, m: Measurement) -> None:
        """The rate of a setting with its files in memory, if there is time."""

        def measure(end: float) -> None:
            timing = self._timer(m, str(self.local_copy(m.candidate)), end).epochs()
            for other in self.measured.where(candidate=m.candidate, reads=m.reads):
                if (other.loader.workers, other.loader.threads) == (m.loader.workers, m.loader.threads):
                    other.memory = statistics.median(timing.rates)

        self.budget.take(
            f"from memory: {m.setting}", f"memory {bool(m.loader.workers)}", 2 + 3 * m.loader.workers, measure
        )

    def _again(self, m: Measurement, end: float) -> None:
        """Measure a setting once more, in a turn."""
        tier = self.tiers[m.tier]
        if not m.cold:
            m.turns += self._timer(m, tier.place(m.candidate.copy), end).epochs().rates
        elif timing := self._time_cold(m, tier, end):
            m.turns += timing.rates

    # --- what there is

    def _of(self, tier: Tier) -> Measurements:
        """Measurements of what the recommendation is for, without the lossy ones, which it never names."""
        return self.measured.where(tier=tier.name, reads=self.reads).exact

    def _fastest(self, tier: Tier) -> list[Measurement]:
        """The fastest settings without workers and threads, of different formats, and the fastest store."""
        best: dict[str, Measurement] = {}
        for m in self._of(tier).where(loader=NO_WORKERS).fastest:
            best.setdefault(m.format, m)
        chosen = list(best.values())[: _WITH_WORKERS - 1]
        if OURS in best and best[OURS] not in chosen:
            chosen.append(best[OURS])
        return chosen

    def report(self) -> dict[str, Any]:
        """The content of ``shootout.json``."""
        if not self.measured:
            reason = ": ".join((self.budget.left_out or self.absent)[0])
            raise ZarrCoreError(f"nothing was measured; {reason}")
        for m in self.measured:  # counted where one batch is read at a time, in this process
            for alone in self.measured.where(tier=m.tier, candidate=m.candidate, reads=m.reads, loader=NO_WORKERS):
                m.requests = m.requests or alone.requests
        tiers = {}
        rates = {}
        for name, tier in self.tiers.items():
            tiers[name] = tier.facts | {"dropped_from_cache": tier.dropped}
            if tier.rate is not None:
                rates[name] = tier.rate
        facts = {**self.workload.facts, "codec": self.codec}
        batch_size, price = self.request.batch_size, self.request.price_per_1000_gets
        case = Case(self.measured, tiers, facts, rates, batch_size, price, self.too_large)
        not_measured = [*self.absent, *self.budget.left_out]
        return {
            "format": 1,
            "created": datetime.now(UTC).isoformat(timespec="minutes"),
            "environment": environment(),
            "workload": facts,
            "batch_size": batch_size,
            "budget_seconds": self.request.budget,
            "tiers": tiers,
            "copied_bytes_per_second": rates,
            "measurements": [m.to_document() for m in self.measured],
            "not_measured": [{"what": what, "reason": reason} for what, reason in not_measured],
            "verdict": judge(case),
        }


def worker_counts(most: int | None = None) -> list[int]:
    """Numbers of workers, and of threads, to compare with none; at most ``most``."""
    counts = {1, 2, min(cores(), 16)}
    return sorted(counts if most is None else {min(count, most) for count in counts})


def _firsts_first(by_tier: Iterable[list[Measurement]]) -> Iterator[Measurement]:
    """The first of each list, then the second ones, and so on."""
    return filter(None, chain.from_iterable(zip_longest(*by_tier)))
