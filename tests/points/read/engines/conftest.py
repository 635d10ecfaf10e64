"""A small store, on a disk and on S3, that the tests of engines read."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from tests.helpers.small_source import KIND, write_source
from zarr_core.points.convert.conversion import convert

CHUNK = 16


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_source(tmp_path_factory.mktemp("source"))


@pytest.fixture(scope="module")
def root(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    store = tmp_path_factory.mktemp("engines") / "store"
    convert(KIND, store, root=source, chunk_points=CHUNK, codec="blosc-lz4")
    return store


@pytest.fixture(scope="module")
def uncompressed(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    store = tmp_path_factory.mktemp("uncompressed") / "store"
    convert(KIND, store, root=source, chunk_points=CHUNK, codec="none")
    return store


@pytest.fixture
def store(uncompressed: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    return shutil.copytree(uncompressed, tmp_path / "store")


@pytest.fixture(scope="module")
def packed(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("tensorstore", reason="needs the tensorstore extra")
    store = tmp_path_factory.mktemp("packed") / "store"
    convert(KIND, store, root=source, chunk_points=CHUNK, layout="packed")
    return store


def upload(root: Path, s3_root: str) -> str:
    import s3fs

    s3fs.S3FileSystem().put(f"{root}/", f"{s3_root.removeprefix('s3://')}/", recursive=True)
    return s3_root


@pytest.fixture(params=["obstore", "s3fs"])
def remote(request: pytest.FixtureRequest, root: Path, s3_root: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The store on S3, through each of the clients."""
    if request.param == "obstore":
        pytest.importorskip("obstore", reason="needs the obstore extra")
    else:
        monkeypatch.setitem(sys.modules, "obstore.store", None)  # as if it were not installed
    return upload(root, s3_root)
