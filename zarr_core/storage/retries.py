"""Retries of requests that cross a network: one policy for every request of the library.

The clients' own retries are switched off (``storage.filesystems``), so this policy is the total. Otherwise s3fs would
make 5 x 5 attempts, with 5 attempts in botocore for each, and ocifs 8.

* After a transient error (a reset connection, a timeout, a truncated response, a 5xx) the request waits, twice as long
  after each attempt, less a random part that keeps a thousand workers from returning at the same moment.
* After a throttling response (503, 429) it waits longer, and this process keeps fewer requests in flight.
* A permanent error (not found, not allowed, not understood) is not retried.
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

#: Bytes that the timeout of a request allows for when the size of the object is not known.
UNKNOWN_BYTES = 64 << 20
# An error of one kind at one service is logged at most once in this time.
_LOG_EVERY_S = 60.0
# Permanent errors of obstore and botocore by class name: they have no base class in Python's hierarchy.
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
_WITHOUT_CREDENTIALS = {"NoCredentialsError", "PartialCredentialsError", "UnauthenticatedError"}
_PERMANENT = (PermissionError, TypeError, AttributeError, NotImplementedError, MemoryError)
# What a client that uses threads raises once the interpreter has begun to end.
_ENDING = "cannot schedule new futures"
# obstore reports the status, and the reason of the operating system, in the text of its errors only.
_SYSTEM_REASON = re.compile(r'(?:message|error): "([^"]+)"')
_OBSTORE_STATUS = re.compile(r"status code: (\d{3})\b")
_SLOW_DOWN = re.compile(r"\b(429|503)\b|SlowDown|Slow Down|TooManyRequests|Too Many Requests|ServiceUnavailable", re.I)


@dataclass(frozen=True)
class RetryPolicy:
    """Limits of attempts and times of one request.

    A request takes at most ``deadline_s``, one more wait and one more attempt.

    Attributes:
        attempts: in total.
        timeout_s: of one attempt, without the time that its bytes take.
        slowest_bytes_per_s: lowest useful bandwidth; the timeout grows by the request's bytes divided by this.
        first_wait_s: before the second attempt; doubled for each further one, less a random part.
        first_throttled_wait_s: the same after a throttling response.
        longest_wait_s: upper limit of a wait.
        deadline_s: no attempt begins later than this after the first.
    """

    attempts: int = 8
    timeout_s: float = 30
    slowest_bytes_per_s: float = 1e6
    first_wait_s: float = 0.2
    first_throttled_wait_s: float = 1.0
    longest_wait_s: float = 20
    deadline_s: float = 180

    def wait_s(self, attempt: int, throttled: bool = False) -> float:
        """Seconds to wait after this number of failed attempts."""
        first = self.first_throttled_wait_s if throttled else self.first_wait_s
        return min(first * float(2 ** (attempt - 1)), self.longest_wait_s) * random.uniform(0.5, 1)

    def timeout_for(self, n_bytes: int) -> float:
        """Seconds that an attempt may take to move this many bytes."""
        return self.timeout_s + n_bytes / self.slowest_bytes_per_s


#: Default policy of all requests.
POLICY = RetryPolicy()


class Service:
    """A service as one process sees it: requests in flight, their current limit, and recent errors.

    Belongs to one event loop. ``async with service:`` waits until another request may be in flight.
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
            if not granted.cancelled():  # granted and cancelled at the same moment
                self._leave()
            raise

    async def __aexit__(self, *_: object) -> None:
        self._leave()

    def _leave(self) -> None:
        self._busy -= 1
        while self._waiting and self._busy < self.limit:
            granted = self._waiting.popleft()
            if not granted.done():  # otherwise the waiting request was cancelled
                self._busy += 1
                granted.set_result(None)

    def answered(self) -> None:
        """A request succeeded. As many successes as the limit raise the limit by one."""
        self._limit = min(self._most, self._limit + 1 / self._limit)

    def throttled(self) -> None:
        """The service throttles: halve the limit. Simultaneous responses count once."""
        if time.monotonic() - self._slowed_at > 1:
            self._slowed_at = time.monotonic()
            self._limit = max(1.0, self._limit / 2)

    def log(self, kind: str, message: str) -> None:
        """Log an error of a kind, at most once a minute."""
        now = time.monotonic()
        if now - self._logged.get(kind, float("-inf")) >= _LOG_EVERY_S:
            self._logged[kind] = now
            logger.warning("%s: %s", self.name, message)


_services: dict[tuple[int, str], Service] = {}


def service(url: str) -> Service:
    """The service of a URL: one object per process and bucket."""
    scheme, _, rest = redact(url).partition("://")
    name = f"{scheme}://{rest.partition('/')[0]}"
    return _services.setdefault((os.getpid(), name), Service(name))


