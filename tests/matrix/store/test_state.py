"""Untrusted heads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.matrices import FEATURES, SMALL, append
from zarr_core.errors import ManifestError
from zarr_core.matrix import WideMatrix


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda head: head["batches"]["b"].update(row=head["batches"]["a"]["row"]), "a shard of its own"),
        (lambda head: head["batches"]["b"].update(row=6), "a shard of its own"),
        (lambda head: head["batches"]["b"].update(sample_ids=["a_s0"]), "two rows"),
        (lambda head: head["batches"]["b"].update(row=4 * 10**9), "more rows than the arrays"),
        (lambda head: head.update(values={"../../x": "float32"}), "lower-case letters"),
        (lambda head: head["cpg_ids"].update(path="../secret"), "leaves the folder"),
        (lambda head: head.update(format_version=4), "format_version is 4"),
        (lambda head: head.pop("codec"), "codec"),
        (lambda head: head["column_blocks"].append({"row": 0, "batches": ["x"], "bytes": {}}), "unknown batch"),
    ],
)
def test_an_inconsistent_head_is_refused(tmp_path: Path, change: Any, message: str) -> None:
    matrix = WideMatrix.create(tmp_path, FEATURES, {"beta": "float32"}, **SMALL)
    append(matrix, "a", 2)
    append(matrix, "b", 1)
    head = json.loads((tmp_path / "HEAD.json").read_bytes())
    change(head)
    (tmp_path / "HEAD.json").write_text(json.dumps(head))
    with pytest.raises(ManifestError, match=message):
        WideMatrix.open(tmp_path)
