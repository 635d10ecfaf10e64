"""Faults at a defined operation: processes that are killed, as by ``kill -9`` or a power cut, and disks that are full.

A kill after a delay proves nothing on a busy machine: the process may not have started, or has ended. Here the process
kills itself just before the n-th call of an operation of the storage layer, so that it always leaves the same state.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from tests.helpers.fork_server import start
from tests.helpers.servers.fault_proxy import FaultProxy
from zarr_core.storage import Storage
from zarr_core.storage.backends.oci import OciBackend
from zarr_core.storage.backends.s3 import S3Backend

# The argument that holds the path, by operation.
_LOCAL = {"create": ("open", 0), "rename": ("replace", 1), "link": ("link", 1), "unlink": ("unlink", 0)}
_BACKENDS = ("put", "put_if")
_PARTS = ("create_multipart_upload", "upload_part", "complete_multipart_upload")


@contextmanager
def full_disk(path: str) -> Iterator[None]:
    """A local disk without space: a regular expression found in the path of a new file, or of the folder of one without
    a name, lets it be created, but not hold a byte.
    """
    real, full = os.open, os.open("/dev/full", os.O_WRONLY)

    def opened(name: Any, flags: int, *arguments: Any, **options: Any) -> int:
        handle = real(name, flags, *arguments, **options)
        is_new = flags & os.O_CREAT or flags & os.O_TMPFILE == os.O_TMPFILE
        if is_new and re.search(path, os.fspath(name)):
            os.dup2(full, handle)
        return handle

    try:
        with patch("os.open", opened):
            yield
    finally:
        os.close(full)


@contextmanager
def lost_response(storage: Storage, name: str, meanwhile: Callable[[], object]) -> Iterator[None]:
    """The first conditional write of a remote object is carried out, but the client sees a reset connection.

    Before it tries again, ``meanwhile`` is called.
    """
    path, put_if = storage.path(name), storage._backend.put_if
    lost: list[str] = []

    async def lossy(written: str, data: bytes, version: str | None) -> None:
        await put_if(written, data, version)
        if written == path and not lost:
            lost.append(written)
            await asyncio.to_thread(meanwhile)
            raise ConnectionResetError("the response is lost")

    with patch.object(storage._backend, "put_if", lossy):
        yield
    assert lost == [path]


@dataclass(frozen=True)
class Kill:
    """The operation at which a process is killed.

    Attributes:
        operation: of the local disk "create" (a new file, whose first bytes are written), "rename", "link" or
            "unlink"; of S3 and OCI "put" or "put_if"; of S3 "create_multipart_upload", "upload_part" or
            "complete_multipart_upload". "request": any HTTP request to the S3 server, of any client.
        path: regular expression found in the paths that count; of a rename or a link, the new path; of a request, its
            method and target.
        number: it dies just before the n-th such call.
    """

    operation: str
    path: str = ""
    number: int = 1

    def __str__(self) -> str:
        return f"{self.operation} {self.number} of {self.path}"


#: The last operations of a commit on a local disk.
KILLS_OF_A_COMMIT = (
    Kill("rename", "/manifest.json$"),
    Kill("create", "/generations/"),
    Kill("link", "/generations/"),
    Kill("unlink", "/generations/"),
)


def is_killed(kill: Kill, function: Callable[..., Any], *arguments: Any, **options: Any) -> bool:
    """Call a function in a child process; whether the child was killed there. If not, the function has returned.

    Raises:
        AssertionError: the child ended in another way.
    """
    child = start(_run, kill, function, arguments, options)
    child.join()
    assert child.exitcode in (0, -signal.SIGKILL), f"exit code {child.exitcode}: its traceback is on standard error"
    return child.exitcode != 0


def _run(kill: Kill, function: Callable[..., Any], arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
    _install(kill)
    function(*arguments, **options)


def _install(kill: Kill) -> None:
    lock, counted = threading.Lock(), 0

    def is_due(path: Any) -> bool:
        nonlocal counted
        if not re.search(kill.path, os.fspath(path)):
            return False
        with lock:
            counted += 1
            return counted == kill.number

    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)
        threading.Event().wait()  # the signal may reach another thread first

    if kill.operation in _BACKENDS:
        for backend in (S3Backend, OciBackend):
            request = getattr(backend, kill.operation)

            async def dying_request(self: Any, path: str, *arguments: Any, request: Any = request) -> Any:
                if is_due(path):
                    die()
                return await request(self, path, *arguments)

            setattr(backend, kill.operation, dying_request)
        return
    if kill.operation in _PARTS:
        from s3fs import S3FileSystem

        make = S3FileSystem._call_s3

        async def dying_part(self: Any, method: str, *arguments: Any, **options: Any) -> Any:
            if method == kill.operation and is_due(options.get("Key", "")):
                die()
            return await make(self, method, *arguments, **options)

        S3FileSystem._call_s3 = dying_part
        return
    if kill.operation == "request":
        serve = FaultProxy._serve

        async def dying_serve(self: Any, request: Any, *arguments: Any) -> bool:
            if is_due(f"{request.method} {request.target}"):
                die()
            return await serve(self, request, *arguments)

        setattr(FaultProxy, "_serve", dying_serve)  # noqa: B010 - a method cannot be assigned
        os.environ["AWS_ENDPOINT_URL"] = FaultProxy(os.environ["AWS_ENDPOINT_URL"]).__enter__().url
        return

    name, position = _LOCAL[kill.operation]
    call = getattr(os, name)

    def dying_call(*arguments: Any, **options: Any) -> Any:
        if kill.operation == "create":
            created = call(
                *arguments, **options
            )  # first, because the caller creates a missing folder and repeats the call
            if arguments[1] & os.O_CREAT and is_due(arguments[position]):
                os.write(created, b"half")
                die()
            return created
        if is_due(arguments[position]):
            die()
        return call(*arguments, **options)

    setattr(os, name, dying_call)
