"""Retries over a failing network: which errors are retried, how often, how long, and what is logged."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import re
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fsspec.config
import numpy as np
import obstore
import obstore.exceptions
import obstore.store
import pytest
from botocore.exceptions import NoCredentialsError

from tests.helpers.servers.clouds import ACCOUNT
from tests.helpers.servers.fault_proxy import FaultProxy, Faults
from tests.helpers.servers.oci import NAMESPACE, Handler, OciServer
from tests.helpers.small_source import KIND, load_field, write_source
from zarr_core.errors import SourceError, StoreError, TransferError, TruncatedError
from zarr_core.points.convert.conversion import convert
from zarr_core.points.read.reader import ZarrChunkReader
from zarr_core.points.verify.store import verify_store
from zarr_core.sources.tree import SampleTree
from zarr_core.storage import Storage, retries
from zarr_core.storage.backends import RemoteBackend
from zarr_core.storage.backends.obstore import ObstoreBackend
from zarr_core.storage.backends.s3 import S3Backend, check_response
from zarr_core.storage.byte_ranges import RemoteObjects, Request
from zarr_core.storage.retries import RetryPolicy, Service

QUICK = RetryPolicy(attempts=8, first_wait_s=0.005, first_throttled_wait_s=0.01, longest_wait_s=0.02)


def run(service: Service, *answers: Any, policy: RetryPolicy = QUICK) -> tuple[Any, int]:
    """The result of a request with these responses, and the number of attempts."""
    left = list(answers)

    async def work() -> Any:
        answer = left.pop(0)
        if answer == "hang":
            await asyncio.sleep(60)
        if isinstance(answer, Exception):
            raise answer
        return answer

    try:
        outcome: Any = asyncio.run(retries.request(service, "s3://bucket/object", work, policy=policy))
    except Exception as error:
        outcome = error
    return outcome, len(answers) - len(left)


class ServiceError(Exception):
    """An error as clients of services raise it."""

    def __init__(self, status: int, code: str = "") -> None:
        super().__init__(f"{status} {code}")
        self.status = status


def test_transient_errors_are_retried() -> None:
    service = Service("s3://bucket")
    assert run(service, OSError("busy"), ConnectionResetError(), TruncatedError("half"), "x") == ("x", 4)
    assert run(service, ServiceError(500), ServiceError(503), ServiceError(429), "x") == ("x", 4)
    patient = RetryPolicy(attempts=2, timeout_s=0.1, first_wait_s=0.001)
    assert run(service, "hang", "x", policy=patient) == ("x", 2)


@pytest.mark.parametrize(
    "error", [FileNotFoundError("gone"), PermissionError("no"), ServiceError(400), ServiceError(403), TypeError("bug")]
)
def test_permanent_errors_are_not_retried(error: Exception) -> None:
    outcome, attempts = run(Service("s3://bucket"), error, "x")
    assert attempts == 1
    assert isinstance(outcome, type(error) if isinstance(error, FileNotFoundError | TypeError) else TransferError)


def test_a_refusal_of_wrong_credentials_names_the_page_that_helps() -> None:
    error = PermissionError(None)  # as s3fs translates a response to a HEAD request, which has no body
    error.__cause__ = ServiceError(403)
    outcome, _ = run(Service("s3://bucket"), error)
    expected = "s3://bucket/object was refused: PermissionError; HTTP 403: check the credentials (docs/clouds.md)"
    assert str(outcome) == expected


def test_an_expired_token_names_the_page_that_helps() -> None:
    error = OSError(errno.EINVAL, "Bad Request")  # as s3fs translates a response to a HEAD request of 400
    error.__cause__ = ServiceError(400)
    assert str(run(Service("s3://bucket"), error)[0]).endswith("HTTP 400: check the credentials (docs/clouds.md)")
    error = OSError(errno.EINVAL, "The XML you provided was not well-formed")
    error.__cause__ = ServiceError(400)
    assert "credentials" not in str(run(Service("s3://bucket"), error)[0])


def test_missing_credentials_are_named() -> None:
    outcome, _ = run(Service("s3://bucket"), NoCredentialsError())
    assert str(outcome).endswith("; set the credentials of the service, such as AWS_ACCESS_KEY_ID (docs/clouds.md)")


def test_attempts_are_bounded_in_number_and_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    outcome, attempts = run(Service("s3://bucket"), *[OSError(f"error {n}") for n in range(1, 10)])
    assert attempts == QUICK.attempts
    assert isinstance(outcome, TransferError)
    assert re.search(r"s3://bucket/object failed after 8 attempts in \d+ s: OSError: error 8", str(outcome))

    now = 0.0
    monkeypatch.setattr(retries, "time", SimpleNamespace(monotonic=lambda: now))
    in_time = RetryPolicy(attempts=100, first_wait_s=0.001, longest_wait_s=0.001, deadline_s=180)

    async def fails_after_50_s() -> None:
        nonlocal now
        now += 50
        raise OSError("error")

    with pytest.raises(TransferError, match="failed after 4 attempts in 200 s"):
        asyncio.run(retries.request(Service("s3://bucket"), "s3://bucket/object", fails_after_50_s, policy=in_time))


def test_waits_grow_to_a_limit_and_are_random() -> None:
    policy = RetryPolicy(first_wait_s=1, first_throttled_wait_s=4, longest_wait_s=16)
    for attempt, longest in enumerate((1, 2, 4, 8, 16, 16), start=1):
        waits = {policy.wait_s(attempt) for _ in range(100)}
        assert len(waits) > 50
        assert longest / 2 <= min(waits) <= max(waits) <= longest
    assert 2 <= policy.wait_s(1, throttled=True) <= 4
    assert policy.timeout_for(10**9) > policy.timeout_for(0) + 500


def test_throttling_lowers_the_limit_and_success_raises_it_again() -> None:
    service, most, now = Service("s3://bucket", most=8), 0, 0
    refusals = iter([ServiceError(503, "SlowDown")])

    async def work() -> None:
        nonlocal most, now
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.001)
        now -= 1
        if error := next(refusals, None):
            raise error

    async def many(count: int) -> None:
        await asyncio.gather(*(retries.request(service, "x", work, policy=QUICK) for _ in range(count)))

    asyncio.run(many(20))
    assert most == 8
    assert 4 <= service.limit < 8
    most = 0
    asyncio.run(many(4))
    asyncio.run(many(100))
    assert service.limit == most == 8


def test_simultaneous_throttling_responses_count_once() -> None:
    service = Service("s3://bucket", most=64)
    for _ in range(10):
        service.throttled()
    assert service.limit == 32


def test_a_cancelled_request_frees_its_slot() -> None:
    service = Service("s3://bucket", most=1)

    async def main() -> str:
        begun = asyncio.Event()

        async def hang() -> None:
            begun.set()
            await asyncio.Event().wait()

        hanging = [asyncio.create_task(retries.request(service, "x", hang)) for _ in range(3)]
        await begun.wait()
        for task in hanging:
            task.cancel()
        await asyncio.gather(*hanging, return_exceptions=True)
        return await asyncio.wait_for(retries.request(service, "x", lambda: asyncio.sleep(0, "through")), 120)

    assert asyncio.run(main()) == "through"


def test_each_kind_of_error_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    service = Service("s3://bucket")
    for _ in range(20):
        run(service, OSError("reset"), ServiceError(503, "SlowDown"), OSError("reset"), "x")
    logged = [record.getMessage() for record in caplog.records]
    assert len(logged) == 2
    assert logged[0].startswith("s3://bucket: OSError: reset; retrying")
    assert logged[1].startswith("s3://bucket: ServiceError: 503 SlowDown; sending fewer requests at a time")


# --- servers ------------------------------------------------------------------------------------------------------


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "POLICY", QUICK)


def forget_filesystems() -> None:
    import ocifs
    import s3fs

    s3fs.S3FileSystem.clear_instance_cache()
    ocifs.OCIFileSystem.clear_instance_cache()


# Kinds of services by backend, and the variables that name their endpoints; OCI's is in fsspec's configuration.
SERVICES = {"s3fs": "s3", "obstore": "s3", "oci": "oci", "gs": "gs", "az": "az"}
ENDPOINTS = {"s3": "AWS_ENDPOINT_URL", "gs": "GOOGLE_BASE_URL", "az": "AZURE_STORAGE_ENDPOINT"}


def lead_to(monkeypatch: pytest.MonkeyPatch, kind: str, url: str) -> None:
    """Point the clients of a service to another endpoint."""
    service = SERVICES[kind]
    if service == "oci":
        monkeypatch.setitem(fsspec.config.conf, "oci", {"config_kwargs": {"service_endpoint": url}})
    else:
        monkeypatch.setenv(ENDPOINTS[service], f"{url}/{ACCOUNT}" if service == "az" else url)
    forget_filesystems()


@pytest.fixture
def bad_network(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, quick: None
) -> Iterator[tuple[str, FaultProxy]]:
    """A root on a service (the parameter), through a proxy that fails a sixth of all requests."""
    kind = request.param
    service = SERVICES[kind]
    root = request.getfixturevalue(f"{service}_root")
    upstream = os.environ["AWS_ENDPOINT_URL"] if service == "s3" else request.getfixturevalue(f"{service}_server").url
    if kind == "s3fs":
        monkeypatch.setattr("zarr_core.storage.backends.obstore.may_be_used", lambda: False)
    with FaultProxy(upstream, Faults(slow_down=0.1, reset=0.03, truncate=0.03), seed=7) as proxy:
        lead_to(monkeypatch, kind, proxy.url)
        yield root, proxy
    forget_filesystems()


@pytest.mark.slow
@pytest.mark.parametrize("bad_network", ["s3fs", "obstore", "oci", "gs"], indirect=True)
def test_all_steps_succeed_over_a_bad_network(bad_network: tuple[str, FaultProxy], tmp_path: Path) -> None:
    """With source and store behind it: list, load, convert, commit, read, verify."""
    root, proxy = bad_network
    local = write_source(tmp_path / "source", sample_ids=("run_1", "run_2"))
    source = Storage(f"{root}/source")
    for path in local.rglob("*.pt"):
        source.write(str(path.relative_to(local)), [path.read_bytes()])
    report = convert(KIND, f"{root}/store", source_url=source.root, chunk_points=64)
    assert len(report.having("converted")) == 2
    reader = ZarrChunkReader(f"{root}/store")
    for sample_id in ("run_1", "run_2"):
        for name, values in reader.read_sample(sample_id).items():
            expected = load_field(local, sample_id, name).astype(values.dtype)
            assert np.array_equal(np.sort(values, axis=0), np.sort(expected, axis=0))
    assert verify_store(f"{root}/store", source=source.root).ok
    assert proxy.counts["503"] > 3
    assert proxy.counts["truncated"] + proxy.counts["reset before"] + proxy.counts["reset after"] > 2


PLACES: dict[str, Callable[[str], RemoteBackend] | None] = {
    "s3fs": S3Backend,
    "obstore": ObstoreBackend,
    "oci": None,
    "gs": None,
    "az": None,
}


@pytest.fixture(params=PLACES)
def anywhere(request: pytest.FixtureRequest) -> tuple[str, str, Callable[[str], RemoteBackend] | None]:
    """A kind of service, a root there, and its proxy."""
    root = request.getfixturevalue(f"{SERVICES[request.param]}_root")
    return request.param, root, PLACES[request.param]


@pytest.mark.slow
def test_a_dead_server_is_a_clear_error(anywhere: Any, monkeypatch: pytest.MonkeyPatch, quick: None) -> None:
    kind, root, backend = anywhere
    closed = socket.socket()  # reserves the port without listening
    closed.bind(("127.0.0.1", 0))
    lead_to(monkeypatch, kind, f"http://127.0.0.1:{closed.getsockname()[1]}")
    storage = Storage(root, client=backend)
    for work in (
        lambda: storage.read("a"),
        lambda: storage.write("a", [b"x"]),
        lambda: storage.create("a", b"x"),
        lambda: storage.list(),
        lambda: ZarrChunkReader(root),
    ):
        with pytest.raises(StoreError, match=rf"{root}.* failed after 8 attempts in \d+ s: "):
            work()
    with pytest.raises(SourceError, match=rf"{root} cannot be listed: .*failed after 8 attempts"):
        SampleTree(KIND, root).discover()
    (data,) = RemoteObjects(Storage(root)).fetch([Request("a", 0, 4)])
    assert isinstance(data, TransferError)
    closed.close()
    forget_filesystems()


def test_a_server_that_never_answers_times_out(anywhere: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    kind, root, backend = anywhere
    impatient = RetryPolicy(attempts=2, timeout_s=0.3, slowest_bytes_per_s=1e9, first_wait_s=0.01)
    monkeypatch.setattr(retries, "POLICY", impatient)
    with socket.create_server(("127.0.0.1", 0)) as server:
        held: list[socket.socket] = []

        def accept() -> None:
            while True:
                try:
                    held.append(server.accept()[0])
                except OSError:
                    return

        threading.Thread(target=accept, daemon=True).start()
        lead_to(monkeypatch, kind, f"http://127.0.0.1:{server.getsockname()[1]}")
        with pytest.raises(TransferError, match=r"failed after 2 attempts.*(Time|time)"):
            Storage(root, client=backend).read("a")
        server.shutdown(socket.SHUT_RDWR)
    for connection in held:
        connection.close()
    forget_filesystems()


def test_what_one_request_costs_when_all_fail(
    oci_root: str, gs_root: str, az_root: str, monkeypatch: pytest.MonkeyPatch, quick: None
) -> None:
    """The clients do not retry by themselves: the policy's attempts are the total."""
    for kind, root, backend in (
        ("s3fs", "s3://bucket/x", S3Backend),
        ("obstore", "s3://bucket/x", ObstoreBackend),
        ("oci", f"oci://bucket@{NAMESPACE}/x", None),
        ("gs", "gs://bucket/x", None),
        ("az", "az://bucket/x", None),
    ):
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.setenv(name, "test")
        with OciServer() as upstream, FaultProxy(upstream.url, Faults(slow_down=1.0)) as proxy:
            lead_to(monkeypatch, kind, proxy.url)
            with pytest.raises(TransferError, match="failed after 8 attempts"):
                Storage(root, client=backend).read("a", 0, 10)
            assert proxy.counts["requests"] == QUICK.attempts, kind
    forget_filesystems()


