"""Credentials are redacted from errors, logs, reprs and command-line output."""

from __future__ import annotations

import io
import json
import logging
import pickle
import socket
import traceback
from collections.abc import Callable
from pathlib import Path

import fsspec.config
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tblib import pickling_support

from tests.helpers.small_source import KIND, write_source
from zarr_core._util.dask_cluster import dask_executor
from zarr_core._util.redaction import printable_cause, redact, refuse_credentials
from zarr_core.convert import convert, main
from zarr_core.errors import StoreError, TransferError, WarehouseError, ZarrCoreError
from zarr_core.matrix import WideMatrix
from zarr_core.matrix.store.sample_table import read_table
from zarr_core.matrix.verify import verify_matrix
from zarr_core.points.read.reader import ZarrChunkReader
from zarr_core.points.store.head import HEAD
from zarr_core.points.store.manifest import StoreManifest
from zarr_core.shootout.tiers import Tier
from zarr_core.storage import Storage, retries
from zarr_core.storage.disk_cache import DiskCache
from zarr_core.storage.retries import RetryPolicy
from zarr_core.storage.zarr_stores import make_store
from zarr_core.versioning.generations import commit
from zarr_core.warehouses import AthenaWarehouse, DuckDBWarehouse, IcebergWarehouse, Warehouse
from zarr_core.warehouses.duckdb import ListedFile

SECRET = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLE"


@pytest.mark.parametrize(
    ("url", "printed"),
    [
        ("ftp://me:secret@host/x", "ftp://host/x"),
        ("ftp://me:p@ss@host/x", "ftp://host/x"),
        (f"s3://AKIAEXAMPLE:{SECRET}@bucket/x", "s3://bucket/x"),
        ("https://ghp_token@host/x", "https://host/x"),
        ("simplecache::ftp://me:secret@host/x", "simplecache::ftp://host/x"),
        ("oci://bucket@namespace/x", "oci://bucket@namespace/x"),
        ("abfs://container@account.dfs.core.windows.net/x", "abfs://container@account.dfs.core.windows.net/x"),
        ("http://127.0.0.1:8080/a/b", "http://127.0.0.1:8080/a/b"),
        ("http://host:8080/a@b", "http://host:8080/a@b"),
        ("s3://bucket/a@b/c:d", "s3://bucket/a@b/c:d"),
        ("https://h/p/ToKeN_-abc/n/ns/b/bucket/o/x", "https://h/p/***/n/ns/b/bucket/o/x"),
        ("https://h/o?X-Amz-Expires=60&X-Amz-Signature=0a1b", "https://h/o?X-Amz-Expires=60&X-Amz-Signature=***"),
        ("https://h/o?X-Amz-Credential=AKIA%2F2026&x=1", "https://h/o?X-Amz-Credential=***&x=1"),
        ("https://h/o?X-Amz-Security-Token=abc", "https://h/o?X-Amz-Security-Token=***"),
        ("https://h/o?sv=2022&sig=abc%3D&se=1", "https://h/o?sv=2022&sig=***&se=1"),
        ("/local/p/x/n/y", "/local/p/x/n/y"),
        ("/data/sigma=0.5/store", "/data/sigma=0.5/store"),
        ("sigma=0.5/store", "sigma=0.5/store"),
        ("/data/token=3/authorization=1/x", "/data/token=3/authorization=1/x"),
        ("s3://bucket/signature=SBS1/batch-token=2/x", "s3://bucket/signature=SBS1/batch-token=2/x"),
        ("s3://bucket/p/run/n/x", "s3://bucket/p/run/n/x"),
        ("https://h/o?sigma=0.5&session_token=abc", "https://h/o?sigma=0.5&session_token=***"),
        ("aws_session_token: abc, access_token=abc", "aws_session_token: ***, access_token=***"),
    ],
)
def test_urls(url: str, printed: str) -> None:
    assert redact(url) == printed


