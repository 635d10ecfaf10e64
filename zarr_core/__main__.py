"""The command line, ``zarr-core`` or ``python -m zarr_core``: one application of all verbs."""

from __future__ import annotations

from importlib.metadata import version

from zarr_core._util.command_line import VERBS, application, program

_MODULES = {
    "benchmark": "zarr_core.benchmark.__main__",
    "export": "zarr_core.exports.__main__",
    "first-step": "zarr_core.first_step",
    "matrix": "zarr_core.matrix.__main__",
    "platform": "zarr_core.platform.__main__",
    "shootout": "zarr_core.shootout.__main__",
    "quality": "zarr_core.matrix.quality.__main__",
}
_EPILOGUE = """\
`zarr-core VERB --help` shows the options and examples of a verb. STORE is a local path, or a URL as in
s3://bucket/store. Exit status: 0 everything requested is there, 1 something was refused or failed, 2 wrong use,
130 interrupted.
"""
#: A test runs these lines.
_FIRST_HOUR = """\
The first hour, with a folder DATA of samples and a STORE to be made of them:

  describe DATA  zarr-core inspect DATA --write kind.yaml
  make a store   zarr-core convert STORE --source DATA --dataset-kind kind.yaml
  look at it     zarr-core info STORE
  check it       zarr-core verify STORE --source DATA
  train on it    zarr-core first-step STORE

`zarr-core --help` lists all commands."""

app = application(
    "zarr-core",
    "Sharded, pre-shuffled Zarr stores for machine learning.",
    _EPILOGUE,
    "Usage: zarr-core VERB STORE [OPTIONS]",
)
app.version = lambda: version("zarr-core")
app.version_flags = ("--version",)
app.register_install_completion_command(help="Install completion for your shell (bash, zsh, fish or PowerShell).")
for _order, (_verb, _help) in enumerate(VERBS.items()):
    # The import path defers the import of a verb until it is used: `zarr-core --help` imports neither torch nor zarr.
    app.command(f"{_MODULES.get(_verb, f'zarr_core.{_verb}')}:app", name=_verb, help=_help, sort_key=_order)


main = program(app, __name__, _FIRST_HOUR)
