"""How clients get at a service: fsspec filesystems without retries of their own, endpoints and credentials for others.

:mod:`zarr_core.storage.retries` alone decides what is repeated.

By default s3fs makes 5 attempts per request, 5 x 5 for a body, each with 5 attempts in botocore; ocifs makes 8. Opened
here, a client makes one. Reads by zarr-python (engine "zarr") bypass our policy, so there the client makes
``client_attempts`` per request; s3fs squares that number for a body.

Settings in fsspec's own configuration take precedence.

s3fs takes credentials from that configuration, the environment and the files of AWS (``~/.aws``: profiles, SSO, roles).
obstore and TensorStore would look in fewer places: they are told what s3fs found, so that every client of a bucket uses
the same account.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

from fsspec import get_filesystem_class
from fsspec.config import conf as fsspec_conf
from fsspec.core import url_to_fs

from zarr_core._util.extras import extra
from zarr_core._util.redaction import printable_cause, redact, refuse_credentials
from zarr_core.errors import StoreError
from zarr_core.storage import retries

# One connection per request in flight; botocore's default of 10 would split a batch of requests.
_CONNECTIONS = 64
_CONNECT_TIMEOUT_S = 10
_OCI = ("oci", "ocilake")
# Protocols of fsspec's configuration that belong to one service; a later one takes precedence.
_PROTOCOLS = {"s3": ("s3", "s3a"), "gs": ("gcs", "gs"), "az": ("abfs", "az", "abfss")}
# Settings that concern fsspec's own files, caches and connections.
_OF_FSSPEC = {
    *("asynchronous", "default_block_size", "default_cache_type", "default_fill_cache", "fixed_upload_size"),
    *("listings_expiry_time", "local_expiry_check", "max_concurrency", "max_paths", "skip_instance_cache"),
    *("use_listings_cache", "version_aware"),
}
_S3 = {"anon", "client_kwargs", "endpoint_url", "key", "password", "profile", "secret", "token", "use_ssl", "username"}
_S3_CLIENT = {"aws_access_key_id", "aws_secret_access_key", "aws_session_token", "endpoint_url", "region_name"}
# The most specific one first.
_S3_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
# Names of obstore for the settings of adlfs.
_AZURE = {name: name for name in ("account_key", "account_name", "client_id", "client_secret", "tenant_id")}
_AZURE |= {"anon": "skip_signature", "sas_token": "sas_key"}
# Botocore renews temporary credentials 10 minutes before they expire.
_RENEWAL = timedelta(minutes=9)
_CREDENTIALS = (
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)


def open_filesystem(url: str, given: Any = None) -> tuple[Any, str]:
    """The filesystem of a URL and the location in it. Its client makes one attempt per request unless it is given.

    Raises:
        StoreError: no filesystem is installed for the URL, or it lacks a setting.
    """
    refuse_credentials(url)
    if given is not None:
        return given, str(given._strip_protocol(url)).rstrip("/")
    if url.partition("://")[0] in _OCI:
        with extra("oci", f"{redact(url)} needs ocifs", StoreError):
            import ocifs  # noqa: F401
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
    elif protocol in _OCI:
        options["config_kwargs"] = {
            "timeout": (_CONNECT_TIMEOUT_S, retries.POLICY.timeout_s),
            **_oci_strategies(client_attempts),
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
def _oci_strategies(attempts: int) -> dict[str, Any]:
    import oci.circuit_breaker
    import oci.retry

    repeat = oci.retry.NoneRetryStrategy()
    if attempts > 1:
        limits = {"max_attempts": attempts, "total_elapsed_time_seconds": retries.POLICY.deadline_s}
        repeat = oci.retry.RetryStrategyBuilder(**limits).get_retry_strategy()
    return {"retry_strategy": repeat, "circuit_breaker_strategy": oci.circuit_breaker.NoCircuitBreakerStrategy()}


@dataclass(frozen=True, eq=False)
class Access:
    """How a client other than fsspec's gets at a service.

    Attributes:
        endpoint: URL of the service, or name of the account, by which equal names at two services differ; "" for AWS
            and Google.
        config: what obstore is told beside credentials. It looks for everything else in the environment.
        provider: of credentials of S3; None if obstore looks for them, or signs no requests.
        suffices: whether obstore reaches with these what fsspec's filesystem would.
        certificates: file of certificates to trust beside those of the system; "" for none.
    """

    endpoint: str
    config: dict[str, Any]
    provider: S3Credentials | None = None
    suffices: bool = True
    certificates: str = ""


def access(service: str) -> Access:
    """How to get at "s3", "gs" or "az"."""
    # Everything that credentials can be found by, except the contents of files.
    names = sorted(name for name in os.environ if name.startswith(("AWS_", "AZURE_", "GOOGLE_", "HOME")))
    variables = [f"{name}={os.environ[name]}" for name in names]
    return _access(service, (repr(settings(service)), *variables))


def settings(service: str) -> dict[str, Any]:
    """What fsspec's configuration says of a service."""
    found: dict[str, Any] = {}
    for protocol in _PROTOCOLS[service]:
        found |= fsspec_conf.get(protocol, {})
    return {name: value for name, value in found.items() if name not in _OF_FSSPEC}