def test_an_object_that_ends_too_early_is_not_requested_again(anywhere: Any, quick: None) -> None:
    _, root, backend = anywhere
    Storage(root, client=backend).write("a", [b"0123456789"])
    for request in (Request("a", 5, 20), Request("a", 10, 12)):
        (data,) = RemoteObjects(Storage(root)).fetch([request])
        assert isinstance(data, TruncatedError)


class _Body:
    def __init__(self, data: bytes) -> None:
        self._data = data

    async def read(self) -> bytes:
        return self._data

    def close(self) -> None:
        """Nothing is open."""


def test_a_response_that_is_shorter_than_announced_is_retried(
    s3_root: str, monkeypatch: pytest.MonkeyPatch, quick: None
) -> None:
    """A truncated response is noticed by its number of bytes, whatever the client does."""
    answers = [b"01234", b"", b"0123456789"]

    async def call(self: S3Backend, method: str, path: str, **options: object) -> object:
        return {"Body": _Body(answers.pop(0)), "ContentLength": 10, "ETag": "1"}

    monkeypatch.setattr(S3Backend, "_call", call)
    storage = Storage(s3_root, client=S3Backend)
    assert storage.read("a") == b"0123456789"
    answers += [b"01234"] * QUICK.attempts
    with pytest.raises(TruncatedError, match="the service announced 10 bytes, but 5 came"):
        storage.read("a")


