"""Queries that every long table answers from the distinct values of its columns."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

from zarr_core.errors import WarehouseError
from zarr_core.warehouses.protocol import LongColumns

logger = logging.getLogger(__name__)


class LongTable(ABC):
    """Base class of warehouses: a table with one row per sample and feature.

    Args:
        columns: names of the table's columns.
    """

    def __init__(self, columns: LongColumns | None) -> None:
        self.columns = columns or LongColumns()

    @property
    def value_names(self) -> tuple[str, ...]:
        """Names of the values that can be unloaded."""
        return tuple(self.columns.values)

    def batch_ids(self) -> list[str]:
        """Every batch id, sorted."""
        return sorted(self._column(self.columns.batch))

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
        found = sorted(self._column(self.columns.feature))
        logger.warning(
            "%r holds %d features now. A matrix with this axis refuses later batches that have others: create it with "
            "all features that you will need, such as the probes of every array type, or see WideMatrix.reindex",
            *(self, len(found)),
        )
        return found

    @abstractmethod
    def _distinct(self, names: Sequence[str], among: Sequence[str] | None) -> Iterable[tuple[str | None, ...]]:
        """Distinct rows of some columns as text, restricted to rows whose first column is in ``among``."""

    def _column(self, name: str) -> list[str]:
        return [value for (value,) in self._complete([name], None)]

    def _grouped(self, by: str, name: str, among: Sequence[str]) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for key, value in sorted(self._complete([by, name], among)) if among else []:
            found.setdefault(key, []).append(value)
        return found

    def _complete(self, names: Sequence[str], among: Sequence[str] | None) -> Iterable[tuple[str, ...]]:
        for values in self._distinct(names, among):
            for name, value in zip(names, values, strict=True):
                if value is None:
                    raise WarehouseError(f"{self!r} holds rows without a {name}; remove or complete them")
            yield values  # type: ignore[misc]
