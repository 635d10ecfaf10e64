"""The ground floor: bytes below one root, on a local disk or on any fsspec location.

Readers and writers of the library meet a store only through :class:`Storage` (whole objects, byte ranges, and the one
compare-and-swap that a commit needs) or through a Zarr store (``zarr_core.stores``). Credentials and endpoints come
from the environment or from fsspec's own configuration (``AWS_*``, ``OCIFS_*``, ``FSSPEC_*``, ``~/.config/fsspec``),
never from arguments, so that they end up in no manifest, log or pickle.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import threading
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, NamedTuple

from filelock import FileLock
from fsspec.core import url_to_fs

from zarr_core.errors import CommitConflict, StoreError
from zarr_core.names import check_relative_path

# Folders that are listed at a time.
_LISTINGS = 16

_MEMORY_LOCK = threading.Lock()


def redact_url(url: str) -> str:
    """The URL without user name and password, for messages."""
    return re.sub(r"://[^/@]*:[^/@]*@", "://", url)


def is_local(url: str) -> bool:
    """Whether the location is a path on this machine."""
    return "://" not in url or url.startswith(("file://", "local://"))


class StoredObject(NamedTuple):
    """An object as a listing shows it: name relative to the root, bytes, seconds since 1970 by the store's clock."""

    name: str
    size: int
    modified: float


