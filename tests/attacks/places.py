"""Object stores to attack on: an S3 server on loopback, or the endpoint that the caller names."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

from tests.helpers.servers.fault_proxy import FaultProxy, Faults

CREDENTIALS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}


@contextmanager
def set_environment(**values: str) -> Iterator[None]:
    """Set variables for as long as the context lasts; clients that know others are forgotten."""
    import s3fs

    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    s3fs.S3FileSystem.clear_instance_cache()
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        s3fs.S3FileSystem.clear_instance_cache()


@contextmanager
def moto() -> Iterator[str]:
    """An S3 server of its own process, in the environment as users name theirs; its URL."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    code = "from moto.server import main; import sys; main(sys.argv[1:])"
    command = [sys.executable, "-c", code, "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _wait_for(url, server)
        with set_environment(AWS_ENDPOINT_URL=url, **CREDENTIALS):
            yield url
    finally:
        server.kill()
        server.wait()


def _wait_for(url: str, server: subprocess.Popen[bytes]) -> None:
    for _ in range(600):
        try:
            urllib.request.urlopen(url, timeout=5).close()
            return
        except urllib.error.HTTPError:
            return
        except OSError:
            if server.poll() is not None:
                break
            time.sleep(0.1)
    raise RuntimeError(f"no server at {url}")


@contextmanager
def behind_faults(upstream: str, faults: Faults, seed: int) -> Iterator[FaultProxy]:
    """The proxy in front of a server, in the environment as the endpoint."""
    with FaultProxy(upstream, faults, seed) as proxy, set_environment(AWS_ENDPOINT_URL=proxy.url):
        yield proxy


def new_root() -> str:
    """An empty prefix in a new bucket at the endpoint that the environment names."""
    import s3fs

    bucket = f"attack-{os.urandom(6).hex()}"
    s3fs.S3FileSystem().mkdir(bucket)
    return f"s3://{bucket}/store"
