"""Every rival of the benchmarks returns the same rows as our reader, so that equal work is timed."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.report import page, place
from benchmarks.result import Result, is_met, shown
from benchmarks.rivals import COMPRESSED, DIRECT, MDS, RIVALS, Rival
from benchmarks.rivals.__main__ import COLUMNS, interpreter, prepare_samples, run_child, run_python
from benchmarks.rivals.formats import load_draws
from tests.helpers import fork_server, rival_reader
from zarr_core.points.read.reader import ZarrChunkReader

pytestmark = pytest.mark.slow

SAMPLES, POINTS, DRAWN, EPOCHS = 2, 1000, 64, 40


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rivals")
    prepare_samples(folder, SAMPLES, POINTS, DRAWN, EPOCHS)
    return folder


def test_some_draws_wrap_around_and_some_touch_the_ragged_chunk(prepared: Path) -> None:
    runs = [runs["volume"] for epochs in load_draws(prepared / "draws.json").runs.values() for runs in epochs]
    assert {len(each) for each in runs} == {1, 2}
    assert any(last > POINTS - POINTS % DRAWN for each in runs for _, last in each)


@pytest.mark.parametrize(
    ("entry", "codec"), [(entry, codec) for entry in RIVALS for codec in entry.codecs], ids=lambda part: str(part)[:40]
)
def test_every_rival_returns_the_same_rows_as_our_reader(
    entry: Rival, codec: str, prepared: Path, tmp_path: Path
) -> None:
    python = interpreter(entry, Path(__file__).parents[2] / ".venv-mds" / "bin" / "python")
    if python is None:
        pytest.skip("needs make .venv-mds" if entry.name == MDS else f"needs {entry.package}, of the extra rivals")
    store, out = prepared / f"store-{codec}", tmp_path / "found.npz"
    places = (tmp_path / "rival", prepared / "samples", store, prepared / "draws.json", EPOCHS, out)
    if python == sys.executable:
        process = fork_server.start(rival_reader.main, entry.name, *map(str, places))
        process.join()
        assert process.exitcode == 0
    else:
        run_python(python, "-m", rival_reader.__name__, entry.name, *places)
    reader = ZarrChunkReader(store, engine="zarr")
    with np.load(out) as found:
        assert len(found) == SAMPLES * EPOCHS * len(reader.fields)
        for sample in reader.sample_ids:
            for epoch in range(EPOCHS):
                for field, rows in reader.read_sample(sample, {"volume": DRAWN}, epoch=epoch).items():
                    np.testing.assert_array_equal(found[f"{sample} {epoch} {field}"], rows, strict=True)


def test_a_measurement_has_every_column(prepared: Path, tmp_path: Path) -> None:
    entry = next(entry for entry in RIVALS if entry.name == DIRECT)
    folder, samples = tmp_path / "rival", prepared / "samples"
    # Compressed chunks are read at each draw; uncompressed ones are copied from maps after the first.
    run_child(entry, sys.executable, "prepare", folder, samples, prepared / f"store-{COMPRESSED}")
    found = json.loads(run_child(entry, sys.executable, "measure", folder, prepared / "draws.json", "0.05"))
    assert set(found) >= {key for key in COLUMNS.values() if key}
    own = 26 * DRAWN  # bytes of the points of one chunk
    assert own / 2 <= found["warm bytes by read calls"] <= 4 * own
    assert 0 < found["warm ms p50"] <= found["warm ms p99"]


def test_results_become_a_page(tmp_path: Path) -> None:
    arguments = argparse.Namespace(output=tmp_path, date="2026-11-30", variant="")
    result = Result("speed", "Speed", arguments)
    result.describe("Nothing was done.")
    result.add_table("Ways", ("way", "ms"), [("direct", 0.12345), ("other", 1234.5), ("absent", None)], "ms")
    result.add_target("other / direct", 10_000, "at least", 3, "x")
    result.add_target("direct", 0.12345, "at most", 0.1, " ms")
    result.add_target("absent", None, "at least", 1)
    result.add_note("A note.")
    result.save()
    content = json.loads((tmp_path / "speed.json").read_text())
    assert [is_met(target) for target in content["targets"]] == [True, False, None]
    text = page([content], tmp_path / "images")
    assert "| direct | 0.123 |\n| other | 1,234 |\n| absent |  |" in text
    assert "| speed | direct | 0.123 ms | at most 0.1 ms | **missed** |" in text
    assert "2026-11-30" in text
    assert "A note." in text
    assert "images/performance-speed-1.svg" in text
    assert "<svg" in (tmp_path / "images" / "performance-speed-1.svg").read_text()


def test_a_variant_of_a_result_follows_it(tmp_path: Path) -> None:
    for name, variant in (("rivals", ""), ("local", "zarr-3.4"), ("local", ""), ("another", "")):
        Result(name, "Title", argparse.Namespace(output=tmp_path, date=None, variant=variant)).save()
    names = sorted((path.stem for path in tmp_path.iterdir()), key=place)
    assert names == ["local", "local-zarr-3.4", "rivals", "another"]
    content = json.loads((tmp_path / "local-zarr-3.4.json").read_text())
    assert content["title"] == "Title (zarr-3.4)"
    assert content["command"] == "python -m benchmarks.local --variant zarr-3.4"


def test_numbers_are_shown_with_three_digits() -> None:
    assert [shown(value) for value in (0.01234, 1.0, 12.34, 99.99, 12345.6, None, "x")] == [
        "0.0123",
        "1",
        "12.3",
        "100",
        "12,346",
        "",
        "x",
    ]
