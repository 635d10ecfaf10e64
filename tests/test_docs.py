"""The documentation names files that exist."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import yaml

from assets.dataset import DatasetDeclaration
from tests.helpers.pages import run_page
from tests.helpers.solver_files import write_case
from zarr_core.convert import convert
from zarr_core.sources import SampleTree, resolve_kind

PROJECT = Path(__file__).resolve().parents[1]
PAGES = [
    *(PROJECT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md")),
    *sorted((PROJECT / "docs").rglob("*.md")),
]
FOLDERS = "zarr_core|assets|sensors|resources|tests|benchmarks|examples|docs"
# A path from the root of the project, in backticks or anywhere in a run of text between them.
PATH = re.compile(rf"(?<![\w./<-])(?:{FOLDERS})/[\w./-]*\w")
LINK = re.compile(r"\]\(([^)#]+)(?:#[^)]*)?\)")


def named_paths(text: str) -> set[str]:
    without_blocks = re.sub(r"(?ms)^```.*?^```", "", text)
    return {path for quoted in re.findall(r"`([^`\n]+)`", without_blocks) for path in PATH.findall(quoted)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(PROJECT)))
def test_every_path_in_backticks_exists(page: Path) -> None:
    missing = {path for path in named_paths(page.read_text()) if not (PROJECT / path).exists()}
    assert missing == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(PROJECT)))
def test_every_link_to_a_file_leads_somewhere(page: Path) -> None:
    links = {link for link in LINK.findall(page.read_text()) if "://" not in link}
    assert {link for link in links if not (page.parent / link).exists()} == set()


def test_the_paths_of_contributing_are_found() -> None:
    assert "zarr_core/format/codecs.py" in named_paths((PROJECT / "CONTRIBUTING.md").read_text())
    assert named_paths("`tests/no.py` and ```x```") == {"tests/no.py"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory of a page, with ``examples`` as in a checkout."""
    (tmp_path / "examples").symlink_to(PROJECT / "examples")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("folder")
def test_the_tutorial_of_own_data(capsys: pytest.CaptureFixture[str]) -> None:
    names = run_page("tutorials/own_data.md")
    printed = capsys.readouterr().out
    assert "8 converted" in printed
    assert "splits: train 6, test 2" in printed
    assert -1500 < names["lowest"] < names["highest"] < 300
    assert len(names["losses"]) == 3 * 20 - 1, "the resumed run has the batches that the first one left"
    assert names["losses"][-1] < names["first_loss"] / 2


def few_cases(folder: Path) -> Path:
    """Two small cases with the files that the page names, in the place of real ones."""
    for number in (42, 43):
        case = write_case(folder / f"run_{number}", {"100": float(number)})
        velocity = (case / "100" / "U").read_text()
        (case / "100" / "wallShearStress").write_text(velocity.replace("object U", "object wallShearStress"))
        forces = case / "postProcessing" / "forces" / "0"
        forces.mkdir(parents=True)
        (forces / "coefficient.dat").write_text("# Time Cd Cl\n99 0.5 0.1\n100 0.25 0.1\n")
    return folder


@pytest.mark.parametrize("real", [False, True], ids=["few cells", "a real case"])
def test_the_tutorial_of_openfoam(folder: Path, capsys: pytest.CaptureFixture[str], real: bool) -> None:
    pytest.importorskip("vtkmodules", reason="the extra vtk is not installed")
    cases = PROJECT.parent / "shared" / "data" / "ahmed_openfoam"
    if real and not cases.is_dir():
        pytest.skip("../shared/data/ahmed_openfoam is not beside this clone")
    (folder / "cases").symlink_to(cases if real else few_cases(folder / "written"))
    names = run_page("tutorials/openfoam.md")
    printed = capsys.readouterr().out
    assert "Cd 0.31824297" in printed if real else "Cd 0.25" in printed
    assert names["losses"][-1] < names["losses"][0] / (5 if real else 1)
    if real:
        tree = SampleTree(resolve_kind("bodies.yaml"), "cases")
        pressure = tree.load(tree.discover()["run_42"], "surface_pressure").numpy()
        assert np.corrcoef(names["in_the_order_of_the_patch"], pressure)[0, 1] > 0.9


def test_the_tutorial_of_a_watched_bucket(folder: Path, s3_root: str, capsys: pytest.CaptureFixture[str]) -> None:
    """On a store that holds what the watched bucket would; tests/examples/test_bucket.py runs the script."""
    store = f"{s3_root}/stores/wings"
    convert("ahmedml", store, source_url="examples/data/ahmed_rans", layout="packed", chunk_points=4096)
    names = run_page("tutorials/watched_bucket.md", {"s3://bucket": s3_root})
    assert names["item"]["volume_position"].shape == (1024, 3)
    assert names["generation"] == 1
    assert names["resumed"].lineage == names["dataset"].lineage
    assert "run-17" in capsys.readouterr().out
    (declared,) = (folder / "assets").rglob("defs.yaml")
    attributes = yaml.safe_load(declared.read_text())["attributes"]
    assert DatasetDeclaration.model_validate(attributes).store == store