class Storage:
    """Objects below one root, each written whole.

    Args:
        root: a local path or any fsspec URL ("s3://bucket/prefix", "oci://bucket@namespace/prefix", "memory://x").

    Raises:
        StoreError: the root is a file, or no filesystem is installed for the URL.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = os.fspath(root)
        try:
            self.fs, location = url_to_fs(self.root)
        except (ImportError, ValueError) as error:
            raise StoreError(f"{self.url}: {error}") from error
        self.location: str = location.rstrip("/")
        self._local = is_local(self.root)
        if self._local and Path(self.location).is_file():
            raise StoreError(f"{self.url} is a file; a store root must be a folder or a URL prefix")

    def __reduce__(self) -> tuple[type[Storage], tuple[str]]:
        # Filesystems hold sockets and event loops; another process opens its own.
        return type(self), (self.root,)

    @property
    def url(self) -> str:
        """The root as it may be printed."""
        return redact_url(self.root)

    @property
    def identity(self) -> str:
        """What tells this place from every other, wherever it is asked: absolute, and with the service's endpoint."""
        url = redact_url(str(self.fs.unstrip_protocol(self.location)))
        endpoint = getattr(self.fs, "endpoint_url", None) or os.environ.get("AWS_ENDPOINT_URL_S3")
        endpoint = endpoint or os.environ.get("AWS_ENDPOINT_URL")
        return f"{url} at {endpoint}" if endpoint and self._protocol in ("s3", "s3a") else url

    def path(self, name: str) -> str:
        """Full path of an object in its filesystem; refuses names that leave the root."""
        return f"{self.location}/{check_relative_path(name)}"

    def read(self, name: str, start: int | None = None, stop: int | None = None) -> bytes:
        """Bytes ``[start, stop)`` of an object; raises FileNotFoundError."""
        if not self._local:
            return bytes(self.fs.cat_file(self.path(name), start=start, end=stop))
        with Path(self.path(name)).open("rb") as file:
            file.seek(start or 0)
            return file.read() if stop is None else file.read(stop - (start or 0))

    def exists(self, name: str) -> bool:
        """Whether the object is there now (no cached listing is asked)."""
        try:
            self.size(name)
        except FileNotFoundError:
            return False
        return True

    def size(self, name: str) -> int:
        """Bytes of the object; raises FileNotFoundError."""
        if self._local:
            return Path(self.path(name)).stat().st_size
        self.fs.invalidate_cache(self.fs._parent(self.path(name)))
        return int(self.fs.info(self.path(name))["size"])

    def list(self, prefix: str = "") -> dict[str, int]:
        """Name (relative to the root) and size of every object below a prefix."""
        top = self.path(prefix) if prefix else self.location
        self.fs.invalidate_cache()
        found = self.fs.find(top, detail=True)
        return {path[len(self.location) + 1 :]: int(info["size"]) for path, info in sorted(found.items())}

    def objects(self, prefix: str) -> Iterator[StoredObject]:
        """Everything below a prefix, or of that name, without holding more of it than a few folders."""
        top = self.path(prefix)
        if self._local:
            for path in _files_below(top):
                with contextlib.suppress(FileNotFoundError):  # somebody's temporary one, gone by now
                    status = os.lstat(path)
                    yield StoredObject(path[len(self.location) + 1 :], status.st_size, status.st_mtime)
            return
        self.fs.invalidate_cache()
        try:
            children = [path for path in self.fs.ls(top, detail=False) if path.rstrip("/") != top]
        except FileNotFoundError:
            return
        with ThreadPoolExecutor(_LISTINGS) as pool:
            for start in range(0, len(children), _LISTINGS) or [0]:
                folders = children[start : start + _LISTINGS] or [top]
                for found in pool.map(lambda folder: self.fs.find(folder, detail=True), folders):
                    for path, info in found.items():
                        yield StoredObject(path[len(self.location) + 1 :], int(info["size"]), _modified(info))
                self.fs.invalidate_cache()  # it would keep every listing

    def delete(self, names: Sequence[str]) -> None:
        """Remove objects, and folders of a local disk that are empty then; what is gone already is no error."""
        paths = [self.path(name) for name in names]
        if self._protocol in ("s3", "s3a"):
            self.fs.rm(paths)  # a thousand a request
            return
        for path in paths:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path) if self._local else self.fs.rm(path)
        if self._local:
            for folder in sorted({os.path.dirname(path) for path in paths}, key=len, reverse=True):
                _remove_empty(folder, self.location)

    def now(self) -> float:
        """The time by the clock that stamps the objects of this place (seconds since 1970): of one written to ask."""
        name = f".clock.{uuid.uuid4().hex}.tmp"
        self.write(name, [b"clock"])
        try:
            (written,) = self.objects(name)
        finally:
            self.delete([name])
        return written.modified

    def write(self, name: str, pieces: Iterable[bytes]) -> int:
        """Write an object whole: it appears complete or not at all, and replaces what was there.

        A power cut may still lose it until :meth:`sync`. Memory: on a local disk one piece, elsewhere all of them.

        Returns:
            Bytes written.
        """
        if self._local:
            return _replace_file(self.path(name), pieces, durable=False)
        data = bytearray()
        for piece in pieces:
            data += piece
        self.fs.pipe_file(self.path(name), data if self._takes_buffers else bytes(data))
        return len(data)

    def sync(self) -> None:
        """Return when all that was written is on stable storage (object stores promise that at once)."""
        if self._local:
            os.sync()

    def read_versioned(self, name: str) -> tuple[bytes, str]:
        """Content and version of an object; the version is what :meth:`replace` compares."""
        if self._digest_is_version:
            data = self.read(name)
            return data, _digest(data)
        while True:
            before = self._etag(name)
            data = self.read(name)
            if self._etag(name) == before:
                return data, before

    def create(self, name: str, data: bytes) -> bool:
        """Write an object only if none is there; False where one is."""
        try:
            if self._local:
                _create_file(self.path(name), data)
            else:
                self.replace(name, data, version=None)
        except (CommitConflict, FileExistsError):
            return False
        return True

    def replace(self, name: str, data: bytes, version: str | None) -> None:
        """Compare and swap: write only if the object still has ``version`` (None: only if there is none).

        Raises:
            CommitConflict: it has been written meanwhile.
            StoreError: this kind of location cannot do it safely.
        """
        conflict = CommitConflict(f"{self.url}/{name} was written by somebody else")
        if self._local:
            target = self.path(name)
            os.makedirs(os.path.dirname(target), exist_ok=True)
            with FileLock(f"{target}.lock"):
                if _digest_of_file(target) != version:
                    raise conflict
                _replace_file(target, [data], durable=True)
        elif self._protocol == "memory":
            with _MEMORY_LOCK:
                current = _digest(self.read(name)) if self.exists(name) else None
                if current != version:
                    raise conflict
                self.fs.pipe_file(self.path(name), data)
        else:
            condition = self._condition(version)
            try:
                self.fs.pipe_file(self.path(name), data, **condition)
            except (OSError, FileExistsError) as error:
                if _is_failed_precondition(error):
                    raise conflict from error
                raise

    @property
    def _protocol(self) -> str:
        protocol = self.fs.protocol
        return protocol if isinstance(protocol, str) else protocol[0]

    @property
    def _takes_buffers(self) -> bool:
        """Whether uploads accept a bytearray as it is; others need a copy as bytes."""
        return self._protocol in ("s3", "s3a")

    @property
    def _digest_is_version(self) -> bool:
        return self._local or self._protocol == "memory"

    def _etag(self, name: str) -> str:
        self.fs.invalidate_cache(self.fs._parent(self.path(name)))
        info = self.fs.info(self.path(name))
        tag = info.get("ETag") or info.get("etag")
        if not tag:
            raise StoreError(f"{self.url}: this location reports no etag, so commits to it would not be safe")
        return str(tag)

    def _condition(self, version: str | None) -> dict[str, str]:
        """The conditional-write arguments that this filesystem passes on to its service."""
        match self._protocol:
            case "s3" | "s3a":
                return {"IfNoneMatch": "*"} if version is None else {"IfMatch": version}
            case "oci":
                return {"if_none_match": "*"} if version is None else {"if_match": version}
            case other:
                raise StoreError(
                    f"{self.url}: no compare-and-swap is known for {other!r} locations, so commits to it would not "
                    "be safe; write the store to a local path, s3:// or oci:// and copy it"
                )


