"""What may be in a ``.pt`` file: every tensor that torch writes, and nothing that takes more than its size to load."""

from __future__ import annotations

import io
import pickle
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.helpers.small_source import KIND, write_source
from zarr_core.points.convert.conversion import convert
from zarr_core.sources.sample import FileInfo
from zarr_core.sources.tensors import RefusedError, check_pt, load_pt
from zarr_core.storage import Storage

VALUES = torch.arange(12.0).reshape(4, 3)


def saved(value: Any, archive: bool = True) -> bytes:
    file = io.BytesIO()
    torch.save(value, file, _use_new_zipfile_serialization=archive)
    return file.getvalue()


def with_attribute() -> torch.Tensor:
    values = VALUES.clone()
    values.units = "Pa"  # type: ignore[attr-defined]
    return values


SOUND: dict[str, Callable[[], Any]] = {
    "tensor": lambda: VALUES,
    "view": lambda: VALUES[1:, ::2],
    "transposed": lambda: VALUES.T,
    "scalar": lambda: torch.tensor(1.0),
    "empty": lambda: torch.empty(0, 3),
    "parameter": lambda: torch.nn.Parameter(VALUES),
    "gradient": lambda: VALUES.clone().requires_grad_(),
    "attribute": with_attribute,
    "negative": lambda: torch.imag(torch.complex(VALUES, VALUES).conj()),
    "sparse": VALUES.to_sparse,
    "csr": VALUES.to_sparse_csr,
    "meta": lambda: torch.empty(3, device="meta"),
    "list": lambda: [VALUES, VALUES, VALUES[1:]],
    "scalars": lambda: {"a": 1, "b": -2.5, "c": None, "d": "x" * 300, "e": True, "f": 2**70, 7: torch.tensor(3)},
    "nested": lambda: {"a": {"b": [VALUES, (1, 2, (3.0,))]}, "size": VALUES.shape},
}


@pytest.mark.parametrize("archive", [True, False], ids=["archive", "legacy"])
@pytest.mark.parametrize("name", SOUND)
@pytest.mark.filterwarnings("ignore:Sparse")
def test_what_torch_writes_of_tensors_numbers_and_texts_is_loaded(tmp_path: Path, name: str, archive: bool) -> None:
    (tmp_path / "x.pt").write_bytes(saved(SOUND[name](), archive))
    found = load_pt(Storage(tmp_path), "x.pt", FileInfo("x.pt", (tmp_path / "x.pt").stat().st_size, ""))
    expected = torch.load(tmp_path / "x.pt", weights_only=True)
    assert repr(found) == repr(expected)


def saved_as(dtype: torch.dtype, archive: bool) -> bytes | None:
    """A file with values of a dtype; None if torch does not convert to it, save it or load it."""
    try:
        data = saved(torch.zeros(5).to(dtype), archive)
        torch.load(io.BytesIO(data), weights_only=True)
    except (RuntimeError, NotImplementedError, TypeError, KeyError, AttributeError, pickle.UnpicklingError):
        return None
    return data


@pytest.mark.parametrize("archive", [True, False], ids=["archive", "legacy"])
@pytest.mark.filterwarnings("ignore:ComplexHalf")
def test_tensors_of_every_dtype_pass(archive: bool) -> None:
    dtypes = {dtype for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)}
    files = {str(dtype): data for dtype in dtypes if (data := saved_as(dtype, archive))}
    assert {"torch.float64", "torch.bfloat16", "torch.int8", "torch.bool", "torch.complex64"} <= files.keys()
    for data in files.values():
        check_pt(io.BytesIO(data))


def test_an_archive_without_checksums_passes() -> None:
    torch.serialization.set_crc32_options(False)
    try:
        data = saved(VALUES)
    finally:
        torch.serialization.set_crc32_options(True)
    check_pt(io.BytesIO(data))


