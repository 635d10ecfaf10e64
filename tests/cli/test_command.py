"""The command ``zarr-core``: one grammar for all verbs, old spellings, output, errors and exit status."""

from __future__ import annotations

import json
import os
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from cyclopts import App

from tests.helpers import fork_server
from tests.helpers.small_source import write_source
from zarr_core import __main__ as command
from zarr_core._util.command_line import VERBS
from zarr_core.convert import convert
from zarr_core.matrix import WideMatrix

PROJECT = Path(__file__).resolve().parents[2]
DOCUMENTS = [PROJECT / "README.md", *sorted((PROJECT / "docs").rglob("*.md"))]
#: Deprecated spellings, kept for existing scripts.
OLD = {"--root", "--pt-root", "--source-url", "--zarr-root", "--splits"}
KIND = "drivaernet"
SPLIT_LISTS = {"train": "run_1\nrun_2\n", "val": "run_3\n", "test": ""}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a source, a store that was converted and tagged, and a matrix."""
    root = tmp_path_factory.mktemp("cli")
    write_source(root / "source", kind=KIND)
    for split, ids in SPLIT_LISTS.items():
        (root / "source" / f"{split}_design_ids.txt").write_text(ids)
    arguments = ["--source", str(root / "source"), "--dataset-kind", KIND, "--chunk-points", "32", "--quiet"]
    assert command.main(["convert", str(root / "store"), *arguments]) == 0
    assert command.main(["tag", str(root / "store"), "first", "--quiet"]) == 0
    matrix = WideMatrix.create(root / "matrix", ["a", "b", "c"], {"beta": "float32"})
    matrix.append("one", ["s1", "s2"], {"beta": np.zeros((2, 3), np.float32)})
    return root


def parse(line: str) -> tuple[str, dict[str, Any]]:
    """Module and arguments of the function that a command line calls."""
    function, bound, _ = command.app.parse_args(shlex.split(line), exit_on_error=False, print_error=False)
    return function.__module__, {name: value for name, value in bound.arguments.items() if value is not None}


def as_tokens(line: str) -> str:
    """The arguments of ``zarr-core`` in a documented line: without comment, pipe and program name."""
    words = shlex.split(re.sub(r"^(\w+=\S+ )*(uv run )?", "", line.partition(" | ")[0]), comments=True)
    if words[:2] == ["python", "-m"]:
        module = words[2].removeprefix("noether.data.zarr_store").removeprefix("zarr_core")
        words = ["python", *([] if not module else [module.rpartition(".")[2]]), *words[3:]]
    return shlex.join(words[1:])


def commands(verb: str) -> list[App]:
    """The commands of a verb: itself, and those below it, such as the formats of ``export``."""
    found, waiting = [], [command.app[verb]]
    while waiting:
        app = waiting.pop()
        found += [app] if app.default_command else []
        waiting += [app[name] for name in app if not name.startswith("-")]
    return found


@pytest.mark.parametrize(
    ("verb", "today", "older"),
    [
        (
            "convert",
            "convert S --source /p --dataset-kind k --split train val test --chunk-points 16384 --workers 16",
            [
                "--dataset-kind k --root /p --output S --splits train val test --chunk-points 16384 --workers 16",
                "--dataset-kind=k --pt-root=/p --store=S --split train --split val --splits test"
                " --chunk-points=16384 --workers=16",
            ],
        ),
        (
            "statistics",
            "statistics S --split-file f --workers 8 --read-concurrency 4 --output-json stats.json",
            ["--store S --split-file f --workers 8 --read-concurrency 4 --output-json stats.json"],
        ),
        ("statistics", "statistics S --split train --recompute", ["--store S --split train --recompute"]),
        (
            "verify",
            "verify S --source P --samples a b --workers 2",
            [
                "S --source P --samples a b --workers 2",
                "S --root P --samples a --samples b --workers 2",
                "--store S --pt-root P --samples a b --workers 2",
                "S --source-url P --samples a b --workers 2",
            ],
        ),
        (
            "benchmark",
            "benchmark S --source P --limit 4",
            ["--pt-root P --zarr-root S --samples 4", "S --root P --limit 4", "--store S --source-url P --limit 4"],
        ),
        ("log", "log S --limit 3 --all", ["--store S --limit 3 --all"]),
        ("diff", "diff S 3 paper", ["--store S --before 3 --after paper", "S 3 --after paper"]),
        ("tag", "tag S paper 7", ["--store S --name paper --generation 7", "S paper --generation 7"]),
        ("gc", "gc S --dry-run --grace 90m --all", ["--store S --dry-run --grace 90m --all"]),
        ("info", "info S run_1 --generation 2", ["--store S --sample run_1 --generation 2"]),
        ("matrix", "matrix S --derive-columns", ["--store S --derive-columns"]),
        ("quality", "quality S --output D --generation 2", ["--store S --output D --generation 2"]),
    ],
)
def test_older_spellings_mean_the_same(verb: str, today: str, older: list[str]) -> None:
    for spelling in older:
        assert parse(f"{verb} {spelling}") == parse(today)


def test_values_arrive_with_their_types() -> None:
    _, arguments = parse("convert S --source P --dataset-kind k --split train val --shuffle-seed -1 --field-dtype a=b")
    assert (arguments["split"], arguments["shuffle_seed"], arguments["field_dtype"]) == (["train", "val"], -1, ["a=b"])
    assert parse("diff S 3 paper-v2")[1] == {"store": "S", "before": 3, "after": "paper-v2"}


def test_every_verb_takes_the_store_first() -> None:
    for verb in VERBS:
        if verb in ("inspect", "platform"):  # a folder that is to become a store, or a project
            continue
        for app in commands(verb):
            first = next(iter(app.assemble_argument_collection()))
            assert first.field_info.name == "store", verb
            assert "--store" in first.names, verb


def test_one_thing_has_one_name() -> None:
    helps: dict[str, dict[str, str]] = {}
    names: dict[str, dict[str, str]] = {}
    for verb in VERBS:
        for argument in chain(*(app.assemble_argument_collection() for app in commands(verb))):
            option = f"--{argument.field_info.name.replace('_', '-')}"
            assert option in argument.names, "the first spelling is the name of the Python argument"
            assert not (option in OLD and argument.show), f"{verb}: {option} is an older spelling"
            helps.setdefault(option, {})[verb] = argument.parameter.help or ""
            names.setdefault(argument.parameter.help or "", {})[verb] = option
    for option in ("--samples", "--generation", "--workers", "--quiet", "--json", "--all"):
        different = {text for verb, text in helps[option].items() if (verb, option) != ("tag", "--generation")}
        assert len(different) == 1, f"{option}: {different}"
    for text, options in names.items():
        assert not text or len(set(options.values())) == 1, f"{text}: {options}"


@pytest.mark.slow
@pytest.mark.parametrize("verb", VERBS)
def test_help_has_examples_that_are_valid(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main([verb, "--help"]) == 0
    assert VERBS[verb] in " ".join(re.sub("[│╭╰─╮╯]", "", capsys.readouterr().out).split())
    epilogue = command.app[verb].help_epilogue
    assert epilogue is not None
    examples = [line for line in epilogue.splitlines() if line.startswith("  ")]
    assert examples
    modules = {app.default_command.__module__ for app in commands(verb) if app.default_command}
    assert {parse(as_tokens(line.strip()))[0] for line in examples} == modules


def documented_lines() -> Iterator[tuple[str, str]]:
    for document in DOCUMENTS:
        for block in re.findall(r"```\w*\n(.*?)```", document.read_text(), flags=re.DOTALL):
            for line in block.replace("\\\n", " ").splitlines():
                if line.startswith(("zarr-core ", "python -m zarr_core")):
                    yield document.name, line


def test_documented_lines_are_valid() -> None:
    lines = list(documented_lines())
    assert {"README.md", "cache.md", "command_line.md", "datasets.md", "generations.md"} <= {name for name, _ in lines}
    for name, line in lines:
        try:
            parse(as_tokens(line))
        except Exception as error:
            raise AssertionError(f"{name}: {line}") from error


def run(*words: str, cwd: Path = PROJECT) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(PROJECT)}
    return subprocess.run(words, capture_output=True, text=True, cwd=cwd, env=environment, check=False)


def run_module(line: str, folder: Path) -> None:
    """Run ``python -m`` with this line in this process."""
    os.chdir(folder)
    sys.argv[1:] = line.split()[1:]
    runpy.run_module(line.split()[0], run_name="__main__", alter_sys=True)


@pytest.mark.slow
def test_the_lines_of_the_published_converter_work(place: Path, tmp_path: Path) -> None:
    """Word for word, apart from names of modules and places."""
    source, store = str(place / "source"), str(tmp_path / "store")
    lines = [
        f"zarr_core.convert --dataset-kind {KIND} --root {source} --output {store} --splits train val test "
        "--chunk-points 16384 --workers 2",
        f"zarr_core.statistics --store {store} --split-file train_design_ids.txt --workers 8 --read-concurrency 4 "
        "--output-json stats.json",
        f"zarr_core.benchmark --pt-root {source} --zarr-root {store}",
    ]
    done = run(sys.executable, "-m", *lines[0].split(), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for line in lines[1:]:
        process = fork_server.start(run_module, line, tmp_path)
        process.join()
        assert process.exitcode == 0, line
    assert json.loads((tmp_path / "stats.json").read_text())["surface_pressure_count"] == 147
    assert (tmp_path / "benchmark-report" / "report.html").exists()


def test_json_is_one_document(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store, source, copy = str(place / "store"), str(place / "source"), str(tmp_path / "copy")
    documents = {}
    for line in (
        f"convert {copy} --source {source} --dataset-kind {KIND}",
        f"verify {copy} --source {source}",
        f"stage {tmp_path / 'staged'} --source {store} --split train",
        f"statistics {tmp_path / 'staged'}",
        f"info {store}",
        f"log {store}",
        f"diff {store} 1",
        f"tag {copy} mine",
        f"gc {copy} --dry-run",
        f"matrix {place / 'matrix'} --derive-columns",
    ):
        capsys.readouterr()
        assert command.main([*line.split(), "--json"]) == 0
        documents[line.split()[0]] = json.loads(capsys.readouterr().out)
    assert documents["convert"]["converted"] == ["run_1", "run_2", "run_3"]
    assert documents["verify"]["ok"] is True
    assert documents["verify"]["fields"]["surface_pressure"]["samples"] == 3
    assert documents["stage"]["staged"] == ["run_1", "run_2"]
    assert documents["statistics"]["statistics"]["surface_pressure_count"] == 147
    assert documents["info"]["fields"]["volume_velocity"] == {"dtype": "float16", "components": 3, "units": ""}
    assert documents["log"]["commits"][0]["tags"] == ["first"]
    assert documents["diff"] == {"store": store, "before": 1, "after": 1, "changes": []}
    assert documents["tag"]["tags"] == {"mine": 1}
    assert documents["gc"]["kept_generations"] == [1]
    assert documents["matrix"]["derived"] == ["one"]


def test_quiet_prints_nothing(place: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    line = f"stage {place / 'store'} {tmp_path / 'copy'} --quiet"
    assert command.main(line.split()) == 0
    assert capfd.readouterr() == ("", "")
    assert (tmp_path / "copy" / "manifest.json").exists()


@pytest.mark.parametrize(
    ("line", "status", "message"),
    [
        ("info {place}/nothing", 1, "holds no manifest.json or HEAD.json"),
        ("info {place}/store run_9", 1, "holds no sample 'run_9'"),
        ("statistics {place}/store --split nonsense", 1, "no split 'nonsense'"),
        ("verify {place}/matrix --source {place}/source", 1, "is a matrix"),
        ("convert {place}/other --source {place}/nowhere --dataset-kind ahmedml", 1, "is not a folder"),
        ("log", 2, "requires an argument"),
        ("log {place}/store --limit 1.5", 2, "1.5"),
        ("log {place}/store --limt 1", 2, "--limit"),
        ("lgo {place}/store", 2, "lgo"),
        ("info {place}/store run 3", 2, "does not take: ['3']"),
        ("convert {place}/other --dataset-kind ahmedml", 2, "needs one --source"),
        ("stage {place}/store", 2, "needs one STORE and one --source"),
        ("tag {place}/store --delete", 2, "NAME"),
        ("convert S --source P --dataset-kind k --split", 2, "--split"),
        ("convert S --source P --dataset-kind k --values-dtype int8", 2, "float16"),
    ],
)
def test_known_errors_are_one_line_and_a_status(
    place: Path, line: str, status: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(line.format(place=place).split()) == status
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1
    assert message in captured.err


def test_interrupted(place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("zarr_core.log.commits", interrupt)
    assert command.main(["log", str(place / "store")]) == 130
    assert "interrupted" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("line", ["", "log {place}/store", "--version", "--help", "log --help"])
def test_a_reader_that_stops_reading_is_no_error(place: Path, line: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    line = [sys.executable, "-m", "zarr_core", *line.format(place=place).split()]
    done = subprocess.run(line, stdout=writing, stderr=subprocess.PIPE, cwd=PROJECT, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")


def test_help_imports_neither_torch_nor_zarr() -> None:
    code = "import sys\nfrom zarr_core.__main__ import main\nassert main(['--help']) == 0\n"
    code += "print('imported:', [m for m in ('torch', 'zarr', 'numpy', 'zarr_core.points') if m in sys.modules])"
    done = run(sys.executable, "-c", code)
    assert done.stdout.splitlines()[-1] == "imported: []"
    assert all(verb in done.stdout for verb in VERBS)


def test_without_arguments_it_shows_the_commands_of_the_first_hour_which_run_in_this_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main([]) == 0
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) < 80
    lines = re.findall(r"^  .*  zarr-core (.*)$", shown, re.MULTILINE)
    assert [line.split()[0] for line in lines] == ["inspect", "convert", "info", "verify", "first-step"]
    write_source(tmp_path / "DATA", kind=KIND)
    monkeypatch.chdir(tmp_path)
    for line in lines:
        assert command.main(line.split()) == 0, line
    (rest,) = re.findall("`zarr-core (--help)` lists all commands", shown)
    assert command.main([rest]) == 0


def test_completion_knows_verbs_and_options() -> None:
    for shell in ("bash", "zsh", "fish"):
        script = command.app.generate_completion(shell=shell)  # type: ignore[arg-type]
        assert all(word in script for word in (*VERBS, "chunk-points", "derive-columns"))


def test_info_of_a_store(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["info", str(place / "store"), "--generation", "first"]) == 0
    text = capsys.readouterr().out
    for part in (
        "point store of drivaernet",
        "1, committed 20",
        "first (generation 1)",
        "train (2), val (1), test (0)",
        "surface: 70 to 84 per sample, 231 in all",
        "codec none",
        "chunk_points 32",
        "statistics  written 20",
        "surface_position  float32           3",
    ):
        assert part in text
    assert command.main(["info", str(place / "store"), "run_2"]) == 0
    text = capsys.readouterr().out
    assert re.search(r"surface_friction +float16 +77 +3 +32 +96", text)
    assert re.search(r"splits +train", text)
    assert re.search(r"fingerprint [0-9a-f]{16}\nsource +run_2: \S+\.pt, ", text)


def test_an_age_is_not_negative_if_the_clock_of_the_store_is_ahead(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("zarr_core.stores.summary.time", SimpleNamespace(time=lambda: 0.0))
    assert command.main(["info", str(place / "store")]) == 0
    assert re.search(r"statistics  written [-\d]+ [:\d]+ UTC, 0 s ago", capsys.readouterr().out)


def test_info_names_retired_samples_and_batches(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write_source(tmp_path / "source", kind=KIND)
    line = ["convert", str(tmp_path / "store"), "--source", str(source), "--dataset-kind", KIND, "--retire-vanished"]
    assert command.main(line) == 0
    (source / "run_2").rename(tmp_path / "run_2")
    assert command.main(line) == 0
    matrix = WideMatrix.create(tmp_path / "matrix", ["a", "b", "c"], {"beta": "float32"})
    for batch, samples in {"one": ["s1", "s2"], "two": ["s3"]}.items():
        matrix.append(batch, samples, {"beta": np.zeros((len(samples), 3), np.float32)})
    matrix.retire(sample_ids=["s1"], batch_ids=["two"])
    capsys.readouterr()
    for store, expected in {"store": "1 sample: run_2", "matrix": "1 sample: s1; batches: two (1 sample)"}.items():
        assert command.main(["info", str(tmp_path / store)]) == 0
        assert f"retired     {expected}\n" in capsys.readouterr().out
    for store, sample, generation in (("store", "run_2", 2), ("matrix", "s1", 4)):
        assert command.main(["info", str(tmp_path / store), sample]) == 1
        error = capsys.readouterr().err
        assert f"holds no sample '{sample}'; it was retired in generation {generation}\n" in error
    assert command.main([*line, "--reconvert", "--chunk-points", "32"]) == 0
    for generation in ("2", "3"):
        (tmp_path / "store" / "generations" / f"{generation:0>8}.json").unlink()  # as after gc
    capsys.readouterr()
    assert command.main(["info", str(tmp_path / "store"), "run_2"]) == 1
    assert "holds no sample 'run_2'; it was retired after generation 1 and by generation 4\n" in capsys.readouterr().err
    (tmp_path / "run_2").rename(source / "run_2")
    assert command.main([*line, "--quiet"]) == 0
    assert command.main(["info", str(tmp_path / "store"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["retired"] == []


def test_info_of_a_matrix(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["info", str(place / "matrix")]) == 0
    text = capsys.readouterr().out
    assert "wide matrix" in text
    assert "one (2)" in text
    assert "x 3 features" in text
    assert command.main(["info", str(place / "matrix"), "s2"]) == 0
    assert "one, row 1" in capsys.readouterr().out


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("url", ["s3://KEY:hunter2hunter2@bucket/x", "https://h/x?sig=hunter2hunter2"])
def test_no_verb_takes_or_prints_a_url_with_credentials(
    verb: str, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments in (
        [url],
        ["store", "--source", url],
        ["store", f"--scheduler={url}"],
        ["store", f"--tiers=a={url}"],
    ):
        assert command.main([verb, *arguments]) == 1
        printed = capsys.readouterr()
        assert "environment variables" in printed.err
        assert "hunter2" not in printed.err + printed.out


def test_names_in_a_store_do_not_control_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write_source(tmp_path / "source", sample_ids=("run_1",))
    convert("ahmedml", tmp_path / "store", root=source, dataset_name="\x1b[2J\x9b31mevil\u202e")
    for verb in ("info", "log", "verify", "tag", "statistics"):
        command.main([verb, str(tmp_path / "store")])
        command.main([verb, str(tmp_path / "store\x1b[2J")])
        printed = capsys.readouterr()
        assert not set("\x1b\x9b\u202e") & set(printed.out + printed.err)
    assert command.main(["info", str(tmp_path / "store")]) == 0
    assert r"\x1b[2J\x9b31mevil\u202e" in capsys.readouterr().out
