"""How a request that crosses a network is tried: the one policy for everything the library asks of a service.

The clients' own retries are switched off (``storage.filesystems``), so this policy is the total: s3fs alone
would ask 5 x 5 times and botocore 5 times each of these, ocifs 8 times.

* A trouble (a reset connection, a timeout, an answer cut short, a 5xx) is waited out for a moment, twice as long each
  time, less a random part, so that a thousand workers do not come back at the same moment.
* A service that says "slow down" (503, 429) is left in peace for longer, and this process asks it fewer things at once.
* What cannot get better (not found, not allowed, not understood) is not tried again.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import re
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from zarr_core._util.redaction import printable_cause, redact
from zarr_core.errors import TransferError, TruncatedError, ZarrCoreError

logger = logging.getLogger(__name__)

T = TypeVar("T")

# A trouble of one kind at one service is logged, and then not again for so long.
_LOG_EVERY_S = 60.0
# Errors by these names would come again: what obstore and botocore raise for them has no class of Python's.
_REFUSALS = {
    "PermissionDeniedError",
    "UnauthenticatedError",
    "NotSupportedError",
    "InvalidPathError",
    "UnknownConfigurationKeyError",
    "NoCredentialsError",
    "PartialCredentialsError",
    "ParamValidationError",
}
_PERMANENT = (FileNotFoundError, PermissionError, TypeError, AttributeError, NotImplementedError, MemoryError)
_SLOW_DOWN = re.compile(r"\b(429|503)\b|SlowDown|Slow Down|TooManyRequests|Too Many Requests|ServiceUnavailable", re.I)


@dataclass(frozen=True)
class RetryPolicy:
    """How long a request may take, and how often it is tried.

    In all a request takes at most ``deadline_s``, one more wait and one more try.

    Attributes:
        attempts: tries in all.
        timeout_s: for one try, and more where many bytes are to come.
        slowest_bytes_per_s: of a connection that is still worth waiting for: a try may take its bytes by this longer.
        first_wait_s: before the second try; doubled for each further one, less a random part.
        first_throttled_wait_s: the same after the service said that it is asked too much.
        longest_wait_s: the waits grow no further than this.
        deadline_s: no try begins so long after the first.
    """

    attempts: int = 8
    timeout_s: float = 30
    slowest_bytes_per_s: float = 1e6
    first_wait_s: float = 0.2
    first_throttled_wait_s: float = 1.0
    longest_wait_s: float = 20
    deadline_s: float = 180

    def wait_s(self, attempt: int, throttled: bool = False) -> float:
        """Seconds to wait after so many failed tries."""
        first = self.first_throttled_wait_s if throttled else self.first_wait_s
        return min(first * float(2 ** (attempt - 1)), self.longest_wait_s) * random.uniform(0.5, 1)

    def timeout_for(self, n_bytes: int) -> float:
        """Seconds that a try may take that moves so many bytes."""
        return self.timeout_s + n_bytes / self.slowest_bytes_per_s


#: What everything uses that is not given another.
POLICY = RetryPolicy()


class Service:
    """A place that requests go to, as one process sees it: how many are in flight there, and what is wrong with it.

    Belongs to one event loop. ``async with service:`` waits for a place among the requests in flight, and holds it.

    Args:
        name: scheme and bucket, say; for messages, so without credentials.
        most: requests in flight at most.
    """

    def __init__(self, name: str, most: int = 64) -> None:
        self.name = name
        self._most = most
        self._limit = float(most)
        self._busy = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._slowed_at = float("-inf")
        self._logged: dict[str, float] = {}

    @property
    def limit(self) -> int:
        """Requests that may be in flight now."""
        return int(self._limit)

    async def __aenter__(self) -> None:
        if self._busy < self.limit and not self._waiting:
            self._busy += 1
            return
        granted = asyncio.get_running_loop().create_future()
        self._waiting.append(granted)
        try:
            await granted
        except asyncio.CancelledError:
            if not granted.cancelled():  # both came at the same moment
                self._leave()
            raise

    async def __aexit__(self, *_: object) -> None:
        self._leave()

    def _leave(self) -> None:
        self._busy -= 1
        while self._waiting and self._busy < self.limit:
            granted = self._waiting.popleft()
            if not granted.done():  # else nobody waits for it any more
                self._busy += 1
                granted.set_result(None)

    def answered(self) -> None:
        """A request went well: as many more as now fit in one round allow one more at a time."""
        self._limit = min(self._most, self._limit + 1 / self._limit)

    def throttled(self) -> None:
        """The service said "slow down": half as many at a time. What a crowd hears at the same moment counts once."""
        if time.monotonic() - self._slowed_at > 1:
            self._slowed_at = time.monotonic()
            self._limit = max(1.0, self._limit / 2)

    def log(self, kind: str, message: str) -> None:
        """Say what is wrong, unless that was said a moment ago."""
        now = time.monotonic()
        if now - self._logged.get(kind, float("-inf")) >= _LOG_EVERY_S:
            self._logged[kind] = now
            logger.warning("%s: %s", self.name, message)


_services: dict[tuple[int, str], Service] = {}


def service(url: str) -> Service:
    """The service that a URL leads to, the same object for all of a process that go there."""
    scheme, _, rest = redact(url).partition("://")
    name = f"{scheme}://{rest.partition('/')[0]}"
    return _services.setdefault((os.getpid(), name), Service(name))


async def request(
    where: Service, what: str, work: Callable[[], Awaitable[T]], n_bytes: int = 0, policy: RetryPolicy | None = None
) -> T:
    """Do the work, which asks a service for something, as often as the policy allows.

    Args:
        where: the service that is asked.
        what: the object, for messages.
        work: one try.
        n_bytes: that it moves.
        policy: see there.

    Raises:
        FileNotFoundError: what is asked for is not there.
        TransferError: it did not come, or may not be had.
        ZarrCoreError: the last try raised one.
    """
    tries = _Tries(where, what, policy or POLICY)
    while True:
        async with where:
            try:
                result = await asyncio.wait_for(work(), tries.policy.timeout_for(n_bytes))
            except Exception as error:
                wait = tries.failed(error)
            else:
                where.answered()
                return result
        await asyncio.sleep(wait)


class _Tries:
    """The tries of one request."""

    def __init__(self, where: Service, what: str, policy: RetryPolicy) -> None:
        self.policy = policy
        self._where, self._what = where, what
        self._failed = 0
        self._began = time.monotonic()

    def failed(self, error: Exception) -> float:
        """Seconds to wait before the next try; raises where there is none."""
        if isinstance(error, FileNotFoundError) or (isinstance(error, ZarrCoreError) and not is_transient(error)):
            raise error
        if not is_transient(error):
            if isinstance(error, OSError) or type(error).__name__ in _REFUSALS or status_of(error):
                raise self._transfer_error("was refused", error) from printable_cause(error)
            raise error  # ours to mend
        self._failed += 1
        throttled = is_throttling(error)
        if throttled:
            self._where.throttled()
        waited = time.monotonic() - self._began
        if self._failed >= self.policy.attempts or waited >= self.policy.deadline_s:
            if isinstance(error, ZarrCoreError):
                raise error
            tries = "once" if self._failed == 1 else f"{self._failed} times"
            raise self._transfer_error(f"was tried {tries} in {waited:.0f} s", error) from printable_cause(error)
        kind = "asked too much" if throttled else type(error).__name__
        way_out = "asking for less at a time, and again" if throttled else "trying again"
        self._where.log(kind, f"{describe(error)}; {way_out} (said once a minute at most)")
        return self.policy.wait_s(self._failed, throttled)

    def _transfer_error(self, fate: str, error: Exception) -> TransferError:
        return TransferError(f"{redact(self._what)} {fate}: {describe(error)}")


def describe(error: BaseException) -> str:
    """An error in a line that may be printed."""
    text = " ".join(redact(str(error)).split())
    return f"{type(error).__name__}: {text[:500]}" if text else type(error).__name__


def is_transient(error: BaseException) -> bool:
    """Whether the same request may well succeed in a moment."""
    if isinstance(error, _PERMANENT) or type(error).__name__ in _REFUSALS:
        return False
    if isinstance(error, ZarrCoreError):
        return isinstance(error, TruncatedError)
    status = status_of(error)
    return status is None or status in (408, 409, 425, 429) or (status >= 500 and status != 501)


def is_throttling(error: BaseException) -> bool:
    """Whether a service said that it is asked too much."""
    return status_of(error) in (429, 503) or any(_SLOW_DOWN.search(str(e)) for e in _chain(error))


def status_of(error: BaseException) -> int | None:
    """The HTTP status in an error of any client that is known here, or in one that it was raised from."""
    for each in _chain(error):
        response = getattr(each, "response", None)
        status = getattr(each, "status", None) or getattr(response, "status_code", None)
        if isinstance(response, dict):  # botocore's
            status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        if isinstance(status, int):
            return status
    return None


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error, and those that it was raised from."""
    seen: BaseException | None = error
    while seen is not None:
        yield seen
        seen = seen.__cause__
