"""Hostile and damaged wide matrices: heads, other documents, shards of both copies."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np

from tests.attacks.mutations import ESCAPES, as_json, mutate_bytes, mutate_document, restore
from tests.attacks.tally import Tally
from zarr_core.matrix import WideMatrix
from zarr_core.matrix.ingest.leases import LEASES, Leases
from zarr_core.matrix.store.head import HEAD
from zarr_core.matrix.store.state import HEAD_NAME
from zarr_core.matrix.verify import verify_matrix
from zarr_core.storage import Storage
from zarr_core.versioning.gc import collect_garbage

_FEATURES = [f"cg{n:04d}" for n in range(50)]
_BATCHES = {"b1": ["s1", "s2", "s3", "s4", "s5"], "b2": ["s6", "s7"]}
_VERBS = 0.1
_OPTIONS: dict[str, Any] = {"codec": "zstd:1", "chunk_features": 16, "shard_rows": 3, "column_chunk": (4, 4)}


def cells_of(batch_id: str, sample_ids: list[str]) -> dict[str, np.ndarray]:
    """Cells of a batch; a tenth is missing."""
    rng = np.random.default_rng(list(batch_id.encode()))
    cells = {value: rng.random((len(sample_ids), len(_FEATURES)), np.float32) for value in ("beta", "coverage")}
    for table in cells.values():
        table[rng.random(table.shape) < 0.1] = np.nan
    return cells


class MatrixFuzz:
    """A matrix of two batches; each round damages one thing in it.

    Args:
        folder: where to make it.
        target: "head", "beside" (claims, leases, names of features, ``zarr.json``), "cells" (shards, by accident) or
            "forged_cells" (checksums made to fit).
        tally: counts.
    """

    def __init__(self, folder: Path, target: str, tally: Tally) -> None:
        self.target, self.tally = target, tally
        self.root, self._copy = folder / "matrix", folder / "copy"
        self._damage: Callable[[random.Random], None] = getattr(self, f"_{target}")
        matrix = WideMatrix.create(self.root, _FEATURES, **_OPTIONS)
        self.truth: dict[str, dict[str, np.ndarray]] = {}
        for batch_id, sample_ids in _BATCHES.items():
            cells = cells_of(batch_id, sample_ids)
            matrix.append(batch_id, sample_ids, cells)
            for n, sample_id in enumerate(sample_ids):
                self.truth[sample_id] = {value: table[n] for value, table in cells.items()}
        matrix.derive_columns()
        # After a collection, commits check that the objects that they name are complete, and "retention" is not empty.
        collect_garbage(Storage(self.root), HEAD, 0)
        Leases(Storage(self.root)).take(["b3"])
        self._whole: dict[Path, bytes] = {}

    def round(self, chance: random.Random) -> None:
        """Damage something, read, sometimes write, and repair it."""
        self._damage(chance)
        self.tally.add("faults")
        try:
            self._read()
            if chance.random() < _VERBS:
                self._verbs()
        finally:
            restore(self._whole)

    def _read(self) -> None:
        with self.tally.ours(f"{self.target}, open"):
            matrix = WideMatrix.open(self.root)
            for value in list(matrix.values)[:3]:
                for sample_id in matrix.sample_ids[:3]:
                    with self.tally.ours(f"{self.target}, {sample_id!r}"):
                        self._compare(value, [sample_id], matrix.read([sample_id], value=value), slice(None))
                with self.tally.ours(f"{self.target}, columns"):
                    requested = list(matrix.sample_ids)[:100]
                    columns = matrix.read(requested, [_FEATURES[7], _FEATURES[40]], value)
                    self._compare(value, requested, columns, [7, 40])

    def _compare(self, value: str, sample_ids: list[str], read: np.ndarray, columns: Any) -> None:
        # Neither heads nor checksums are signed: a forged head may assign rows to other samples.
        if self.target in ("head", "forged_cells"):
            return
        for sample_id, row in zip(sample_ids, read, strict=True):
            if not np.array_equal(row, self.truth[sample_id][value][columns], equal_nan=True):
                self.tally.add("wrong", 1, f"{self.target}, {sample_id}, {value}: {sorted(map(str, self._whole))}")

    def _verbs(self) -> None:
        """Run the other verbs on the damaged matrix; those that write work on a copy."""
        shutil.rmtree(self._copy, ignore_errors=True)
        shutil.copytree(self.root, self._copy)
        storage = Storage(self._copy)
        added = {"new": ["s8", "s9"]}
        verbs: Mapping[str, Callable[[], object]] = {
            "verify": lambda: verify_matrix(self._copy),
            "leases": lambda: Leases(storage).take(["b3", "b4"]),
            "append": lambda: WideMatrix.open(self._copy).append("new", added["new"], cells_of("new", added["new"])),
            "columns": lambda: WideMatrix.open(self._copy).derive_columns(),
            "gc": lambda: collect_garbage(storage, HEAD, 0),
        }
        for name, verb in verbs.items():
            with self.tally.ours(f"{self.target}, {name}"):
                verb()
        if self.target == "beside":
            with self.tally.ours("beside, what was appended"):
                matrix = WideMatrix.open(self._copy)
                if "s8" in matrix.sample_ids:
                    expected = cells_of("new", added["new"])["beta"]
                    if not np.array_equal(matrix.read(added["new"]), expected, equal_nan=True):
                        self.tally.add("wrong", 1, "beside: other cells than were appended")

    # --- mutations of the matrix

    def _write(self, path: Path, data: bytes) -> None:
        self._whole.setdefault(path, path.read_bytes())
        path.write_bytes(data)

    def _document(self, path: Path, chance: random.Random) -> None:
        data = path.read_bytes()
        damaged = chance.random() < 0.2
        self._write(
            path, mutate_bytes(data, chance) if damaged else as_json(mutate_document(json.loads(data), chance), chance)
        )

    def _head(self, chance: random.Random) -> None:
        if chance.random() < 0.7:
            self._document(self.root / HEAD_NAME, chance)
            return
        # Consistent documents that claim more data than there is.
        head = json.loads((self.root / HEAD_NAME).read_bytes())
        head["cpg_ids"]["length"] = chance.choice((50, 10**6, 10**9, 2**31 - 1))
        head["chunk_shape"][1] = chance.choice((4, 16, 4 * 10**6, 2**30))
        head["column_chunk_shape"][1] = across = chance.choice((4, 10**4, 2**28))
        head["shard_rows"] = rows = chance.choice((3, 10**6, 2**31 - 1))
        head["max_shards"] = chance.choice((8, 2**31 - 1))
        head["cpg_ids"]["path"] = chance.choice((head["cpg_ids"]["path"], *ESCAPES))
        for number, batch in enumerate(head["batches"].values()):
            batch["row"] = 2 * number * rows
        for number, block in enumerate(head["column_blocks"]):
            block["row"] = 2 * number * across
        self._write(self.root / HEAD_NAME, json.dumps(head).encode())

    def _beside(self, chance: random.Random) -> None:
        (axis,) = (self.root / "cpg_ids").glob("*.npy")
        if chance.random() < 0.3:
            data = axis.read_bytes()
            shape = chance.choice((b"(49,)", b"(10000000000000,)", b"(-1,)", b"(50, 10)", b"()", b"(2**60,)"))
            claim = data.replace(b"(50,)", shape)
            self._write(axis, mutate_bytes(data, chance) if chance.random() < 0.5 else claim)
            if chance.random() < 0.7:  # with a correct sha256
                head = json.loads((self.root / HEAD_NAME).read_bytes())
                head["cpg_ids"]["sha256"] = hashlib.sha256(axis.read_bytes()).hexdigest()
                self._write(self.root / HEAD_NAME, json.dumps(head).encode())
            return
        documents = [*self.root.rglob("claims/*/*.json"), *self.root.glob("*.zarr/zarr.json"), self.root / LEASES]
        self._document(chance.choice(sorted(documents)), chance)

    def _cells(self, chance: random.Random) -> None:
        path = chance.choice(sorted(self.root.glob("*.zarr/c/*/*")))
        self._write(path, mutate_bytes(path.read_bytes(), chance))

    def _forged_cells(self, chance: random.Random) -> None:
        path = chance.choice(sorted(self.root.glob("*.zarr/c/*/*")))
        data = path.read_bytes()
        columns = "_columns.zarr" in str(path)
        chunks = 4 if columns else 3 * 4
        index_bytes = 16 * chunks + 4
        body, index = bytearray(data[:-index_bytes]), np.frombuffer(data[-index_bytes:-4], "<u8").reshape(-1, 2).copy()
        entry = index[chance.randrange(len(index))]
        if chance.random() < 0.5 and entry[1] < len(body):
            start, stop = int(entry[0]), int(entry[0] + entry[1]) - 4
            chunk = mutate_bytes(bytes(body[start:stop]), chance)[: stop - start].ljust(stop - start, b"\0")
            body[start : stop + 4] = chunk + _crc(chunk)
        else:
            entry[chance.randrange(2)] = chance.choice((0, 1, 2**31, 2**62, 2**63, 2**64 - 1, 2**64 - 2, len(data)))
        packed = index.tobytes()
        self._write(path, bytes(body) + packed + _crc(packed))


def _crc(data: bytes) -> bytes:
    return int(google_crc32c.value(data)).to_bytes(4, "little")


def make(folder: Path, target: str, tally: Tally) -> Callable[[random.Random], None]:
    """The rounds of a target."""
    return MatrixFuzz(folder, target, tally).round
