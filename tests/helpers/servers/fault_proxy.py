"""An HTTP/1.1 proxy on loopback that injects faults: latency, refusals, resets, truncated bodies.

It stands in front of an S3 or OCI endpoint. Heads and bodies pass as they are, streamed both ways over connections that
are kept alive; the Host header is not touched, so that signed requests stay valid.

In process, on an event loop in a thread of its own::

    with FaultProxy("http://127.0.0.1:9000", Faults(latency_s=0.01, slow_down=0.1), seed=1) as proxy:
        client = s3_client(endpoint_url=proxy.url)
        proxy.faults = Faults()  # from the next request on
        proxy.counts["GET"], proxy.counts["GET bytes"], proxy.counts["503"]

As a process of its own, so that it takes no time from the one that is measured (the first line it prints is its URL)::

    python -m tests.helpers.servers.fault_proxy http://127.0.0.1:9000 --port 0 --faults '{"latency_s": 0.01}' --seed 1

Any process may then ask it: ``GET /-/counts``, ``DELETE /-/counts``, ``PUT /-/faults`` with such JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import socket
import threading
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from types import TracebackType
from urllib.parse import urlsplit

_PIECE = 1 << 18
_OWN_PATH = "/-/"
_SLOW_DOWN = b"<?xml version='1.0'?><Error><Code>SlowDown</Code><Message>injected by the proxy</Message></Error>"
_SLOW_DOWN_OCI = b'{"code": "TooManyRequests", "message": "injected by the proxy"}'


@dataclass(frozen=True)
class Faults:
    """Faults to inject; probabilities are per request.

    Attributes:
        latency_s: before a request is passed on.
        bytes_per_s: of the bodies that go to clients, on all connections together; 0 for no limit.
        slow_down: answered with 503 instead of being passed on.
        reset: the connection is reset, with equal chance before the server gets the request or when it has answered:
            a client cannot know whether its request was carried out.
        truncate: a successful answer's body stops in the middle, and the connection is closed; of answers that give
            their length.
        only: the method that faults are for, as in "GET"; all by default. Latency is for all.
    """

    latency_s: float = 0
    bytes_per_s: float = 0
    slow_down: float = 0
    reset: float = 0
    truncate: float = 0
    only: str | None = None


class FaultProxy:
    """A proxy on a free port of 127.0.0.1, for as long as the context lasts.

    Args:
        upstream: URL of the server, plain http.
        faults: what to do to requests.
        seed: of the random choices. Concurrent requests take theirs in the order in which they come.
        port: to listen on; any free one by default.

    Attributes:
        faults: may be replaced at any time.
        counts: requests by method ("GET", ...) and in all ("requests"), bytes of the bodies that went to the client by
            method ("GET bytes") and of those that came from it ("PUT bytes sent"), answers by status ("status 206") as
            the server gave them, and faults: "503", "reset before", "reset after", "truncated". ``counts.clear()``
            starts again.
        url: where it listens.
    """

    def __init__(self, upstream: str, faults: Faults | None = None, seed: int = 0, port: int = 0) -> None:
        parts = urlsplit(upstream)
        if parts.scheme != "http" or parts.hostname is None:
            raise ValueError(f"the upstream must be http://HOST:PORT, not {upstream}")
        self.faults = faults or Faults()
        self.counts: Counter[str] = Counter()
        self.url = ""
        self._upstream = (parts.hostname, parts.port or 80)
        self._random = random.Random(seed)
        self._port = port
        self._link_is_free_at = 0.0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run_loop, daemon=True, name="fault proxy")
        self._connections: set[asyncio.Task[None]] = set()

    def __enter__(self) -> FaultProxy:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self.start(), self._loop).result()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def start(self) -> asyncio.Server:
        """Listen, on the loop that runs."""
        self._server = await asyncio.start_server(self._connection, "127.0.0.1", self._port, limit=_PIECE)
        self.url = "http://{}:{}".format(*self._server.sockets[0].getsockname())
        return self._server

    async def _stop(self) -> None:
        self._server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def _run_loop(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        upstream = _Upstream(*self._upstream)
        try:
            while (request := await _Head.read(reader)) is not None:
                if request.target.startswith(_OWN_PATH):
                    await self._answer_itself(request, reader, writer)
                elif not await self._serve(request, reader, writer, upstream):
                    break
        except (OSError, EOFError):  # IncompleteReadError is an EOFError
            writer.transport.abort()
        except asyncio.CancelledError:
            pass  # at the end
        finally:
            self._connections.discard(task)
            upstream.close()
            writer.close()

    async def _serve(
        self, request: _Head, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, upstream: _Upstream
    ) -> bool:
        """Pass a request on, or not; returns whether the connection may be used again."""
        method, faults, counts = request.method, self.faults, self.counts
        counts["requests"] += 1
        counts[method] += 1
        slow_down, reset, truncate = (
            (faults.only is None or method == faults.only) and self._random.random() < chance
            for chance in (faults.slow_down, faults.reset, faults.truncate)
        )
        reset_before = self._random.random() < 0.5
        if faults.latency_s:
            await asyncio.sleep(faults.latency_s)
        if reset and reset_before:
            counts["reset before"] += 1
            writer.transport.abort()
            return False
        if slow_down:
            counts["503"] += 1
            return await _refuse(request, reader, writer)
        answer = await self._pass_on(request, reader, writer, upstream)
        counts[f"status {answer.status}"] += 1
        if reset:
            counts["reset after"] += 1
            writer.transport.abort()
            return False
        has_body = method != "HEAD" and answer.status not in (204, 304)
        left = answer.length // 2 if truncate and has_body and answer.length > 1 and answer.status < 300 else None
        writer.write(answer.raw)
        if has_body:
            async for piece, content in answer.body(upstream.reader, until_end=True):
                upstream.acknowledge()
                if left is not None and len(piece) >= left:
                    counts["truncated"] += 1
                    counts[f"{method} bytes"] += left
                    writer.write(piece[:left])
                    await writer.drain()
                    return False
                left = None if left is None else left - len(piece)
                counts[f"{method} bytes"] += content
                if faults.bytes_per_s:
                    now = self._loop.time()
                    self._link_is_free_at = max(self._link_is_free_at, now) + len(piece) / faults.bytes_per_s
                    await asyncio.sleep(self._link_is_free_at - now)
                writer.write(piece)
                await writer.drain()
        await writer.drain()
        return not (answer.closes or request.closes or (has_body and not answer.framed))

    async def _pass_on(
        self, request: _Head, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, upstream: _Upstream
    ) -> _Head:
        """Send a request to the server; returns the head of its answer."""
        reused = await upstream.connect()
        upstream.writer.write(request.raw)
        answer = None
        if request.expects_continue:
            answer = await upstream.head()
            if answer is not None and answer.status == 100:
                writer.write(answer.raw)
                answer = None
        if answer is None:
            async for piece, content in request.body(reader):
                self.counts[f"{request.method} bytes sent"] += content
                upstream.writer.write(piece)
                await upstream.writer.drain()
            answer = await upstream.head()
            if answer is None and reused and not request.has_body:
                # The server had closed the idle connection.
                upstream.close()
                await upstream.connect()
                upstream.writer.write(request.raw)
                answer = await upstream.head()
            while answer is not None and answer.status == 100:
                writer.write(answer.raw)
                answer = await upstream.head()
        if answer is None:
            raise ConnectionError("the server closed the connection")
        return answer

    async def _answer_itself(self, request: _Head, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        content = b"".join([piece async for piece, _ in request.body(reader)])
        status = b"200 OK"
        what = (request.method, request.target.removeprefix(_OWN_PATH))
        try:
            if what == ("PUT", "faults"):
                self.faults = Faults(**json.loads(content))
            elif what == ("DELETE", "counts"):
                self.counts.clear()
            elif what not in (("GET", "counts"), ("GET", "faults")):
                status = b"404 Not Found"
        except (ValueError, TypeError):
            status = b"400 Bad Request"
        known: dict[str, object] = asdict(self.faults) if what[1] == "faults" else dict(self.counts)
        answer = json.dumps(known).encode()
        writer.write(b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (status, len(answer), answer))
        await writer.drain()


class _Upstream:
    """The connection to the server that belongs to one of a client's."""

    def __init__(self, host: str, port: int) -> None:
        self._address = (host, port)
        self.reader: asyncio.StreamReader
        self.writer: asyncio.StreamWriter
        self._open = False

    async def connect(self) -> bool:
        """Open it unless it is; returns whether it has been used before."""
        if self._open and not self.reader.at_eof() and not self.writer.is_closing():
            return True
        self.close()
        self.reader, self.writer = await asyncio.open_connection(*self._address, limit=_PIECE)
        self._open = True
        return False

    async def head(self) -> _Head | None:
        """Head of the server's next answer; None if it has closed the connection."""
        self.acknowledge()
        found = await _Head.read(self.reader)
        self.acknowledge()
        return found

    def acknowledge(self) -> None:
        """Let the kernel say at once what has come.

        Ceph's gateway leaves Nagle's algorithm on: the end of each body would wait 40 ms for a delayed acknowledgement.
        """
        if hasattr(socket, "TCP_QUICKACK"):
            self.writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)

    def close(self) -> None:
        """Close it if it is open."""
        if self._open:
            self.writer.close()
            self._open = False


