"""Plans and takes all measurements of a shootout."""

from __future__ import annotations

import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from tqdm import tqdm

from zarr_core._util.arguments import whole_number
from zarr_core.errors import SourceError, ZarrCoreError
from zarr_core.format.codecs import DEFAULT_CODEC, Codec
from zarr_core.matrix.store.state import HEAD as MATRIX
from zarr_core.reports.environment import environment
from zarr_core.shootout.candidates import OURS, Candidate, candidate, codecs
from zarr_core.shootout.formats import Entry
from zarr_core.shootout.formats.samples import Samples
from zarr_core.shootout.loading import Reading, Timing, time_first_epochs, time_reading
from zarr_core.shootout.matrix_workload import take_matrix
from zarr_core.shootout.planner import MeasurementError, Planner, Step
from zarr_core.shootout.tiers import Tier, TooSlowError, footprint
from zarr_core.shootout.turns import Turns, leaders
from zarr_core.shootout.verdict import Measurement, choose, exceeds_memory, judge
from zarr_core.shootout.workload import Workload, take_points
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
# How many of the fastest settings of a tier are measured with workers.
_WITH_WORKERS = 3
# How close to the fastest a codec is that is measured with all chunk sizes.
_NEAR = 0.7
# Parts of the time after which no more steps of these priorities run, so that those which follow fit: formats, settings
# of stores, workers, further draws, turns.
_PARTS = {1: 0.55, 2: 0.62, 3: 0.68, 4: 0.8, 5: 0.97}


@dataclass(frozen=True)
class Options:
    """Arguments of :func:`zarr_core.shootout.run_shootout`."""

    source: str
    tiers: dict[str, str]
    budget: float
    dataset_kind: str | None = None
    num_surface_points: int = 4096
    num_volume_points: int = 4096
    num_features: int = 1000
    batch_size: int = 8
    samples: int | None = None
    formats: tuple[str, ...] | None = None
    price_per_1000_gets: float | None = None
    progress: bool = False

    def __post_init__(self) -> None:
        for name in ("num_surface_points", "num_volume_points", "num_features", "batch_size", "samples"):
            if name != "samples" or self.samples is not None:
                whole_number(name, getattr(self, name), 1)
        if not self.budget > 0:
            raise ZarrCoreError(f"budget must be positive, not {self.budget}")
        if not self.tiers:
            raise ZarrCoreError("tiers must name at least one folder or URL")


def measure_all(options: Options) -> dict[str, Any]:
    """Everything that the budget allows; the content of ``shootout.json``.

    Raises:
        ZarrCoreError: nothing could be measured; the message has the first reason.
        StoreError, SourceError: the source or a tier cannot be used.
    """
    with ExitStack() as cleanup:
        bar = _Bar(total=1, unit="measurement", desc="shootout", disable=not options.progress)
        cleanup.enter_context(bar)
        planner = Planner(options.budget * (1 - _RESERVE), progress=bar, parts=_PARTS)
        tiers = [cleanup.enter_context(Tier(name, place)) for name, place in options.tiers.items()]
        folder = Path(cleanup.enter_context(tempfile.TemporaryDirectory(prefix="zarr-core-shootout-")))
        end = time.monotonic() + _TAKING * options.budget
        run = _Run(options, tiers, take_workload(options, folder, end), folder)
        planner.add(run.first_steps())
        planner.run()
        return run.report(planner)


def take_workload(options: Options, folder: Path, end: float = math.inf) -> Workload:
    """Samples of whatever is at the source, below a local folder.

    Args:
        options: of the shootout.
        folder: local.
        end: time of ``time.monotonic`` after which no further samples are taken.

    Raises:
        ZarrCoreError: there is nothing to measure, or no format of that name.
        StoreError, SourceError: the source cannot be read.
    """
    if Storage(options.source).exists(MATRIX.name):
        workload = take_matrix(
            options.source,
            folder,
            limit=options.samples,
            num_features=options.num_features,
            batch_size=options.batch_size,
            end=end,
        )
    else:
        workload = take_points(
            options.source,
            options.dataset_kind,
            folder,
            limit=options.samples,
            num_surface_points=options.num_surface_points,
            num_volume_points=options.num_volume_points,
            end=end,
        )
    known = [entry.name for entry in workload.entries]
    for name in options.formats or ():
        if name not in known:
            raise ZarrCoreError(f"no format {name!r}; formats are {', '.join(known)}")
    return workload


