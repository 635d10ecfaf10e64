"""Local files: atomic writes, compare-and-swap under a lock, and durable commits."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from stat import S_ISLNK, S_ISREG

from filelock import FileLock, SoftFileLock, Timeout

from zarr_core.errors import StoreError
from zarr_core.storage.backends import ObjectInfo
from zarr_core.storage.temporary import add_temp_suffix, strip_temp_suffix

#: Seconds to wait for a lock. A commit holds it for a moment, but a suspended process may hold it for long.
LOCK_PATIENCE = 300.0
#: Lock file of a folder on a filesystem without hard links.
CREATE_LOCK = ".create.lock"

# Errors of filesystems without hard links.
_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV, errno.EINVAL}


def read(path: str, start: int | None = None, stop: int | None = None) -> bytes:
    """Bytes ``[start, stop)`` of a file; raises FileNotFoundError for a folder, too: a folder is not an object."""
    try:
        with open(path, "rb") as file:
            file.seek(start or 0)
            return file.read() if stop is None else file.read(stop - (start or 0))
    except IsADirectoryError as error:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path) from error


def info(path: str, follow_links: bool = True) -> ObjectInfo:
    """Size and times of a file; of the link itself if links are not followed."""
    return _described(os.stat(path, follow_symlinks=follow_links))


def _described(stat: os.stat_result) -> ObjectInfo:
    # Without the device number, which differs between machines that mount the same disk.
    changed = f"{stat.st_ino} {stat.st_ctime_ns}"
    return ObjectInfo(stat.st_size, str(stat.st_mtime), stat.st_mtime, changed)


def walk(top: str, *, follow_links: bool, recursive: bool = True) -> Iterator[tuple[str, ObjectInfo]]:
    """Every file below a folder (``recursive=False``: directly in it), or with that name.

    Files that vanish meanwhile are skipped, and what is not a file: a pipe or a device may be read without end.

    Raises:
        OSError: a folder cannot be listed.
    """
    if os.path.isfile(top):
        yield top, info(top)
    for parent, folders, names in os.walk(top, onerror=_unlisted, followlinks=follow_links):
        for name in names:
            path = f"{parent}/{name}"
            try:
                found = os.stat(path, follow_symlinks=follow_links)
            except FileNotFoundError:
                continue
            if S_ISREG(found.st_mode) or S_ISLNK(found.st_mode):
                yield path, _described(found)
        if not recursive:
            return
        if follow_links:
            folders[:] = [name for name in folders if not links_above(f"{parent}/{name}")]


def links_above(path: str) -> bool:
    """Whether a folder is a link to one that its path leads through, so that it has no end."""
    if not os.path.islink(path):
        return False
    with suppress(FileNotFoundError):
        target = os.stat(path)
        return any(os.path.samestat(target, above.stat()) for above in Path(path).absolute().parents)
    return False


def _unlisted(error: OSError) -> None:
    # Only root may list lost+found, which each ext file system has at its root.
    if not isinstance(error, FileNotFoundError | NotADirectoryError) and Path(error.filename).name != "lost+found":
        raise error


def delete(paths: Sequence[str], root: str) -> None:
    """Remove files and the folders that become empty, but never the root. Missing files are ignored."""
    for path in paths:
        with suppress(FileNotFoundError):
            os.unlink(path)
    for folder in sorted(set(map(os.path.dirname, paths)), key=len, reverse=True):
        while folder.startswith(f"{root}/"):
            try:
                os.rmdir(folder)
            except OSError:
                break
            folder = os.path.dirname(folder)


def replace_file(target: str, pieces: Iterable[bytes], *, durable: bool) -> int:
    """Write a temporary file, then rename it to the target; returns its size."""
    temporary, size = _write_temporary(target, pieces, durable)
    try:
        os.replace(temporary, target)
    except BaseException:
        os.unlink(temporary)
        raise
    if durable:
        _sync_folder(os.path.dirname(target))
    return size


def create_file(target: str, pieces: Iterable[bytes]) -> bool:
    """Write a whole file if the target does not exist; False if it does.

    A hard link, unlike a rename, never replaces. Where the filesystem has none, a lock guards a check and a rename.
    """
    temporary, _ = _write_temporary(target, pieces, durable=True)
    try:
        try:
            os.link(temporary, target)
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            with _lock(f"{os.path.dirname(target)}/{CREATE_LOCK}"):
                if os.path.lexists(target):
                    return False
                os.replace(temporary, target)
    finally:
        Path(temporary).unlink(missing_ok=True)
    _sync_folder(os.path.dirname(target))
    return True


def swap_file(target: str, data: bytes, version: str | None) -> bool:
    """Replace a file if its digest is ``version`` (None: if it does not exist); False if it has another one."""
    _make_folder(os.path.dirname(target))
    with _lock(f"{target}.lock"):
        try:
            current: str | None = digest(read(target))
        except FileNotFoundError:
            current = None
        if current != version:
            return False
        remove_leftovers(target)
        replace_file(target, [data], durable=True)
    return True


def remove_leftovers(target: str) -> None:
    """Delete the temporary files of the target, whose writers are dead: the caller holds its lock, or is its owner."""
    folder, name = os.path.split(target)
    for found in os.listdir(folder):
        if strip_temp_suffix(found) == (name, True):
            Path(folder, found).unlink(missing_ok=True)


def digest(data: bytes) -> str:
    """Version of an object without etag."""
    return hashlib.sha256(data).hexdigest()


@contextmanager
def _lock(path: str) -> Iterator[None]:
    """Hold a kernel lock, which is released when its holder dies; raises StoreError if the filesystem has none."""
    lock = FileLock(path)
    no_locks = StoreError(f"{path}: this filesystem has no locks, so commits to it would not be safe")
    try:
        lock.acquire(timeout=LOCK_PATIENCE)
    except Timeout as error:
        raise StoreError(
            f"{path}: another process, on this machine or on one that shares the disk, has held this lock for "
            f"{LOCK_PATIENCE:g} s; end the process that hangs, and run again"
        ) from error
    except (NotImplementedError, OSError) as error:
        if isinstance(error, NotImplementedError) or error.errno in (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP):
            raise no_locks from error
        raise
    try:
        if isinstance(lock, SoftFileLock):  # filelock's fallback: a file that outlives its holder
            raise no_locks
        yield
    finally:
        lock.release()


def _write_temporary(target: str, pieces: Iterable[bytes], durable: bool) -> tuple[str, int]:
    """Write a temporary file in the folder of the target, which is created if needed; its path and size."""
    temporary = add_temp_suffix(target)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    try:
        handle = os.open(temporary, flags, 0o666)
    except FileNotFoundError:
        handle = _open_in_new_folder(temporary, flags, durable)
    try:
        with open(handle, "wb") as file:
            file.writelines(pieces)
            file.flush()
            if durable:
                os.fsync(handle)
            return temporary, file.tell()
    except BaseException as error:
        os.unlink(temporary)
        if isinstance(error, OSError) and error.errno and error.filename is None:  # a full disk is not named
            error.filename = target
        raise


def _open_in_new_folder(path: str, flags: int, durable: bool) -> int:
    # Garbage collection may remove the folder while it is empty, but hardly ten times in a row.
    for _ in range(10):
        with suppress(FileNotFoundError):
            if durable:
                _make_folder(os.path.dirname(path))
            else:
                os.makedirs(os.path.dirname(path), exist_ok=True)
            return os.open(path, flags, 0o666)
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)


def _make_folder(path: str) -> None:
    """Create a folder and its parents durably."""
    missing = []
    while not os.path.isdir(path):
        missing.append(path)
        path = os.path.dirname(path)
    for folder in reversed(missing):
        os.makedirs(folder, exist_ok=True)
        _sync_folder(os.path.dirname(folder))


def _sync_folder(path: str) -> None:
    # A rename is durable only when the folder is synced.
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