@given(st.text(alphabet=st.characters(codec="ascii", exclude_categories=["C", "Z"]), min_size=8))
def test_passwords_with_special_characters_are_redacted(password: str) -> None:
    """A password ends at the last @: it may itself contain @ and slashes."""
    if password.split("/")[0].isdigit():  # looks like a port
        return
    assert password not in redact(f"reading ftp://me:{password}@host.example/x failed").replace("host.example/x", "")


def test_messages_of_clients_are_redacted() -> None:
    text = f"{{'Authorization': 'AWS4-HMAC-SHA256 Credential=AKIA/x, Signature=abc', 'secret_key': '{SECRET}'}}"
    assert "abc" not in redact(text)
    assert SECRET not in redact(text)
    assert redact("no token was found; password is needed; signature mismatch") == (
        "no token was found; password is needed; signature mismatch"
    )


def test_secrets_from_environment_and_options_are_redacted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setitem(fsspec.config.conf, "sftp", {"password": "hunter2hunter2", "host": "example.org"})
    assert redact(f"tried {SECRET} and hunter2hunter2 at example.org") == "tried *** and *** at example.org"


def test_a_cause_that_holds_a_secret_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    inner, outer = OSError("https://h/o?sig=abc"), ValueError("plain")
    outer.__cause__ = inner
    assert printable_cause(outer) is None
    assert printable_cause(inner) is None
    assert printable_cause(ValueError("plain")) is not None


class Leaky(Exception):
    """A client error whose message includes the request."""

    def __init__(self) -> None:
        super().__init__(
            f"GET https://AKIA:{SECRET}@127.0.0.1/p/{SECRET}/n/x?X-Amz-Signature={SECRET} failed "
            f"(headers: {{'authorization': 'Signature {SECRET}'}}, options: {{'secret': '{SECRET}'}})"
        )


