"""The servers that benchmarks of object storage run against: Ceph's gateway, and the fault proxy in front of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).parents[1]
TOOLS = CHECKOUT.parent / "shared" / "tools"


@contextmanager
def s3_endpoint() -> Iterator[str]:
    """URL of the S3 server: AWS_ENDPOINT_URL, else Ceph's gateway, started for as long as the context lasts.

    What the gateway needs is downloaded on first use (``ZARR_CORE_RGW``, or a folder below the system's for temporary
    files) and kept. Its credentials go into the environment.
    """
    if url := os.environ.get("AWS_ENDPOINT_URL"):
        yield url
        return
    start = TOOLS / "start_rgw.sh"
    if not start.exists():
        raise SystemExit(f"set AWS_ENDPOINT_URL and credentials: {start}, which starts Ceph's gateway, is not there")
    base = os.environ.get("ZARR_CORE_RGW") or os.path.join(tempfile.gettempdir(), "zarr_core_rgw")
    surroundings = os.environ | {"BASE": base, "RGW_PORT": "7481", "MONP": "40110"}
    stop = [str(TOOLS / "stop_rgw.sh")]
    with open(os.path.join(tempfile.gettempdir(), "zarr_core_rgw.log"), "w+") as log:
        try:
            print("starting Ceph's gateway (the first time it is downloaded)", flush=True)
            # To a file: the daemons inherit it, and a pipe would not end before they do.
            subprocess.run([str(start)], env=surroundings, stdout=log, stderr=log, check=True)
            lines = Path(base, "run", "creds.env").read_text().split()
            os.environ.update(line.split("=", 1) for line in lines)
            yield os.environ["AWS_ENDPOINT_URL"]
        except subprocess.CalledProcessError as error:
            raise SystemExit(f"Ceph's gateway does not start: {log.name}") from error
        finally:
            subprocess.run(stop, env=surroundings, check=False, stdout=subprocess.DEVNULL)


class ProxyProcess:
    """The fault proxy as a process of its own; ``url`` is where it listens."""

    def __init__(self, upstream: str) -> None:
        command = [sys.executable, "-m", "tests.helpers.servers.fault_proxy", upstream]
        self._process = subprocess.Popen(command, cwd=CHECKOUT, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().strip()

    def __enter__(self) -> ProxyProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()

    def set_faults(self, **faults: float) -> None:
        """Apply faults from the next request on; see :class:`tests.helpers.servers.fault_proxy.Faults`."""
        self._ask("PUT", "faults", json.dumps(faults).encode())

    def counts(self) -> dict[str, int]:
        """Requests and bytes since the last call."""
        found = self._ask("GET", "counts")
        self._ask("DELETE", "counts")
        return found

    def _ask(self, method: str, what: str, data: bytes | None = None) -> dict[str, Any]:
        with urllib.request.urlopen(urllib.request.Request(f"{self.url}/-/{what}", data, method=method)) as answer:
            found: dict[str, Any] = json.load(answer)
            return found
