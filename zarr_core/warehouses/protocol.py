"""Interface of a warehouse: a long table of measurements with one row per sample and feature."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from zarr_core._util.redaction import printable_cause, redact
from zarr_core.errors import WarehouseError

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class LongColumns:
    """Names of a long table's columns.

    Attributes:
        batch: id of the batch, by which the table is partitioned.
        sample, feature: ids of the sample and of the feature.
        values: column name by value name.

    Examples:
        >>> LongColumns(feature="probe_id", values={"beta": "methylation"}).batch
        'batch_id'
    """

    batch: str = "batch_id"
    sample: str = "sample_id"
    feature: str = "cpg_id"
    values: Mapping[str, str] = field(default_factory=lambda: {"beta": "beta", "coverage": "coverage"})


@dataclass(frozen=True)
class Cost:
    """Cost of a warehouse's queries; zero for warehouses that do not bill queries.

    Attributes:
        queries: billed queries.
        bytes_scanned: bytes scanned, as counted by the service.
        usd: price in US dollars, at the warehouse's configured price per terabyte.
    """

    queries: int = 0
    bytes_scanned: int = 0
    usd: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.queries + other.queries, self.bytes_scanned + other.bytes_scanned, self.usd + other.usd)


class Unloaded(ABC):
    """Rows of some batches, readable until the context of :meth:`Warehouse.unload` ends."""

    @abstractmethod
    def rows(self, batch_id: str, value: str) -> Iterator[pa.RecordBatch]:
        """The rows of one batch and value; each call starts again from the first row.

        Returns:
            Record batches with the columns ``sample`` (int32, position among the batch's requested sample ids),
            ``feature`` (int32, position on the axis; null if the feature is not on it), ``value`` (any number type;
            null if missing) and ``outside`` (id of a feature that is not on the axis; null for all others).
        """

    def source(self, batch_id: str) -> dict[str, str]:
        """The state that the rows of a batch were read from, to be recorded with the batch, without credentials.

        Returns:
            ``kind`` first, as in "iceberg"; then the table or files, and the snapshot or another identification. Empty
            if that is not known.
        """
        return {}


@runtime_checkable
class Versioned(Protocol):
    """A warehouse that can tell without a query whether a batch has changed. An optional part of :class:`Warehouse`."""

    def is_unchanged(self, batch_id: str, source: Mapping[str, str]) -> bool:
        """Whether a batch certainly has the rows that it had in the state that :meth:`Unloaded.source` returned."""


class Warehouse(ABC):
    """A long table of measurements. A kind of warehouse is a subclass with the abstract methods.

    Args:
        columns: names of the table's columns.

    Attributes:
        cost: of all queries of this object so far.
    """

    cost = Cost()

    def __init__(self, columns: LongColumns | None) -> None:
        self.columns = columns or LongColumns()

    @property
    def value_names(self) -> tuple[str, ...]:
        """Names of the values that can be unloaded."""
        return tuple(self.columns.values)

    @abstractmethod
    def pinned(self) -> Warehouse:
        """The current state of the warehouse, without later changes if the kind supports snapshots."""

    @abstractmethod
    def unload(
        self, batches: Mapping[str, Sequence[str]], values: Sequence[str], feature_ids: Sequence[str]
    ) -> AbstractContextManager[Unloaded]:
        """Make rows of batches readable. The query joins the positions of samples and features.

        Args:
            batches: sample ids by batch id; rows of other samples are left out.
            values: names of values.
            feature_ids: the axis: feature ids in the order of their positions.
        """

    @abstractmethod
    def _distinct(self, names: Sequence[str], among: Sequence[str] | None) -> Iterable[tuple[str | None, ...]]:
        """Distinct rows of some columns as text, restricted to rows whose first column is in ``among``, or null.

        A row without an id may belong to any of ``among``, so it must not be left out.
        """

    def batch_ids(self) -> list[str]:
        """Every batch id, sorted."""
        return self._column(self.columns.batch)

    def samples(self, batch_ids: Sequence[str]) -> dict[str, list[str]]:
        """Sorted sample ids by batch id. Batches that do not exist are left out."""
        return self._grouped(self.columns.batch, self.columns.sample, batch_ids)

    def batches_of(self, sample_ids: Sequence[str]) -> dict[str, list[str]]:
        """Sorted batch ids by sample id. Samples that no batch holds are left out."""
        return self._grouped(self.columns.sample, self.columns.batch, sample_ids)

    def feature_ids(self) -> list[str]:
        """Every feature id that the table holds now, sorted: an axis for a matrix of these batches.

        Logs a warning, because a matrix with this axis refuses batches with other features.
        """
        found = self._column(self.columns.feature)
        logger.warning(
            "%r holds %d features now. A matrix with this axis refuses later batches that have others: create it with "
            "all features that you will need, such as the probes of every array type, or see WideMatrix.reindex",
            *(self, len(found)),
        )
        return found

    def _check_columns(self, names: Iterable[str], present: Collection[str]) -> None:
        """Raise WarehouseError for columns that the table does not have."""
        absent = [name for name in names if name not in present]
        if absent:
            raise WarehouseError(
                f"{self!r} has no column {', '.join(absent)}; its columns are {', '.join(sorted(present))}. Set the "
                "column names with LongColumns"
            )

    @contextmanager
    def _errors_of(self, errors: ModuleType, *others: type[Exception], secrets: Collection[str] = ()) -> Iterator[None]:
        """Raise the errors that a module defines, and others, as WarehouseError without secrets."""
        defined = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)]
        try:
            yield
        except (*defined, *others) as error:
            message = f"{self!r}: {redact(str(error), secrets)}"
            raise WarehouseError(message) from printable_cause(error, secrets)

    def _column(self, name: str) -> list[str]:
        return sorted(value for (value,) in self._complete([name], None))

    def _grouped(self, by: str, name: str, among: Sequence[str]) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for key, value in sorted(self._complete([by, name], list(among))) if len(among) else ():
            found.setdefault(key, []).append(value)
        return found

    def _complete(self, names: Sequence[str], among: Sequence[str] | None) -> Iterable[tuple[str, ...]]:
        for values in self._distinct(names, among):
            for name, value in zip(names, values, strict=True):
                if value is None:
                    raise WarehouseError(f"{self!r} holds rows without a {name}; remove or complete them")
            yield values  # type: ignore[misc]