@pytest.fixture
def leaky_store(s3_root: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A root on a service whose client puts credentials into its errors."""
    monkeypatch.setattr(retries, "POLICY", RetryPolicy(attempts=2, first_wait_s=0.001))

    async def leak(*_: object, **__: object) -> None:
        raise Leaky

    for backend in ("generic.FsspecBackend", "generic.MemoryBackend"):
        for method in ("get", "put", "put_if", "head", "list_page"):
            monkeypatch.setattr(f"zarr_core.storage.backends.{backend}.{method}", leak)
    return "memory://place/store"


def _all_that_is_shown(error: BaseException, caplog: pytest.LogCaptureFixture) -> str:
    """Text of an error as printed, as logged, and after pickling by a worker process."""
    pickling_support.install()  # as Dask does; errors are then pickled with their causes and contexts
    logging.getLogger("zarr_core.test").error("failed", exc_info=error)
    text = "".join(traceback.format_exception(error))
    formatted = "".join(logging.Formatter().format(record) for record in caplog.records)
    return text + formatted + repr(error) + repr(pickle.dumps(error)) + str(pickle.loads(pickle.dumps(error)))


@pytest.mark.parametrize(
    "work",
    [
        lambda root, source: convert(KIND, root, root=source),
        lambda root, source: convert(KIND, source.with_name("store"), source_url=root),
        lambda root, source: ZarrChunkReader(root),
        lambda root, source: commit(Storage(root), HEAD, lambda current: current or StoreManifest("x")),
        lambda root, source: Storage(root).read("a"),
        lambda root, source: Storage(root).write("a", [b"x"]),
        lambda root, source: Storage(root).create("a", b"x"),
        lambda root, source: Storage(root).list(),
        lambda root, source: WideMatrix.create(root, ["cg1"]),
        lambda root, source: WideMatrix.open(root),
        lambda root, source: verify_matrix(root),
    ],
    ids=[
        *("convert to", "convert from", "read", "commit", "get", "put", "create", "list"),
        *("make a matrix", "open a matrix", "verify a matrix"),
    ],
)
def test_failures_print_no_credentials(
    leaky_store: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, work: Callable[[str, Path], object]
) -> None:
    caplog.set_level(logging.DEBUG, "zarr_core")
    source = write_source(tmp_path / "source", sample_ids=("run_1",))
    with pytest.raises(Exception) as caught:  # noqa: PT011 (which one is looked at below)
        work(leaky_store, source)
    shown = _all_that_is_shown(caught.value, caplog)
    assert SECRET not in shown
    assert "place" in shown
    assert "Leaky" in shown


def test_the_command_line_prints_no_credentials(
    leaky_store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write_source(tmp_path / "source", sample_ids=("run_1",))
    assert main(["--dataset-kind", KIND, "--root", str(source), "--output", leaky_store]) == 1
    printed = capsys.readouterr()
    assert "error: " in printed.err
    assert SECRET not in printed.err + printed.out


def test_reprs_hold_no_credentials(monkeypatch: pytest.MonkeyPatch, s3_root: str) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    storage = Storage(s3_root)
    shown = repr(storage) + repr(vars(storage)) + repr(pickle.dumps(storage)) + storage.identity + storage.url
    assert SECRET not in shown + repr(make_store(s3_root)) + repr(ZarrChunkReader)


def test_connection_errors_show_no_key(
    monkeypatch: pytest.MonkeyPatch, s3_root: str, caplog: pytest.LogCaptureFixture
) -> None:
    import s3fs

    caplog.set_level(logging.DEBUG, "zarr_core")
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setattr(retries, "POLICY", RetryPolicy(attempts=2, first_wait_s=0.001))
    s3fs.S3FileSystem.clear_instance_cache()
    with pytest.raises(TransferError) as caught:
        Storage(s3_root).read("a")
    assert SECRET not in _all_that_is_shown(caught.value, caplog)
    s3fs.S3FileSystem.clear_instance_cache()


def test_an_option_that_no_filesystem_knows_is_not_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(fsspec.config.conf, "memory", {"secret": SECRET, "unknown": io.BytesIO})
    monkeypatch.setitem(fsspec.config.conf, "ftp", {"password": SECRET, "port": "no number"})
    for root in ("ftp://host.invalid/x", "nosuch://x"):
        with pytest.raises(StoreError) as caught:
            Storage(root)
        assert SECRET not in "".join(traceback.format_exception(caught.value))


# --- warehouses: their clients print the request, and catalog properties may be secrets

PROPERTIES = {
    "type": "rest",
    "uri": f"https://me:{SECRET}@catalogue.invalid",
    "token": SECRET,
    "credential": f"id:{SECRET}",
    "header.Authorization": f"Basic {SECRET}",
    "s3.secret-access-key": SECRET,
    "adls.account-key": SECRET,
}


def iceberg_that_fails(monkeypatch: pytest.MonkeyPatch, error: Exception) -> Warehouse:
    def load_catalog(*_: object, **properties: str) -> None:
        raise error

    monkeypatch.setattr("pyiceberg.catalog.load_catalog", load_catalog)
    return IcebergWarehouse("lab.long", properties=PROPERTIES)


def iceberg_refused(monkeypatch: pytest.MonkeyPatch) -> Warehouse:
    from pyiceberg.exceptions import UnauthorizedError

    return iceberg_that_fails(monkeypatch, UnauthorizedError(f"lab.long at catalogue.invalid: {SECRET} has expired"))


def iceberg_away(monkeypatch: pytest.MonkeyPatch) -> Warehouse:
    from requests.exceptions import ConnectionError as NoConnection

    message = f"GET https://me:{SECRET}@catalogue.invalid/lab.long (Authorization: Bearer {SECRET})"
    return iceberg_that_fails(monkeypatch, NoConnection(message))


def iceberg_in_a_database(monkeypatch: pytest.MonkeyPatch) -> Warehouse:
    from sqlalchemy.exc import OperationalError

    cause = Exception(f"password {SECRET} of user me was refused")
    return iceberg_that_fails(monkeypatch, OperationalError("SELECT 'lab.long'", {"x": SECRET}, cause))


def duckdb_that_fails(monkeypatch: pytest.MonkeyPatch) -> Warehouse:
    files = f"https://place.invalid/lab.long/*.parquet?sig={SECRET}"  # as a redirect may add it
    monkeypatch.setattr(DuckDBWarehouse, "_listed", lambda self: [ListedFile(files, 0, "")])
    monkeypatch.setattr("zarr_core.warehouses.duckdb.is_local", lambda url: True)  # so that DuckDB itself fetches it
    return DuckDBWarehouse("https://place.invalid/lab.long/*.parquet")


def athena_that_fails(monkeypatch: pytest.MonkeyPatch) -> Warehouse:
    from botocore.exceptions import ClientError

    def unload(*_: object, **__: object) -> None:
        raise ClientError({"Error": {"Message": f"lab.long: X-Amz-Security-Token={SECRET} is not valid"}}, "Unload")

    monkeypatch.setattr("awswrangler.athena.unload", unload)
    monkeypatch.setattr("awswrangler.s3.delete_objects", lambda *_, **__: None)
    return AthenaWarehouse("lab.long", database="lab", staging="s3://bucket/staging")


@pytest.mark.parametrize(
    "failing", [iceberg_refused, iceberg_away, iceberg_in_a_database, duckdb_that_fails, athena_that_fails]
)
def test_warehouses_print_no_credentials(
    failing: Callable[[pytest.MonkeyPatch], Warehouse],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    warehouse = failing(monkeypatch)
    with pytest.raises(WarehouseError) as caught:
        warehouse.batch_ids()
    shown = _all_that_is_shown(caught.value, caplog) + repr(warehouse)
    assert SECRET not in shown
    assert "lab.long" in shown


# --- text of servers: of any length, in linear time


@pytest.mark.parametrize(
    "piece",
    [
        *(
            "?",
            "&",
            "a",
            "a1",
            "://",
            "://a:",
            "://a:1/",
            "://a@",
            "@",
            ":",
            "=",
            "a=",
            "secret",
            "secret=",
            "x.secret-",
        ),
        *("https://h/p/", "https://h/p/x/n/", "https://a:b@", "authorization", "authorization: ", "Bearer ", "'", "\t"),
        *("-----BEGIN PRIVATE KEY-----", "hf_", "eyJ", "?sig=", "&key='", 'token="', "%", "\\", "\n"),
    ],
)
def test_long_texts_are_cut_and_redacted_in_linear_time(piece: str) -> None:
    """Quadratic expressions take minutes to hours for these."""
    for tail in ("", "@", "/n/", "=", "x"):
        assert len(redact(piece * (3_000_000 // len(piece)) + tail)) < 60_000
    assert refuse_credentials(piece * 100_000 if "://" not in piece and "?" not in piece else "") is None


@pytest.mark.parametrize(
    "text",
    [
        f'Invalid bucket name "AKIAEXAMPLE:{SECRET}@bucket": Bucket name must match',
        f"cannot connect to tls://u:{SECRET}@10.0.0.5:8786 after 30 s",
        f"GET https://a.blob.core.windows.net/c/x?sas={SECRET}",
        f"GET https://host/x?alt=media&key={SECRET}",
        f"DefaultEndpointsProtocol=https;AccountName=a;AccountKey={SECRET};EndpointSuffix=core.windows.net",
        f"SharedAccessSignature={SECRET}",
        f"{{'private_key': '-----BEGIN PRIVATE KEY-----\\n{SECRET}\\n-----END PRIVATE KEY-----\\n'}}",
        f"private_key: {SECRET}",
        f"-----BEGIN RSA PRIVATE KEY-----\n{SECRET}",
        f"header Bearer {SECRET}",
        f"Authorization: Basic {SECRET}",
        f"password='{SECRET}, {SECRET}'",
        f'{{"pwd": "{SECRET}"}}',
        f"hf_{'x' * 20}{SECRET.replace('/', '').replace('+', '')} was refused".replace(SECRET, ""),
        f"passphrase={SECRET}",
    ],
)
def test_credentials_in_messages_are_redacted(text: str) -> None:
    shown = redact(text)
    assert SECRET not in shown
    assert "wJalrXUtn" not in shown
    assert "***" in shown or "@" not in shown


@pytest.mark.parametrize(
    "text",
    [
        "NoCredentialsError: Unable to locate credentials",
        "sort key=time; Key: samples/run_1/zarr.json",
        "http://host:8080/a?page=2&sort=name",
        "2026-11-23T10:11:12: a@b.example: 3 samples",
        "the bearer of news",
    ],
)
def test_other_text_is_printed_as_it_is(text: str) -> None:
    assert redact(text) == text


def test_the_quoted_form_of_a_known_secret_is_redacted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    assert "wJalr" not in redact("GET /x?a=wJalrXUtnFEMI%2FK7MDENG%2BbPxRfiCYEXAMPLE")


# --- URLs with credentials are refused where they enter

WITH_CREDENTIALS = [
    f"s3://AKIAEXAMPLE:{SECRET}@bucket/x",
    f"https://me:{SECRET}@host.invalid/x",
    f"https://{SECRET.replace('/', '')}@host.invalid/x",
    f"simplecache::ftp://me:{SECRET}@host.invalid/x",
    f"tls://u:{SECRET}@127.0.0.1:1",
    f"https://host.invalid/x.csv?X-Amz-Signature={SECRET}",
    f"https://host.invalid/x.csv?sv=1&sig={SECRET}",
    f"https://host.invalid/x.csv?sas={SECRET}",
    f"https://host.invalid/x.csv?key={SECRET}",
    f"DefaultEndpointsProtocol=https;AccountName=a;AccountKey={SECRET}==;EndpointSuffix=core.windows.net",
    f"hf://hf_{SECRET.replace('/', '')}@datasets/user/name",
    f"https://host.invalid/hf_{SECRET.replace('/', '')}/x",
]


@pytest.mark.parametrize("url", WITH_CREDENTIALS)
@pytest.mark.parametrize(
    "enter",
    [
        Storage,
        ZarrChunkReader,
        make_store,
        DiskCache,
        DuckDBWarehouse,
        lambda url: convert(KIND, url, source_url="memory://source"),
        lambda url: convert(KIND, "memory://store", source_url=url),
        lambda url: read_table(f"{url}#.csv", "samples"),
        lambda url: WideMatrix.open(url),
        lambda url: Tier("fast", url),
        lambda url: dask_executor(url).__enter__(),
        lambda url: AthenaWarehouse("t", database="d", staging=url),
    ],
    ids=[
        *("storage", "reader", "zarr", "cache", "duckdb", "store", "source", "metadata", "matrix", "tier", "dask"),
        "athena",
    ],
)
def test_a_url_with_credentials_is_refused_where_it_enters(
    enter: Callable[[str], object], url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with pytest.raises(ZarrCoreError, match="environment variables") as caught:
        enter(url)
    shown = _all_that_is_shown(caught.value, caplog)
    assert "wJalrXUtn" not in shown


@pytest.mark.parametrize(
    "url",
    [
        "oci://bucket@namespace/x",
        "abfs://container@account.dfs.core.windows.net/x",
        "sftp://me@host/x",
        "hf://datasets/user/name@main/x",
        "https://h/p/ToKeN_-abc/n/ns/b/bucket/o/x",
        "https://host:8080/a@b?page=2",
        "s3://bucket/sig=3/token=4",
        "/data/me:x@y/z?sig=3",
    ],
)
def test_other_urls_are_accepted(url: str) -> None:
    refuse_credentials(url)


def test_a_parameter_whose_name_is_a_credential_or_any_text_is_refused(tmp_path: Path) -> None:
    for number, name in enumerate((f"password={SECRET}", "x" * 201, "a\x1b[2J", "a\nb", "")):
        source = write_source(tmp_path / f"source{number}", sample_ids=("run_1", "run_2"))
        (source / "run_1" / "params.json").write_text(json.dumps({name: 1.0}))
        report = convert(KIND, tmp_path / f"store{number}", root=source)
        (refused,) = report.having("quarantined")
        assert "params.json" in refused.reason
        assert len(refused.reason) < 400
        stored = b"".join(path.read_bytes() for path in (tmp_path / f"store{number}").rglob("*") if path.is_file())
        assert b"wJalrXUtn" not in stored + refused.reason.encode()
        assert b"\x1b" not in refused.reason.encode()
