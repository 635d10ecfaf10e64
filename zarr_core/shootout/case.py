"""What a verdict rests on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from zarr_core.shootout.measurement import Measurement
from zarr_core.storage import absolute


def number_of_samples(facts: Mapping[str, Any]) -> int:
    """Samples of the whole dataset, or those measured if its number is not known."""
    found: int = facts["samples_total"] or facts["samples"]
    return found


def bytes_of_all(facts: Mapping[str, Any]) -> float:
    """Bytes of all samples of the dataset, uncompressed. An epoch of more than the memory finds no file in it."""
    size: float = facts["bytes_raw"] / facts["samples"] * number_of_samples(facts)
    return size


@dataclass(frozen=True)
class Case:
    """Measurements, and where the source and the tiers lie.

    Attributes:
        measured: everything that was measured; at least one.
        tiers: facts of each tier by name.
        facts: of the workload.
        copy_rates: bytes per second that were written to each tier.
        batch_size: samples per batch.
        price_per_1000_gets: of an object store.
        memory_bytes: of this machine.
    """

    measured: Sequence[Measurement]
    tiers: Mapping[str, Mapping[str, Any]]
    facts: Mapping[str, Any]
    copy_rates: Mapping[str, float]
    batch_size: int
    price_per_1000_gets: float | None = None
    memory_bytes: int | None = None

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
