"""What was measured of one way to read, and which of several is the best."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from zarr_core.shootout.candidates import LOSSY, NO_WORKERS, Candidate, Loader

# A setting that is at most this much slower than the best one may be named instead, if the error bars overlap.
_TOLERANCE = 0.05


@dataclass
class Measurement:
    """One way to read on one tier.

    Attributes:
        tier: name.
        candidate: format and settings.
        reads: name of the draws.
        rates: items per second of each repetition, in later epochs; items are samples, or features of a matrix.
        loader: who reads the batches.
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
    loader: Loader = NO_WORKERS
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
        return self.candidate.name

    @property
    def median(self) -> float:
        """Items per second."""
        return statistics.median(self.rates)

    @property
    def low(self) -> float:
        """First quartile of the repetitions."""
        return float(np.quantile(self.rates, 0.25))

    @property
    def high(self) -> float:
        """Third quartile of the repetitions."""
        return float(np.quantile(self.rates, 0.75))

    @property
    def setting(self) -> str:
        """Format and settings in words."""
        chosen = self.candidate
        layout = ", packed" * (chosen.layout == "packed")
        store = f", chunk_{chosen.unit} {chosen.chunk}, {chosen.codec}{layout}" if chosen.codec else ""
        return f"{self.format}{store}, {self.loader.words}"

    @property
    def waiting(self) -> dict[str, float | None]:
        """Share of the time that is spent waiting for storage: in the first epoch, and in later ones."""
        return {"first": self._waiting(self.first), "later": self._waiting(self.median)}

    def _waiting(self, rate: float | None) -> float | None:
        return None if rate is None or not self.memory else max(0.0, 1 - rate / self.memory)

    def is_slower(self, best: Measurement) -> bool:
        """Whether it can be told from the best one, or is more than 5 % slower."""
        return self is not best and (self.high < best.low or self.median < (1 - _TOLERANCE) * best.median)

    def to_document(self) -> dict[str, Any]:
        """For JSON."""
        chosen, loader = self.candidate, self.loader
        document = {each.name: getattr(self, each.name) for each in fields(self)} | vars(loader)
        for name in ("candidate", "took"):
            del document[name]
        document["turns"] = len(self.turns)
        document |= {"format": chosen.name, "codec": chosen.codec, f"chunk_{chosen.unit}": chosen.chunk}
        document |= {"layout": chosen.layout, "settings": chosen.settings, "loader": loader.words}
        return document | {"median": self.median, "low": self.low, "high": self.high, "waiting": self.waiting}


class Measurements(list[Measurement]):
    """Several of them."""

    def where(self, **wanted: object) -> Measurements:
        """Those whose attributes have these values."""
        found = Measurements(self)
        for name, value in wanted.items():
            found = Measurements(m for m in found if getattr(m, name) == value)
        return found

    @property
    def exact(self) -> Measurements:
        """Those that hold the values of the samples, not values within an error bound."""
        return Measurements(m for m in self if m.format != LOSSY)

    @property
    def fastest(self) -> Measurements:
        """The fastest first."""
        return Measurements(sorted(self, key=lambda m: -m.median))

    @property
    def comparable(self) -> Measurements:
        """Those that were compared in turns; all if none was."""
        return self.where(compared=True) or self


def choose(measured: Iterable[Measurement]) -> Measurement:
    """The recommended one: the fastest, or one that cannot be told from it and needs less.

    Among those whose error bars overlap with the fastest one's and whose median is within 5 %, the one with the fewest
    workers, then the fewest threads, then the fewest bytes. If some were compared in turns, only those.
    """
    found = Measurements(measured).comparable
    best = found.fastest[0]
    equal = [m for m in found if not m.is_slower(best)]
    return min(equal, key=lambda m: (m.loader.workers, m.loader.threads, m.loader.pin, m.bytes, -m.median))


def bytes_of_all(facts: Mapping[str, Any]) -> float:
    """Bytes of all samples of the dataset, uncompressed. An epoch of more than the memory finds no file in it."""
    size: float = facts["bytes_raw"] / facts["samples"] * facts["samples_total"]
    return size
