"""Stores of another program are compared with their source whatever the order of their rows."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.published_store import write_published_store
from tests.helpers.small_source import KIND, load_field, write_source
from zarr_core.convert import convert
from zarr_core.errors import SourceError
from zarr_core.format.array_metadata import ArrayLayout
from zarr_core.format.codecs import Codec
from zarr_core.points.verify.source import UnorderedComparison, _missing_rows
from zarr_core.points.verify.store import VerificationReport, verify_store
from zarr_core.sources import resolve_kind
from zarr_core.verify import main

Change = Callable[[dict[str, np.ndarray]], object]
SAMPLES = ("run_1", "run_2")
SPACE = 2.0**-7  # as float16, its last byte is a space


def foreign_store(root: Path, source: Path, change: Change = lambda _: None) -> Path:
    """A store of the samples of a source, each domain in an order of its own; the first sample is changed before."""
    rng = np.random.default_rng(1)
    samples: dict[str, Mapping[str, np.ndarray]] = {}
    for sample_id in SAMPLES:
        fields = {}
        orders: dict[str, np.ndarray] = {}
        for name, file in resolve_kind(KIND).required_fields.items():
            values = load_field(source, sample_id, name).astype("float32" if file.field.is_position else "float16")
            fields[name] = values[orders.setdefault(file.domain, rng.permutation(len(values)))]
        if sample_id == SAMPLES[0]:
            change(fields)
        samples[sample_id] = fields
    return write_published_store(root, samples)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_source(tmp_path_factory.mktemp("source"), SAMPLES)


def messages(report: VerificationReport) -> list[str]:
    return [str(problem) for problem in report.problems]


def test_an_equal_store_is_equal(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = foreign_store(tmp_path / "store", source)
    report = verify_store(str(store), source=str(source))
    assert (messages(report), report.any_order) == ([], 2)
    assert main([str(store), "--source", str(source), "--dataset-kind", KIND, "--quiet"]) == 0
    assert main([str(store), "--source", str(source)]) == 0
    assert "row by row; 2 samples of another program in any order" in capsys.readouterr().out


def test_a_store_inside_its_source(source: Path, tmp_path: Path) -> None:
    """``--pt-root D --zarr-root D/zarr_store``, as published."""
    write_source(tmp_path, SAMPLES)
    assert messages(verify_store(str(foreign_store(tmp_path / "zarr_store", tmp_path)), source=str(tmp_path))) == []


def swap(fields: dict[str, np.ndarray]) -> None:
    fields["surface_pressure"][[0, 1]] = fields["surface_pressure"][[1, 0]]


def differ(fields: dict[str, np.ndarray]) -> None:
    fields["surface_pressure"][5] = 7


def repeat(fields: dict[str, np.ndarray]) -> None:
    for name, values in fields.items():
        if name.startswith("volume"):
            values[3] = values[4]


def negate_zero(fields: dict[str, np.ndarray]) -> None:
    fields["surface_pressure"][fields["surface_pressure"] == 0] = -0.0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (swap, ["run_1: surface: its fields are not aligned: 2 of 70 rows are not in the source"]),
        (differ, ["run_1, surface_pressure: 1 of 70 rows are not in the source, in any order: stored row 5 is [7.0]"]),
        (repeat, [f"run_1, volume_{name}: 1 of 230" for name in ("position", "pressure", "velocity", "vorticity")]),
    ],
)
def test_differences_are_named(source: Path, tmp_path: Path, change: Change, expected: list[str]) -> None:
    found = messages(verify_store(str(foreign_store(tmp_path, source, change)), source=str(source)))
    assert len(found) == len(expected)
    for line, start in zip(sorted(found), expected, strict=True):
        assert line.startswith(start)


def test_a_zero_equals_a_negative_zero(tmp_path: Path) -> None:
    source = write_source(tmp_path / "source", SAMPLES)
    path = source / "run_1" / "surface_pressure.pt"
    torch.save(torch.load(path, weights_only=True).clamp(min=0), path)
    assert messages(verify_store(str(foreign_store(tmp_path / "store", source, negate_zero)), source=str(source))) == []


def test_the_kind_can_be_given_and_must_be_known(source: Path, tmp_path: Path) -> None:
    store = foreign_store(tmp_path / "store", source)
    (tmp_path / "empty").mkdir()
    with pytest.raises(SourceError, match="kind of its source cannot be guessed; give --dataset-kind"):
        verify_store(str(store), source=str(tmp_path / "empty"))
    found = messages(verify_store(str(store), source=str(source), dataset_kind="drivaernet"))
    assert "run_1: cannot be compared: the files that it was made from are not in" in found[0]
    other = write_source(tmp_path / "other", SAMPLES, seed=3)
    shutil.rmtree(other / "run_1")
    report = verify_store(str(store), source=str(other))
    assert "run_1: cannot be compared: the files that it was made from are not in" in messages(report)[0]
    assert "run_2, surface_position: 77 of 77 rows are not in the source" in messages(report)[1]


def test_samples_of_both_programs_in_one_store(source: Path, tmp_path: Path) -> None:
    store = foreign_store(tmp_path / "store", source)
    convert(KIND, store, root=source, sample_ids=["run_2"])
    report = verify_store(str(store), source=str(source))
    assert (messages(report), report.any_order) == ([], 1)


@given(
    st.lists(
        st.tuples(st.sampled_from([0.0, 1.0, 256.0]), st.sampled_from([0.0, 1.0, SPACE])), min_size=1, max_size=12
    ),
    st.randoms(use_true_random=False),
    st.integers(0, 3),
)
@settings(max_examples=60, deadline=None)
def test_rows_are_compared_as_multisets(rows: list[tuple[float, float]], random: Random, changed: int) -> None:
    """Many equal rows, and values that end with bytes of zero or with a space."""
    stored = random.sample(rows, len(rows))
    for _ in range(changed):
        stored[random.randrange(len(rows))] = random.choice(rows)
    comparisons = []
    for column, dtype in enumerate(("float32", "float16")):
        source, kept = (np.array([[row[column]] for row in some], "float32") for some in (rows, stored))
        layout = ArrayLayout(len(rows), 1, len(rows), len(rows), dtype, Codec.parse("none"))
        comparison = UnorderedComparison(source, layout, "")
        comparison.compare(0, kept.astype(dtype))
        comparisons.append(comparison)
    missing = sum((Counter(stored) - Counter(rows)).values())
    expected = f"{missing} of {len(rows)} rows" if missing else ""
    assert _missing_rows(comparisons).startswith(expected)
    assert bool(_missing_rows(comparisons)) == bool(missing)
