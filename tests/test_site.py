"""The documentation's site: built without warnings, with every public name, and pages whose code runs."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch

import zarr_core
from tests.helpers.pages import blocks, run_page
from zarr_core._util.command_line import VERBS
from zarr_core.platform import PointDataset, WarehouseMatrix

PROJECT = Path(__file__).resolve().parents[1]
DOCS = PROJECT / "docs"


@pytest.fixture
def reference(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(DOCS / "_site"))
    return __import__("reference")


def test_the_reference_has_every_public_name_once(reference: Any) -> None:
    named = [name for _, _, names in reference.SUBJECTS.values() for name in names.split()]
    assert sorted(named) == sorted(set(zarr_core.__all__) - set(zarr_core._ERRORS))


def test_the_reference_has_every_command_setting_and_error(reference: Any) -> None:
    pages = reference.pages()
    for verb in VERBS:
        assert f"zarr-core {verb}" in pages["commands.md"]
    assert "--chunk-points" in pages["commands.md"]
    for name in zarr_core._ERRORS:
        assert f"| `{name}` |" in pages["errors.md"]
    for name in zarr_core.ZarrPointDatasetConfig.model_fields:
        assert re.search(rf"^\| `{name}` \|.*\| \S.* \|$", pages["dataset_config.md"], re.MULTILINE), name
    for name in ("samples", "meshes", "length_scale", "prefix", "sample_id"):
        assert re.search(rf"^\| `{name}` \|.*\| \S.* \|$", pages["descriptions.md"], re.MULTILINE), name
    assert r"boundary_\*.vtp" in pages["descriptions.md"], "asterisks of globs are not emphasis"
    for declaration in (PointDataset, WarehouseMatrix):
        _, _, rest = pages["declarations.md"].partition(f"## zarr_core.platform.{declaration.__name__}\n")
        section = rest.partition("## ")[0]
        for name in declaration.model_fields:
            assert re.search(rf"^\| `{name}` \|.*\| \S.* \|$", section, re.MULTILINE), name


class _Ids(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.found |= {value for name, value in attributes if name == "id" and value}


def test_the_site_is_built_without_a_warning(tmp_path: Path, reference: Any) -> None:
    pytest.importorskip("mkdocs", reason="MkDocs is not installed; `make test-extras` runs this in .venv-docs")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    built = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    for page, (_, _, names) in reference.SUBJECTS.items():
        parser = _Ids()
        parser.feed((tmp_path / "reference" / page / "index.html").read_text())
        for name in names.split():
            assert any(found.endswith(f".{name}") for found in parser.found), name
    training = (tmp_path / "training" / "index.html").read_text()
    assert 'href="../project/examples/recipes/lightning/"' in training, "links that leave docs/ stay on the site"
    assert (tmp_path / "project/examples/recipes/lightning/train.py/index.html").is_file()
    look = (tmp_path / "project/examples/notebooks/look.ipynb/index.html").read_text()
    assert "<h2" in look, "a notebook is a page of its cells"
    assert "cell_type" not in look


@pytest.mark.slow
def test_the_tutorial_on_own_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names = run_page("tutorials/own_data.md")
    assert names["loss"].item() < 0.5, "of values with standard deviation 1"
    assert names["dataset"].normalizers["speed"]["unit"] == [20.0], "case_11, the fastest, is a validation case"
    printed = capsys.readouterr().out
    assert "12 converted" in printed
    assert re.search(r"mean error \d", printed)
    _check_that_the_loop_continues(names, monkeypatch)


def _check_that_the_loop_continues(names: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    (loop,) = (text for _, _, text in blocks("tutorials/own_data.md") if "checkpoint.pt" in text)
    of_block_4 = {name: names[name] for name in ("dataset", "EpochBatchSampler", "ResumableLoader")}

    def run() -> torch.Tensor:
        torch.manual_seed(0)  # equal weights at the start
        run_names = dict(of_block_4)  # those of a new process
        exec(loop, run_names)
        return run_names["model"][0].weight

    Path("checkpoint.pt").unlink()
    undisturbed = run()
    assert torch.equal(run(), undisturbed), "the checkpoint says that every epoch is done"
    Path("checkpoint.pt").unlink()
    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", _interrupt_after(3))
        with pytest.raises(KeyboardInterrupt):
            run()
    saved = torch.load("checkpoint.pt", weights_only=True)["batches"]
    assert (saved["epoch"], saved["position"]) == (1, 1), "in the middle of the second epoch"
    assert torch.equal(run(), undisturbed)


def _interrupt_after(number: int) -> Callable[[str, str], None]:
    """``os.replace``, which ends the program after this number of calls."""
    replace, calls = os.replace, itertools.count(1)

    def replace_and_interrupt(source: str, target: str) -> None:
        replace(source, target)
        if next(calls) == number:
            raise KeyboardInterrupt

    return replace_and_interrupt
