"""Opening fsspec filesystems so that :mod:`zarr_core.storage.retries` alone decides how often a service is asked.

Tries of one request, as the clients come: s3fs 5, for a body 5 x 5, each of them 5 times in botocore; ocifs 8. As
opened here: 1. What zarr-python reads goes past our policy (engine "zarr"), so there the clients try again themselves:
``client_tries`` each, for a body over s3fs that number squared.

Settings come from fsspec's own configuration and win over these.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from fsspec.config import conf as fsspec_conf
from fsspec.core import url_to_fs

from zarr_core._util.redaction import printable_cause, redact
from zarr_core.errors import StoreError
from zarr_core.storage import retries

# As many connections as requests in flight; botocore's default of 10 would make a wave of requests several.
_CONNECTIONS = 64
_CONNECT_TIMEOUT_S = 10


def open_filesystem(url: str, client_tries: int = 1) -> tuple[Any, str]:
    """The filesystem of a URL, and the location in it.

    Raises:
        StoreError: none is installed for the URL, or it lacks a setting.
    """
    try:
        fs, location = url_to_fs(url, **filesystem_options(url, client_tries))
    except Exception as error:  # clients raise errors of their own where they find no credentials
        text = retries.describe(error) if not isinstance(error, ImportError | ValueError) else redact(str(error))
        raise StoreError(f"{redact(url)}: {text}") from printable_cause(error)
    if "s3" in _protocols(fs):
        fs.retries = client_tries
    return fs, str(location).rstrip("/")


def filesystem_options(url: str, client_tries: int = 1) -> dict[str, Any]:
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
            "retry_strategy": _oci_retries(client_tries),
            "circuit_breaker_strategy": _no_circuit_breaker(),
        }
        # The default reads 5 MiB ahead of what was asked for.
        options["default_cache_type"] = "none"
    if not options:
        return {}
    if client_tries > 1:
        options["skip_instance_cache"] = True  # it must not be the one that tries once
    configured = fsspec_conf.get(protocol, {}).get("config_kwargs", {})
    options["config_kwargs"] |= configured
    return options


def _protocols(fs: Any) -> tuple[str, ...]:
    return (fs.protocol,) if isinstance(fs.protocol, str) else tuple(fs.protocol)


# One object each for ever: fsspec knows a filesystem again by how its options print.
@cache
def _oci_retries(tries: int) -> Any:
    import oci.retry

    if tries == 1:
        return oci.retry.NoneRetryStrategy()
    return oci.retry.RetryStrategyBuilder(
        max_attempts=tries, total_elapsed_time_seconds=retries.POLICY.deadline_s
    ).get_retry_strategy()


@cache
def _no_circuit_breaker() -> Any:
    import oci.circuit_breaker

    return oci.circuit_breaker.NoCircuitBreakerStrategy()