def archived(data: bytes, **others: bytes) -> bytes:
    """An archive of torch with this pickle."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, record in {"data.pkl": data, "byteorder": b"little", "version": b"3\n", **others}.items():
            archive.writestr(f"archive/{name}", record)
    return file.getvalue()


def legacy(data: bytes) -> bytes:
    magic, version = (pickle.dumps(value, 2) for value in (0x1950A86A20F9469CFC6C, 1001))
    return magic + version + pickle.dumps({}, 2) + data + pickle.dumps([], 2)


# A tuple of two times the same tuple, 45 deep: its hash and its repr take 2**45 steps.
DEEP = b")" + b"".join(b"q%ch%c\x86" % (n, n) for n in range(45))
# The same without the unpickler's memory, as a tree.
TREE = b")" + 400 * b"\x85"
BYTEARRAY = b"cbuiltins\nbytearray\n\x8a\x05\0\0\0\0\x10\x85R"
STORAGE = b"(X\x07\0\0\0storagectorch\nFloatStorage\n%bX\x03\0\0\0cpu\x8a\x06\0\0\0\0\0\x10%btQ"
KEY = b"X\x01\0\0\x000"
HOSTILE = {
    "a tuple as key": b"}" + DEEP + b"K\x01s",
    "a tuple of one as key": b"}K\x01\x85K\x01s",
    "a tuple as key in a list of items": b"}(" + DEEP + b"K\x01u",
    "a tuple in a set": b"cbuiltins\nset\n](" + DEEP + b"e\x85R",
    "a tuple in an OrderedDict": b"ccollections\nOrderedDict\n]](K\x01\x85K\x02ea\x85R",
    "a tuple in a call of an OrderedDict": b"ctorch._tensor\n_rebuild_from_type_v2\n(ccollections\nOrderedDict\n"
    b"ctorch\nTensor\n]K\x01\x85K\x02\x86a\x85}tR",
    "a tuple that is shared": DEEP,
    "a tuple in a Counter": b"ccollections\nCounter\n](" + DEEP + b"e\x85R",
    "a tuple as a storage's key": STORAGE % (DEEP, b""),
    "a tuple is called": DEEP + b")R",
    "a value as deep as the file": TREE,
    "integers of one hash": b"}\x8a\x09\xf8\xff\xff\xff\xff\xff\xff\xff\x00K\x01s",
    "bytes": BYTEARRAY,
    "text in an encoding of quadratic time": b"c_codecs\nencode\nX\x01\0\0\0aX\x08\0\0\0punycode\x86R",
    "a storage that is called": b"ctorch.storage\nUntypedStorage\n\x8a\x05\0\0\0\0\x10\x85R",
    "a tensor that is called": b"ctorch\nTensor\n\x8a\x05\0\0\0\0\x10\x85R",
    "a quantised tensor": b"ctorch._utils\n_rebuild_qtensor\n)R",
    "a storage larger than the file": STORAGE % (KEY, b""),
    "a storage larger than the file, seen in parts": STORAGE % (KEY, b"X\x01\0\0\0vK\0K\x01\x87"),
    "a text in the place of the part of a storage": STORAGE % (KEY, b"X\x01\0\0\0v"),
    "a number in the place of the part of a storage": STORAGE % (KEY, b"K\1"),
    "no end": b"}",
}


@pytest.mark.parametrize("write", [archived, legacy])
@pytest.mark.parametrize("name", HOSTILE)
def test_what_takes_any_time_or_memory_is_refused_before_it_is_loaded(
    write: Callable[[bytes], bytes], name: str
) -> None:
    data = write(b"\x80\x02" + HOSTILE[name] + b"." * (name != "no end"))
    assert len(data) < 2_000
    with pytest.raises(RefusedError):
        check_pt(io.BytesIO(data))


@pytest.mark.parametrize("where", ["field", "parameters"])
@pytest.mark.parametrize("name", ["a tuple as key", "bytes"])
def test_a_sample_with_such_a_file_is_refused_alone(tmp_path: Path, name: str, where: str) -> None:
    source = write_source(tmp_path / "source", ("run_1", "run_2"))
    file = source / "run_1" / ("surface_pressure.pt" if where == "field" else "params.pt")
    file.write_bytes(archived(b"\x80\x02" + HOSTILE[name] + b"."))
    kind = tmp_path / "own.yaml"
    kind.write_text(
        "name: own\nsamples: run_*\nparameters: [params.pt]\n"
        "files: {surface_position: surface_position_vtp.pt, surface_pressure: surface_pressure.pt}\n"
    )
    report = convert(KIND if where == "field" else str(kind), tmp_path / "store", root=source, chunk_points=16)
    (refused,) = report.having("quarantined")
    assert (refused.sample_id, file.name in refused.reason) == ("run_1", True)
    assert [result.sample_id for result in report.having("converted")] == ["run_2"]


@pytest.mark.slow
def test_a_pickle_that_is_too_large_is_refused() -> None:
    with pytest.raises(RefusedError, match="expected at most"):
        check_pt(io.BytesIO(saved(list(range(400_000)))))
    with pytest.raises(RefusedError, match="expected at most"):
        check_pt(io.BytesIO(saved(list(range(400_000)), archive=False)))


def appended(data: bytes) -> bytes:
    """Another directory than the one at the stated place, which some readers of archives take."""
    return archived(pickle.dumps(1, 2)) + data


def twice(data: bytes) -> bytes:
    with pytest.warns(UserWarning, match="Duplicate"), zipfile.ZipFile(file := io.BytesIO(data), "a") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(1, 2))
    return file.getvalue()


def in_capitals(data: bytes) -> bytes:
    with zipfile.ZipFile(file := io.BytesIO(data), "a") as archive:
        archive.writestr("archive/DATA.pkl", pickle.dumps(1, 2))
    return file.getvalue()


def in_a_tar(data: bytes) -> bytes:
    with tarfile.open(fileobj=(file := io.BytesIO()), mode="w") as archive:
        archive.addfile(tarfile.TarInfo("storages"))
    return file.getvalue()


@pytest.mark.parametrize("change", [appended, twice, in_capitals, in_a_tar, lambda data: data[:40], lambda _: b""])
def test_a_file_that_readers_may_understand_in_two_ways_is_refused(change: Callable[[bytes], bytes]) -> None:
    with pytest.raises(RefusedError):
        check_pt(io.BytesIO(change(saved(VALUES))))
