"""A broken optional codec package of numcodecs does not prevent the import of this library."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

_ROUND_TRIP = """
from zarr_core.storage.zarr_stores import make_store  # imports zarr
import numcodecs, zarr
import numpy as np
from zarr_core.format.codecs import CODECS, Codec
for name in CODECS:
    out = np.empty(9, "f4")
    Codec.parse(name).decode(Codec.parse(name).encode(np.arange(9, dtype="f4")), out)
    assert (out == np.arange(9)).all()
assert numcodecs.abc.Codec and numcodecs.get_codec({"id": "zstd"})
"""


def run(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(folder), str(Path(__file__).parents[2])])}
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "content", "module"),
    [
        # The version of this release is not made of numbers alone, as numcodecs.zfpy expects.
        ("zfpy-1.0.1.post0.dist-info/METADATA", "Metadata-Version: 2.1\nName: zfpy\nVersion: 1.0.1.post0\n", "zfpy"),
        ("msgpack.py", "raise RuntimeError('built for another NumPy')\n", "msgpacks"),
    ],
)
def test_a_broken_codec_package_is_skipped_with_a_warning(file: str, content: str, module: str, tmp_path: Path) -> None:
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text(content)
    assert run("import numcodecs", tmp_path).returncode == 1, "this version of numcodecs imports without our help"
    done = run(_ROUND_TRIP, tmp_path)
    assert done.returncode == 0, done.stderr
    assert f"numcodecs.{module} is not available" in done.stderr


def test_a_missing_codec_package_gives_no_warning(tmp_path: Path) -> None:
    done = run(_ROUND_TRIP, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


def test_other_errors_are_raised(tmp_path: Path) -> None:
    (tmp_path / "numcodecs").mkdir()
    (tmp_path / "numcodecs" / "__init__.py").write_text("raise RuntimeError('broken itself')\n")
    assert "RuntimeError: broken itself" in run("import zarr_core.format.codecs", tmp_path).stderr