class _Head:
    """The first lines of a request or an answer, and how its body is framed."""

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        first, *lines = raw.decode("latin-1").split("\r\n")
        self._first = first.split(" ", 2)
        self._headers = {
            name.strip().lower(): value.strip()
            for name, colon, value in (line.partition(":") for line in lines)
            if colon
        }

    @classmethod
    async def read(cls, reader: asyncio.StreamReader) -> _Head | None:
        """The next head; None where the connection has ended."""
        try:
            return cls(await reader.readuntil(b"\r\n\r\n"))
        except (asyncio.IncompleteReadError, ConnectionError):
            return None

    @property
    def method(self) -> str:
        return self._first[0]

    @property
    def target(self) -> str:
        return self._first[1]

    @property
    def status(self) -> int:
        return int(self._first[1])

    @property
    def length(self) -> int:
        """Of the body, where it is known beforehand, else 0."""
        return int(self._headers.get("content-length", 0))

    @property
    def chunked(self) -> bool:
        return "chunked" in self._headers.get("transfer-encoding", "").lower()

    @property
    def framed(self) -> bool:
        """Whether the body says itself where it ends."""
        return self.chunked or "content-length" in self._headers

    @property
    def has_body(self) -> bool:
        return self.chunked or self.length > 0

    @property
    def expects_continue(self) -> bool:
        return self._headers.get("expect", "").lower() == "100-continue"

    @property
    def closes(self) -> bool:
        """Whether the connection ends after this message."""
        ends = self._first[0] == "HTTP/1.0" and self._headers.get("connection", "").lower() != "keep-alive"
        return ends or self._headers.get("connection", "").lower() == "close"

    async def body(self, reader: asyncio.StreamReader, until_end: bool = False) -> AsyncIterator[tuple[bytes, int]]:
        """Pieces of the body as they are on the wire, and how many bytes of content each holds.

        With ``until_end``, a body that is framed in no other way ends with the connection, as an answer's may.
        """
        if self.chunked:
            while True:
                line = await reader.readuntil(b"\r\n")
                size = int(line.partition(b";")[0], 16)
                yield line, 0
                if size == 0:
                    break
                yield await reader.readexactly(size + 2), size
            while (line := await reader.readuntil(b"\r\n")) != b"\r\n":
                yield line, 0
            yield line, 0
        elif "content-length" in self._headers:
            left = self.length
            while left:
                piece = await reader.read(min(_PIECE, left))
                if not piece:
                    raise EOFError("the connection ended in the middle of a body")
                left -= len(piece)
                yield piece, len(piece)
        elif until_end:
            while piece := await reader.read(_PIECE):
                yield piece, len(piece)


