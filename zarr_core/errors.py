"""What goes wrong, in words that name the sample, the field and the way out.

Every error that a user of the library can cause is a :class:`ZarrCoreError`; the command-line tools print its
message and exit with status 1. Anything else that escapes is a bug.
"""

from __future__ import annotations

from typing import Any


class ZarrCoreError(Exception):
    """Base of all errors this library raises on purpose."""


class StoreError(ZarrCoreError):
    """A store root cannot be used: it is a file, cannot be reached, or cannot commit safely."""


class ManifestError(ZarrCoreError):
    """``manifest.json`` is missing, unreadable or contradicts itself."""


class CommitConflict(ZarrCoreError):
    """Somebody else replaced the object since it was read."""


class CollectedError(StoreError):
    """A commit names what garbage collection removes or has removed; what it names must be made anew.

    Args:
        url: the store.
        names: the prefixes, which are ``names`` of the error.
    """

    def __init__(self, url: str, names: tuple[str, ...]) -> None:
        self.url, self.names = url, names
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        reason = "had been left unnamed for so long that garbage collection took it; run again to make it anew"
        super().__init__(f"{url}: {names[0]}{more} {reason}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.url, self.names)


class SourceError(ZarrCoreError):
    """A dataset description or a source location cannot be used."""


class CorruptChunkError(ZarrCoreError):
    """Stored bytes do not decode to what was written."""


class MatrixError(ZarrCoreError):
    """A wide matrix cannot take what it is given."""


class UnknownFieldError(ZarrCoreError, KeyError):
    """A field, domain, sample or split was asked for that the store does not hold."""

    def __str__(self) -> str:
        # KeyError would print the repr of its argument.
        return str(self.args[0])


class SampleError(ZarrCoreError):
    """One sample cannot be converted; the others can.

    Args:
        sample_id: the refused sample.
        field: canonical field name, or "" where the sample as a whole is at fault.
        reason: what is wrong.
        way_out: what to do about it, or "".
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
    """A warehouse cannot be asked, or what it holds contradicts itself."""