@cache  # finding them takes a tenth of a second, or requests
def _access(service: str, places: tuple[str, ...]) -> Access:
    found = settings(service)
    if service == "s3":
        return _s3(found)
    return _google(found) if service == "gs" else _azure(found)


def _google(found: dict[str, Any]) -> Access:
    token = found.get("token", "anon")
    suffices = found.keys() <= {"endpoint_url", "project", "token"} and (token == "anon" or token.endswith(".json"))
    config: dict[str, Any] = {}
    if "endpoint_url" in found:
        config["base_url"] = found["endpoint_url"]
    if "token" in found:
        config |= {"skip_signature": True} if token == "anon" else {"application_credentials": token}
    return Access(found.get("endpoint_url") or _named("GOOGLE_BASE_URL"), config, suffices=suffices)


def _azure(found: dict[str, Any]) -> Access:
    config = {_AZURE[name]: value for name, value in found.items() if name in _AZURE}
    account = config.get("account_name") or _named("AZURE_STORAGE_ACCOUNT_NAME")
    if account:
        # obstore finds it in the environment as well, but then its repr, which zarr-python takes for paths, panics.
        config["account_name"] = account
    endpoint = _named("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT") or account
    return Access(endpoint, config, suffices=found.keys() <= _AZURE.keys())


def _s3(found: dict[str, Any]) -> Access:
    try:
        fs = s3_filesystem()
    except ImportError:
        return Access(_named(*_S3_ENDPOINTS), {}, suffices=_environment_suffices(found))
    place = _client(fs).meta
    config: dict[str, Any] = {"endpoint": place.endpoint_url, "region": place.region_name}
    provider = None if fs.anon else S3Credentials()
    if provider is None:
        config["skip_signature"] = True
    suffices = (
        found.keys() <= _S3
        and found.get("client_kwargs", {}).keys() <= _S3_CLIENT
        and (provider is None or provider.found is not None)
        and (place.config.s3 or {}).get("addressing_style") in (None, "auto", "path")
        # obstore takes this variable before what it is told.
        and os.environ.get("AWS_ENDPOINT_URL_S3", place.endpoint_url) == place.endpoint_url
    )
    return Access(s3_endpoint(fs), config, provider, suffices, _session(fs).get_config_variable("ca_bundle") or "")


def s3_filesystem() -> Any:
    """The filesystem of s3fs, which is the same for every bucket; raises ImportError."""
    import s3fs  # noqa: F401

    return open_filesystem("s3://bucket")[0]


def _client(fs: Any) -> Any:
    try:
        return fs.s3
    except Exception as error:  # a profile that does not exist, a file that cannot be parsed
        raise StoreError(f"s3://: {retries.describe(error)}") from printable_cause(error)


def s3_endpoint(fs: Any) -> str:
    """The endpoint that s3fs has found; "" for that of AWS."""
    found = str(_client(fs).meta.endpoint_url)
    return fs.endpoint_url or _named(*_S3_ENDPOINTS) or ("" if found.endswith(".amazonaws.com") else found)


def _named(*variables: str) -> str:
    """The value of the first of these environment variables that has one; "" if none does."""
    return next(filter(None, map(os.environ.get, variables)), "")


def _environment_suffices(found: dict[str, Any]) -> bool:
    """Whether obstore finds by itself what s3fs would have found."""
    credentials = os.environ.get("AWS_SHARED_CREDENTIALS_FILE") or Path("~/.aws/credentials").expanduser()
    config = os.environ.get("AWS_CONFIG_FILE") or Path("~/.aws/config").expanduser()
    has_files = os.path.exists(credentials) or os.path.exists(config)
    return not found and (bool(_named(*_CREDENTIALS)) or not has_files)


def _session(fs: Any) -> Any:
    import botocore.session

    return botocore.session.Session(profile=fs.kwargs.get("profile"))


class S3Credentials:
    """Credentials of S3 as s3fs finds them, in the form in which obstore asks for them.

    A copy in another process finds its own, so that no pickle holds a secret.
    """

    def __init__(self) -> None:
        from botocore.credentials import Credentials

        fs = s3_filesystem()
        session, given = _session(fs), fs.client_kwargs
        #: Where the files of AWS have them.
        self.profile = {"profile": session.get_config_variable("profile") or "default"}
        for name in ("config_file", "credentials_file"):
            self.profile[name] = str(Path(session.get_config_variable(name)).expanduser())
        key, secret = fs.key or given.get("aws_access_key_id"), fs.secret or given.get("aws_secret_access_key")
        if key and secret:
            token = fs.token or given.get("aws_session_token")
            self.found: Any = Credentials(key, secret, token, method="fsspec's configuration")
        else:
            self.found = session.get_credentials()

    def __call__(self) -> dict[str, Any]:
        """Credentials that are valid now."""
        found = self.found.get_frozen_credentials()
        return {
            "access_key_id": found.access_key,
            "secret_access_key": found.secret_key,
            "token": found.token,
            "expires_at": datetime.now(UTC) + _RENEWAL,
        }

    def __reduce__(self) -> tuple[type[S3Credentials], tuple[()]]:
        return S3Credentials, ()
