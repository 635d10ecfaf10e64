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
        self.url, self.names = url, names
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        reason = (
            "was unused for longer than the grace period and garbage collection removed it; run again to recreate it"
        )
        super().__init__(f"{url}: {names[0]}{more} {reason}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.url, self.names)


class SourceError(ZarrCoreError):
    """A dataset description or a source location cannot be used."""


class RetirementError(SourceError):
    """More samples vanished from the source than may be retired at once. All other changes are committed."""


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
        self.sample_id, self.field, self.reason, self.way_out = sample_id, field, reason, way_out
        where = f"{sample_id}, {field}" if field else sample_id
        super().__init__(f"{where}: {self.explanation}")

    @property
    def explanation(self) -> str:
        """Reason and way out."""
        return self.reason + (f" ({self.way_out})" if self.way_out else "")

    def __reduce__(self) -> tuple[type[SampleError], tuple[str, str, str, str]]:
        # Exceptions travel back from worker processes; the default pickles only the message.
        return type(self), (self.sample_id, self.field, self.reason, self.way_out)


class WarehouseError(ZarrCoreError):
    """A warehouse cannot be queried, or its rows are inconsistent."""


class BatchError(WarehouseError):
    """The rows of a batch contradict each other or the matrix. To load it again as it is fails again."""
