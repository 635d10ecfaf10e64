"""Every argument, flag and alias of the command line: scripts use them, so none may disappear or change its default."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from zarr_core.__main__ import app

# Made by `python -m tests.cli.test_flags`. A difference between commits may only add lines.
RECORDED = Path(__file__).with_name("flags.txt")


def arguments(command: Any, verb: str) -> Iterator[str]:
    """One line for each argument of a verb and its subcommands: names, then whether it is required or its default."""
    if command.default_command is not None:
        for argument in command.assemble_argument_collection():
            default = "required" if argument.required else argument.field_info.default
            yield f"{verb} {' '.join(argument.names)} = {default}"
    for name in sorted(set(command) - {*command.help_flags, *command.version_flags}):
        yield from arguments(command[name], f"{verb} {name}".strip())


def test_no_flag_or_alias_disappears_or_changes_its_default() -> None:
    assert set(RECORDED.read_text().splitlines()) - set(arguments(app, "")) == set()


if __name__ == "__main__":
    RECORDED.write_text("".join(f"{line}\n" for line in arguments(app, "")))
