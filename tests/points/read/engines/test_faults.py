"""The fault proxy forwards unchanged bytes, keeps connections, and injects every requested fault."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.helpers.servers.fault_proxy import FaultProxy, Faults
from tests.helpers.waiting import LIMIT_SECONDS

BODY = os.urandom(1_000_000)


class _Handler(BaseHTTPRequestHandler):
    """Answers GET with BODY (in chunks below /chunked), and PUT with what came: its host, its length, its client."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.send_response(200)
        if self.path == "/chunked":
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for start in range(0, len(BODY), 300_000):
                piece = BODY[start : start + 300_000]
                self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            self.wfile.write(b"0\r\n\r\n")
            return
        self.send_header("Content-Length", str(len(BODY)))
        self.end_headers()
        self.wfile.write(BODY)

    def do_PUT(self) -> None:
        received = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.puts += 1  # type: ignore[attr-defined]
        answer = {"host": self.headers["Host"], "same": received == BODY, "port": self.client_address[1]}
        content = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[ThreadingHTTPServer]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as made:
        made.daemon_threads = True
        made.puts = 0  # type: ignore[attr-defined]
        threading.Thread(target=made.serve_forever, daemon=True).start()
        yield made
        made.shutdown()


@pytest.fixture
def proxy(server: ThreadingHTTPServer) -> Iterator[FaultProxy]:
    with FaultProxy(f"http://127.0.0.1:{server.server_port}") as made:
        yield made


def connect(proxy: FaultProxy) -> http.client.HTTPConnection:
    return http.client.HTTPConnection(urlsplit(proxy.url).netloc, timeout=LIMIT_SECONDS)


def get(connection: http.client.HTTPConnection, path: str = "/object") -> tuple[int, bytes]:
    connection.request("GET", path)
    answer = connection.getresponse()
    return answer.status, answer.read()


def put(connection: http.client.HTTPConnection) -> dict[str, object]:
    connection.request("PUT", "/object", BODY, {"Host": "bucket.example:1234"})
    found: dict[str, object] = json.loads(connection.getresponse().read())
    return found


def test_bodies_and_the_host_pass_untouched_over_one_connection(proxy: FaultProxy) -> None:
    connection = connect(proxy)
    assert get(connection) == (200, BODY)
    assert get(connection, "/chunked") == (200, BODY)
    ports = []
    for _ in range(2):
        found = put(connection)
        assert (found["host"], found["same"]) == ("bucket.example:1234", True)
        ports.append(found["port"])
    assert ports[0] == ports[1]
    assert proxy.counts["requests"] == 4
    assert (proxy.counts["GET"], proxy.counts["PUT"]) == (2, 2)
    assert proxy.counts["GET bytes"] == 2 * len(BODY)
    assert proxy.counts["PUT bytes sent"] == 2 * len(BODY)
    assert proxy.counts["status 200"] == 4


def test_a_refusal_keeps_the_connection_and_does_not_reach_the_server(
    proxy: FaultProxy, server: ThreadingHTTPServer
) -> None:
    connection = connect(proxy)
    proxy.faults = Faults(slow_down=1)
    connection.request("PUT", "/object", BODY)
    answer = connection.getresponse()
    assert answer.status == 503
    assert b"<Code>SlowDown</Code>" in answer.read()
    assert server.puts == 0  # type: ignore[attr-defined]
    proxy.faults = Faults(slow_down=1, only="PUT")
    assert get(connection) == (200, BODY)
    assert proxy.counts["503"] == 1


def test_refusals_of_oci_have_its_error_format(proxy: FaultProxy) -> None:
    proxy.faults = Faults(slow_down=1)
    connection = connect(proxy)
    connection.request("GET", "/object", headers={"Authorization": 'Signature version="1"'})
    assert json.loads(connection.getresponse().read())["code"] == "TooManyRequests"


def test_resets_come_before_and_after_the_work_is_done(proxy: FaultProxy, server: ThreadingHTTPServer) -> None:
    proxy.faults = Faults(reset=1)
    for _ in range(20):
        with pytest.raises((ConnectionError, http.client.BadStatusLine)):
            put(connect(proxy))
    assert proxy.counts["reset before"] > 0
    assert proxy.counts["reset after"] == server.puts > 0  # type: ignore[attr-defined]
    assert proxy.counts["reset before"] + proxy.counts["reset after"] == 20


