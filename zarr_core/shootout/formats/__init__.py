"""Ways to hold samples and to read them, each with the same methods: this library, and common alternatives.

Samples are sets of points, or rows of a matrix (``matrices.py``). A format of points is given samples whose points are
already in random order, as our stores hold them, so that each may read a draw as a slice. One that cannot read part of
a sample reads all of it. The modules import their packages inside functions, so that a package may be missing, or live
in an environment of its own.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

#: Items of a batch by field: (items, points, dim), or a list of (points, dim) where their numbers of points differ.
Arrays = dict[str, np.ndarray | list[np.ndarray]]


class Format:
    """One way to hold samples and to read them.

    Attributes:
        remote: whether it can read from a URL.
        streams: whether it has :meth:`stream` instead of :meth:`read`.
        without_threads: why threads of one process cannot share it; "" if they can.
        requests: objects or byte ranges requested from a URL so far; None if it is not counted.
    """

    remote = True
    streams = False
    without_threads = ""
    requests: int | None = None

    def prepare(self, samples: Any, folder: Path) -> None:
        """Write the samples (of a :class:`~zarr_core.shootout.workload.Workload`) into an empty folder."""
        raise NotImplementedError

    def open(self, place: str | Path, draws: Any) -> None:
        """Get ready to read draws from the prepared folder or a copy of it at a URL, in this process."""
        raise NotImplementedError

    def read(self, sample: str, epoch: int) -> dict[str, np.ndarray]:
        """The drawn points of each field, (points, dim), in memory."""
        return self.read_items([(sample, epoch)])[0]

    def read_items(self, items: Sequence[tuple[str, int]]) -> list[dict[str, np.ndarray]]:
        """Those of several ids of the draws, each with its epoch. A subclass has this or :meth:`read`."""
        return [self.read(sample, epoch) for sample, epoch in items]

    def read_batch(self, items: Sequence[tuple[Any, int]]) -> Arrays:
        """The same as a batch."""
        return stacked(self.read_items(items))

    def stream(self, epoch: int, worker: int, workers: int) -> Iterator[dict[str, np.ndarray]]:
        """The items of an epoch that one of several workers reads, in the order of the format."""
        raise NotImplementedError


def stacked(items: Sequence[Mapping[str, np.ndarray]]) -> Arrays:
    """Items as a batch."""
    batch: Arrays = {}
    for name in items[0]:
        arrays = [item[name] for item in items]
        shapes = set(map(np.shape, arrays))
        batch[name] = np.stack(arrays) if len(shapes) == 1 else arrays
    return batch


@dataclass(frozen=True)
class Entry:
    """A format and what it needs.

    Attributes:
        name: in tables.
        factory: "module:class".
        arguments: of the class.
        package: what must be installed for it.
        copy: name of the folder that holds its bytes; formats that read the same bytes share it. By default its name.
        is_store: whether codec and chunk size are settings of it.
        export: format of ``zarr-core export`` that writes it, if there is one.
        reads: the only draws that it is measured with; all if empty.
    """

    name: str
    factory: str
    arguments: Mapping[str, Any] = field(default_factory=dict, hash=False)
    package: str | None = None
    copy: str = field(default="", kw_only=True)
    is_store: bool = field(default=False, kw_only=True)
    export: str = field(default="", kw_only=True)
    reads: tuple[str, ...] = field(default=(), kw_only=True)

    @property
    def installed(self) -> bool:
        """Whether its package can be imported here."""
        return self.package is None or importlib.util.find_spec(self.package) is not None

    def make(self, **more: Any) -> Format:
        """The format, with further arguments."""
        module, _, name = self.factory.partition(":")
        made: Format = getattr(importlib.import_module(module), name)(**self.arguments, **more)
        return made
