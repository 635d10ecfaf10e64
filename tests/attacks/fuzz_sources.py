"""Hostile ``.pt`` files: objects that are not tensors, damaged pickles, decompression bombs."""

from __future__ import annotations

import io
import json
import os
import pickle
import random
import shutil
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.attacks.mutations import mutate_bytes, mutate_document
from tests.attacks.tally import Tally
from tests.attacks.truth import same, stored_sample
from tests.helpers.small_source import KIND, write_source
from tests.sources.test_tensors import HOSTILE, archived, legacy
from zarr_core.format.shuffle import shuffle_permutation
from zarr_core.points.convert.sample import convert_sample
from zarr_core.points.convert.writer import GroupWriter
from zarr_core.points.read.reader import ZarrChunkReader
from zarr_core.points.store.settings import ConversionSettings
from zarr_core.sources import SampleTree, resolve_kind

_POINTS = 70


class _Code:
    """Unpickled by anything but ``weights_only``, it leaves a file behind."""

    def __init__(self, canary: Path) -> None:
        self._canary = canary

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, (f"touch {self._canary}",)


def _floats(*shape: int) -> torch.Tensor:
    return torch.arange(float(np.prod(shape))).reshape(shape)


def _objects(canary: Path) -> dict[str, Callable[[], Any]]:
    """Objects in the place of a scalar field of 70 points."""
    n = _POINTS
    dtypes = [d for d in vars(torch).values() if isinstance(d, torch.dtype)]
    return {
        "plain": lambda: _floats(n),
        "column": lambda: _floats(n, 1),
        "parameter": lambda: torch.nn.Parameter(_floats(n)),
        "gradient": lambda: _floats(n).requires_grad_(),
        "strided": lambda: _floats(n, 5)[:, 2],
        "transposed": lambda: _floats(1, n).T,
        "expanded": lambda: _floats(1).expand(n),
        "overlapping": lambda: torch.as_strided(_floats(n), (n,), (0,)),
        "huge view": lambda: torch.as_strided(_floats(1), (10**12, 3), (0, 0)),
        "negative": lambda: torch.imag(torch.complex(_floats(n), _floats(n)).conj()),
        "sparse": lambda: _floats(n).to_sparse(),
        "csr": lambda: _floats(n, 3).to_sparse_csr(),
        "quantised": lambda: torch.quantize_per_tensor(_floats(n), 0.1, 0, torch.qint8),
        "complex": lambda: torch.complex(_floats(n), _floats(n)),
        "meta": lambda: torch.empty(n, device="meta"),
        "huge meta": lambda: torch.empty(10**15, device="meta"),
        "nested": lambda: torch.nested.nested_tensor([_floats(3), _floats(5)]),
        "jagged": lambda: torch.nested.nested_tensor([_floats(3), _floats(5)], layout=torch.jagged),
        "scalar": lambda: torch.tensor(1.0),
        "empty": lambda: torch.empty(0),
        "no rows": lambda: torch.empty(0, 3),
        "six axes": lambda: _floats(1, 2, 1, 5, 7, 1),
        "infinite": lambda: torch.full((n,), torch.inf),
        "dict": lambda: {"a": _floats(n)},
        "text": lambda: "surface",
        "module": lambda: torch.nn.Linear(2, 2),
        "state": lambda: torch.nn.Linear(2, 2).state_dict(),
        "array": lambda: np.arange(70.0),
        "code": lambda: _Code(canary),
        "code beside": lambda: {"t": _floats(n), "c": _Code(canary)},
        "deep": _deep,
        **{str(dtype): (lambda dtype=dtype: torch.zeros(n).to(dtype)) for dtype in dtypes},
    }


def _deep() -> Any:
    value: Any = []
    for _ in range(400):
        value = [value]
    return value


