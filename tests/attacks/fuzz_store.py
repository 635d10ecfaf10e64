"""Hostile and damaged stores: manifests, metadata, shard indices and chunks, read by every engine."""

from __future__ import annotations

import contextlib
import json
import random
import struct
import zlib
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np

from tests.attacks.mutations import ESCAPES, as_json, mutate_bytes, mutate_document, restore
from tests.attacks.tally import Tally
from tests.attacks.truth import Sample, stored_sample
from tests.helpers.draws import indices_of
from tests.helpers.small_source import write_source
from zarr_core.datasets import build_dataset
from zarr_core.format.packed import head_bytes
from zarr_core.points.convert.conversion import convert
from zarr_core.points.read.engines import ENGINES
from zarr_core.points.read.reader import ZarrChunkReader
from zarr_core.points.statistics import calculate_store_statistics
from zarr_core.points.store.head import load_manifest
from zarr_core.points.verify.store import verify_store

_IDS = ("run_1", "run_2")
_DRAWS = {"surface": 20, "volume": 50}
# Reading through the others takes twenty times as long.
_OTHER_ENGINES = 0.1
_VERBS = 0.1


class StoreFuzz:
    """A store of two samples; each round damages one thing in it.

    Args:
        folder: where to make it.
        target: "manifest", "group", "array", "shard" (bytes change by accident) or "forged" (checksums made to fit); of
            packed samples "archive" (by accident) or "forged_archive" (a head that lies, with its checksum).
        tally: counts.
    """

    def __init__(self, folder: Path, target: str, tally: Tally) -> None:
        source = write_source(folder / "source", _IDS)
        self.target, self.tally, self.root = target, tally, folder / "store"
        self._damage = {
            "manifest": self._manifest,
            "group": lambda chance: self._document(self._group(chance), chance),
            "array": lambda chance: self._document(
                self._group(chance).parent / self._array(chance) / "zarr.json", chance
            ),
            "shard": self._shard,
            "forged": self._forged,
            "archive": self._archive,
            "forged_archive": self._forged_archive,
        }[target]
        codec = {"shard": "zstd:1", "archive": "none"}.get(target, "blosc-lz4")
        layout = "packed" if "archive" in target else "directory"
        convert("ahmedml", self.root, root=source, chunk_points=16, codec=codec, layout=layout)
        self.truth = {sample_id: stored_sample(source, sample_id) for sample_id in _IDS}
        self.manifest = load_manifest(self.root)
        self._whole: dict[Path, bytes] = {}

    def round(self, chance: random.Random) -> None:
        """Damage something, read, and repair it."""
        self._damage(chance)
        self.tally.add("faults")
        engines = ["direct", *(engine for engine in ENGINES[1:] if chance.random() < _OTHER_ENGINES)]
        try:
            for engine in engines:
                with self.tally.ours(f"{self.target}, {engine}"):
                    self._read(engine)
            if chance.random() < _VERBS:
                self._verbs()
        finally:
            restore(self._whole)

    def _read(self, engine: str) -> None:
        reader = ZarrChunkReader(self.root, engine=engine)
        for sample_id in reader.sample_ids[:3]:
            for num_points in ({}, _DRAWS):
                with self.tally.ours(f"{self.target}, {engine}, {sample_id!r}"):
                    reads = reader.field_reads(
                        sample_id, {d: n for d, n in num_points.items() if d in reader.manifest.domains}
                    )
                    read = dict(zip(reads, reader.execute(list(reads.values())), strict=True))
                    rows = {name: indices_of(read_.drawn) for name, read_ in reads.items()}
                    self._compare(engine, sample_id, read, rows)
            with self.tally.ours(f"{self.target}, {engine}, attributes"):
                reader.read_attributes(sample_id)

    def _compare(self, engine: str, sample_id: str, read: Sample, rows: dict[str, np.ndarray]) -> None:
        # Forged checksums make any bytes valid. Metadata has no checksums, and only the engine "direct" checks it
        # against the recorded facts. The true name of a sample that the manifest renames is unknown.
        if self.target.startswith("forged") or sample_id not in self.truth:
            return
        if engine != "direct" and self.target not in ("shard", "archive"):
            return
        for name, values in read.items():
            expected = self.truth[sample_id].get(name)
            if expected is not None and not np.array_equal(values, expected[rows[name]]):
                self.tally.add("wrong", 1, f"{self.target}, {engine}, {sample_id}, {name}: {self._where()}")

    def _verbs(self) -> None:
        root = str(self.root)
        with self.tally.ours(f"{self.target}, verify"):
            verify_store(root)
        with self.tally.ours(f"{self.target}, statistics"):
            calculate_store_statistics(root)
        with self.tally.ours(f"{self.target}, recompute"):
            calculate_store_statistics(root, recompute=True)
        with self.tally.ours(f"{self.target}, dataset"):
            dataset = build_dataset({"kind": "ahmedml", "root": root, "split": "train"})
            dataset.__getitems__(list(range(len(dataset))))

    def _where(self) -> str:
        return ", ".join(f"{path.relative_to(self.root)}: {path.read_bytes()[-300:]!r}" for path in self._whole)

    # --- mutations of the store

    def _write(self, path: Path, data: bytes) -> None:
        self._whole.setdefault(path, path.read_bytes())
        path.write_bytes(data)

    def _manifest(self, chance: random.Random) -> None:
        path = self.root / "manifest.json"
        if chance.random() < 0.9:
            self._document(path, chance)
            return
        document = json.loads(path.read_bytes())
        document["samples"][chance.choice(_IDS)]["relpath"] = chance.choice(ESCAPES)
        self._write(path, json.dumps(document).encode())

    def _group(self, chance: random.Random) -> Path:
        return self.root / self.manifest.samples[chance.choice(_IDS)].relpath / "zarr.json"

    def _array(self, chance: random.Random) -> str:
        return chance.choice(list(self.manifest.fields.values())).array_name

    def _document(self, path: Path, chance: random.Random) -> None:
        if chance.random() < 0.2:
            self._write(path, mutate_bytes(path.read_bytes(), chance))
        else:
            self._write(path, as_json(mutate_document(json.loads(path.read_bytes()), chance), chance))

    def _shard(self, chance: random.Random) -> None:
        group = self._group(chance)
        shard = group.parent / self._array(chance) / "c/0/0"
        self._write(shard, mutate_bytes(shard.read_bytes(), chance))
        if chance.random() < 0.5:
            self._without_lengths(group)

    def _without_lengths(self, group: Path) -> None:
        """Remove the chunk lengths, so that readers use the shard's index."""
        document = json.loads(group.read_bytes())
        with contextlib.suppress(KeyError):
            del document["attributes"]["zarr_core"]["chunk_bytes"]
        self._write(group, json.dumps(document).encode())

    def _archive(self, chance: random.Random) -> None:
        path = self._group(chance).parent
        data = path.read_bytes()
        head = head_bytes(data)
        first, last = chance.choice(((0, head), (head, len(data)), (data.index(b"PK\1\2", head), len(data))))
        self._write(path, data[:first] + mutate_bytes(data[first:last], chance) + data[last:])

    def _forged_archive(self, chance: random.Random) -> None:
        path = self._group(chance).parent
        data = path.read_bytes()
        head = head_bytes(data)
        document = json.loads(data[39:head])
        recorded = document["attributes"]["zarr_core"]
        if chance.random() < 0.8:
            recorded["packed"] = mutate_document(recorded["packed"], chance)
        else:
            document = mutate_document(document, chance)
        content = as_json(document, chance).ljust(head - 39)
        facts = struct.pack("<III", zlib.crc32(content), len(content), len(content))
        self._write(path, data[:14] + facts + data[26:39] + content + data[head:])
        if chance.random() < 0.9:
            manifest = self.root / "manifest.json"
            right, forged = f'"head":{head}', f'"head":{39 + len(content)}'
            self._write(manifest, manifest.read_bytes().replace(right.encode(), forged.encode()))

    def _forged(self, chance: random.Random) -> None:
        group = self._group(chance)
        name = self._array(chance)
        shard = group.parent / name / "c/0/0"
        data = shard.read_bytes()
        metadata = json.loads(group.read_bytes())["consolidated_metadata"]["metadata"][name]
        chunks = metadata["chunk_grid"]["configuration"]["chunk_shape"][0] // 16
        index_size = 16 * chunks + 4
        body, index = data[:-index_size], np.frombuffer(data[-index_size:-4], "<u8").reshape(-1, 2).copy()
        entry = index[chance.randrange(len(index))]
        if chance.random() < 0.5:
            start, stop = int(entry[0]), int(entry[0] + entry[1]) - 4
            chunk = bytearray(body[start:stop])
            if chance.random() < 0.7:  # the header of Blosc: versions, flags, sizes
                at = chance.randrange(16)
                chunk[at : at + 4] = chance.choice((b"\0" * 4, b"\xff" * 4, b"\xff\xff\xff\x7f", chance.randbytes(4)))
                chunk = chunk[: stop - start]
            else:
                chunk = bytearray(mutate_bytes(bytes(chunk), chance)[: stop - start].ljust(stop - start, b"\0"))
            body = body[:start] + bytes(chunk) + _crc(bytes(chunk)) + body[stop + 4 :]
        else:
            entry[chance.randrange(2)] = chance.choice((0, 1, 2**31, 2**62, 2**63, 2**64 - 1, 2**64 - 2, len(data)))
            self._without_lengths(group)
        packed = index.tobytes()
        self._write(shard, body + packed + _crc(packed))


def _crc(data: bytes) -> bytes:
    return int(google_crc32c.value(data)).to_bytes(4, "little")


def make(folder: Path, target: str, tally: Tally) -> Any:
    """The rounds of a target."""
    return StoreFuzz(folder, target, tally).round
