"""Hostile and damaged matrices raise errors of the library. Each case was found by ``tests/attacks``."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers.documents import edit
from zarr_core.errors import (
    ManifestError,
    ZarrCoreError,
)
from zarr_core.matrix import WideMatrix
from zarr_core.matrix.ingest.leases import Leases
from zarr_core.matrix.verify import verify_matrix
from zarr_core.storage import Storage

MATRIX: dict[str, Any] = {"chunk_features": 16, "shard_rows": 3, "column_chunk": (4, 4)}
FEATURES = [f"cg{n}" for n in range(50)]


@pytest.fixture
def matrix(tmp_path: Path) -> WideMatrix:
    made = WideMatrix.create(tmp_path / "matrix", FEATURES, {"beta": "float32"}, **MATRIX)
    made.append("b", ["s1", "s2"], {"beta": np.zeros((2, 50), "float32")})
    return made


@pytest.mark.parametrize(
    ("keys", "value", "reason"),
    [
        (
            ("cpg_ids", "length"),
            10**15,
            "length is 1000000000000000: input should be less than or equal to 2147483647",
        ),
        (("cpg_ids", "length"), 2**31 - 1, "a shard has more than 4194304 chunks"),
        (("cpg_ids", "length"), 1e400, "cpg_ids.length is inf: input should be"),
        (("cpg_ids", "length"), True, "cpg_ids.length is True: input should be a valid integer"),
        (("cpg_ids", "path"), ["x"], r"cpg_ids.path is \['x'\]: input should be a valid string"),
        (("shard_rows",), 2**31 - 1, "a shard has more than 4194304 chunks"),
        (("column_chunk_shape",), [4, 2**28], "a chunk is larger than 1073741824 bytes"),
        (("batches", "b", "row"), 2**63, "batches.b.row is 9223372036854775808: input should be less than"),
        (("batches", "b", "sample_ids"), "s1", "batches.b.sample_ids is 's1': input should be a valid"),
        (
            ("batches", "b", "sample_ids"),
            [["s1"]],
            r"b.sample_ids.0 is \['s1'\]: input should be a valid string",
        ),
        (
            ("batches", "b", "bytes"),
            {"beta": "many"},
            "b.bytes.beta is 'many': input should be a valid integer",
        ),
        (("values",), {"beta": ["float32"]}, "values.beta is .*: input should be a valid string"),
        (("generation",), -1, "generation is -1: input should be greater than or equal to 0"),
    ],
)
def test_a_head_that_claims_too_much_is_refused_before_any_allocation(
    matrix: WideMatrix, keys: tuple[str, ...], value: object, reason: str
) -> None:
    edit(Path(matrix.url) / "HEAD.json", *keys, value=value)
    with pytest.raises(ManifestError, match=reason):
        WideMatrix.open(matrix.url)


def test_a_head_that_is_nested_without_end_is_refused(matrix: WideMatrix) -> None:
    (Path(matrix.url) / "HEAD.json").write_bytes(b'{"format":' + b"[" * 100_000)
    with pytest.raises(ManifestError, match="recursion limit exceeded"):
        WideMatrix.open(matrix.url)


def test_a_matrix_of_few_features_has_an_index_of_a_megabyte_at_most(tmp_path: Path) -> None:
    made = WideMatrix.create(tmp_path / "narrow", ["a", "b"], {"beta": "float32"})
    made.append("b", ["s1"], {"beta": np.ones((1, 2), "float32")})
    (shard,) = (tmp_path / "narrow" / "beta.zarr" / "c").glob("*/*")
    assert shard.stat().st_size < 2**20 + 200
    assert (made.read(["s1"]) == 1).all()


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (lambda npy: npy.replace(b"(50,), }          ", b"(10**15,), }      "), "is not a list of features"),
        (lambda npy: npy.replace(b"(50,), }           ", b"(9999999999,), }   "), "is not a list of features"),
        (lambda npy: npy.replace(b"{", b"(", 1), "is not a list of features"),
        (lambda npy: npy[:20], "is not a list of features"),
        (lambda npy: b"\x80\x04" + npy, "is not a list of features"),
        (lambda npy: npy[:-6] + b"\xff" + npy[-5:], "is not a list of features: .* can't decode byte 0xff"),
    ],
)
def test_invalid_feature_names_are_an_error(matrix: WideMatrix, data: Callable[[bytes], bytes], reason: str) -> None:
    (axis,) = Path(matrix.url).glob("cpg_ids/*.npy")
    changed = data(axis.read_bytes())
    assert changed != axis.read_bytes()
    axis.write_bytes(changed)
    edit(Path(matrix.url) / "HEAD.json", "cpg_ids", "sha256", value=hashlib.sha256(changed).hexdigest())
    with pytest.raises(ZarrCoreError, match=reason):
        _ = WideMatrix.open(matrix.url).feature_ids
    assert not verify_matrix(matrix.url).ok


@pytest.mark.parametrize("text", ["[" * 100_000, '{"end": 1e400}', f'{{"end": {10**400}}}', '{"end": true}', "{}"])
def test_a_claim_that_leads_nowhere_is_an_error(matrix: WideMatrix, text: str) -> None:
    (Path(matrix.url) / "claims/rows/00000001.json").write_text(text)
    with pytest.raises(ManifestError, match="claims/rows/00000001.json is damaged"):
        matrix.append("c", ["s3"], {"beta": np.zeros((1, 50), "float32")})


def test_damaged_leases_are_ignored(matrix: WideMatrix) -> None:
    (Path(matrix.url) / "leases.json").write_text("[" * 100_000)
    assert Leases(Storage(matrix.url)).take(["b"]) == ["b"]


def test_a_read_that_exceeds_memory_is_an_error_of_the_library(matrix: WideMatrix) -> None:
    head = Path(matrix.url) / "HEAD.json"
    edit(head, "cpg_ids", "length", value=2**31 - 1)
    edit(head, "chunk_shape", value=[1, 2**20])
    with pytest.raises(ZarrCoreError, match="do not fit in memory"):
        # 2^43 bytes: none of it is there.
        WideMatrix.open(matrix.url).read(["s1"] * 1024)
