"""The conda recipe says what pyproject.toml says."""

from __future__ import annotations

import importlib
import re
import tomllib
from pathlib import Path

import yaml

PROJECT = Path(__file__).resolve().parents[2]
DOCUMENT = tomllib.loads((PROJECT / "pyproject.toml").read_text())
METADATA = DOCUMENT["project"]
RECIPE = yaml.safe_load((PROJECT / "deploy" / "conda" / "recipe.yaml").read_text())
#: Names of conda-forge that differ from those of the package index.
NAMES = {"torch": "pytorch", "docstring-parser": "docstring_parser"}


def as_conda(requirement: str) -> str:
    """A requirement of pyproject.toml as conda writes it."""
    found = re.fullmatch(r"([\w-]+)(\S+)", requirement)
    assert found, requirement
    return f"{NAMES.get(found[1], found[1])} {found[2]}"


def test_the_recipe_has_the_dependencies_of_the_project() -> None:
    needed = [as_conda(requirement) for requirement in METADATA["dependencies"]]
    assert RECIPE["requirements"]["run"] == ["python >=${{ python_min }}", *sorted(needed)]
    built_with = [as_conda(requirement) for requirement in DOCUMENT["build-system"]["requires"]]
    assert RECIPE["requirements"]["host"] == ["python ${{ python_min }}.*", "pip", *built_with]


def test_the_recipe_describes_the_same_package() -> None:
    assert RECIPE["context"]["version"] == METADATA["version"]
    assert f">={RECIPE['context']['python_min']}" == METADATA["requires-python"]
    assert RECIPE["package"]["name"] == METADATA["name"]
    (program,) = METADATA["scripts"].items()
    assert RECIPE["build"]["python"]["entry_points"] == [" = ".join(program)]
    about = RECIPE["about"]
    assert (about["summary"], about["license"]) == (METADATA["description"], METADATA["license"])
    assert [about["license_file"]] == METADATA["license-files"]
    assert (PROJECT / "deploy" / "conda" / RECIPE["source"]["path"]).resolve() == PROJECT


def test_the_recipe_tests_modules_that_exist_on_every_supported_python() -> None:
    tested = RECIPE["tests"][0]["python"]
    pythons = sorted(path.stem for path in (PROJECT / "constraints").glob("*.txt"))
    assert tested["python_version"] == [f"{python}.*" for python in pythons]
    for name in tested["imports"]:
        importlib.import_module(name)
