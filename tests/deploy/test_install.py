"""``deploy/local/install.sh``: uv with pip's settings, and pip where uv fails."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "deploy" / "local" / "install.sh"


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """This Python below the name that an environment gives it, without a uv beside it."""
    folder = tmp_path / "bin"
    folder.mkdir()
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return python


def _uv(python: Path, status: int) -> Path:
    """Put a program in the place of uv; it writes its arguments and settings into the returned file, and ends so."""
    called = python.parent / "called"
    uv = python.parent / "uv"
    uv.write_text(f'#!/bin/sh\necho "$@" > {called}\nenv | grep -E "^(UV_|SSL_)" >> {called}\nexit {status}\n')
    uv.chmod(0o755)
    return called


def _install(python: Path, *arguments: str, **settings: str) -> None:
    environment = {name: text for name, text in os.environ.items() if not name.startswith(("PIP_", "UV_", "SSL_"))}
    environment |= {"PIP_CONFIG_FILE": os.devnull, **settings}
    subprocess.run([SCRIPT, python, *arguments], env=environment, check=True, timeout=120)


def test_uv_gets_the_settings_of_pip(python: Path) -> None:
    called = _uv(python, status=0)
    _install(
        python,
        "--no-deps",
        "example",
        PIP_INDEX_URL="https://one.example/simple",
        PIP_EXTRA_INDEX_URL="https://two.example/simple https://three.example/simple",
        PIP_FIND_LINKS="/wheels /more",
        UV_CONSTRAINT="of-the-user.txt",
        PIP_CONSTRAINT="of-pip.txt",
    )
    arguments, *settings = called.read_text().splitlines()
    assert arguments == f"pip install --quiet --quiet --python {python} --no-deps example"
    assert set(settings) == {
        "UV_DEFAULT_INDEX=https://one.example/simple",
        "UV_INDEX=https://two.example/simple https://three.example/simple",
        "UV_FIND_LINKS=/wheels,/more",
        "UV_CONSTRAINT=of-the-user.txt",
        "UV_INDEX_STRATEGY=unsafe-best-match",
    }


@pytest.mark.slow
def test_pip_installs_what_uv_cannot(python: Path, tmp_path: Path) -> None:
    called = _uv(python, status=2)
    package = tmp_path / "example-1.0-py3-none-any.whl"
    _wheel(package)
    _install(python, "--no-index", "--no-deps", "--target", str(tmp_path / "target"), str(package))
    assert called.exists()
    assert (tmp_path / "target" / "example.py").read_text() == "found = True\n"


@pytest.mark.slow
def test_an_installation_that_fails_with_both_fails(python: Path) -> None:
    _uv(python, status=2)
    with pytest.raises(subprocess.CalledProcessError):
        _install(python, "--no-index", "no-such-package-anywhere")


def _wheel(path: Path) -> None:
    """A wheel of one module, ``example.py``."""
    about = "example-1.0.dist-info"
    with ZipFile(path, "w") as wheel:
        wheel.writestr("example.py", "found = True\n")
        wheel.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: example\nVersion: 1.0\n")
        wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{about}/RECORD", "")
