"""Opening fsspec filesystems without their own retries: :mod:`zarr_core.storage.retries` alone decides.

By default s3fs makes 5 attempts per request, 5 x 5 for a body, each with 5 attempts in botocore; ocifs makes 8. Opened
here, a client makes one. Reads by zarr-python (engine "zarr") bypass our policy, so there the client makes
``client_attempts`` per request; s3fs squares that number for a body.

Settings in fsspec's own configuration take precedence.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from fsspec import get_filesystem_class
from fsspec.config import conf as fsspec_conf
from fsspec.core import url_to_fs

from zarr_core._util.redaction import printable_cause, redact, refuse_credentials
from zarr_core.errors import StoreError
from zarr_core.storage import retries

# One connection per request in flight; botocore's default of 10 would split a batch of requests.
_CONNECTIONS = 64
_CONNECT_TIMEOUT_S = 10


def open_filesystem(url: str, given: Any = None) -> tuple[Any, str]:
    """The filesystem of a URL and the location in it. Its client makes one attempt per request unless it is given.

    Raises:
        StoreError: no filesystem is installed for the URL, or it lacks a setting.
    """
    refuse_credentials(url)
    if given is not None:
        return given, str(given._strip_protocol(url)).rstrip("/")
    try:
        fs, location = filesystem_of(url, filesystem_options(url))
    except Exception as error:  # clients without credentials raise errors of many classes
        text = retries.describe(error) if not isinstance(error, ImportError | ValueError) else redact(str(error))
        raise StoreError(f"{redact(url)}: {text}") from printable_cause(error)
    if "s3" in fs.protocol:  # a name, or several
        fs.retries = 1
    return fs, location.rstrip("/")


def filesystem_of(url: str, options: dict[str, Any]) -> tuple[Any, str]:
    """The filesystem of a URL, made with these options, and the location in it.

    fsspec takes any "::" for the end of the first of several URLs, and drops the rest of one whose path, or whose host
    (IPv6), contains it.
    """
    if "://" in url.partition("::")[2]:
        fs, location = url_to_fs(url, **options)
        return fs, str(location)
    kind = get_filesystem_class(url.partition("://")[0])
    return kind(**kind._get_kwargs_from_urls(url) | options), str(kind._strip_protocol(url))


def filesystem_options(url: str, client_attempts: int = 1) -> dict[str, Any]:
    """Storage options for a URL: timeouts, retries, connections, and no read-ahead."""
    protocol = url.partition("://")[0]
    options: dict[str, Any] = {}
    if protocol in ("s3", "s3a"):
        options["config_kwargs"] = {
            "max_pool_connections": _CONNECTIONS,
            "connect_timeout": _CONNECT_TIMEOUT_S,
            "read_timeout": retries.POLICY.timeout_s,
            "retries": {"total_max_attempts": 1, "mode": "standard"},
        }
    elif protocol in ("oci", "ocilake"):
        options["config_kwargs"] = {
            "timeout": (_CONNECT_TIMEOUT_S, retries.POLICY.timeout_s),
            "retry_strategy": _oci_retries(client_attempts),
            "circuit_breaker_strategy": _no_circuit_breaker(),
        }
        # The default reads 5 MiB ahead.
        options["default_cache_type"] = "none"
    if not options:
        return {}
    if client_attempts > 1:
        options["skip_instance_cache"] = True  # do not reuse an instance that makes one attempt
    configured = fsspec_conf.get(protocol, {}).get("config_kwargs", {})
    options["config_kwargs"] |= configured
    return options


# Cached, because fsspec recognises a filesystem by the repr of its options.
@cache
def _oci_retries(attempts: int) -> Any:
    import oci.retry

    if attempts == 1:
        return oci.retry.NoneRetryStrategy()
    return oci.retry.RetryStrategyBuilder(
        max_attempts=attempts, total_elapsed_time_seconds=retries.POLICY.deadline_s
    ).get_retry_strategy()


@cache
def _no_circuit_breaker() -> Any:
    import oci.circuit_breaker

    return oci.circuit_breaker.NoCircuitBreakerStrategy()
