"""A PostgreSQL server of the test's own, from the programs of Debian's package."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.helpers.waiting import wait_for

USER = DATABASE = "dagster"
# As root, programs run as another user, since PostgreSQL refuses to run as root.
_AS_NOBODY = ("setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups")


def programs() -> Path | None:
    """Folder of ``initdb``, ``postgres`` and the others; None if PostgreSQL is not installed."""
    found = [path.parent for path in sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))]
    found += [Path(path).parent for path in (shutil.which("postgres"),) if path]
    wanted = ("initdb", "postgres", "pg_isready", "createdb")
    return next((folder for folder in found if all((folder / name).exists() for name in wanted)), None)


class Postgres:
    """A server on loopback that can be killed and started again.

    Attributes:
        port: where it listens.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self.port = folder, 0
        if os.geteuid() == 0:
            shutil.chown(folder, "nobody", "nogroup")
        self._run("initdb", "-D", "data", "--auth", "trust", "--username", USER, "--no-sync")

    def _command(self, program: str, *arguments: str) -> list[str]:
        return [*(_AS_NOBODY if os.geteuid() == 0 else ()), f"{programs()}/{program}", *arguments]

    def _run(self, program: str, *arguments: str) -> None:
        subprocess.run(self._command(program, *arguments), cwd=self._folder, check=True, capture_output=True)

    def start(self) -> None:
        """Start, and wait until it accepts connections. It listens where it listened before."""
        while True:
            with socket.create_server(("127.0.0.1", self.port)) as free:
                port = free.getsockname()[1]
            options = ["-D", "data", "-p", str(port), "-h", "127.0.0.1", "-k", str(self._folder), "-c", "fsync=off"]
            self._process = subprocess.Popen(
                self._command("postgres", *options),
                cwd=self._folder,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            wait_for(lambda port=port: self._accepts(port) or self._process.poll() is not None)
            if self._process.poll() is None:
                self.port = port
                return
            # Another process took the port first.

    def _accepts(self, port: int) -> bool:
        command = self._command("pg_isready", "-h", "127.0.0.1", "-p", str(port))
        return subprocess.run(command, cwd=self._folder, capture_output=True).returncode == 0

    def kill(self) -> None:
        """End all its processes at once, without any clean-up."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def make_database(self) -> None:
        """Create the database of Dagster."""
        self._run("createdb", "-h", "127.0.0.1", "-p", str(self.port), "-U", USER, DATABASE)


@contextmanager
def postgres() -> Iterator[Postgres]:
    """A running server for the duration of a block."""
    # Not below pytest's folder, which only its owner may enter.
    with tempfile.TemporaryDirectory(prefix="zarr_core_postgres_") as folder:
        server = Postgres(Path(folder))
        server.start()
        try:
            server.make_database()
            yield server
        finally:
            server.kill()