async def request(
    where: Service, what: str, work: Callable[[], Awaitable[T]], n_bytes: int = 0, policy: RetryPolicy | None = None
) -> T:
    """Make a request with retries.

    Args:
        where, what: the service, and the object for messages.
        work: makes one attempt.
        n_bytes: bytes that the request moves, for its timeout.
        policy: limits; by default :data:`POLICY`.

    Raises:
        FileNotFoundError: there is no such object.
        TransferError: the attempts failed, or the service refused the request.
        ZarrCoreError: from the last attempt.
    """
    policy = policy or POLICY
    began, failed = time.monotonic(), 0
    while True:
        async with where:
            try:
                result = await asyncio.wait_for(work(), policy.timeout_for(n_bytes))
            except Exception as error:
                failed += 1
                _check_transient(what, error)
                throttled = is_throttling(error)
                if throttled:
                    where.throttled()
                waited = time.monotonic() - began
                if failed >= policy.attempts or waited >= policy.deadline_s:
                    if isinstance(error, ZarrCoreError):
                        raise
                    attempts = "1 attempt" if failed == 1 else f"{failed} attempts"
                    fate = f"failed after {attempts} in {waited:.0f} s"
                    message = f"{redact(what)} {fate}: {describe(error)}"
                    raise TransferError(message) from printable_cause(error)
                kind = "throttled" if throttled else type(error).__name__
                reaction = "sending fewer requests at a time" if throttled else "retrying"
                where.log(kind, f"{describe(error)}; {reaction} (logged at most once a minute)")
                wait = policy.wait_s(failed, throttled)
            else:
                where.answered()
                return result
        await asyncio.sleep(wait)


def _check_transient(what: str, error: Exception) -> None:
    """Raise the error, or a TransferError for a refusal of the service, unless the request is worth another attempt."""
    if isinstance(error, TruncatedError):
        return
    if isinstance(error, FileNotFoundError | ZarrCoreError):
        raise error
    name, status = type(error).__name__, status_of(error)
    lasts = isinstance(error, _PERMANENT) or name in _REFUSALS
    lasts = lasts or (isinstance(error, RuntimeError) and _ENDING in str(error))
    if not lasts and (status is None or status in (408, 409, 425, 429) or (status >= 500 and status != 501)):
        return
    if isinstance(error, OSError) or name in _REFUSALS or status:
        text, hint = describe(error), ""
        # S3 answers an expired token with 400, and a HEAD request without the reason.
        if status in (401, 403) or (status == 400 and "Bad Request" in text):
            hint = f"; HTTP {status}: check the credentials (docs/clouds.md)"
        if name in _WITHOUT_CREDENTIALS:
            hint = "; set the credentials of the service, such as AWS_ACCESS_KEY_ID (docs/clouds.md)"
        raise TransferError(f"{redact(what)} was refused: {text}{hint}") from printable_cause(error)
    raise error  # a bug in this library


def describe(error: BaseException) -> str:
    """An error on one line, without credentials."""
    # obstore adds the values of its Rust objects; the reason of the system is among them.
    text, _, values = str(error).partition("\n\nDebug source:")
    reason = _SYSTEM_REASON.search(values)
    if reason is not None:
        text = f"{text}: {reason[1]}"
    text = " ".join(redact(text).split())
    # A response without a body has no text, which s3fs reports as "None".
    return type(error).__name__ if text in ("", "None") else f"{type(error).__name__}: {text[:500]}"


def is_throttling(error: BaseException) -> bool:
    """Whether an error is a service's request to slow down."""
    return status_of(error) in (429, 503) or any(_SLOW_DOWN.search(str(e)) for e in _chain(error))


def is_beyond_the_end(error: BaseException) -> bool:
    """Whether a service reported that an object ends before the requested range begins."""
    text = f"{error} {error.__cause__}".lower()
    return "not satisfiable" in text or "invalidrange" in text


def status_of(error: BaseException) -> int | None:
    """HTTP status of an error of any supported client, or of an error that it was raised from."""
    for each in _chain(error):
        response = getattr(each, "response", None)
        status = getattr(each, "status", None) or getattr(response, "status_code", None)
        if isinstance(response, dict):  # botocore's
            status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        elif type(each).__module__.startswith("obstore"):
            reported = _OBSTORE_STATUS.search(str(each))
            status = int(reported[1]) if reported else None
        if isinstance(status, int):
            return status
    return None


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error and its causes."""
    seen: BaseException | None = error
    while seen is not None:
        yield seen
        seen = seen.__cause__
