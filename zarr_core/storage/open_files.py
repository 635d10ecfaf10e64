"""Local files that stay open between requests.

Many systems let a process open 1,024 files, which its datasets share: all together keep few files open, and map few.
"""

from __future__ import annotations

import itertools
import os
import weakref
from collections import OrderedDict
from collections.abc import Callable

#: Files of a process that stay open, at most.
OPEN_FILES = 128
#: And as a part of those that the system lets a process open.
_SHARE = 0.125

_opened: OrderedDict[tuple[int, str], OpenFile] = OrderedDict()
_numbers = itertools.count()


def share_of_open_files(share: float, most: int) -> int:
    """A part of the files that this process may open, ``most`` at most."""
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return most if soft == resource.RLIM_INFINITY else min(most, int(soft * share))


class OpenFile:
    """A file that stays open while it is referenced: one thread may read it while another drops it from the table."""

    __slots__ = ("handle",)

    def __init__(self, path: str) -> None:
        self.handle = -1
        self.handle = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        # At exit, the interpreter may have emptied the module os before it drops the last reference to this object.
        if self.handle >= 0:
            close(self.handle)


class OpenFiles:
    """The files below a folder, of which those stay open that this process opened last. Safe for threads.

    Args:
        folder: local path.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._number = next(_numbers)
        weakref.finalize(self, _close, self._number).atexit = False

    def get(self, name: str) -> OpenFile:
        """A file, opened if it is not; raises OSError. Refer to it while its handle is used."""
        return _opened.get((self._number, name)) or self._open(name)

    def _open(self, name: str) -> OpenFile:
        # Replacing an entry would close the file of another thread in the middle of the change of the table.
        file = _opened.setdefault((self._number, name), OpenFile(f"{self._folder}/{name}"))
        while len(_opened) > share_of_open_files(_SHARE, OPEN_FILES):
            try:
                _opened.popitem(last=False)
            except KeyError:  # another thread has closed it
                break
        return file


def _close(number: int) -> None:
    """Close the files of a folder that are not being read."""
    for key in [key for key in list(_opened) if key[0] == number]:
        _opened.pop(key, None)