# Bytes [2, 6) of ten, as a gateway or a proxy may answer that ignores Range, sends a part of it, or sends another.
OTHER_BYTES = [
    (b"0123456789", None),
    (b"23", "bytes 2-3/10"),
    (b"3456", "bytes 3-6/10"),
    (b"23", "bytes 2-5/10"),
    (b"3456", "bytes 3-6/*"),
]


@pytest.mark.parametrize(("data", "content_range"), OTHER_BYTES)
def test_a_response_with_other_bytes_than_requested_is_retried(
    data: bytes, content_range: str | None, s3_root: str, monkeypatch: pytest.MonkeyPatch, quick: None
) -> None:
    right = b"2345", "bytes 2-5/10"
    answers = [(data, content_range), right]

    async def call(self: S3Backend, method: str, path: str, **options: object) -> object:
        body, sent = answers.pop(0)
        return {"Body": _Body(body), "ContentLength": len(body), "ContentRange": sent, "ETag": "1"}

    monkeypatch.setattr(S3Backend, "_call", call)
    storage = Storage(s3_root, client=S3Backend)
    assert storage.read("a", 2, 6) == b"2345"
    answers += [(data, content_range)] * QUICK.attempts
    with pytest.raises(TransferError, match=f"asked for bytes=2-5 and sent {len(data)} bytes, "):
        storage.read("a", 2, 6)


