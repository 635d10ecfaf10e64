"""Errors of the library. Their messages name the sample, the field and the remedy.

Every error that a user of the library can cause is a :class:`ZarrCoreError`; the command-line tools print its
message and exit with status 1. Anything else that escapes is a bug.
"""

from __future__ import annotations

from typing import Any


class ZarrCoreError(Exception):
    """Base of all errors this library raises on purpose."""

    def __reduce__(self) -> str | tuple[Any, ...]:
        # A context that is not printed may hold a secret. Dask pickles contexts: it installs tblib.
        if self.__suppress_context__:
            self.__context__ = None
        return super().__reduce__()


class StoreError(ZarrCoreError):
    """A store root cannot be used: it is a file, cannot be reached, or cannot commit safely."""


class TransferError(StoreError):
    """A request over a network was refused, or failed as often as the retry policy allows."""


class ManifestError(ZarrCoreError):
    """``manifest.json`` is missing, unreadable or contradicts itself."""


class CommitConflict(ZarrCoreError):
    """Another writer replaced the object since it was read."""


class CollectedError(StoreError):
    """A commit names objects that garbage collection removes or has removed; they must be written again.

    Args:
        url: the store.
        names: prefixes of the removed objects.
    """

    def __init__(self, url: str, names: tuple[str, ...]) -> None:
        super().__init__(url, names)
        self.url, self.names = url, names

    def __str__(self) -> str:
        more = f" and {len(self.names) - 1} more" if len(self.names) > 1 else ""
        return (
            f"{self.url}: {self.names[0]}{more} was unused for longer than the grace period and garbage collection "
            "removed it; run again to recreate it"
        )


class SourceError(ZarrCoreError):
    """A dataset description or a source location cannot be used."""


class RetirementError(SourceError):
    """More samples vanished from the source than may be retired at once. All other changes are committed.

    Attributes:
        report: the report of a conversion; None if nothing was to be converted.
    """

    def __init__(self, message: str, report: Any = None) -> None:
        super().__init__(message)
        self.report = report


class CorruptChunkError(ZarrCoreError):
    """Stored bytes do not decode to what was written."""


class TruncatedError(CorruptChunkError):
    """An object, or a response with its bytes, is shorter than the requested range."""


class MatrixError(ZarrCoreError):
    """A wide matrix, or an argument for it, is invalid."""


class UnknownFieldError(ZarrCoreError, KeyError):
    """The store does not hold the requested field, domain, sample or split."""

    def __str__(self) -> str:
        # KeyError would print the repr of its argument.
        return str(self.args[0])


class SampleError(ZarrCoreError):
    """One sample cannot be converted; the others can.

    Args:
        sample_id: the refused sample.
        field: canonical field name, or "" if the error concerns the whole sample.
        reason: what is wrong.
        way_out: how to fix it, or "".
    """

    def __init__(self, sample_id: str, field: str, reason: str, way_out: str = "") -> None:
        super().__init__(sample_id, field, reason, way_out)
        self.sample_id, self.field, self.reason, self.way_out = sample_id, field, reason, way_out

    def __str__(self) -> str:
        where = f"{self.sample_id}, {self.field}" if self.field else self.sample_id
        return f"{where}: {self.explanation}"

    @property
    def explanation(self) -> str:
        """Reason and way out."""
        return self.reason + (f" ({self.way_out})" if self.way_out else "")


class WarehouseError(ZarrCoreError):
    """A warehouse cannot be queried, or its rows are inconsistent."""


class BatchError(WarehouseError):
    """The rows of a batch contradict each other or the matrix. To load it again as it is fails again."""
