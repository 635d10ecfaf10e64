"""Files that shrink, vanish or are replaced while a reader has them mapped: right values, or an error."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests.attacks.fuzz_matrix import cells_of
from tests.attacks.tally import Tally
from tests.helpers.small_source import write_source
from zarr_core.matrix import WideMatrix
from zarr_core.matrix.read import fetch
from zarr_core.points.convert.conversion import convert
from zarr_core.points.read.engines import mapped
from zarr_core.points.read.engines.direct import DirectEngine
from zarr_core.points.read.reader import ZarrChunkReader
from zarr_core.storage import local_files

_IDS = ("run_1", "run_2")
_DRAWS = ({"surface": 20, "volume": 50}, {"surface": 20}, {})
_FEATURES = [f"cg{n:04d}" for n in range(50)]
_BATCHES = {"b1": ["s1", "s2", "s3", "s4", "s5"], "b2": ["s6", "s7"]}

Values = dict[str, np.ndarray]


class _Points:
    """The samples of a store, as drawn in several epochs and whole."""

    def __init__(self, folder: Path, layout: str) -> None:
        source = write_source(folder / "source", _IDS)
        root = folder / "store"
        convert("ahmedml", root, root=source, chunk_points=16, codec="none", layout=layout)
        pattern = "samples/*/*.zip" if layout == "packed" else "samples/*/*/*/*/c/**/*"
        self._root, self.files = root, [path for path in root.glob(pattern) if path.is_file()]

    def open(self) -> Any:
        return ZarrChunkReader(self._root)

    def is_mapped(self, reader: Any) -> bool:
        engine = reader._engine
        assert isinstance(engine, DirectEngine)
        return any(sample._arrays for sample in engine._this_process.mapped.values())

    def read(self, reader: Any, number: int) -> Values:
        points = _DRAWS[number % len(_DRAWS)]
        drawn = [reader.draws(reader.selection(points), sample_id, epoch=number) for sample_id in _IDS]
        items = reader.read_items(drawn)
        return {f"{sample} {name}": item[name] for sample, item in zip(_IDS, items, strict=True) for name in item}


class _Matrix:
    """The cells of a matrix: samples whole, and some features of them."""

    def __init__(self, folder: Path) -> None:
        self._root = folder / "matrix"
        options: dict[str, Any] = {"codec": "none", "chunk_features": 16, "shard_rows": 3, "column_chunk": (4, 4)}
        made = WideMatrix.create(self._root, _FEATURES, **options)
        for batch_id, sample_ids in _BATCHES.items():
            made.append(batch_id, sample_ids, cells_of(batch_id, sample_ids))
        self._ids = made.sample_ids
        self.files = [path for path in self._root.glob("*.zarr/c/**/*") if path.is_file()]

    def open(self) -> Any:
        return WideMatrix.open(self._root)

    def is_mapped(self, reader: Any) -> bool:
        return any(shard.mapped is not None for shard in reader._fetcher._shards.values())

    def read(self, reader: Any, number: int) -> Values:
        features = (None, [_FEATURES[7], _FEATURES[40]], _FEATURES[:30])[number % 3]
        return {value: reader.read(self._ids, features, value) for value in reader.values}


class MapFuzz:
    """Each round maps files, changes some of them, and reads again.

    Args:
        folder: where to work.
        target: "mapped" (shards of points), "mapped_archive" (packed samples) or "mapped_matrix".
        tally: counts.
    """

    def __init__(self, folder: Path, target: str, tally: Tally) -> None:
        self._target, self._tally, self._other = target, tally, folder / "other"
        layout = "packed" if target == "mapped_archive" else "directory"
        self._data = _Matrix(folder) if target == "mapped_matrix" else _Points(folder, layout)
        # A copy ends the process if a file shrinks after its size was looked at. It is looked at before each read here.
        mapped.LOOK_AGAIN = fetch.LOOK_AGAIN = 0.0  # type: ignore[misc]

    def round(self, chance: random.Random) -> None:
        """Map, change, read and repair."""
        reader = self._data.open()
        numbers = chance.sample(range(30), 3)
        for _ in range(2):  # intact chunks are copied from maps after the first time
            expected = [self._data.read(reader, number) for number in numbers]
        if not self._data.is_mapped(reader):
            self._tally.add("tracebacks", 1, f"{self._target}: no file is mapped")
        chosen = chance.sample(self._data.files, min(len(self._data.files), chance.randint(1, 3)))
        whole = {path: path.read_bytes() for path in chosen}
        done = [f"{path.name} {self._change(path, chance)}" for path in chosen]
        self._tally.add("faults", len(chosen))
        if chance.random() < 0.3:
            local_files._opened.clear()  # as if many others had been opened since
        try:
            for number, values in zip(numbers, expected, strict=True):
                with self._tally.ours(f"{self._target}, {done}"):
                    self._compare(self._data.read(reader, number), values, done)
        finally:
            for path, data in whole.items():
                self._replace(path, data)

    def _compare(self, found: Values, expected: Values, done: Sequence[str]) -> None:
        for name, values in expected.items():
            if not np.array_equal(found[name], values, equal_nan=True):
                self._tally.add("wrong", 1, f"{self._target}, {name}, {done}")

    def _change(self, path: Path, chance: random.Random) -> str:
        """Change a file; returns what was done."""
        data = path.read_bytes()
        match chance.randrange(4):
            case 0:
                size = chance.randrange(len(data))
                os.truncate(path, size)
                return f"shrunk to {size} bytes"
            case 1:
                path.unlink()
                return "deleted"
            case 2:
                self._replace(path, chance.randbytes(len(data)))
                return "replaced by other bytes"
            case _:
                size = chance.randrange(len(data))
                self._replace(path, data[:size])
                return f"replaced by its first {size} bytes"

    def _replace(self, path: Path, data: bytes) -> None:
        self._other.write_bytes(data)
        self._other.rename(path)


def make(folder: Path, target: str, tally: Tally) -> Any:
    """The rounds of a target."""
    return MapFuzz(folder, target, tally).round