def test_ranges_at_the_end_of_an_object_and_of_all_of_it() -> None:
    """Services may send an object that is requested by a range without ``Content-Range``."""
    check_response(0, 20, 10, None, None)
    check_response(8, 20, 2, None, "bytes 8-9/10")
    check_response(8, None, 2, None, "bytes 8-9/*")
    check_response(-20, None, 10, None, "bytes 0-9/10")
    check_response(-2, None, 2, None, "bytes 8-9/10")
    with pytest.raises(OSError, match="sent 2 bytes, bytes 7-8/10"):
        check_response(-2, None, 2, None, "bytes 7-8/10")


def test_oci_retries_a_response_with_other_bytes_than_requested(
    oci_root: str, monkeypatch: pytest.MonkeyPatch, quick: None
) -> None:
    get, answers = Handler._get, [2, 2]

    def shortened(self: Handler, objects: Any, key: str) -> tuple[int, bytes, dict[str, str]]:
        status, data, headers = get(self, objects, key)
        if status == 206 and answers:
            return status, data[: answers.pop()], headers | {"Content-Range": "bytes 2-3/10"}
        return status, data, headers

    monkeypatch.setattr(Handler, "_get", shortened)
    Storage(oci_root).write("a", [b"0123456789"])
    assert Storage(oci_root).read("a", 2, 6) == b"2345"
    assert not answers


