"""Object stores to attack on: an S3 server on loopback, or the endpoint that the caller names."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.helpers.servers.fault_proxy import FaultProxy, Faults
from tests.helpers.servers.s3 import CREDENTIALS

# The server prints its address when it answers, and ends with its standard input.
_MOTO = """
import sys
from tests.helpers.servers.s3 import s3_server
with s3_server() as url:
    print(url, flush=True)
    sys.stdin.read()
"""


@contextmanager
def set_environment(**values: str) -> Iterator[None]:
    """Set variables for as long as the context lasts; cached clients are dropped."""
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
    server = subprocess.Popen(
        [sys.executable, "-c", _MOTO],
        cwd=Path(__file__).parents[2],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert server.stdout is not None
        url = server.stdout.readline().strip()
        if not url:
            raise RuntimeError("moto did not start")
        with set_environment(AWS_ENDPOINT_URL=url, **CREDENTIALS):
            yield url
    finally:
        server.kill()
        server.wait()


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
