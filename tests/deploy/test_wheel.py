"""What pip installs: the wheel in an empty environment, a new project, and a project that somebody has already."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
import sysconfig
import tarfile
import textwrap
import venv
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

PROJECT = Path(__file__).resolve().parents[2]
REPOSITORY = "https://github.com/owner/zarr_core"
with_addresses = runpy.run_path(str(PROJECT / "setup.py"), run_name="setup")["with_addresses"]
# The jobs of the example, as its daemon runs them, and a training step on what they published.
RUN = """
import os, sys
sys.path.insert(0, os.getcwd())
import dagster as dg
from definitions import defs

definitions = defs()
with dg.DagsterInstance.get() as instance:
    def run(job, **tags):
        job = definitions.resolve_job_def(f"example_{job}")
        assert job.execute_in_process(instance=instance, tags=tags, raise_on_error=True).success

    run("look")
    ids = instance.get_dynamic_partitions("example__samples")
    assert len(ids) == 4, ids
    run("convert", **{"dagster/asset_partition_range_start": ids[0], "dagster/asset_partition_range_end": ids[-1]})
    run("refresh")
    graph = definitions.resolve_asset_graph()
    checks = instance.event_log_storage.get_latest_asset_check_execution_by_key(list(graph.asset_check_keys))
    evaluated = {key.name: record.evaluation for key, record in checks.items() if record.evaluation}
    assert evaluated
    failed = [name for name, evaluation in evaluated.items() if not evaluation.passed]
    assert not failed, failed

from zarr_core.first_step import train

domain, targets, losses = train("stores/example")
assert targets == ["surface_pressure"], targets
assert "assets" not in sys.modules and "sensors" not in sys.modules
"""
TEAM = """
import assets
import dagster as dg
from pathlib import Path

from zarr_core.platform import project_definitions


@dg.definitions
def defs():
    ours = dg.Definitions(assets=[assets.ours])
    return dg.Definitions.merge(ours, project_definitions(Path(__file__).parent, "declarations"))
