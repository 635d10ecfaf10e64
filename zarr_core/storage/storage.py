"""Objects below one root, on a local disk or on any fsspec location.

:class:`Storage` reads whole objects and byte ranges, writes whole objects, and provides the compare-and-swap that a
commit needs. Credentials and endpoints come from the environment or from fsspec's configuration (``AWS_*``,
``GOOGLE_*``, ``AZURE_*``, ``OCIFS_*``, ``FSSPEC_*``, ``~/.config/fsspec``) or from the files of the service's own
programs (``~/.aws``), never from arguments, so they end up in no manifest, log or pickle.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from itertools import chain
from mmap import mmap
from pathlib import Path
from typing import Any, TypeVar

import fsspec.asyn

from zarr_core._util.redaction import redact
from zarr_core.errors import CommitConflict, StoreError, TransferError
from zarr_core.format.names import check_relative_path
from zarr_core.storage import retries
from zarr_core.storage.archives import Archives, is_archive, is_entry
from zarr_core.storage.backends import ConditionFailed, ObjectInfo, RemoteBackend, StoredObject, local
from zarr_core.storage.clients import open_backend
from zarr_core.storage.places import absolute, is_local
from zarr_core.storage.temporary import add_temp_suffix, collected

logger = logging.getLogger(__name__)

T = TypeVar("T")

# (process, root) pairs where a conditional write was refused when its condition did not hold.
_checked_roots: set[tuple[int, str]] = set()
# Attempts to replace an object by its etag: a busy Ceph gateway refuses one that matches once in a while.
_ATTEMPTS = 3


class Storage:
    """Objects below one root, each written whole.

    The name of a packed sample's archive, a slash and the name of an entry name an object as well: it can be read, and
    its size asked for, but not written.

    Args:
        root: a local path or any fsspec URL ("s3://bucket/prefix", "gs://bucket/prefix", "az://container/prefix",
            "oci://bucket@namespace/prefix", "memory://x").
        client: of a remote root, see :func:`zarr_core.storage.clients.open_backend`; chosen by the URL if None.

    Attributes:
        root: the :func:`absolute` root.
        is_local: whether the root is a folder of this machine.
        location: of the root in its filesystem or service.

    Raises:
        StoreError: the root is a file or contains credentials, or no filesystem is installed for the URL.
    """

    def __init__(self, root: str | os.PathLike[str], client: Any = None) -> None:
        self.root = absolute(root)
        self.client = client
        self.is_local = is_local(self.root)
        self._archives = Archives(self._read, self._info)
        if self.is_local:
            self.location = self.root.rstrip("/")
            if "\0" in self.location:
                raise StoreError(f"{self.url!r:.200} cannot be used: a path must not contain a null byte")
            try:
                is_file = Path(self.location).is_file()
            except OSError as error:  # a name that is too long, a folder that may not be looked into
                raise StoreError(f"{self.url:.200} cannot be used: {error.strerror}") from error
            if is_file:
                raise StoreError(f"{self.url} is a file; a store root must be a folder or a URL prefix")
            return
        self._process = 0
        self._clients: dict[bool, RemoteBackend] = {}
        self.location = self._backend.location

    def __reduce__(self) -> tuple[type[Storage], tuple[str, Any]]:
        # Backends hold sockets and event loops; another process opens its own.
        return type(self), (self.root, self.client)

    @property
    def url(self) -> str:
        """The root as it may be printed."""
        return redact(self.root)

    @property
    def identity(self) -> str:
        """Unique name of this root on every machine: absolute, and with the service's endpoint."""
        if self.is_local:
            return f"file://{self.location}"
        return redact(self._backend.identity)

    def is_at(self, identity: object) -> bool:
        """Whether this root has that :attr:`identity`, or is the same folder of this machine by way of links."""
        if not self.is_local:
            return self.identity == identity
        scheme, _, path = str(identity).partition("://")
        return scheme == "file" and os.path.realpath(path) == os.path.realpath(self.location)

    def path(self, name: str) -> str:
        """Full path of an object in its filesystem; refuses names that leave the root."""
        return f"{self.location}/{check_relative_path(name)}"

    def read(self, name: str, start: int | None = None, stop: int | None = None) -> bytes:
        """Bytes ``[start, stop)`` of an object.

        Raises:
            FileNotFoundError: there is no such object.
            CorruptChunkError: it is an entry of a damaged archive.
        """
        return self._archives.read(name, start, stop) if is_entry(name) else self._read(name, start, stop)

    def _read(self, name: str, start: int | None = None, stop: int | None = None) -> bytes:
        path = self.path(name)
        if self.is_local:
            return local.read(path, start, stop)
        return bytes(result_of(self.begin_read(name, start, stop, for_data=False))[0])

    def begin_read(
        self, name: str, start: int | None = None, stop: int | None = None, *, for_data: bool = True
    ) -> Future[tuple[Any, str]]:
        """Begin to read an object of a remote location: its bytes, and its version, "" where the response has none.

        The bytes are any object with Python's buffer protocol; none if the object ends before ``start``. The version is
        the one of :meth:`infos` if :attr:`reads_versions`. ``for_data`` is that of :func:`.clients.open_backend`.
        """
        path, what, backend = self.path(name), f"{self.root}/{name}", self._client(for_data)
        if stop is not None:
            size = stop - (start or 0)
        else:
            size = retries.UNKNOWN_BYTES if start is None or start >= 0 else -start

        async def attempt() -> tuple[Any, str]:
            try:
                data, version = await backend.get(path, start, stop)
            except Exception as error:
                if retries.is_beyond_the_end(error):
                    return b"", ""
                raise
            return data, version.strip('"')

        work = retries.request(self._service, what, attempt, size)
        return asyncio.run_coroutine_threadsafe(work, fsspec.asyn.get_loop())

    @property
    def reads_versions(self) -> bool:
        """Whether each response to a read tells the object's version."""
        return not self.is_local and self._backend.gets_listed_versions

    def find(self, name: str) -> ObjectInfo | None:
        """Size, version and time of an object now (no cached listing is used); None if there is none."""
        try:
            return self.info(name)
        except FileNotFoundError:
            return None

    def exists(self, name: str) -> bool:
        """Whether the object exists now."""
        return self.find(name) is not None

    def check_shared(self, name: str) -> None:
        """Raise StoreError if an object that a worker has written or read is not here: its disk is another one."""
        if not self.exists(name):
            reason = "a worker has it, but it is not here: workers must have the same disk; use that, or a bucket"
            raise StoreError(f"{self.url}/{name}: {reason}")

    def size(self, name: str) -> int:
        """Bytes of the object; raises FileNotFoundError."""
        return self.info(name).size

    def info(self, name: str) -> ObjectInfo:
        """Size, version and time of an object; errors as :meth:`read`."""
        return self._archives.info(name) if is_entry(name) else self._info(name)

    def _info(self, name: str) -> ObjectInfo:
        path = self.path(name)
        return local.info(path) if self.is_local else self.request(name, lambda backend: backend.head(path))

    def list(self, prefix: str = "") -> dict[str, int]:
        """Name (relative to the root) and size of every object below a folder."""
        return {name: info.size for name, info in self.infos(prefix).items()}

    def infos(self, prefix: str = "") -> dict[str, ObjectInfo]:
        """Name (relative to the root), size, version and time of every object below a folder, sorted by name.

        Of the entries of an archive, if that is the folder; an archive in the folder is one object.
        """
        if is_archive(prefix) or is_entry(prefix):
            return self._archives.infos(prefix)
        top = self.path(prefix) if prefix else self.location
        found = dict(local.walk(top, follow_links=True) if self.is_local else self._listing(top))
        return {path[len(self.location) + 1 :]: info for path, info in sorted(found.items())}

    def write(self, name: str, pieces: Iterable[bytes]) -> int:
        """Write a whole object: it appears complete or not at all, and replaces an existing one.

        A power failure may lose it until :meth:`sync`. Memory: one piece on a local disk, elsewhere 64 MiB; a larger
        object is collected in a temporary file of this machine.

        Returns:
            Bytes written.
        """
        path = self.path(name)
        self._archives.forget(name)
        if self.is_local:
            return local.replace_file(path, pieces, durable=False)
        with collected(pieces) as data:
            result_of(self.begin_write(name, data, for_data=False))
            return len(data)

    def begin_write(self, name: str, data: bytes | bytearray | mmap, *, for_data: bool = True) -> Future[None]:
        """Begin to write a whole object of a remote location; the future ends when it is written."""
        path, what, backend = self.path(name), f"{self.root}/{name}", self._client(for_data)

        async def put() -> None:
            try:
                await retries.request(self._service, what, lambda: backend.put(path, data), len(data))
            except FileNotFoundError as error:
                raise self._no_bucket() from error

        return asyncio.run_coroutine_threadsafe(put(), fsspec.asyn.get_loop())

    def objects(self, prefix: str, *, recursive: bool = True) -> Iterator[StoredObject]:
        """Every object below a folder ("" is the root), or with that name; links are not followed.

        ``recursive=False`` leaves out those in folders below it.

        Raises:
            StoreError: the location does not report modification times.
        """
        top = self.path(prefix) if prefix else self.location
        found: Iterable[tuple[str, ObjectInfo]]
        if self.is_local:
            found = local.walk(top, follow_links=False, recursive=recursive)
        else:
            own = self.find(prefix) if prefix else None
            found = chain([(top, own)] if own else [], self._listing(top, recursive))
        for path, info in found:
            if not info.modified:
                raise StoreError(f"{self.url}: this location does not report modification times")
            yield StoredObject(path[len(self.location) + 1 :], info.size, info.modified)

    def delete(self, names: Sequence[str]) -> None:
        """Remove objects, and folders of a local disk that become empty. Missing objects are ignored."""
        paths = list(map(self.path, names))
        if self.is_local:
            local.delete(paths, self.location)
            return
        backend = self._backend

        async def delete(name: str, path: str) -> None:
            with contextlib.suppress(FileNotFoundError):
                await retries.request(self._service, f"{self.root}/{name}", lambda: backend.delete(path))

        async def delete_all() -> None:
            await asyncio.gather(*map(delete, names, paths))

        self._run(delete_all())

    def now(self) -> float:
        """Current time of the clock that stamps the objects here, in seconds since 1970; writes a temporary object."""
        name = add_temp_suffix("clock")
        self.write(name, [])  # empty, so that it needs no space on a full disk
        try:
            return self.info(name).modified
        finally:
            self.delete([name])

    def sync(self) -> None:
        """Return when everything written is on stable storage (object stores guarantee that for each write)."""
        if self.is_local:
            os.sync()

    def read_versioned(self, name: str) -> tuple[bytes, str]:
        """Content and version of an object. The version belongs to these bytes; :meth:`replace` compares it.

        Raises:
            FileNotFoundError: there is no such object.
            StoreError: the location reports no versions.
        """
        path = self.path(name)
        if self.is_local:
            data = local.read(path)
            return data, local.digest(data)
        content, version = self.request(name, lambda backend: backend.get(path), retries.UNKNOWN_BYTES)
        if not version:
            raise StoreError(f"{self.url}: this location reports no etag, so commits to it would not be safe")
        return bytes(content), version

    def create(self, name: str, data: bytes | Iterable[bytes]) -> bool:
        """Write an object only if it does not exist; False if it does.

        Over a network, where responses get lost, an existing object with these bytes counts as written by this call.
        Memory: one piece on a local disk, elsewhere all of them.
        """
        pieces = [data] if isinstance(data, bytes) else data
        if self.is_local:
            return local.create_file(self.path(name), pieces)
        self._check_conditions()
        return self._write_if(name, b"".join(pieces), None)

    def replace(self, name: str, data: bytes, version: str | None) -> None:
        """Compare and swap: write only if the object still has ``version`` (None: only if there is none).

        Raises:
            CommitConflict: another writer has changed it.
            StoreError: this kind of location cannot do that safely.
        """
        if self.is_local:
            is_written = local.swap_file(self.path(name), data, version)
        else:
            self._check_conditions()
            is_written = self._write_if(name, data, version)
        if not is_written:
            raise CommitConflict(f"{self.url}/{name} was changed by another writer")

    @property
    def _backend(self) -> RemoteBackend:
        return self._client(for_data=False)

    def _client(self, for_data: bool) -> RemoteBackend:
        if self._process != os.getpid():  # connections and event loops do not survive a fork
            self._clients = {}
            self._service = retries.service(self.root)
            self._process = os.getpid()
        clients = self._clients  # another thread that finds the fork as well replaces them
        if for_data not in clients:
            clients[for_data] = open_backend(self.root, for_data=for_data, client=self.client)
        return clients[for_data]

    def request(self, name: str, request: Callable[[RemoteBackend], Awaitable[T]], n_bytes: int = 0) -> T:
        """Make a request with retries."""
        backend, what = self._backend, f"{self.root}/{name}"
        return self._run(retries.request(self._service, what, lambda: request(backend), n_bytes))

    @staticmethod
    def _run(work: Coroutine[Any, Any, T]) -> T:
        return result_of(asyncio.run_coroutine_threadsafe(work, fsspec.asyn.get_loop()))

    def _listing(self, top: str, recursive: bool = True) -> Iterator[tuple[str, ObjectInfo]]:
        """Objects below a path of the service, one page at a time."""
        name, prefix = top[len(self.location) + 1 :], f"{top}/"
        token: str | None = None
        while True:
            page, token = self.request(name, lambda backend, token=token: backend.list_page(prefix, token, recursive))  # type: ignore[misc]
            yield from page.items()
            if token is None:
                return

    def _write_if(self, name: str, data: bytes, version: str | None) -> bool:
        """Write if the object has this version (None: if it does not exist); whether it now holds these bytes.

        An attempt whose response was lost may have written; the next attempt then finds its own bytes.
        """
        path = self.path(name)

        async def put(backend: RemoteBackend) -> bool:
            try:
                await backend.put_if(path, data, version)
            except ConditionFailed:
                return False
            return True

        try:
            if self.request(name, put, len(data)):
                return True
        except FileNotFoundError as error:
            raise self._no_bucket() from error
        except TransferError:
            if not self._holds(name, data):
                raise
        except StoreError as error:
            raise StoreError(f"{self.url}: {error}") from error
        else:
            # Also after a single attempt: HTTP clients silently resend a request when a kept-alive connection breaks.
            if not self._holds(name, data):
                return False
        logger.info("%s/%s: written by an attempt whose response was lost", self.url, name)
        return True

    def _holds(self, name: str, data: bytes) -> bool:
        try:
            return self.read(name) == data
        except FileNotFoundError:
            return False

    def _check_conditions(self) -> None:
        """Check, once per process and root, that the service honours conditional writes; writes a temporary object.

        Some gateways and older services ignore the conditions, so that the last writer would win.

        Raises:
            StoreError: the service ignores or refuses them.
        """
        never = self._backend.impossible_version
        place = (os.getpid(), self._backend.identity)
        if not never or place in _checked_roots:
            return
        name = add_temp_suffix("conditional-write")
        write = partial(self._write_if, name)
        try:
            if not write(b"1", None):
                raise self._unsafe("refuses to create an object that does not exist")
            if write(b"2", None):
                raise self._unsafe("ignores If-None-Match, so that writers would overwrite each other")
            if write(b"3", never):
                raise self._unsafe("ignores If-Match, so that writers would overwrite each other")
            if not any(write(b"4", self.read_versioned(name)[1]) for _ in range(_ATTEMPTS)):
                raise self._unsafe("refuses to replace an object by its etag")
        finally:
            try:
                self.delete([name])
            except StoreError as error:
                logger.info("%s/%s is temporary, but could not be deleted: %s", self.url, name, error)
        _checked_roots.add(place)

    def check_bucket(self) -> None:
        """Raise StoreError if the bucket does not exist. Of an object in it, a service says only that it is missing."""
        if not self.is_local:
            try:
                next(self._listing(self.location, recursive=False), None)
            except FileNotFoundError as error:
                raise self._no_bucket() from error

    def _no_bucket(self) -> StoreError:
        return StoreError(f"{self.url}: the bucket does not exist; create it, or correct the name")

    def _unsafe(self, what: str) -> StoreError:
        return StoreError(
            f"{self.url}: this service {what}; commits to it would not be safe: write the store elsewhere and copy it"
        )


def result_of(future: Future[T]) -> T:
    """The result of a request that was begun; the request ends if this thread is interrupted."""
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise
