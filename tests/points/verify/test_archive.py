"""Verification of packed samples: the bytes around the entries of an archive."""

from __future__ import annotations

import shutil
import zlib
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.small_source import KIND, write_source
from tests.helpers.stores import flip
from zarr_core._util.documents import parse_json
from zarr_core.format.packed import Archive, Entry, parse_head
from zarr_core.format.ranges import MAX_READ_BYTES
from zarr_core.points.convert.conversion import convert
from zarr_core.points.stage.store import stage_store
from zarr_core.points.store.head import load_manifest
from zarr_core.points.verify.store import verify_store
from zarr_core.storage import Storage


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("made")
    write_source(root / "source")
    convert(KIND, root / "store", root=root / "source", chunk_points=16, layout="packed")
    return root


@pytest.fixture
def archive(made: Path, tmp_path: Path) -> Path:
    """The archive of run_2 in a store."""
    shutil.copytree(made / "store", tmp_path / "store")
    return tmp_path / "store" / load_manifest(tmp_path / "store").samples["run_2"].relpath


def problems(archive: Path, **options: Any) -> list[str]:
    store = next(parent for parent in archive.parents if parent.name == "store")
    return [str(problem) for problem in verify_store(store, **options).problems]


def test_a_packed_store_is_sound(archive: Path, made: Path) -> None:
    assert problems(archive, source=str(made / "source"), deep=True) == []


@pytest.mark.slow
def test_any_flipped_byte_is_found(archive: Path) -> None:
    size = archive.stat().st_size
    for at in range(0, size, 401):
        flip(archive, at)
        found = problems(archive, sample_ids=["run_2"])
        assert found, f"byte {at} of {size}"
        assert all(line.startswith("run_2") for line in found)
        flip(archive, at)
    assert problems(archive) == []


def test_problems_name_the_entry_and_are_told_once(archive: Path) -> None:
    data = archive.read_bytes()
    place = parse_head(data).entries["volume/velocity/c/3/0"]
    flip(archive, place.start + 1)
    assert problems(archive) == ["run_2, volume_velocity: chunk 3: checksum mismatch (volume/velocity/c/3/0)"]
    archive.write_bytes(data)
    flip(archive, place.start - 1)  # its padding
    where = "volume/velocity/c/3/0: its header in the archive"
    assert problems(archive) == [f"run_2: {where} is not the one of its bytes"]
    archive.write_bytes(data)
    flip(archive, len(data) - 30)
    assert problems(archive) == ["run_2: the central directory of its archive is not the one of its entries"]


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["cut", "longer", "gone", "head", "empty"])
def test_an_archive_that_is_not_whole(archive: Path, damage: str) -> None:
    data = archive.read_bytes()
    match damage:
        case "cut":
            archive.write_bytes(data[:-1])
        case "longer":
            archive.write_bytes(data + b"\0")
        case "gone":
            archive.unlink()
        case "head":
            flip(archive, 200)
        case "empty":
            archive.write_bytes(b"")
    (problem,) = problems(archive)
    assert problem.startswith("run_2: samples/run_2/" if damage == "gone" else "run_2: its archive cannot be read: ")
    assert problem.endswith(" is missing") == (damage == "gone")
    store = next(parent for parent in archive.parents if parent.name == "store")
    assert verify_store(store).damaged == ["run_2"]


def rebuilt(archive: Path, order: Any) -> None:
    """Write an archive again with its entries in another order, all of it consistent."""
    data = archive.read_bytes()
    group = parse_head(data)
    contents = {}
    for name, place in group.entries.items():
        if name != "zarr.json":
            contents[name] = data[place.start : place.start + place.size]
    names = order(list(contents))
    document = parse_json(data[len("zarr.json") + 30 : group.head])
    made = Archive(document, [Entry(name, len(contents[name]), zlib.crc32(contents[name])) for name in names])
    parts = [made.head]
    for name, header in zip(names, made.headers(), strict=True):
        parts += [header, contents[name]]
    archive.write_bytes(b"".join([*parts, made.directory]))


def test_entries_in_another_order_are_found(archive: Path) -> None:
    before = archive.read_bytes()
    rebuilt(archive, list)
    assert archive.read_bytes() == before
    rebuilt(archive, sorted)
    assert "run_2: the entries of its archive are not ordered by chunks" in problems(archive)


def test_an_archive_in_a_bucket_is_read_by_few_requests(made: Path, memory_root: str, monkeypatch: Any) -> None:
    stage_store(made / "store", memory_root)
    reads, whole = [], Storage._read

    def read(self: Storage, name: str, start: int | None = None, stop: int | None = None) -> bytes:
        if self.root == memory_root and name.startswith("samples/"):
            reads.append((start, stop))
        return whole(self, name, start, stop)

    monkeypatch.setattr(Storage, "_read", read)
    assert verify_store(memory_root, source=str(made / "source")).ok
    assert reads == [(0, MAX_READ_BYTES)] * 3


def test_a_thin_copy_whose_records_lie_is_found(made: Path, tmp_path: Path) -> None:
    stage_store(made / "store", tmp_path / "store", points="volume=40", layout="directory")
    relpath = load_manifest(tmp_path / "store").samples["run_1"].relpath
    group = tmp_path / "store" / relpath / "zarr.json"
    text = group.read_text()
    assert '"source_points":{"volume":230}' in text
    group.write_text(text.replace('"source_points":{"volume":230}', '"source_points":{"volume":231}'))
    found = [str(problem) for problem in verify_store(tmp_path / "store").problems]
    assert "run_1, volume_pressure: its recorded moments are of 230 points, not of 231" in found
    found = [str(problem) for problem in verify_store(tmp_path / "store", source=str(made / "source")).problems]
    assert "run_1, volume_pressure: has shape (231, 1), its source (230, 1)" in found