class _Bar(tqdm):  # type: ignore[type-arg]
    """The progress bar: steps done, and what is left of the budget."""

    def show(self, name: str, done: int, known: int, left: float) -> None:
        """See :class:`zarr_core.shootout.planner.Progress`."""
        self.total, self.n = known, done
        minutes, seconds = divmod(round(max(left, 0)), 60)
        self.set_postfix_str(f"{minutes}:{seconds:02d} of the budget left; {name}")


class _Run:
    """State of one shootout."""

    def __init__(self, options: Options, tiers: list[Tier], workload: Workload, folder: Path) -> None:
        self.options, self.tiers, self.workload, self.folder = options, tiers, workload, folder
        self.measured: list[Measurement] = []
        self.absent: list[tuple[str, str]] = []
        self.turns = Turns(self._again, time.monotonic)
        self.footprints: dict[str, dict[str, int]] = {}
        self.copied: dict[str, list[float]] = {tier.name: [0.0, 0.0] for tier in tiers}
        self.cold: dict[str, bool] = {}
        self._on_tier: set[tuple[str, str]] = set()
        self._too_slow: dict[str, str] = {}
        # Before the copies take room.
        self.tier_facts = {tier.name: tier.facts() for tier in tiers}
        self._seconds = min(max(options.budget * _PART, _SHORTEST), _LONGEST)
        facts = workload.facts
        self.reads, self.unit = next(iter(workload.draws)), facts["unit"]
        try:
            self.codec = str(Codec.parse(facts["codec"]))
        except SourceError:  # another program has written the store, with a codec that this library does not write
            self.codec = str(Codec.parse(DEFAULT_CODEC))
        self.entries = {entry.name: entry for entry in workload.entries}
        if facts["other_fields"]:
            self.absent.append(
                (f"{facts['other_fields']} samples", "their fields differ from those of the first sample")
            )
        if self.unit == "features" and "selected" not in workload.draws:
            whole = f"the matrix has {facts['features']:,}: whole samples have them all"
            self.absent.append((f"samples of {facts['num_features']:,} features", whole))
        self.too_large = exceeds_memory(facts, _memory_bytes())

    # --- steps

    def first_steps(self) -> Iterable[Step]:
        """Each format on each tier; later steps follow from their results."""
        for place, entry in enumerate(self.workload.entries):
            if self.options.formats is not None and entry.name not in self.options.formats:
                continue
            if not entry.installed:
                self.absent.append((entry.name, f"{entry.package} is not installed"))
                continue
            for number, tier in enumerate(self.tiers):
                if not tier.local and not entry.make().remote:
                    self.absent.append((f"{entry.name} on {tier.name}", "it reads local files only"))
                    continue
                for reads in entry.reads or self.workload.draws:
                    priority = 1 if reads == self.reads else 4
                    yield self._reading((priority, place, number), tier, self._candidate(entry), reads)
        yield Step((2,), "choice of store settings", "choice", 0, lambda _: self._sweep())
        yield Step((3,), "choice of workers", "choice", 0, lambda _: self._workers())
        yield Step((3, 8), "choice of prefetching", "choice", 0, lambda _: self._prefetch())
        yield Step((3, 9), "choice of the fastest", "choice", 0, lambda _: self._decoding())
        yield Step((5,), "choice of finalists", "choice", 0, self._finalists)

    def _candidate(self, entry: Entry, codec: str | None = None, chunk: int | None = None) -> Candidate:
        """A format with settings; by default those of the source."""
        return candidate(entry, codec or self.codec, chunk or self.workload.chunk_sizes[0], self.unit)

    def _reading(
        self,
        priority: tuple[int, ...],
        tier: Tier,
        chosen: Candidate,
        reads: str,
        workers: int = 0,
        prefetch: int = 2,
        pin: bool = False,
    ) -> Step:
        settings = (
            f", {workers} worker{'s' * (workers > 1)}, prefetch_factor {prefetch}" + ", pinned" * pin if workers else ""
        )
        name = f"{reads}: {chosen.label}{settings}, on {tier.name}"
        m = Measurement(tier.name, chosen, reads, [], workers, prefetch, pin)

        def work(end: float) -> None:
            if tier.local or not workers:
                self._put(tier, chosen, end)
            began = time.monotonic()
            timing = self._time_cold(m, tier, end)
            m.cold = timing is not None
            dropped = m.cold or (not workers and tier.drop_from_cache(chosen.copy))
            timing = timing or self._time(m, tier.place(chosen.copy), end, cold=not workers)
            m.took = time.monotonic() - began
            # Some filesystems lie in memory, and some networks' are no block device: then the files may not be dropped.
            dropped = dropped and timing.from_device is not False
            if not workers:
                self.cold[tier.name] = self.cold.get(tier.name, False) or dropped
            m.rates = timing.rates
            m.first = timing.first if dropped or not tier.local else None
            m.requests = None if tier.local else timing.requests
            samples, found = len(self.workload.samples.ids), self._footprint(chosen)
            m.bytes, m.objects, m.inodes = (found[key] / samples for key in ("bytes", "objects", "inodes"))
            self.measured.append(m)

        new = (tier.name, chosen.copy) not in self._on_tier
        kind = f"{tier.name} {reads} {bool(workers)} {new}"
        return Step(priority, name, kind, 3 + 3 * workers, work)

    def _time(self, m: Measurement, place: str, end: float, cold: bool = False) -> Timing:
        reading, end = self._what(m, place), self._share(end)
        return time_reading(reading, seconds=self._seconds, repetitions=_REPETITIONS, end=end, cold=cold)

    def _time_cold(self, m: Measurement, tier: Tier, end: float) -> Timing | None:
        """Epochs whose files are dropped from memory before, if all data do not fit into it; None if that is not so."""
        copy = m.candidate.copy
        # What workers read from devices is not known here: a measurement without them has shown that files are dropped.
        can_drop = not m.workers or self.cold.get(tier.name, False)
        if not (self.too_large and tier.local and can_drop and tier.drop_from_cache(copy)):
            return None
        reading, end = self._what(m, tier.place(copy)), self._share(end)
        drop = partial(tier.drop_from_cache, copy)
        timing = time_first_epochs(reading, drop=drop, repetitions=_REPETITIONS, end=end)
        return None if timing.from_device is False else timing

    def _what(self, m: Measurement, place: str) -> Reading:
        draws, size = self.workload.draws[m.reads], self.options.batch_size
        ready = str(self._prepared(m.candidate))
        return Reading(m.candidate.entry, place, draws, size, m.workers, m.prefetch, m.pin, ready)

    def _share(self, end: float) -> float:
        return min(end, time.monotonic() + _SHARE * self.options.budget)

    def _sweep(self) -> Iterable[Step]:
        """Codecs, and then chunk sizes with the fastest codecs."""
        if not any(m.format == OURS for m in self.measured):
            return
        for number, tier in enumerate(self.tiers):
            for codec in codecs(self.codec)[1:]:
                yield self._reading((2, 1, number), tier, self._candidate(self.entries[OURS], codec), self.reads)
        yield Step((2, 2), "choice of a codec", "choice", 0, lambda _: self._chunks())

    def _chunks(self) -> Iterable[Step]:
        for number, tier in enumerate(self.tiers):
            stores = sorted(self._of(tier, OURS), key=lambda m: -m.median)
            for place, m in enumerate(m for m in stores if m.median >= _NEAR * stores[0].median):
                for size in self.workload.chunk_sizes[1:]:
                    chosen = self._candidate(self.entries[OURS], m.candidate.codec, size)
                    yield self._reading((2, 3, place, number), tier, chosen, self.reads)

    def _workers(self) -> Iterable[Step]:
        for number, tier in enumerate(self.tiers):
            for place, m in enumerate(self._fastest(tier)):
                for workers in worker_counts(self._most_workers(m)):
                    yield self._reading((3, place, number, workers), tier, m.candidate, self.reads, workers)

    def _most_workers(self, m: Measurement) -> int | None:
        """Workers of a format that have something to read; None if any number has."""
        limits = []
        if m.candidate.entry.make().streams:
            shards = self._footprint(m.candidate)["objects"]
            limits.append((shards, f"the samples measured make {shards} shards"))
        if m.cold:  # only one epoch is timed
            batches = self._what(m, "").epoch
            limits.append((batches, f"an epoch of the samples measured has {batches} batches"))
        if not limits:
            return None
        most, reason = min(limits)
        if most < worker_counts()[-1]:
            what = f"{m.format} on {m.tier} with more than {most} workers"
            self.absent.append((what, f"{reason}; --limit sets their number"))
        return most

    def _prefetch(self) -> Iterable[Step]:
        """Deeper prefetching and pinned memory, where workers are not slower than none."""
        import torch

        if not torch.cuda.is_available():
            self.absent.append(("pinned memory", "there is no CUDA device"))
        for number, tier in enumerate(self.tiers):
            found = self._of(tier)
            if not found or not (best := max(found, key=lambda m: m.median)).workers:
                continue
            yield self._reading((3, 8, 1, number), tier, best.candidate, self.reads, best.workers, 4)
            if torch.cuda.is_available():
                yield self._reading((3, 8, 2, number), tier, best.candidate, self.reads, best.workers, 2, True)

    def _decoding(self) -> Iterable[Step]:
        """The fastest settings, read from local files in memory: what is left without storage."""
        for tier in self.tiers:
            for m in self._fastest(tier)[:1]:
                for like in (m, max(self._of(tier), key=lambda found: found.median)):
                    yield self._from_memory(like)

    def _from_memory(self, m: Measurement) -> Step:
        def work(end: float) -> None:
            timing = self._time(m, str(self._prepared(m.candidate)), end)
            rate = statistics.median(timing.rates)
            for other in self.measured:
                if (other.candidate, other.reads, other.workers) == (m.candidate, m.reads, m.workers):
                    other.memory = rate

        return Step((3, 9, 1), f"from memory: {m.setting}", f"memory {bool(m.workers)}", 2 + 3 * m.workers, work)

    def _finalists(self, end: float) -> Iterable[Step]:
        yield from self.turns.begin([leaders(self._of(tier)) for tier in self.tiers], end)
        yield Step((6,), "choice of the fastest", "choice", 0, lambda _: self._missing_memory())

    def _again(self, m: Measurement, end: float) -> list[float]:
        (tier,) = (tier for tier in self.tiers if tier.name == m.tier)
        timing = self._time_cold(m, tier, end) if m.cold else self._time(m, tier.place(m.candidate.copy), end)
        return timing.rates if timing else []

    def _missing_memory(self) -> Iterable[Step]:
        for tier in self.tiers:
            found = self._of(tier)
            if found and (m := choose(found)).memory is None:
                yield replace(self._from_memory(m), priority=(6, 1))

    # --- what there is

    def _of(self, tier: Tier, format: str | None = None) -> list[Measurement]:
        """Measurements of what the recommendation is for."""
        of_tier = [m for m in self.measured if m.tier == tier.name and m.reads == self.reads]
        return [m for m in of_tier if format in (None, m.format)]

    def _fastest(self, tier: Tier) -> list[Measurement]:
        """The fastest settings without workers, of different formats, and the fastest store."""
        found = sorted((m for m in self._of(tier) if not m.workers), key=lambda m: -m.median)
        best: dict[str, Measurement] = {}
        for m in found:
            best.setdefault(m.format, m)
        chosen = list(best.values())[: _WITH_WORKERS - 1]
        return chosen + [m for m in best.values() if m.format == OURS and m not in chosen]

    def _put(self, tier: Tier, chosen: Candidate, end: float) -> None:
        key = (tier.name, chosen.copy)
        if key in self._on_tier:
            return
        if tier.name in self._too_slow:  # another copy would use up the budget as well
            raise MeasurementError(self._too_slow[tier.name])
        folder = self._prepared(chosen)
        try:
            seconds = tier.put(chosen.copy, folder, min(end - time.monotonic(), _COPYING * self.options.budget))
        except TooSlowError as error:
            self._too_slow[tier.name] = str(error)
            raise
        self._on_tier.add(key)
        self.copied[tier.name][0] += self._footprint(chosen)["bytes"]
        self.copied[tier.name][1] += seconds

    def _prepared(self, chosen: Candidate) -> Path:
        folder = self.folder / "copies" / chosen.copy
        if folder.is_dir():
            return folder
        samples = self.workload.samples
        if chosen.entry.factory.endswith(":IndexedTars"):
            store = self._prepared(self._candidate(self.entries[OURS]))
            samples = Samples(samples.folder, store / "store")
        building = folder.with_name(f"{folder.name}.building")
        building.mkdir(parents=True)
        self._guarded(lambda: chosen.entry.make().prepare(samples, building))
        building.rename(folder)
        return folder

    @staticmethod
    def _guarded(prepare: Callable[[], None]) -> None:
        try:
            prepare()
        except (ZarrCoreError, OSError):
            raise
        # A format is another library, which may raise anything; one of them must not end the others.
        except Exception as error:
            raise MeasurementError(f"{type(error).__name__}: {error}") from error

    def _footprint(self, chosen: Candidate) -> dict[str, int]:
        if chosen.copy not in self.footprints:
            self.footprints[chosen.copy] = footprint(self._prepared(chosen))
        return self.footprints[chosen.copy]

    def report(self, planner: Planner) -> dict[str, Any]:
        """The content of ``shootout.json``."""
        not_measured = [*self.absent, *planner.not_run, *self.turns.left_out]
        if not self.measured:
            reason = ": ".join((planner.not_run or self.absent)[0])
            raise ZarrCoreError(f"nothing was measured; {reason}")
        counted = {(m.tier, m.candidate, m.reads): m.requests for m in self.measured if m.requests}
        for m in self.measured:  # workers are processes of their own, which count for themselves
            m.requests = m.requests or counted.get((m.tier, m.candidate, m.reads))
        tiers = {name: {**found, "dropped_from_cache": self.cold.get(name)} for name, found in self.tier_facts.items()}
        rates = {name: size / seconds for name, (size, seconds) in self.copied.items() if seconds}
        facts = {**self.workload.facts, "codec": self.codec}
        verdict = judge(
            self.measured,
            tiers,
            facts,
            rates,
            batch_size=self.options.batch_size,
            price_per_1000_gets=self.options.price_per_1000_gets,
            memory_bytes=_memory_bytes(),
        )
        return {
            "format": 1,
            "created": datetime.now(UTC).isoformat(timespec="minutes"),
            "environment": environment(),
            "workload": facts,
            "batch_size": self.options.batch_size,
            "budget_seconds": self.options.budget,
            "tiers": tiers,
            "copied_bytes_per_second": rates,
            "measurements": [m.to_document() for m in self.measured],
            "not_measured": [{"what": what, "reason": reason} for what, reason in not_measured],
            "verdict": verdict,
        }


def worker_counts(most: int | None = None) -> list[int]:
    """Numbers of DataLoader workers to compare with none, at most ``most``."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return sorted({min(count, most or count) for count in (1, 2, min(cores, 16))})


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return None
