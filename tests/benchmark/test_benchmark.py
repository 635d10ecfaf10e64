"""The benchmark report: its numbers equal those of counting objects; its page is self-contained."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers.published_store import write_published_store
from tests.helpers.small_source import KIND, load_field, write_source
from zarr_core.benchmark import console_text, headline_markdown, run_benchmark
from zarr_core.benchmark.__main__ import main
from zarr_core.benchmark.measure import sample_picture
from zarr_core.benchmark.page import bytes_chart, sample_figure, throughput_chart
from zarr_core.benchmark.wording import Wording, format_size, readable_count, readable_share
from zarr_core.errors import ZarrCoreError
from zarr_core.points.convert.conversion import convert
from zarr_core.points.read.reader import ZarrChunkReader
from zarr_core.points.stage.store import stage_store
from zarr_core.points.store.head import load_manifest
from zarr_core.reports.pages import as_svg
from zarr_core.sources import resolve_kind
from zarr_core.storage import Storage
from zarr_core.storage.byte_ranges import CountingObjects, open_objects

N_SURFACE, N_VOLUME, REPEATS = 24, 32, 2


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("benchmark")
    write_source(root / "source", surface=200, volume=600)
    convert(KIND, root / "store", source_url=str(root / "source"), chunk_points=32, codec="none")
    return root


@pytest.fixture(scope="module")
def report(place: Path) -> dict[str, Any]:
    return run_benchmark(
        str(place / "source"),
        str(place / "store"),
        place / "report",
        num_surface_points=N_SURFACE,
        num_volume_points=N_VOLUME,
        repeats=REPEATS,
    )


@pytest.mark.slow
def test_report_json_equals_the_returned_report(place: Path, report: dict[str, Any]) -> None:
    assert json.loads((place / "report" / "report.json").read_text()) == report


@pytest.mark.slow
def test_the_fields_of_an_archive_are_counted_together(tmp_path: Path) -> None:
    source, store = tmp_path / "source", tmp_path / "store"
    write_source(source, surface=200, volume=600)
    convert(KIND, store, source_url=str(source), chunk_points=32, codec="none", layout="packed")
    counts = {"num_surface_points": N_SURFACE, "num_volume_points": N_VOLUME}
    reads = run_benchmark(str(source), str(store), tmp_path / "report", repeats=1, **counts)["reads"]
    together = reads["fields"].pop("all fields")
    for way in ("full", "drawn"):
        assert together[way] == reads["total"][way]
        assert together[way]["bytes"] > 0
        assert all(field[way]["bytes"] == 0 for field in reads["fields"].values())


def test_bytes_and_requests_are_those_of_the_counting_objects(place: Path, report: dict[str, Any]) -> None:
    reads = report["reads"]
    ids = list(load_manifest(str(place / "store")).samples)
    ways: dict[str, dict[str, int]] = {"full": {}, "drawn": {"surface": N_SURFACE, "volume": N_VOLUME}}
    for way, points in ways.items():
        count = CountingObjects(open_objects(str(place / "store")))
        reader = ZarrChunkReader(place / "store", objects_factory=lambda _, count=count: count)
        first = np.zeros(2)
        by_field = {field: np.zeros(2) for field in reader.fields}
        for sample_id in ids:
            count.reset()
            reader.read_sample(sample_id, points)
            first += (count.bytes, count.requests)
            for epoch in range(1, REPEATS + 1):
                for field in reader.fields:
                    count.reset()
                    reader.read_sample(sample_id, points, [field], epoch=epoch)
                    by_field[field] += np.array([count.bytes, count.requests]) / REPEATS
        for field, expected in by_field.items():
            found = reads["fields"][field][way]
            np.testing.assert_allclose((found["bytes"], found["requests"]), expected / len(ids))
        found = reads["first"][way]
        np.testing.assert_allclose((found["bytes"], found["requests"]), first / len(ids))


def test_sums_are_the_sums_of_the_fields(report: dict[str, Any]) -> None:
    reads = report["reads"]
    for way, total in reads["total"].items():
        for what in ("bytes", "requests"):
            assert total[what] == pytest.approx(sum(ways[way][what] for ways in reads["fields"].values()))
            assert reads["first"][way][what] >= total[what] * 0.9


def test_pt_bytes_are_the_files(place: Path, report: dict[str, Any]) -> None:
    for field, file in resolve_kind(KIND).required_fields.items():
        sizes = [path.stat().st_size for path in (place / "source").glob(f"*/{file.filename}")]
        assert report["reads"]["fields"][field]["pt"] == {"bytes": sum(sizes) / len(sizes), "requests": 1.0}


def test_a_draw_reads_less_than_the_whole(report: dict[str, Any]) -> None:
    # One chunk of 32, or two, of 600 points and more.
    drawn, full = (report["reads"]["fields"]["volume_velocity"][way]["bytes"] for way in ("drawn", "full"))
    assert drawn < 0.25 * full
    total = report["reads"]["total"]
    share = readable_share(total["drawn"]["bytes"] / total["pt"]["bytes"])
    assert f"A training step reads {share} of the bytes" in headline_markdown(report)


def test_store_and_fields(place: Path, report: dict[str, Any]) -> None:
    manifest = load_manifest(str(place / "store"))
    assert report["store"]["samples"] == 3
    assert report["store"]["generation"] == 1
    assert report["store"]["bytes_stored"] == sum(entry.bytes for entry in manifest.samples.values())
    groups = [place / "store" / entry.relpath for entry in manifest.samples.values()]
    files = [path for group in groups for path in group.rglob("*") if path.is_file()]
    assert report["store"]["layouts"] == ["directory"]
    assert report["store"]["objects_stored"] == len(files)
    assert report["store"]["objects_source"] == 3 * len(resolve_kind(KIND).required_fields)
    inodes = len({path for group in groups for path in [group.parent, group, *group.rglob("*")]})
    of_source = 3 * len(resolve_kind(KIND).required_fields)
    assert (report["store"]["inodes_stored"], report["store"]["inodes_source"]) == (inodes, of_source + 3)
    words = Wording(report)
    captions = " ".join(caption for _, caption in words.cards)
    source = f"{of_source} files, {of_source + 3} inodes"
    assert f"in {len(files)} objects (directory, {inodes} inodes) for {source}" in captions
    gets = report["reads"]["total"]["drawn"]["requests"]
    assert words.store_facts["in a bucket"].startswith(
        f"a million draws of samples read before cost USD {gets * 0.4:.2f}"
    )
    assert report["store"]["points"] == {"surface": [200, 214], "volume": [600, 614]}
    chunks = {"surface": 7 + 7 + 7, "volume": 19 + 19 + 20}  # of 32 points, in the three samples
    n_chunks = sum(chunks[file.domain] for file in resolve_kind(KIND).required_fields.values())
    assert report["equivalence"] == {
        "ok": True,
        "samples": 3,
        "arrays": 21,
        "chunks": n_chunks,
        "how": "row by row",
        "problems": [],
    }
    assert list(report["fields"]) == list(manifest.fields)
    for field in report["fields"].values():
        assert all(sum(counts) > 0 for counts in field["histogram"]["counts"].values())
    assert {way: timed["reads"] for way, timed in report["throughput"].items()} == dict.fromkeys(
        ("pt", "full", "drawn"), 3 * REPEATS
    )
    assert set(report["environment"]) >= {"CPU", "cores", "Python", "zarr", "torch", "numpy"}


class _Links(HTMLParser):
    """Attributes and elements that make a browser fetch something."""

    def __init__(self) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.targets += [v or "" for k, v in attrs if k in ("src", "href", "xlink:href", "srcset", "action", "data")]


def test_page_needs_no_network(place: Path, report: dict[str, Any]) -> None:
    page = (place / "report" / "report.html").read_text()
    links = _Links()
    links.feed(page)
    assert links.targets
    assert all(target.startswith(("#", "data:")) for target in links.targets)
    assert not links.tags & {"script", "link", "iframe", "object", "embed"}
    assert not re.search(r"url\(\s*['\"]?(?!#|data:)", page)
    assert "@import" not in page
    assert "http" not in re.sub(r'xmlns(:\w+)?="[^"]*"', "", page)


def test_page_shows_the_numbers(place: Path, report: dict[str, Any]) -> None:
    page = (place / "report" / "report.html").read_text()
    assert page.count("<svg") == 4
    for field, ways in report["reads"]["fields"].items():
        assert field in page
        assert format_size(ways["drawn"]["bytes"]) in page
    assert "All 3 checked samples equal the source, row by row" in page
    ids = re.findall(r'<clipPath id="([^"]*)"', page)
    assert len(ids) == len(set(ids))


def test_text_from_outside_is_escaped(place: Path, tmp_path: Path) -> None:
    convert(
        KIND,
        tmp_path / "store",
        source_url=str(place / "source"),
        chunk_points=32,
        dataset_name="<b>&bold</b>",
        limit=1,
    )
    run_benchmark(str(place / "source"), str(tmp_path / "store"), tmp_path / "report", repeats=1)
    page = (tmp_path / "report" / "report.html").read_text()
    assert "<b>&bold</b>" not in page
    assert "&lt;b&gt;&amp;bold&lt;/b&gt;" in page


def test_summaries(report: dict[str, Any]) -> None:
    markdown = headline_markdown(report)
    assert len(markdown) < 1000
    assert markdown.count("\n|") == 5
    text = console_text(report)
    for field in report["reads"]["fields"]:
        assert field in text
    assert "CPU" in text


@pytest.mark.slow
def test_error_bounds_are_compared_with_the_settings_of_the_store(tmp_path: Path) -> None:
    source = write_source(tmp_path / "source", ("run_1",), surface=4_000, volume=5_000)
    stored = {"volume_velocity": "float32"}
    convert(KIND, tmp_path / "store", source_url=str(source), codec="zstd:3", field_dtypes=stored)
    report = run_benchmark(str(source), str(tmp_path / "store"), tmp_path / "report", repeats=1)
    found = report["error_bounds"]
    sizes = ZarrChunkReader(tmp_path / "store").read_attributes("run_1")["stored_bytes"]
    for field, per_point in found["fields"].items():
        points = 4_000 if field.startswith("surface") else 5_000
        assert per_point[0] == pytest.approx(sizes[field] / points, rel=0.02)
    assert found["bytes"][0] == pytest.approx(sum(sizes.values()), rel=0.01)
    assert found["bytes"][1] < found["bytes"][2] < found["bytes"][0]
    text = console_text(report)
    assert "With a bound on all fields, the sample would take" in text
    assert Wording(report).bounds_note in (tmp_path / "report" / "report.html").read_text()


def test_a_missing_package_is_named_where_bounds_would_be(place: Path, report: dict[str, Any]) -> None:
    missing = report | {"error_bounds": {"problem": "pip install 'zarr-core[pcodec]'"}}
    assert "error bounds: Not measured: pip install 'zarr-core[pcodec]'" in console_text(missing)
    assert Wording(missing).bounds_table == []


@pytest.mark.parametrize(("local", "expected"), [(True, "files in the page cache"), (False, "over the network")])
def test_the_note_names_the_location_of_the_files(report: dict[str, Any], local: bool, expected: str) -> None:
    assert report["local"]
    assert expected in Wording(report | {"local": local}).throughput_note


def test_figures_for_other_places(place: Path, report: dict[str, Any]) -> None:
    reader = ZarrChunkReader(place / "store")
    picture = sample_picture(reader, reader.sample_ids, {"surface": N_SURFACE, "volume": N_VOLUME})
    assert picture is not None
    assert picture.pop("sample_id") == "run_1"
    assert len(picture["drawn"][0]) == N_SURFACE
    for figure in (bytes_chart(report), throughput_chart(report), sample_figure(**picture)):
        assert as_svg(figure).startswith("<svg")


@pytest.mark.slow
def test_command_line(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = [
        "--zarr-root",
        str(place / "store"),
        "--output",
        str(tmp_path / "out"),
        "--samples",
        "1",
    ]
    assert main(["--pt-root", str(place / "source"), *options, "--repeats", "1"]) == 0
    assert "volume_vorticity" in capsys.readouterr().out
    assert json.loads((tmp_path / "out" / "report.json").read_text())["reads"]["samples"] == 1
    assert main(["--pt-root", str(tmp_path), *options]) == 1
    assert main(["--pt-root", str(place / "source"), *options, "--repeats", "0"]) == 2
    assert main(["--pt-root", str(place / "source"), *options, "--num-surface-points", "-1"]) == 2
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert "the source must be the folder or URL that the store was made from" in errors[0]
    assert len(errors) == 3


@pytest.mark.slow
def test_differences_fail_and_are_on_the_page(place: Path, tmp_path: Path) -> None:
    write_source(tmp_path / "other", surface=200, volume=600, seed=9)
    store, output = str(place / "store"), tmp_path / "out"
    arguments = ["--pt-root", str(tmp_path / "other"), "--zarr-root", store, "--output", str(output), "--repeats", "1"]
    assert main(arguments) == 1
    assert "rows differ from the source" in (output / "report.html").read_text()
    assert not json.loads((output / "report.json").read_text())["equivalence"]["ok"]


def test_a_thin_copy_is_not_compared_with_the_whole_source(place: Path, tmp_path: Path) -> None:
    stage_store(str(place / "store"), str(tmp_path / "thin"), points="volume=32")
    with pytest.raises(
        ZarrCoreError, match=r"has volume=32 of the points of .*: measure the store that it is a copy of"
    ):
        run_benchmark(str(place / "source"), str(tmp_path / "thin"), tmp_path / "report")


@pytest.mark.slow
def test_a_draw_of_more_points_than_there_are_is_named_by_those_that_there_are(place: Path, tmp_path: Path) -> None:
    found = run_benchmark(str(place / "source"), str(place / "store"), tmp_path, repeats=1, num_volume_points=100)
    assert found["reads"]["num_points"] == {"surface": 214, "volume": 100}
    assert "a sample of 214 surface + 100 volume points" in Wording(found).detail


@pytest.mark.slow
def test_a_store_of_another_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = ("run_1", "run_2")
    source = write_source(tmp_path / "source", ids)
    fields = resolve_kind(KIND).required_fields
    samples = {
        sample_id: {
            # Another order of the points, and the dtypes of the published format.
            name: load_field(source, sample_id, name)[::-1].astype("float32" if f.field.is_position else "float16")
            for name, f in fields.items()
        }
        for sample_id in ids
    }
    store = write_published_store(tmp_path / "store", samples)
    listings: list[str] = []
    infos = Storage.infos
    monkeypatch.setattr(Storage, "infos", lambda self, below="": listings.append(below) or infos(self, below))
    report = run_benchmark(str(source), str(store), tmp_path / "report", repeats=1)
    assert listings.count("") == 1
    assert report["equivalence"]["ok"], report["equivalence"]
    assert "All 2 checked samples equal the source, row by row; 2 samples of another program in any order" in (
        tmp_path / "report" / "report.html"
    ).read_text().replace("\n", " ")
    assert report["store"]["bytes_stored"] > 0
    assert set(report["reads"]["fields"]) == set(fields)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ZarrCoreError, match="--dataset-kind"):
        run_benchmark(str(tmp_path / "empty"), str(store), tmp_path / "report")


def test_without_matplotlib_the_error_names_the_extra(place: Path, tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['matplotlib'] = None\n"
        "from zarr_core.benchmark.__main__ import main\n"
        f"sys.exit(main(['--pt-root', {str(place / 'source')!r}, '--zarr-root', {str(place / 'store')!r},"
        f" '--output', {str(tmp_path / 'out')!r}]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "error: reports need matplotlib: pip install 'zarr-core[report]'\n"
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (999.6, "1 kB"),
        (8350, "8.35 kB"),
        (99_960, "100 kB"),
        (2.11e6, "2.11 MB"),
        (999_499_999, "999 MB"),
        (3e15, "3,000 TB"),
    ],
)
def test_readable_bytes(size: float, text: str) -> None:
    assert format_size(size) == text


def test_readable_numbers() -> None:
    assert [readable_share(s) for s in (0.0004, 0.092, 0.1, 0.64, 1.0)] == ["0.04 %", "9.2 %", "10 %", "64 %", "100 %"]
    assert [readable_count(c) for c in (7.0, 14.6, 10.0)] == ["7", "14.6", "10"]
