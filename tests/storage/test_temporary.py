"""Names of temporary files, and what is collected in one."""

from __future__ import annotations

import re
from contextlib import closing
from mmap import mmap
from tempfile import gettempdir
from typing import Any

import pytest

from tests.helpers.faults import full_disk
from zarr_core.points.store import packing
from zarr_core.points.store.packing import Packing
from zarr_core.storage import Storage, temporary
from zarr_core.storage.backends.obstore import ObstoreBackend
from zarr_core.storage.backends.s3 import ConditionalPut, S3Backend
from zarr_core.storage.temporary import add_temp_suffix, strip_temp_suffix


@pytest.mark.parametrize(
    "name", ["manifest.json", "generations/00000001.json", "samples/a/0123/c/0/0", ".hidden", "a.tmp"]
)
def test_a_temporary_name_gives_the_final_name(name: str) -> None:
    temporary = add_temp_suffix(name)
    assert temporary.rpartition("/")[0] == name.rpartition("/")[0]
    assert temporary != add_temp_suffix(name)
    assert strip_temp_suffix(temporary) == (name, True)


@pytest.mark.parametrize("name", ["manifest.json", "a/b.tmp", ".manifest.json.tmp", f"manifest.json.{'0' * 32}.tmp"])
def test_other_names_stay_as_they_are(name: str) -> None:
    assert strip_temp_suffix(name) == (name, False)


@pytest.mark.slow
@pytest.mark.parametrize("client", [ObstoreBackend, S3Backend], ids=["obstore", "s3fs"])
def test_a_large_object_is_uploaded_from_a_file_of_this_machine(
    s3_root: str, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(temporary, "_IN_MEMORY", 1 << 20)
    monkeypatch.setattr(ConditionalPut, "part_bytes", 5 << 20)  # S3 takes no smaller ones
    pieces = [bytes([number]) * (4 << 20) for number in range(4)]
    with temporary.collected(pieces) as data:
        assert isinstance(data, mmap), "and not in memory"
    with temporary.collected(pieces[0][:10] for _ in range(2)) as few:
        assert few == pieces[0][:20]
    storage = Storage(s3_root, client=client)
    assert storage.write("large", iter(pieces)) == 16 << 20
    assert storage.read("large") == b"".join(pieces)


def pack(n_bytes: int) -> None:
    with closing(Packing("samples/a/0")) as packing:
        packing.write("samples/a/0/zarr.json", [bytes(n_bytes)])
        list(packing.read("zarr.json"))


def test_a_full_disk_of_temporary_files_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """They have no names: the error named no place, or that of the store."""
    monkeypatch.setattr(temporary, "_IN_MEMORY", 1)
    monkeypatch.setattr(packing, "_IN_MEMORY", 1)
    for n_bytes in (100, 1 << 20):  # a write fails, or the end of a buffer
        with full_disk(re.escape(gettempdir())):
            with pytest.raises(OSError, match="No space left") as error, temporary.collected([bytes(n_bytes)]):
                pass
            assert error.value.filename == gettempdir()
            with pytest.raises(OSError, match="No space left") as error:
                pack(n_bytes)
            assert error.value.filename == gettempdir()
