"""Every command that the library prints runs as it is printed, in folders and with names that need quotes."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from zarr_core.platform.sensors.withdrawn import withdrawal

from tests.helpers.described_source import Source
from tests.helpers.small_source import KIND, write_source
from zarr_core import __main__ as command
from zarr_core._util.command_line import VERBS
from zarr_core.benchmark import run_benchmark
from zarr_core.convert import convert
from zarr_core.errors import BatchError, MatrixError, SourceError, StoreError, UnknownFieldError
from zarr_core.matrix import WideMatrix
from zarr_core.matrix.ingest.audit import BatchAudit, check_unchanged
from zarr_core.matrix.ingest.loader import MatrixLoader
from zarr_core.matrix.stage import stage_matrix
from zarr_core.matrix.store.head import HEAD, named
from zarr_core.points.stage.store import stage_store
from zarr_core.points.statistics_files import load_statistics, statistics_hint
from zarr_core.points.store.head import load_manifest
from zarr_core.points.verify.store import verify_store
from zarr_core.shootout.candidates import ENTRIES
from zarr_core.shootout.measurement import Measurement
from zarr_core.shootout.request import ShootoutRequest
from zarr_core.shootout.run import take_workload
from zarr_core.shootout.verdict import Case, judge
from zarr_core.sources.resolve import resolve_kind
from zarr_core.sources.survey import survey
from zarr_core.storage import Storage
from zarr_core.stores.kinds import find_head
from zarr_core.versioning.gc import collect_garbage
from zarr_core.warehouses import DuckDBWarehouse, LongColumns

PROJECT = Path(__file__).resolve().parents[2]
ROOMS = ("zarr_core", "assets", "sensors", "resources")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    folder = tmp_path / "the lab's data"
    folder.mkdir()
    return folder


def commands(text: str) -> list[str]:
    """The commands in a text: between backticks, or from a colon to the end of the line."""
    found = re.findall(r"`(zarr-core [^`]+)`", text)
    for line in re.sub(r"`[^`]*`", "", text).splitlines():
        found += re.findall(r"(?:^|: )(zarr-core .+)$", line)
    return found


def run_all(text: str, expected: int = 1, **words: object) -> None:
    """Run the commands of a text in order; keyword arguments replace words in capitals."""
    found = commands(text)
    assert len(found) == expected, text
    for line in found:
        arguments = [str(words.get(word, word)) for word in shlex.split(line)[1:]]
        assert not [word for word in arguments if re.fullmatch("[A-Z]+", word)], line
        assert command.main(arguments) == 0, line


def described(place: Path) -> Source:
    """A source of a kind that a YAML file describes, and its store."""
    source = Source(place)
    source.write("run_1", "run_2")
    source.convert()
    return source


def wide(place: Path) -> WideMatrix:
    matrix = WideMatrix.create(place / "matrix", ["a", "b"], {"beta": "float32"})
    for batch in ("batch 1", "batch 2"):
        matrix.append(batch, [f"{batch} s1", f"{batch} s2"], {"beta": np.ones((2, 2), np.float32)})
    return matrix


def of_verify(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = described(place)
    (shard,) = (source.store / "samples").glob("run_2/*/surface/temperature/c/0/0")
    shard.write_bytes(shard.read_bytes()[:-9] + b"x" * 9)
    for with_source in ([], ["--source", str(source.root)]):
        assert command.main(["verify", str(source.store), *with_source]) == 1
    text = capsys.readouterr().out
    assert "KIND is the YAML file or the dotted path of the kind 'bodies'" in text
    run_all(text, 2, KIND=source.kind, SOURCE=source.root)
    assert command.main(["verify", str(source.store), "--source", str(source.root)]) == 0


def of_shootout(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = described(place)
    tier = {"name": "t", "url": str(place / "a tier"), "local": True, "inodes_free": 1000}
    chosen = Measurement("t", ENTRIES[0].with_settings("zstd:3", 8), "draws", [5.0])
    (webdataset,) = (entry for entry in ENTRIES if entry.name == "WebDataset")
    exported = Measurement("t", webdataset, "draws", [9.0])
    for number, (root, kind) in enumerate([(source.store, None), (source.root, str(source.kind))]):
        folder = place / f"work {number}"
        folder.mkdir()
        asked = ShootoutRequest(str(root), tier, dataset_kind=kind, num_surface_points=4, num_volume_points=4)
        facts = take_workload(asked, folder).facts
        text = judge(Case([chosen], {"t": tier}, facts, {}, batch_size=8))["command"]
        run_all(text, 1 if kind else 2, KIND=source.kind, SOURCE=source.root)
    pytest.importorskip("webdataset", reason="needs the exports extra")
    tier["url"] = str(place / "another")
    run_all(judge(Case([exported], {"t": tier}, facts, {}, batch_size=8))["command"], 2)


def of_benchmark(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_source(place / "source", ("run_1",))
    convert(KIND, place / "store", root=place / "source")
    found = run_benchmark(
        str(place / "source"),
        str(place / "store"),
        place / "out",
        num_surface_points=4,
        num_volume_points=4,
        repeats=1,
    )
    run_all(found["command"])


def of_inspect(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_source(place / "known", ("run_1",))
    (place / "new" / "a").mkdir(parents=True)
    values = np.random.default_rng(0).random((50, 7), np.float32)
    np.savez(place / "new" / "a" / "fields.npz", xyz=values[:, :3], U=values[:, 3:6], p=values[:, 6])
    assert command.main(["inspect", str(place / "known")]) == 0
    run_all(capsys.readouterr().out, 2, STORE=place / "one")
    assert command.main(["inspect", str(place / "new")]) == 0
    run_all(capsys.readouterr().out)
    assert Path("description.yaml").is_file()
    capsys.readouterr()
    assert command.main(["inspect", str(place / "new"), "--write", str(place / "a description.yaml")]) == 0
    run_all(capsys.readouterr().out, 2, STORE=place / "two")


def of_survey(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = described(place)
    with pytest.raises(SourceError, match="is a store") as raised:
        survey(str(source.store))
    run_all(str(raised.value))
    run_all(survey(str(source.root)).to_yaml())


def of_statistics(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = described(place)
    stage_store(str(source.store), str(place / "a copy"))
    for store in (place / "a copy", source.store):
        storage = Storage(store)
        run_all(statistics_hint(storage, load_manifest(storage)))
        assert load_statistics(Storage(source.store), load_manifest(Storage(source.store)))


def of_verified_statistics(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = str(described(place).store)
    assert command.main(["statistics", store]) == 0
    (Path(store) / "statistics/00000001/all.yaml").write_text("surface_temperature_mean: [")
    (problem,) = verify_store(store).problems
    run_all(str(problem))
    assert verify_store(store).ok


def of_info(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["info", str(described(place).store)]) == 0
    run_all(capsys.readouterr().out)


def of_gc(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = described(place)
    assert command.main(["tag", str(source.store), "paper", "1"]) == 0
    source.write("run_3")
    source.convert()
    storage = Storage(source.store)
    with pytest.raises(StoreError, match="kept by the tag") as raised:
        collect_garbage(storage, find_head(storage), 0, drop=[1])
    run_all(str(raised.value))


def of_append(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    matrix = wide(place)
    matrix.retire(["batch 1 s1"], ["batch 2"])
    for batch in ("batch 1", "batch 2"):
        tables = {"beta": np.ones((2, 2), np.float32)}
        with pytest.raises(MatrixError, match="was retired") as raised:
            matrix.append(batch, [f"{batch} s1", f"{batch} s2"], tables)
        run_all(str(raised.value))
        matrix = WideMatrix.open(matrix.url)
    assert not matrix.retired.sample_ids
    assert not matrix.retired.batches


def of_retire(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["matrix", "retire", wide(place).url, "--batches", "batch 1"]) == 0
    run_all(capsys.readouterr().out)


def of_audit(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    matrix = wide(place)
    changed = BatchAudit("batch 1", 2, absent=["batch 1 s2"])
    audited = patch("zarr_core.matrix.ingest.audit.audit_batches", return_value=[changed])
    with audited, pytest.raises(BatchError, match="replace the batch") as raised:
        check_unchanged(None, matrix, ["batch 1"])  # type: ignore[arg-type]
    run_all(str(raised.value), 2)


def of_loader(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = {"sample_id": ["batch 1 s1"] * 2, "cpg_id": ["a", "b"], "beta": [0.5, 0.5]}
    (place / "batch_id=batch 3").mkdir()
    pq.write_table(pa.table(rows), place / "batch_id=batch 3" / "rows.parquet")
    warehouse = DuckDBWarehouse(f"{place}/*/*.parquet", LongColumns(values={"beta": "beta"}))
    loader = MatrixLoader(warehouse, wide(place))
    with pytest.raises(BatchError, match="the warehouse has it in batch 3 alone") as raised:
        loader.ingest(["batch 3"])
    run_all(str(raised.value), 2)


def of_matrix_stage(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    matrix = wide(place)
    copy = place / "a copy"
    stage_matrix(matrix.url, str(copy), sample_ids=["batch 1 s1"])
    state, whole = WideMatrix.open(copy)._state, matrix._state
    pending = dict.fromkeys(set(named(whole)) - set(named(state)), 1_000_000_000)
    collected = replace(state, retention=replace(state.retention, tombstones=pending))
    Storage(str(copy)).write(HEAD.name, [collected.to_json()])
    with pytest.raises(StoreError, match="pending deletion") as raised:
        stage_matrix(matrix.url, str(copy))
    run_all(str(raised.value))


def of_sample_table(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    matrix = wide(place)
    (place / "table.csv").write_text("sample_id,age\nbatch 1 s1,5\n")
    with pytest.raises(UnknownFieldError, match="no metadata") as raised:
        matrix.samples(columns=["age"])
    run_all(str(raised.value), TABLE=place / "table.csv")
    assert WideMatrix.open(matrix.url).samples(columns=["age"]) is not None


def of_withdrawn(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    matrix = wide(place)
    run_all(withdrawal(matrix.url, ["batch 1"], ["batch 2 s1"]))
    assert WideMatrix.open(matrix.url).sample_ids == ["batch 2 s2"]


#: By the module that prints them.
def of_generations(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(StoreError, match="lists them") as raised:
        load_manifest(Storage(described(place).store), 9)
    run_all(str(raised.value))


def of_selection(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SourceError, match="what it could be") as raised:
        convert("drivaernet", place / "new", root=described(place).root)
    run_all(str(raised.value))


def of_resolve(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SourceError, match="describes the samples") as raised:
        resolve_kind(str(place / "a kind.yaml"))
    run_all(str(raised.value), FOLDER=described(place).root)


PRINTED: dict[str, Callable[[Path, Any], None]] = {
    "sensors/withdrawn.py": of_withdrawn,
    "zarr_core/benchmark/measure.py": of_benchmark,
    "zarr_core/info.py": of_info,
    "zarr_core/inspect.py": of_inspect,
    "zarr_core/matrix/__main__.py": of_retire,
    "zarr_core/matrix/ingest/append.py": of_append,
    "zarr_core/matrix/ingest/audit.py": of_audit,
    "zarr_core/matrix/ingest/loader.py": of_loader,
    "zarr_core/matrix/store/sample_table.py": of_sample_table,
    "zarr_core/matrix/stage.py": of_matrix_stage,
    "zarr_core/points/statistics_files.py": of_statistics,
    "zarr_core/points/verify/statistics.py": of_verified_statistics,
    "zarr_core/shootout/verdict.py": of_shootout,
    "zarr_core/sources/resolve.py": of_resolve,
    "zarr_core/sources/selection.py": of_selection,
    "zarr_core/sources/survey.py": of_survey,
    "zarr_core/verify.py": of_verify,
    "zarr_core/versioning/gc.py": of_gc,
    "zarr_core/versioning/generations.py": of_generations,
}


@pytest.mark.slow
@pytest.mark.parametrize("module", PRINTED)
def test_a_printed_command_runs(
    module: str, place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    PRINTED[module](place, capsys)


@cache
def modules() -> dict[str, ast.Module]:
    """Every module of the platform and the library, by its path."""
    paths = [path for room in ROOMS for path in (PROJECT / room).rglob("*.py")]
    return {path.relative_to(PROJECT).as_posix(): ast.parse(path.read_text()) for path in paths}


def literals(tree: ast.AST) -> list[str]:
    """Texts of a module that are neither docstrings nor help of the command line."""
    skipped: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            skipped.add(node.value)
        if isinstance(node, ast.keyword) and node.arg == "usage":
            skipped.update(ast.walk(node.value))
        if isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) == "verb":
            skipped.update(ast.walk(node))
    return [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in skipped
    ]


@pytest.mark.slow
def test_every_module_that_prints_a_command_is_tested() -> None:
    """Commands are made by ``shell``, so that they are quoted, and a test runs them."""
    verb = re.compile(rf"zarr-core ({'|'.join(VERBS)})\b")
    found, typed = set(), []
    for name, tree in modules().items():
        if name == "zarr_core/__main__.py":  # tests/cli/test_command.py runs the lines of the first hour
            continue
        typed += [f"{name}: {text}" for text in literals(tree) if verb.search(text)]
        if any(isinstance(node, ast.Name) and node.id == "shell" for node in ast.walk(tree)):
            found.add(name)
    assert found == PRINTED.keys()
    assert typed == []


@pytest.mark.slow
def test_options_that_an_error_names_are_taken(place: Path) -> None:
    """Each follows the command that failed."""
    source = Source(place)
    source.write("a", low=1e6)
    line = ["convert", str(source.store), "--source", str(source.root), "--dataset-kind", str(source.kind)]
    (refused,) = convert(str(source.kind), source.store, root=source.root).having("quarantined")
    (options,) = re.findall(r"use (--field-dtype \S+ --reconvert)", refused.reason)
    assert command.main([*line, *shlex.split(options)]) == 0
    known = {name for verb in VERBS for name in _options(command.app[verb])}
    for name, tree in modules().items():
        for text in literals(tree):
            for option in re.findall(r"(?<![\w-])--[a-z-]*[a-z](?=[ ,:;)(=]|$)", text):
                assert option in known | OTHERS, f"{name}: {text}"


def _options(app: Any) -> set[str]:
    apps = [app, *(app[name] for name in app if not name.startswith("-"))]
    found: set[str] = {"--help"}
    for each in apps:
        for argument in each.assemble_argument_collection() if each.default_command else ():
            found.update(argument.names)
        if each is not app:
            found |= _options(each)
    return found


#: Options of the command itself, and of other programs.
OTHERS = {"--version", "--array", "--every"}
