"""Properties of the whole code that SECURITY.md states: data never becomes code, servers bind to loopback."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[1]
ROOMS = ("zarr_core", "resources", "assets", "sensors", "benchmarks", "examples", "definitions.py")
# The only exceptions: the demonstration executes the lines that it prints.
ALLOWED = {
    # With StrictLoader, a loader of plain values.
    ("assets/isolation.py", "yaml.load_all"),
    ("examples/demo.py", "exec"),
    # A checkpoint that the recipe wrote itself, in the format of scikit-learn; its README says what not to load.
    ("examples/recipes/scikit_learn/train.py", "joblib.load"),
}


def sources() -> list[Path]:
    found = [path for room in ROOMS for path in (PROJECT / room).rglob("*.py")] + [PROJECT / "definitions.py"]
    return [path for path in found if "data" not in path.parts]


def dangers(tree: ast.AST) -> Iterator[str]:
    """Calls that turn data into code, or hand text to a shell."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        keywords = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
        if name == "torch.load" and keywords.get("weights_only") != "True":
            yield "torch.load without weights_only"
        elif (
            re.fullmatch(r"(c?pickle|dill|marshal|joblib|shelve|cloudpickle)\.(loads?|Unpickler|open)", name)
            or re.fullmatch(r"yaml\.(load|load_all|full_load\w*|unsafe_load\w*)", name)
            or "UnsafeLoader" in name
            or name in ("eval", "exec", "os.system", "os.popen", "builtins.eval", "builtins.exec")
        ):
            yield name
        elif keywords.get("shell", "False") != "False":
            yield "shell"
        elif name in ("np.load", "numpy.load") and keywords.get("allow_pickle", "False") != "False":
            yield "allow_pickle"


def test_data_never_becomes_code() -> None:
    files = sources()
    assert len(files) > 60
    found = {
        (str(path.relative_to(PROJECT)), danger) for path in files for danger in dangers(ast.parse(path.read_text()))
    }
    assert found - ALLOWED == set()


@pytest.mark.parametrize(
    "line",
    [
        "torch.load(f)",
        "torch.load(f, weights_only=False)",
        "pickle.load(f)",
        "pickle.loads(b)",
        "yaml.load(f, L)",
        "eval(x)",
        "exec(x)",
        "os.system(x)",
        "subprocess.run(x, shell=True)",
        "np.load(f, allow_pickle=True)",
    ],
)
def test_the_check_finds_planted_cases(line: str) -> None:
    assert list(dangers(ast.parse(line)))
    assert not list(dangers(ast.parse("torch.load(f, weights_only=True); yaml.safe_load(f); subprocess.run([x])")))


def test_servers_bind_to_loopback() -> None:
    """In the Makefile, the deployment and the tests."""
    recipes = (PROJECT / "Makefile").read_text()
    starts = re.findall(r"^\t.*\b(?:dagster dev|dagster-webserver|dg dev)\b.*$", recipes, re.MULTILINE)
    assert starts
    assert all("--host 127.0.0.1" in line for line in starts)
    texts = [PROJECT / "Makefile", PROJECT / "workspace.yaml", *(PROJECT / "deploy" / "local").rglob("*.yaml")]
    for path in [*texts, *sources(), *(PROJECT / "tests").rglob("*.py")]:
        if path != Path(__file__):
            assert "0.0.0.0" not in path.read_text(), path