def test_nothing_is_logged_without_errors(s3_root: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "zarr_core")
    storage = Storage(s3_root)
    storage.write("a", [b"x"])
    with pytest.raises(FileNotFoundError):
        storage.read("b")
    assert not [record for record in caplog.records if record.name.startswith("zarr_core")]


@pytest.mark.parametrize(
    ("host", "reason"), [("127.0.0.1:9", "Connection refused"), ("nowhere.invalid", "failed to lookup address")]
)
def test_an_error_of_obstore_is_one_line_with_the_reason_of_the_system(host: str, reason: str) -> None:
    """Without the values of its Rust objects."""
    url = f"http://{host}"
    store = obstore.store.S3Store(
        "bucket",
        endpoint=url,
        skip_signature=True,
        client_options={"allow_http": True},
        retry_config={"max_retries": 0},
    )
    with pytest.raises(obstore.exceptions.BaseError) as caught:
        obstore.get(store, "name")
    described = retries.describe(caught.value)
    assert url in described
    assert reason in described
    assert not {"Debug", "{", "\n"} & set(re.findall(r"Debug|[{\n]", described))


def test_no_request_is_repeated_while_the_interpreter_ends() -> None:
    service = Service("s3://bucket")
    ending = RuntimeError("cannot schedule new futures after interpreter shutdown")
    outcome, attempts = run(service, ending, "answer")
    assert (outcome, attempts) == (ending, 1)
    assert run(service, RuntimeError("Session is closed"), "answer") == ("answer", 2)
