"""What the wide matrix asks of a warehouse that holds measurements long: a row a sample and feature."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class LongColumns:
    """Names of a long table's columns.

    Attributes:
        batch: what the table is partitioned by.
        sample: id of the sample.
        feature: id of the feature.
        values: column of each value, by the value's name.
    """

    batch: str = "batch_id"
    sample: str = "sample_id"
    feature: str = "cpg_id"
    values: Mapping[str, str] = field(default_factory=lambda: {"beta": "beta", "coverage": "coverage"})


@dataclass(frozen=True)
class Cost:
    """What the queries of a warehouse came to; zero where they cost nothing but time.

    Attributes:
        queries: that were paid for.
        bytes_scanned: as the service counted them.
        usd: at the price per terabyte that the warehouse was told.
    """

    queries: int = 0
    bytes_scanned: int = 0
    usd: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.queries + other.queries, self.bytes_scanned + other.bytes_scanned, self.usd + other.usd)


class Unloaded(Protocol):
    """Rows of some batches, which can be read until the context that gave them is left."""

    def rows(self, batch_id: str, value: str) -> Iterator[pa.RecordBatch]:
        """The rows of one batch and value, from the start at each call.

        Record batches with the columns ``sample`` (place among the batch's sample ids asked for) and ``feature`` (place
        on the axis), int32; ``value``, any number type, null where there is none; and ``outside``, null but where
        ``feature`` is: the id of a feature that is not on the axis.
        """
        ...


class Warehouse(Protocol):
    """A long table, asked."""

    @property
    def value_names(self) -> Sequence[str]:
        """Values that can be unloaded."""
        ...

    @property
    def cost(self) -> Cost:
        """What has been asked through this object so far."""
        ...

    def pinned(self) -> Warehouse:
        """The warehouse as it is now, whatever is loaded into it later, where its kind can promise that."""
        ...

    def batch_ids(self) -> list[str]:
        """Every batch, sorted."""
        ...

    def samples(self, batch_ids: Sequence[str]) -> dict[str, list[str]]:
        """Sorted sample ids of each of these batches that exists."""
        ...

    def batches_of(self, sample_ids: Sequence[str]) -> dict[str, list[str]]:
        """Sorted ids of the batches that hold each of these samples; a sample that no batch holds is left out."""
        ...

    def feature_ids(self) -> list[str]:
        """Every feature, sorted: an axis for a new matrix."""
        ...

    def unload(
        self, batches: Mapping[str, Sequence[str]], values: Sequence[str], feature_ids: Sequence[str]
    ) -> AbstractContextManager[Unloaded]:
        """Make rows of batches readable, with the positions of their samples and features joined in the query.

        Args:
            batches: sample ids by batch id; other samples' rows are left out.
            values: names of values.
            feature_ids: the axis.
        """
        ...
