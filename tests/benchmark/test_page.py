from __future__ import annotations

import copy
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.small_source import KIND, write_source
from zarr_core.benchmark.measure import make_report
from zarr_core.benchmark.page import render_page
from zarr_core.points.convert.conversion import convert

HOSTILE = """'"></text><script>alert("x")</script><b onclick='x'>&"""


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], dict[str, Any] | None]:
    root = tmp_path_factory.mktemp("page")
    write_source(root / "source", ("run_1",), surface=200, volume=300)
    convert(KIND, root / "store", source_url=str(root / "source"), chunk_points=32, codec="none")
    return make_report(str(root / "source"), str(root / "store"), 24, 32, None, 1, None, False)


def hostile(value: Any) -> Any:
    """The report with hostile markup at the end of every text."""
    if isinstance(value, dict):
        return {key: hostile(item) for key, item in value.items()}
    if isinstance(value, list):
        return [hostile(item) for item in value]
    return value + HOSTILE if isinstance(value, str) else value


def with_hostile_keys(mapping: dict[str, Any]) -> dict[str, Any]:
    return {key + HOSTILE: value for key, value in mapping.items()}


class _Page(HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.text: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags |= {tag, *(f"{tag} {name}" for name, _ in attrs)}

    def handle_data(self, data: str) -> None:
        self.text.append(data)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:constrained_layout not applied")  # long labels
def test_hostile_names_add_no_element_and_no_attribute(
    measured: tuple[dict[str, Any], dict[str, Any] | None], tmp_path: Path
) -> None:
    report, picture = measured
    assert picture is not None
    bad = hostile(
        copy.deepcopy(report) | {"equivalence": {**report["equivalence"], "ok": False, "problems": ["run_1"]}}
    )
    bad["fields"] = with_hostile_keys(bad["fields"])
    bad["environment"] = with_hostile_keys(bad["environment"])
    for field in bad["fields"].values():
        field["histogram"]["counts"] = with_hostile_keys(field["histogram"]["counts"])
    for mapping, key in (("reads", "fields"), ("reads", "num_points"), ("store", "points"), ("store", "chunk_points")):
        bad[mapping][key] = with_hostile_keys(bad[mapping][key])
    page = _Page(render_page(bad, picture | {"label": picture["label"] + HOSTILE}))
    plain = _Page(render_page(report, picture))
    assert page.tags - plain.tags == {"ul", "ul class", "li"}  # the list of problems
    text = "\n".join(page.text)
    for name in ("run_1", "surface_pressure", "surface", "CPU", str(report["picture"]), report["store"]["codec"]):
        assert name + HOSTILE in text
