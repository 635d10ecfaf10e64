"""Versions that several files name are the same in all of them."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import yaml

PROJECT = Path(__file__).resolve().parents[1]
METADATA = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
PYTHONS = sorted(path.stem for path in (PROJECT / "constraints").glob("*.txt"))


def pins(python: str) -> dict[str, str]:
    text = (PROJECT / "constraints" / f"{python}.txt").read_text()
    return dict(re.findall(r"^([\w.-]+)==(\S+)$", text, re.MULTILINE))


def test_every_supported_python_has_pins_a_classifier_and_a_test_job() -> None:
    classifiers = [text.rpartition(" :: ")[2] for text in METADATA["classifiers"] if "Python :: 3." in text]
    workflow = yaml.safe_load((PROJECT / ".github" / "workflows" / "ci.yml").read_text())
    assert PYTHONS == classifiers == workflow["jobs"]["test"]["strategy"]["matrix"]["python"]
    assert METADATA["requires-python"] == f">={PYTHONS[0]}"


def test_every_direct_dependency_is_pinned_on_every_python() -> None:
    extras = METADATA["optional-dependencies"].values()
    needed = {re.split(r"[\[<>=]", text)[0].lower() for texts in (METADATA["dependencies"], *extras) for text in texts}
    for python in PYTHONS:
        assert needed - {"zarr-core"} - pins(python).keys() == set()


def test_one_formatter_everywhere() -> None:
    """Another version of ruff formats and checks differently."""
    config = yaml.safe_load((PROJECT / ".pre-commit-config.yaml").read_text())
    (hook,) = [repo["rev"] for repo in config["repos"] if repo["repo"].endswith("ruff-pre-commit")]
    assert {pins(python)["ruff"] for python in PYTHONS} == {hook.removeprefix("v")}


def test_the_citation_names_this_version() -> None:
    citation = yaml.safe_load((PROJECT / "CITATION.cff").read_text())
    assert (citation["version"], citation["license"]) == (METADATA["version"], METADATA["license"])
