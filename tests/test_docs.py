"""The documentation names files that exist."""

from __future__ import annotations

import importlib.util
import re
import shutil
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
import zarr
from zarr_core.platform.assets.dataset import DatasetDeclaration

from tests.helpers import zarr_group_reader
from tests.helpers.pages import DOCS, blocks, run_commands, run_page
from tests.helpers.small_source import write_source
from tests.helpers.solver_files import write_case
from zarr_core import ZarrChunkReader, write_sample
from zarr_core.__main__ import main
from zarr_core.convert import convert
from zarr_core.points.store.head import load_manifest
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


@pytest.mark.slow
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


def test_the_lines_that_remove_a_sample_with_its_bytes(folder: Path) -> None:
    write_source(folder / "source", ("run_1", "run_2"))
    convert("ahmedml", "store", root="source", chunk_points=32)
    write_sample("store", "case_9", ZarrChunkReader("store").read_sample("run_1"))
    main(["tag", "store", "run-17"])
    places = {"/data/store": "store", "/data/cars": "source", "cars.yaml": "ahmedml", "24h": "0h"}
    lines = {}
    for language, _, text in blocks("generations.md"):
        for name, place in places.items():
            text = text.replace(name, place)
        lines[language] = text
    exec(lines["python"])
    assert set(load_manifest("store").samples) == {"run_1", "run_2"}
    shutil.rmtree("source/run_2")
    run_commands(lines["sh"])
    assert set(load_manifest("store").samples) == {"run_1"}
    held = {path.relative_to("store/samples").parts[0] for path in Path("store/samples").rglob("zarr.json")}
    assert held == {"run_1"}


def old_samples() -> dict[str, dict[str, np.ndarray]]:
    """What the pages below ``docs/coming_from`` begin with, by name of the sample."""
    random = np.random.default_rng(0)
    size = {"position": (5000, 3), "pressure": (5000,)}
    return {
        f"case_{number}": {name: random.normal(size=shape).astype(np.float32) for name, shape in size.items()}
        for number in range(4)
    }


def write_groups(folder: Path) -> None:
    for case, arrays in old_samples().items():
        zarr.create_group(folder / f"{case}.zarr")
        for name, values in arrays.items():
            zarr.create_array(folder / f"{case}.zarr", name=name, data=values)


def write_tar(folder: Path) -> None:
    folder.mkdir()
    with tarfile.open(folder / "shard-000000.tar", "w") as shard:
        for case, arrays in old_samples().items():
            for name, values in arrays.items():
                np.save(folder / "array.npy", values)
                shard.add(folder / "array.npy", f"{case}.{name}.npy")


def write_litdata(folder: Path) -> None:
    litdata = pytest.importorskip("litdata", reason="litdata is not installed", exc_type=ImportError)
    samples = old_samples()
    items = [{"id": case, **{name: torch.from_numpy(v) for name, v in samples[case].items()}} for case in samples]
    litdata.optimize(items.__getitem__, list(range(len(items))), str(folder), num_workers=1, chunk_bytes="64MB")


def write_h5ad(_: Path) -> None:
    anndata = pytest.importorskip("anndata", reason="anndata is not installed")
    pandas = pytest.importorskip("pandas", reason="anndata needs it")
    obs = pandas.DataFrame({"age": np.arange(20.0, 32)}, index=[f"GSM{number}" for number in range(12)])
    var = pandas.DataFrame(index=[f"cg{number}" for number in range(50)])
    values = np.random.default_rng(0).uniform(size=(12, 50)).astype(np.float32)
    anndata.AnnData(values, obs=obs, var=var).write_h5ad("cells.h5ad")


def write_pt(folder: Path) -> None:
    for case, arrays in old_samples().items():
        (folder / case).mkdir(parents=True)
        for name, values in arrays.items():
            torch.save(torch.from_numpy(values), folder / case / f"{name}.pt")


@pytest.mark.parametrize(
    ("page", "write"),
    [
        ("physicsnemo", write_groups),
        ("webdataset", write_tar),
        ("litdata", write_litdata),
        ("anndata", write_h5ad),
        ("pt_files", write_pt),
    ],
)
def test_coming_from(folder: Path, page: str, write: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch) -> None:
    write(folder / "old")
    if importlib.util.find_spec("physicsnemo") is None:
        monkeypatch.setitem(sys.modules, "physicsnemo", zarr_group_reader)
        monkeypatch.setitem(sys.modules, "physicsnemo.datapipes", zarr_group_reader)
    names = run_page(f"coming_from/{page}.md")
    batch = names["batch"]
    if page == "physicsnemo":
        assert len(names["reader"]) == 4
        points, pressures = names["sample"]["position"].numpy(), names["sample"]["pressure"].numpy()[:, 0]
        stored = {*map(tuple, old_samples()["case_0"]["position"])}
        assert len(stored & {*map(tuple, points)}) == len(points) == len(pressures) == 1024
    if page == "anndata":
        assert batch["beta"].shape == (4, 50)
        assert Path("again.h5ad").exists()
        return
    # Those of the shards, which the last block reads, are whole.
    assert batch["surface_position"].shape == (2, 5000 if page == "webdataset" else 1024, 3)
    assert set(load_manifest("store").samples) == set(old_samples())


def test_every_page_of_a_section_is_run() -> None:
    tested = "".join((PROJECT / "tests" / name).read_text() for name in ("test_docs.py", "test_site.py"))
    pages = (*DOCS.glob("tutorials/*.md"), *DOCS.glob("coming_from/*.md"))
    for page in (page for page in pages if "```" in page.read_text()):
        assert f'("{page.stem}", ' in tested or f'run_page("tutorials/{page.name}"' in tested, page


def test_every_term_of_the_glossary_is_used_in_the_documentation() -> None:
    terms = re.findall(r"^\| ([^|]+) \| [^|]+ \|$", (DOCS / "glossary.md").read_text(), re.MULTILINE)[1:]
    assert len(terms) > 40
    assert terms == sorted(set(terms))
    pages = [page.read_text().casefold() for page in DOCS.rglob("*.md") if page.name != "glossary.md"]
    words = {term: [page for page in pages if re.search(rf"\b{term}(s|es)?\b", page)] for term in terms}
    assert {term for term, found in words.items() if not found} == set()


def test_the_questions_are_answered_once() -> None:
    questions = re.findall(r"^## (.*)$", (DOCS / "faq.md").read_text(), re.MULTILINE)
    assert questions
    assert len(questions) == len(set(questions))
    assert all(question.endswith("?") for question in questions)