def _files_below(top: str) -> Iterator[str]:
    if os.path.isfile(top):
        yield top
    for folder, _, names in os.walk(top):
        yield from (f"{folder}/{name}" for name in names)


def _modified(info: Mapping[str, Any]) -> float:
    """When an object was written, from what its filesystem says of it."""
    stamp = next((info[key] for key in ("LastModified", "timeModified", "mtime", "created") if info.get(key)), None)
    if stamp is None:
        raise StoreError("this location does not say when its objects were written")
    if isinstance(stamp, str):
        stamp = parsedate_to_datetime(stamp) if "," in stamp else datetime.fromisoformat(stamp)
    return stamp.timestamp() if isinstance(stamp, datetime) else float(stamp)


def _remove_empty(folder: str, root: str) -> None:
    """Remove a folder and those above it, as far as they are empty, but never the root."""
    while folder.startswith(f"{root}/"):
        try:
            os.rmdir(folder)
        except OSError:
            return
        folder = os.path.dirname(folder)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _digest_of_file(path: str) -> str | None:
    try:
        return _digest(Path(path).read_bytes())
    except FileNotFoundError:
        return None


def _replace_file(target: str, pieces: Iterable[bytes], *, durable: bool) -> int:
    """Write a file whole beside the target, then let it become the target; its size."""
    temporary, size = _write_beside(target, pieces, durable)
    os.replace(temporary, target)
    if durable:
        _sync_folder(os.path.dirname(target))
    return size


def _create_file(target: str, data: bytes) -> None:
    """Write a file whole if none is there; raises FileExistsError. A link, unlike a rename, never replaces."""
    temporary, _ = _write_beside(target, [data], durable=True)
    try:
        os.link(temporary, target)
    finally:
        os.unlink(temporary)
    _sync_folder(os.path.dirname(target))


def _write_beside(target: str, pieces: Iterable[bytes], durable: bool) -> tuple[str, int]:
    """A new file in the folder of the target, which is made where it is missing; its path and size."""
    folder, name = os.path.split(target)
    temporary = f"{folder}/.{name}.{uuid.uuid4().hex}.tmp"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    try:
        handle = os.open(temporary, flags, 0o666)
    except FileNotFoundError:
        handle = _open_in_new_folder(temporary, flags)
    try:
        with open(handle, "wb") as file:
            file.writelines(pieces)
            file.flush()
            if durable:
                os.fsync(handle)
            return temporary, file.tell()
    except BaseException:
        os.unlink(temporary)
        raise


def _open_in_new_folder(path: str, flags: int) -> int:
    # Garbage collection may remove a folder that is still empty; it hardly does so time and again.
    for _ in range(10):
        with contextlib.suppress(FileNotFoundError):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            return os.open(path, flags, 0o666)
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)


def _sync_folder(path: str) -> None:
    # A rename is on disk only when the folder is.
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _is_failed_precondition(error: OSError) -> bool:
    """Whether a service refused a conditional write because the condition did not hold."""
    cause = error.__cause__
    response = getattr(cause, "response", None)
    if isinstance(response, dict):
        return response.get("Error", {}).get("Code") in ("PreconditionFailed", "412", "ConditionalRequestConflict")
    status = getattr(cause, "status", None)
    return isinstance(error, FileExistsError) or status in (409, 412) or error.errno == errno.EINVAL
