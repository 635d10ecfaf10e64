"""Plans and takes all measurements of a shootout."""

from __future__ import annotations

import math
import statistics
import tempfile
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, get_args

from tqdm import tqdm

from zarr_core.errors import SourceError, ZarrCoreError
from zarr_core.format.codecs import BOUNDED_CODEC, DEFAULT_CODEC, Codec
from zarr_core.matrix.store.head import HEAD as MATRIX
from zarr_core.points.store.settings import ConversionSettings, Layout
from zarr_core.reports.environment import cores, environment, memory_bytes
from zarr_core.shootout.candidates import BOUNDED, LOSSY, NO_WORKERS, OURS, Candidate, Loader, candidate, codecs
from zarr_core.shootout.formats import Entry
from zarr_core.shootout.loading import Reading, Timer, Timing
from zarr_core.shootout.measurement import Case, Measurement, Measurements, bytes_of_all, choose
from zarr_core.shootout.planner import MeasurementError, Planner, Step
from zarr_core.shootout.request import ShootoutRequest
from zarr_core.shootout.tiers import Copies, Tier
from zarr_core.shootout.turns import Turns, leaders
from zarr_core.shootout.verdict import format_rate, judge
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
# Parts of the time after which no more steps of these priorities run, so that those which follow fit: formats, settings
# of stores, threads and workers, further draws, turns.
_PARTS = {1: 0.55, 2: 0.62, 3: 0.68, 4: 0.8, 5: 0.97}


def measure_all(request: ShootoutRequest) -> dict[str, Any]:
    """Everything that the budget allows; the content of ``shootout.json``.

    Raises:
        ZarrCoreError: nothing could be measured; the message has the first reason.
        StoreError, SourceError: the source or a tier cannot be used.
    """
    with ExitStack() as cleanup:
        bar = _Bar(total=1, unit="measurement", desc="shootout", disable=not request.progress)
        cleanup.enter_context(bar)
        planner = Planner(request.budget * (1 - _RESERVE), show=bar.show, parts=_PARTS)
        tiers = [cleanup.enter_context(Tier(name, place)) for name, place in request.tiers.items()]
        folder = Path(cleanup.enter_context(tempfile.TemporaryDirectory(prefix="zarr-core-shootout-")))
        end = time.monotonic() + _TAKING * request.budget
        run = _Run(request, tiers, take_workload(request, folder, end), folder)
        planner.add(run.first_steps())
        planner.run()
        return run.report(planner)


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


class _Bar(tqdm):  # type: ignore[type-arg]
    """The progress bar: steps done, and what is left of the budget."""

    def show(self, name: str, done: int, known: int, left: float) -> None:
        """See :class:`Planner`."""
        self.total, self.n = known, done
        minutes, seconds = divmod(round(max(left, 0)), 60)
        self.set_postfix_str(f"{minutes}:{seconds:02d} of the budget left; {name}")


class _Run:
    """State of one shootout.

    Attributes:
        measured: so far.
        absent: what cannot be measured, and why.
        reads: name of the draws that the recommendation is for.
    """

    def __init__(self, request: ShootoutRequest, tiers: list[Tier], workload: Workload, folder: Path) -> None:
        self.request, self.workload = request, workload
        self.tiers = {tier.name: tier for tier in tiers}
        self.measured = Measurements()
        self.absent: list[tuple[str, str]] = []
        self.copies = Copies(workload.samples, folder)
        self.turns = Turns(self._again, time.monotonic)
        self._seconds = min(max(request.budget * _PART, _SHORTEST), _LONGEST)
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

    # --- steps

    def first_steps(self) -> Iterable[Step]:
        """Each format on each tier; later steps follow from their results."""
        for place, entry in enumerate(self.workload.entries):
            if self.request.formats is not None and entry.name not in self.request.formats:
                continue
            if not entry.installed:
                self._leave_out(entry.name, f"{entry.package} is not installed")
                continue
            for number, tier in enumerate(self.tiers.values()):
                if not tier.local and not entry.make().remote:
                    self._leave_out(f"{entry.name} on {tier.name}", "it reads local files only")
                    continue
                for reads in entry.reads or self.workload.draws:
                    priority = 1 if reads == self.reads else 4
                    yield self._reading((priority, place, number), tier, self._candidate(entry), reads)
        yield Step((2,), "choice of store settings", self._sweep)
        yield Step((3,), "choice of threads and workers", self._workers)
        yield Step((3, 8), "choice of prefetching", self._prefetch)
        yield Step((3, 9), "choice of the fastest", self._decoding)
        yield Step((5,), "choice of finalists", self._finalists)

    def _candidate(
        self, entry: Entry, codec: str | None = None, chunk: int | None = None, layout: Any = None
    ) -> Candidate:
        """A format with settings; by default those of the source."""
        chunk = chunk or self.workload.chunk_sizes[0]
        return candidate(entry, codec or self.codec, chunk, self.unit, layout or self.layout)

    def _reading(
        self,
        priority: tuple[int, ...],
        tier: Tier,
        chosen: Candidate,
        reads: str | None = None,
        loader: Loader = NO_WORKERS,
    ) -> Step:
        """A measurement; by default of the draws that the recommendation is for."""
        m = Measurement(tier.name, chosen, reads or self.reads, [], loader)
        settings = f", {loader.words}" if loader.parallel else ""
        kind = f"{tier.name} {m.reads} {bool(loader.workers)} {chosen.copy not in tier.copies}"
        return Step(
            priority,
            f"{m.reads}: {chosen.label}{settings}, on {tier.name}",
            partial(self._measure, m, tier),
            kind,
            3 + 3 * loader.workers,
        )

    def _measure(self, m: Measurement, tier: Tier, end: float) -> None:
        if tier.local or not m.workers:
            self._put(tier, m.candidate, end)
        began = time.monotonic()
        timing = self._time_cold(m, tier, end)
        m.cold = timing is not None
        dropped = m.cold or (not m.workers and tier.drop_from_cache(m.candidate.copy))
        timing = timing or self._time(m, tier.place(m.candidate.copy), end, cold=not m.workers)
        m.took = time.monotonic() - began
        # Some filesystems lie in memory, and some of networks are not on a block device: then files may not be dropped.
        dropped = dropped and timing.from_device is not False
        if not m.workers:
            tier.dropped = tier.dropped or dropped
        m.rates = timing.rates
        m.first = timing.first if dropped or not tier.local else None
        m.requests = None if tier.local or m.loader.parallel else timing.requests
        samples, found = len(self.workload.samples.ids), self.copies.footprint(m.candidate)
        m.bytes = found["bytes"] / samples
        m.objects = found["objects"] / samples
        m.inodes = found["inodes"] / samples
        self.measured.append(m)

    def _put(self, tier: Tier, chosen: Candidate, end: float) -> None:
        if chosen.copy in tier.copies:
            return
        if tier.too_slow:  # another copy would use up the budget as well
            raise MeasurementError(tier.too_slow)
        folder = self.copies.local(chosen)
        tier.put(chosen.copy, folder, min(end - time.monotonic(), _COPYING * self.request.budget))

    def _timer(self, m: Measurement, place: str, end: float) -> Timer:
        reading = self._what(m, place)
        end = min(end, time.monotonic() + _SHARE * self.request.budget)
        return Timer(reading, end, _REPETITIONS, self._seconds)

    def _time(self, m: Measurement, place: str, end: float, cold: bool = False) -> Timing:
        return self._timer(m, place, end).epochs(cold)

    def _time_cold(self, m: Measurement, tier: Tier, end: float) -> Timing | None:
        """Epochs whose files are dropped from memory before, if all data do not fit into it; None if that is not so."""
        # What workers read from devices is not known here: a measurement without them has shown that files are dropped.
        can_drop = not m.workers or tier.dropped
        drop = partial(tier.drop_from_cache, m.candidate.copy)
        if not (self.too_large and tier.local and can_drop and drop()):
            return None
        timing = self._timer(m, tier.place(m.candidate.copy), end).first_epochs(drop)
        return None if timing.from_device is False else timing

    def _what(self, m: Measurement, place: str) -> Reading:
        ready = str(self.copies.local(m.candidate))
        return Reading(m.candidate.entry, place, self.workload.draws[m.reads], self.request.batch_size, m.loader, ready)

    def _sweep(self, _: float) -> Iterable[Step]:
        """Layouts, each read in all ways; then codecs with the fastest one; then chunk sizes with the best codecs."""
        if not self.measured.where(format=OURS):
            return
        others = [layout for layout in get_args(Layout) if layout != self.layout] if self.unit == "points" else []
        for number, tier in enumerate(self.tiers.values()):
            for layout in others:
                chosen = self._candidate(self.entries[OURS], layout=layout)
                for reads in self.workload.draws:
                    priority = 2 if reads == self.reads else 4
                    yield self._reading((priority, 0, number), tier, chosen, reads)
        yield Step((2, 1), "choice of a layout", self._codecs)

    def _codecs(self, _: float) -> Iterable[Step]:
        for number, tier in enumerate(self.tiers.values()):
            for best in self._of(tier).where(format=OURS).fastest[:1]:
                for codec in codecs(self.codec)[1:]:
                    chosen = self._candidate(self.entries[OURS], codec, layout=best.candidate.layout)
                    yield self._reading((2, 2, number), tier, chosen)
                if self.unit == "points" and BOUNDED.installed:
                    chosen = self._candidate(BOUNDED, BOUNDED_CODEC, layout=best.candidate.layout)
                    yield self._reading((2, 2, number, 1), tier, chosen)
        if self.unit == "points" and not BOUNDED.installed:
            self._leave_out(LOSSY, f"{BOUNDED.package} is not installed")
        yield Step((2, 3), "choice of a codec", self._chunks)

    def _chunks(self, _: float) -> Iterable[Step]:
        for number, tier in enumerate(self.tiers.values()):
            stores = self._of(tier).where(format=OURS).fastest
            for place, m in enumerate(stores):
                if m.median < _NEAR * stores[0].median:
                    break
                for size in self.workload.chunk_sizes[1:]:
                    chosen = self._candidate(self.entries[OURS], m.candidate.codec, size, m.candidate.layout)
                    yield self._reading((2, 4, place, number), tier, chosen)

    def _workers(self, _: float) -> Iterable[Step]:
        """The fastest settings with a thread and with a worker; more follow."""
        for number, tier in enumerate(self.tiers.values()):
            for place, m in enumerate(self._fastest(tier)):
                for kind, (one, *more) in enumerate(self._loaders(m)):
                    priority = (3, place, number, kind)
                    yield self._reading(priority, tier, m.candidate, loader=one)
                    choice = partial(self._more_workers, tier, m.candidate, one, more, priority)
                    yield Step((*priority, 0), f"choice of {one.words}", choice)

    def _loaders(self, m: Measurement) -> Iterable[list[Loader]]:
        """Threads to compare, and workers; in ascending numbers. Threads come first: they take less time to measure."""
        counts = worker_counts(self._most_workers(m))
        reason = m.candidate.entry.make().without_threads
        if reason:
            self._leave_out(f"{m.format} on {m.tier} with threads", reason)
        else:
            yield [Loader(threads=count) for count in counts]
        yield list(map(Loader, counts))

    def _more_workers(
        self, tier: Tier, chosen: Candidate, one: Loader, more: Sequence[Loader], priority: tuple[int, ...], _: float
    ) -> Iterable[Step]:
        """More threads or workers than one, unless they cannot be the fastest: n are at most n times as fast as one."""
        found = self._of(tier)
        alone = found.where(candidate=chosen, loader=one)
        for loader in more:
            if alone and _SPEEDUP * loader.parallel * alone[0].median < found.fastest[0].median:
                what = f"{chosen.label}, {loader.words}, on {tier.name}"
                self._leave_out(what, f"cannot be the fastest: {one.words} made {format_rate(alone[0].median)}/s")
                continue
            yield self._reading((*priority, loader.parallel), tier, chosen, loader=loader)

    def _most_workers(self, m: Measurement) -> int | None:
        """Workers or threads of a format that have something to read; None if any number has."""
        limits = []
        if m.candidate.entry.make().streams:
            shards = self.copies.footprint(m.candidate)["objects"]
            limits.append((shards, f"the samples measured make {shards} shards"))
        if m.cold:  # only one epoch is timed
            batches = self._what(m, "").epoch
            limits.append((batches, f"an epoch of the samples measured has {batches} batches"))
        if not limits:
            return None
        most, reason = min(limits)
        if most < worker_counts()[-1]:
            what = f"{m.format} on {m.tier} with more than {most} workers or threads"
            self._leave_out(what, f"{reason}; --limit sets their number")
        return most

    def _prefetch(self, _: float) -> Iterable[Step]:
        """Deeper prefetching and pinned memory, where threads or workers are not slower than none."""
        import torch

        if not torch.cuda.is_available():
            self._leave_out("pinned memory", "there is no CUDA device")
        for number, tier in enumerate(self.tiers.values()):
            for best in self._of(tier).fastest[:1]:
                if not best.loader.parallel:
                    continue
                deeper, pinned = replace(best.loader, prefetch=4), replace(best.loader, pin=True)
                yield self._reading((3, 8, 1, number), tier, best.candidate, loader=deeper)
                if torch.cuda.is_available():
                    yield self._reading((3, 8, 2, number), tier, best.candidate, loader=pinned)

    def _decoding(self, _: float) -> Iterable[Step]:
        """The fastest settings, read from local files in memory: what is left without storage."""
        for tier in self.tiers.values():
            for m in self._fastest(tier)[:1]:
                yield self._from_memory(m)
                yield self._from_memory(self._of(tier).fastest[0])

    def _from_memory(self, m: Measurement, priority: tuple[int, ...] = (3, 9, 1)) -> Step:
        def work(end: float) -> None:
            timing = self._time(m, str(self.copies.local(m.candidate)), end)
            same = self.measured.where(candidate=m.candidate, reads=m.reads, workers=m.workers, threads=m.threads)
            for other in same:
                other.memory = statistics.median(timing.rates)

        return Step(priority, f"from memory: {m.setting}", work, f"memory {bool(m.workers)}", 2 + 3 * m.workers)

    def _finalists(self, end: float) -> Iterable[Step]:
        yield from self.turns.begin([leaders(self._of(tier)) for tier in self.tiers.values()], end)
        yield Step((6,), "choice of the fastest", self._missing_memory)

    def _again(self, m: Measurement, end: float) -> list[float]:
        tier = self.tiers[m.tier]
        timing = self._time_cold(m, tier, end) if m.cold else self._time(m, tier.place(m.candidate.copy), end)
        return timing.rates if timing else []

    def _missing_memory(self, _: float) -> Iterable[Step]:
        for tier in self.tiers.values():
            found = self._of(tier)
            if found and choose(found).memory is None:
                yield self._from_memory(choose(found), (6, 1))

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

    def report(self, planner: Planner) -> dict[str, Any]:
        """The content of ``shootout.json``."""
        if not self.measured:
            reason = ": ".join((planner.not_run or self.absent)[0])
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
        case = Case(self.measured, tiers, facts, rates, batch_size, price, memory_bytes())
        not_measured = [*self.absent, *planner.not_run, *self.turns.left_out]
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