class SourceFuzz:
    """A sample with one hostile file, beside a valid sample."""

    def __init__(self, folder: Path, tally: Tally) -> None:
        self.folder, self.tally = folder, tally
        self.source = write_source(folder / "source", ("run_1", "run_2"), surface=_POINTS)
        self.canary = folder / "code_was_run"
        self._objects = _objects(self.canary)
        self._names = [file.filename for file in resolve_kind(KIND).required_fields.values()]
        self._truth = stored_sample(self.source, "run_2")
        self._good = {path: path.read_bytes() for path in self.source.rglob("*.pt")}

    def round(self, chance: random.Random) -> None:
        """Replace a file, convert, and check the result."""
        what, path = self._attack(chance)
        self.tally.add("faults")
        writer = GroupWriter(self.folder / "store", ConversionSettings(chunk_points=16))
        with self.tally.ours(what):
            tree = SampleTree(KIND, self.source)
            for sample_id, sample in tree.discover().items():
                with self.tally.ours(what):
                    self._convert(writer, tree, sample, sample_id, what, path)
        if self.canary.exists():
            self.tally.add("wrong", 1, f"{what}: code was run")
            self.canary.unlink()
        for good, data in self._good.items():
            good.write_bytes(data)
        (self.source / "run_1" / "params.json").unlink(missing_ok=True)
        shutil.rmtree(self.folder / "store", ignore_errors=True)

    def _convert(self, writer: Any, tree: SampleTree, sample: Any, sample_id: str, what: str, path: Path) -> None:
        outcome = convert_sample(writer, tree, sample)
        if outcome.status == "quarantined":
            self.tally.add("refused")
        if outcome.status == "failed":
            self.tally.add("tracebacks", "MemoryError" not in outcome.reason, f"{what}: {outcome.reason}")
        if sample_id == "run_2" and outcome.status != "converted":
            self.tally.add("lost", 1, f"{what}: the good sample was {outcome.status}")
        if outcome.written is None:
            return
        read = _read(writer.storage.root, sample_id, outcome.written)
        if sample_id == "run_2":
            if not same(read, self._truth):
                self.tally.add("wrong", 1, f"{what}: the good sample")
        elif path.suffix == ".pt":  # if it was accepted, it must equal what torch loads from the file
            loaded = (
                torch.load(path, map_location="cpu", weights_only=True)
                .detach()
                .resolve_neg()
                .double()
                .numpy()
                .reshape(-1)
            )
            (canonical,) = (c for c, f in tree.description.fields.items() if f.filename == path.name)
            stored = read[canonical].astype(np.float64)
            domain = canonical.partition("_")[0]
            rows = loaded.reshape(len(stored), -1)[shuffle_permutation(0, sample_id, domain, len(stored))]
            if not np.array_equal(rows.astype(read[canonical].dtype), read[canonical]):
                self.tally.add("wrong", 1, f"{what}: stored is not what the file holds")

    def _attack(self, chance: random.Random) -> tuple[str, Path]:
        path = self.source / "run_1" / chance.choice(self._names)
        if chance.random() < 0.1:
            path = path.with_name("params.json")
            document = mutate_document({"speed": 1.5, "angle": {"deep": [1, 2]}, "name": "x"}, chance)
            path.write_text(json.dumps(document, default=str))
            return "params.json", path
        kind = chance.choice(sorted(self._objects))
        if chance.random() < 0.5:
            path = path.with_name("surface_pressure.pt")
        try:
            data = _saved(self._objects[kind](), chance)
        except (RuntimeError, NotImplementedError, TypeError, AttributeError, ValueError, pickle.PicklingError):
            data = self._good[path]  # this version of torch cannot make or save it
        if chance.random() < 0.25:
            data = self._good[path]
        if chance.random() < 0.5:
            kind, data = f"{kind}, {chance.choice(_ARCHIVES).__name__}", chance.choice(_ARCHIVES)(data, chance)
        path.write_bytes(data)
        return f"{kind} as {path.name}", path


def _saved(value: Any, chance: random.Random) -> bytes:
    file = io.BytesIO()
    if chance.random() < 0.1:
        pickle.dump(value, file)
    else:
        torch.save(value, file, _use_new_zipfile_serialization=chance.random() < 0.7)
    return file.getvalue()


def _damaged(data: bytes, chance: random.Random) -> bytes:
    return mutate_bytes(data, chance)


def _packed(data: bytes, chance: random.Random) -> bytes:
    """The same archive with its records compressed, one of them to a hundredth."""
    return _rewritten(
        data, lambda name, record: record + b"\0" * 50_000_000 if "/data/" in name else record, packed=True
    )


def _with_sizes(data: bytes, chance: random.Random) -> bytes:
    """Other numbers in the pickle: sizes of storages and tensors."""

    def change(name: str, record: bytes) -> bytes:
        if not name.endswith("data.pkl"):
            return record
        size = struct.pack("<H", _POINTS)
        huge = chance.choice(
            (b"\x8a\x08" + struct.pack("<q", 10**15), b"J\xff\xff\xff\x7f", b"J\xff\xff\xff\xff", b"K\x01")
        )
        return record.replace(b"M" + size, huge).replace(b"K" + bytes([_POINTS]), huge)

    return _rewritten(data, change, packed=False)


def _with_pickle(data: bytes, chance: random.Random) -> bytes:
    """Damage in the pickle, where the archive around it is whole."""
    return _rewritten(
        data, lambda name, record: mutate_bytes(record, chance) if name.endswith("data.pkl") else record, packed=False
    )


def _endless(data: bytes, chance: random.Random) -> bytes:
    """A pickle of a few hundred bytes that takes any time or memory to load."""
    write = chance.choice((archived, legacy))
    return write(b"\x80\x02" + chance.choice(sorted(HOSTILE.values())) + b".")


_ARCHIVES = (_damaged, _packed, _with_sizes, _with_pickle, _endless)


def _rewritten(data: bytes, change: Callable[[str, bytes], bytes], *, packed: bool) -> bytes:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as old:
            records = {name: old.read(name) for name in old.namelist()}
    except (zipfile.BadZipFile, NotImplementedError):
        return data[: len(data) // 2]
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED if packed else zipfile.ZIP_STORED) as new:
        for name, record in records.items():
            new.writestr(name, change(name, record), compresslevel=1)
    return file.getvalue()


def _read(root: str, sample_id: str, written: Any) -> dict[str, np.ndarray]:
    """A finished group's arrays, through a manifest of it alone."""
    from zarr_core.points.store.columns import columns_of
    from zarr_core.points.store.manifest import StoreManifest

    samples = {sample_id: written}
    manifest = StoreManifest("fuzz", domains=columns_of(samples), samples=samples, generation=1)
    Path(root, "manifest.json").write_bytes(manifest.to_json())
    return ZarrChunkReader(root).read_sample(sample_id)


def make(folder: Path, target: str, tally: Tally) -> Callable[[random.Random], None]:
    """The rounds of the only target."""
    return SourceFuzz(folder, tally).round