def test_truncated_bodies_announce_all_and_hold_half(proxy: FaultProxy) -> None:
    proxy.faults = Faults(truncate=1)
    with pytest.raises(http.client.IncompleteRead) as raised:
        get(connect(proxy))
    assert raised.value.partial == BODY[: len(BODY) // 2]
    assert proxy.counts["truncated"] == 1
    assert proxy.counts["GET bytes"] == len(BODY) // 2


def test_faults_have_the_requested_rate_and_repeat_for_a_seed(server: ThreadingHTTPServer) -> None:
    def statuses(seed: int) -> list[int]:
        with FaultProxy(f"http://127.0.0.1:{server.server_port}", Faults(slow_down=0.3), seed) as proxy:
            connection = connect(proxy)
            return [get(connection)[0] for _ in range(100)]

    first = statuses(1)
    assert 10 <= first.count(503) <= 50
    assert first == statuses(1) != statuses(2)


def test_requests_wait_out_the_latency(proxy: FaultProxy) -> None:
    proxy.faults = Faults(latency_s=0.2)
    started = time.perf_counter()
    get(connect(proxy))
    assert time.perf_counter() - started >= 0.2


def test_bodies_share_the_bandwidth(proxy: FaultProxy) -> None:
    whole = len(get(connect(proxy))[1])
    proxy.faults = Faults(bytes_per_s=10 * whole)
    started = time.perf_counter()
    for _ in range(2):
        get(connect(proxy))
    assert time.perf_counter() - started >= 0.2


def test_signed_requests_are_accepted_and_retried_by_a_client(s3_root: str) -> None:
    import boto3
    from botocore.config import Config

    bucket = urlsplit(s3_root).netloc
    with FaultProxy(os.environ["AWS_ENDPOINT_URL"], seed=2) as proxy:
        client = boto3.client("s3", endpoint_url=proxy.url, config=Config(retries={"max_attempts": 20}))
        proxy.faults = Faults(slow_down=0.3)
        for number in range(4):
            client.put_object(Bucket=bucket, Key=f"{number}", Body=BODY[: 1000 * number])
        assert client.list_objects_v2(Bucket=bucket)["KeyCount"] == 4
        for number in range(4):
            assert client.get_object(Bucket=bucket, Key=f"{number}")["Body"].read() == BODY[: 1000 * number]
        assert proxy.counts["503"] > 0


def test_the_proxy_runs_as_a_process(server: ThreadingHTTPServer) -> None:
    command = [sys.executable, "-m", "tests.helpers.servers.fault_proxy", f"http://127.0.0.1:{server.server_port}"]
    root = Path(__file__).parents[4]
    with subprocess.Popen(
        [*command, "--faults", '{"slow_down": 1}'], stdout=subprocess.PIPE, text=True, cwd=root
    ) as run:
        try:
            assert run.stdout is not None
            url = run.stdout.readline().strip()

            def ask(method: str, what: str, content: object = None) -> dict[str, float]:
                data = None if content is None else json.dumps(content).encode()
                with urllib.request.urlopen(urllib.request.Request(f"{url}/-/{what}", data, method=method)) as answer:
                    found: dict[str, float] = json.load(answer)
                    return found

            connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=LIMIT_SECONDS)
            assert get(connection)[0] == 503
            assert ask("PUT", "faults", {"latency_s": 0.001})["slow_down"] == 0
            assert get(connection) == (200, BODY)
            assert ask("GET", "counts") == {
                "requests": 2,
                "GET": 2,
                "503": 1,
                "status 200": 1,
                "GET bytes": len(BODY),
            }
            assert ask("DELETE", "counts") == {}
            with pytest.raises(urllib.error.HTTPError, match="400"):
                ask("PUT", "faults", {"no such": 1})
        finally:
            run.kill()  # a run in the background of a shell may ignore SIGTERM