async def _refuse(request: _Head, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    """Answer 503; returns whether the connection may be used again."""
    if not request.expects_continue:
        async for _ in request.body(reader):
            pass
    oci = b"authorization: signature" in request.raw.lower()
    kind, content = (b"application/json", _SLOW_DOWN_OCI) if oci else (b"application/xml", _SLOW_DOWN)
    connection = b"close" if request.expects_continue else b"keep-alive"
    writer.write(
        b"HTTP/1.1 503 Slow Down\r\nContent-Type: %s\r\nConnection: %s\r\nContent-Length: %d\r\n\r\n%s"
        % (kind, connection, len(content), b"" if request.method == "HEAD" else content)
    )
    await writer.drain()
    return not (request.expects_continue or request.closes)


async def _serve_forever(proxy: FaultProxy) -> None:
    server = await proxy.start()
    print(proxy.url, flush=True)
    await server.serve_forever()


def main() -> None:
    """Run as a process; ends with it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("upstream", help="URL of the server")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--faults", type=json.loads, default={}, help="JSON of the fields of Faults")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with suppress(KeyboardInterrupt):
        proxy = FaultProxy(arguments.upstream, Faults(**arguments.faults), arguments.seed, arguments.port)
        asyncio.run(_serve_forever(proxy))


if __name__ == "__main__":
    main()