"""


class Environment:
    """An environment with the wheel, and with the libraries of the tests' own environment, but not its checkout."""

    def __init__(self, folder: Path, wheel: Path) -> None:
        venv.create(folder, symlinks=True)
        self.bin = folder / "bin"
        self.packages = Path(sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)}))
        # As a path, not as a site: a .pth file in it names the checkout.
        own = {sysconfig.get_path("purelib"), *(path for path in sys.path if path.endswith("site-packages"))}
        (self.packages / "libraries.pth").write_text("".join(f"{path}\n" for path in own))
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(self.packages)
        self.environment = {
            **{name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
            "VIRTUAL_ENV": str(folder),
            "PATH": f"{self.bin}{os.pathsep}{os.environ['PATH']}",
            "DAGSTER_DISABLE_TELEMETRY": "1",
            "COLUMNS": "200",
            "NO_COLOR": "1",
        }
        self.environment.pop("DAGSTER_HOME", None)

    def run(self, folder: Path, *command: str, **environment: str) -> str:
        """Output of a command of a module, in a folder."""
        done = subprocess.run(
            [str(self.bin / "python"), *command],
            cwd=folder,
            env=self.environment | environment,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return done.stdout

    def dg(self, folder: Path, *arguments: str) -> str:
        """Output of Dagster's ``dg``."""
        return self.run(folder, "-c", "import sys; from dagster_dg_cli.cli import main; sys.exit(main())", *arguments)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the source distribution, and the wheel that is built from it."""
    folder = tmp_path_factory.mktemp("built")
    build = "import setuptools.build_meta as backend, sys; print(getattr(backend, sys.argv[1])(sys.argv[2]))"
    # From a copy, because setuptools writes beside the files.
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=PROJECT, capture_output=True
    )
    if listed.returncode:
        pytest.skip("this is not a clone of git, which says what belongs to the project")
    source = folder / "source"
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (PROJECT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((PROJECT / name).read_bytes())
    for step, place in (("build_sdist", source), ("build_wheel", folder / "zarr_core-0.1.0")):
        done = subprocess.run(
            [sys.executable, "-c", build, step, str(folder)],
            cwd=place,
            env={**os.environ, "REPOSITORY_URL": REPOSITORY},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        if step == "build_sdist":
            with tarfile.open(next(folder.glob("*.tar.gz"))) as archive:
                archive.extractall(folder, filter="data")
    return folder


@pytest.fixture(scope="module")
def installed(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return Environment(tmp_path_factory.mktemp("installed") / "env", next(built.glob("*.whl")))


@pytest.fixture(scope="module")
def project(installed: Environment, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("projects")
    printed = installed.run(folder, "-m", "zarr_core", "platform", "new", "my_data")
    assert printed.endswith(f"  cd {folder}/my_data\n  dagster dev\n")
    return folder / "my_data"


def test_the_wheel_has_every_file_and_no_other_package(built: Path) -> None:
    with zipfile.ZipFile(next(built.glob("*.whl"))) as archive:
        names = set(archive.namelist())
    assert {name.partition("/")[0] for name in names} == {"zarr_core", "zarr_core-0.1.0.dist-info"}
    files = {path for path in (PROJECT / "zarr_core").rglob("*") if path.is_file() and path.suffix != ".pyc"}
    expected = {str(path.relative_to(PROJECT)) for path in files}
    for folder in ("assets", "resources", "sensors"):
        code = {path.relative_to(PROJECT) for path in (PROJECT / folder).rglob("*.py")}
        expected |= {f"zarr_core/platform/{path}" for path in code if path.parent.name != "datasets"}
    assert expected - names == set()


def test_an_index_shows_the_readme(built: Path) -> None:
    with zipfile.ZipFile(next(built.glob("*.whl"))) as archive:
        metadata = archive.read("zarr_core-0.1.0.dist-info/METADATA").decode()
    assert "Description-Content-Type: text/markdown\n" in metadata
    assert f"Project-URL: Repository, {REPOSITORY}\n" in metadata
    assert metadata.endswith(with_addresses((PROJECT / "README.md").read_text(), REPOSITORY))


def test_links_of_the_readme_lead_to_the_repository() -> None:
    text = "[a](docs/a.md#part) ![b](docs/b.png) [c](https://c.org) [d](#e)"
    assert with_addresses(text, "https://z.org") == (
        "[a](https://z.org/blob/main/docs/a.md#part) ![b](https://z.org/raw/main/docs/b.png) [c](https://c.org) [d](#e)"
    )
    assert with_addresses(text, "") == text
    readme = with_addresses((PROJECT / "README.md").read_text(), "https://z.org")
    assert not re.findall(r"\]\((?!https://)", readme)


def test_a_new_project_converts_checks_and_trains(installed: Environment, project: Path) -> None:
    place = installed.run(project, "-c", "import zarr_core; print(zarr_core.__file__)")
    assert Path(place.strip()).is_relative_to(installed.packages)
    missing = "import importlib.util as u; print([u.find_spec(name) for name in ('assets', 'sensors', 'resources')])"
    assert installed.run(project, "-c", missing) == "[None, None, None]\n"
    (home,) = [line for line in (project / ".env").read_text().splitlines() if line.startswith("DAGSTER_HOME=")]
    installed.run(project, "-c", RUN, DAGSTER_HOME=home.partition("=")[2].strip('"'))


def test_dg_lists_the_components_and_checks_the_project(installed: Environment, project: Path) -> None:
    listed = installed.dg(project, "list", "components")
    assert "zarr_core.platform.PointDataset" in listed
    assert "zarr_core.platform.WarehouseMatrix" in listed
    installed.dg(project, "check", "yaml")
    installed.dg(project, "check", "defs")


def test_a_project_with_a_package_of_the_same_name_takes_the_components(
    installed: Environment, project: Path, tmp_path: Path
) -> None:
    ours = "import dagster as dg\n\n\n@dg.asset\ndef ours() -> None: ...\n"
    files = {"definitions.py": TEAM, "assets/__init__.py": ours, "declarations/__init__.py": ""}
    for name in ("pyproject.toml", "declarations/example/defs.yaml", "declarations/example/kind.yaml"):
        files[name] = (project / name).read_text()
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    keys = textwrap.dedent("""
        import os, sys
        sys.path.insert(0, os.getcwd())
        from definitions import defs
        graph = defs().resolve_asset_graph()
        print(sorted(key.to_user_string() for key in graph.get_all_asset_keys()))
    """)
    printed = installed.run(tmp_path, "-c", keys)
    assert "'example/manifest'" in printed
    assert "'ours'" in printed
    installed.dg(tmp_path, "check", "defs")


def test_a_folder_with_files_is_left_alone(installed: Environment, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    done = subprocess.run(
        [str(installed.bin / "python"), "-m", "zarr_core", "platform", "new", str(tmp_path)],
        env=installed.environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert "is not empty; name a folder that does not exist yet" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_without_dagster_an_error_names_the_extra(installed: Environment, tmp_path: Path) -> None:
    code = textwrap.dedent("""
        import zarr_core.platform
        zarr_core.platform.find_spec = lambda name: None
        assert "PointDataset" not in dir(zarr_core.platform)
        try:
            zarr_core.platform.PointDataset
        except ImportError as error:
            print(error)
    """)
    assert "pip install 'zarr-core[platform]'" in installed.run(tmp_path, "-c", code)


def test_dg_of_another_project_needs_nothing_of_the_extra_but_dagster(installed: Environment, tmp_path: Path) -> None:
    missing = ["dagster_aws", "boto3", "s3fs", "ocifs", "pcodec", "jinja2", "matplotlib", "duckdb", "pyarrow"]
    missing += ["pyiceberg", "awswrangler"]
    code = f"import sys; sys.modules.update(dict.fromkeys({missing}))\nimport zarr_core.platform as module\n"
    code += "print([getattr(module, name) for name in dir(module)])"
    assert "PointDataset" in installed.run(tmp_path, "-c", code)
