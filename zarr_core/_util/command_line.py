"""Parts that all verbs of the command line share: options of one meaning, output, errors and exit status."""

from __future__ import annotations

import inspect
import json
import os
import re
import sys
import warnings
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial, wraps
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from cyclopts import App, CycloptsError, Parameter, validators

from zarr_core._util.ending import interrupted_by_signals, lasting_stderr
from zarr_core._util.redaction import redact, refuse_credentials
from zarr_core.errors import ZarrCoreError

# Exit status of every verb.
DONE = 0  # everything that was requested is there
FAILED = 1  # something was refused or failed
WRONG_USE = 2
INTERRUPTED = 130

#: The verbs of ``zarr-core`` in the order of its help, with one line of help each.
VERBS = {
    "inspect": "Look at a folder of unknown files: what it could be, and a description to start from.",
    "convert": "Convert a dataset of .pt files, or of files that solvers write, to a store.",
    "first-step": "Train a few steps on a point store, to see that it can be trained from.",
    "statistics": "Write the normalization statistics of a store.",
    "verify": "Check a store, and compare its rows with their source.",
    "benchmark": "Compare a store with its source: equality, bytes read, samples per second.",
    "shootout": "Measure formats, settings and storage with your data, and recommend one.",
    "stage": "Copy a store, or the part of it that a training run reads, to fast storage.",
    "export": "Write a store in another format: WebDataset shards; a matrix as NumPy, Parquet or AnnData; Croissant.",
    "info": "Show what a store or one of its samples holds.",
    "log": "List the commits of a store, newest first.",
    "diff": "Show the differences between two generations of a store.",
    "tag": "Name a generation, so that it is kept; list or delete such tags.",
    "gc": "Remove old generations, and everything that no kept generation names.",
    "matrix": "Create, load, show, complete, copy or export a wide matrix, or retire samples.",
    "quality": "Write a quality report of a wide matrix.",
    "platform": "Create a Dagster project that converts what arrives.",
}


# Control characters except tabs and line ends, separators of lines, marks of direction, and halves of characters.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


class WrongUseError(Exception):
    """A combination of arguments makes no sense."""


def _whole_number(_: Any, tokens: Sequence[Any]) -> int:
    # The default of cyclopts rounds 1.5 to 2.
    return int(tokens[0].value)


def _generation(_: Any, tokens: Sequence[Any]) -> int | str:
    """A generation as one types it: its number, or a tag, which begins with a letter."""
    text = tokens[0].value
    return int(text) if text.isdigit() else text


def option(text: str, *aliases: str, metavar: str | None = None, several: bool = False) -> Parameter:
    """An option of a verb, with its help and the spellings of earlier versions.

    It may take several values, as in ``--fields a b``; an option of pairs, whose metavar is like NAME=DTYPE, does.
    """
    several = several or "=" in (metavar or "")
    return Parameter(
        alias=aliases,
        help=text,
        metavar=f"{metavar}..." if metavar and several else metavar,
        negative=(),
        consume_multiple=1 if several else None,
    )


def number(text: str, *aliases: str, least: int | None = 1) -> Parameter:
    """An option whose value is a whole number of at least ``least``."""
    return Parameter(
        alias=aliases, help=text, metavar="N", converter=_whole_number, validator=validators.Number(gte=least)
    )


def flag(text: str) -> Parameter:
    """An option without a value."""
    return Parameter(help=text, negative=(), show_default=False)


def generation_parameter(text: str) -> Parameter:
    """A generation by number or tag."""
    return Parameter(help=text, converter=_generation, metavar="GENERATION")


STORE_HELP = "Path or URL of the store."
KIND_HELP = (
    "Kind of the source, as for convert: to compare the parameters of a kind of your own, and for a store that another "
    "program wrote. [default: that of the store if it comes with the library, else guessed]"
)
_FEATURES_HELP = "The features: the names in a .parquet, .csv, .tsv or .bed file, or the words of a text file."
SOURCE_ALIASES = ("--root", "--pt-root", "--source-url")

Store = Annotated[str, option(STORE_HELP)]
Split = Annotated[str | None, option("Only the samples of this split.")]
Splits = Annotated[
    list[str] | None,
    option("Only the samples of these splits. [default: all samples]", "--splits", several=True),
]
Samples = Annotated[list[str] | None, option("Only these samples.", metavar="ID", several=True)]
Generation = Annotated[
    int | str | None, generation_parameter("Read this generation: a number or a tag. [default: the current one]")
]
Workers = Annotated[int, number("Worker processes.")]
Scheduler = Annotated[
    str | None,
    option("Use the workers of a Dask cluster: address of its scheduler, as tcp://host:8786.", metavar="ADDRESS"),
]
Values = Annotated[list[str] | None, option("Only these value tables.", metavar="NAME", several=True)]
Fields = Annotated[
    list[str] | None, option("Only these fields, or value tables of a matrix.", metavar="FIELD", several=True)
]
Features = Annotated[str, option(_FEATURES_HELP, metavar="FILE")]
ChosenFeatures = Annotated[str | None, option(f"{_FEATURES_HELP} [default: those of STORE]", metavar="FILE")]
Seed = Annotated[int, number("Seed of the draws and of the order.", least=None)]
Check = Annotated[bool, flag("Read existing objects again instead of comparing their sizes only.")]
All = Annotated[bool, flag("List all names instead of the first few.")]
Quiet = Annotated[bool, flag("Print neither progress nor a summary. Warnings and errors still go to stderr.")]
Json = Annotated[bool, flag("Print one JSON document to stdout instead of text.")]

#: Options that mean the same in all verbs, by the argument of the library: its name on the command line, and its type.
_SHARED: dict[str, tuple[str, Any]] = {
    "split": ("split", Split),
    "splits": ("split", Splits),
    "sample_ids": ("samples", Samples),
    "fields": ("fields", Fields),
    "generation": ("generation", Generation),
    "seed": ("seed", Seed),
    "check": ("check", Check),
    "workers": ("workers", Workers),
    "executor": ("scheduler", Scheduler),
    "progress": ("quiet", Quiet),
}


@dataclass(frozen=True)
class Result:
    """What a command has to say.

    Attributes:
        text: printed as it is.
        document: printed as JSON instead with ``--json``: mappings, sequences, dataclasses and plain values.
        problems: printed to stderr with ``--quiet``.
        ok: whether everything requested is there; the exit status says it, too.
    """

    text: str
    document: Any
    problems: Sequence[object] = ()
    ok: bool = True


def command(
    function: Callable[..., Any] | None = None,
    *,
    settings: type | None = None,
    without: Collection[str] = (),
    quiet: bool = True,
) -> Callable[[Callable[..., Result]], Callable[..., int]]:
    """Make a function a command, whose result is printed as ``--json`` and ``--quiet`` ask for.

    Args:
        function: of the library, which the command calls with its ``**arguments``. The command gets options for the
            keyword arguments of the function that it does not declare itself, with their names, types, defaults and
            descriptions.
        settings: a class whose fields become options, too. They are None if they are not given: a store has its own.
        without: arguments and settings that get no option.
        quiet: whether there is a ``--quiet``.
    """

    def decorate(run_command: Callable[..., Result]) -> Callable[..., int]:
        own = dict(inspect.signature(run_command, eval_str=True).parameters)
        fed: dict[str, inspect.Parameter] = {}
        if function is not None:
            del own["arguments"]
            fed = _options(function, {*own, *without})
        if settings is not None:
            fed |= _settings_options(settings, without)
        takes_progress = fed.pop("progress", None) is not None
        argument_of = {option.name: argument for argument, option in fed.items()}
        options = [*own.values(), *fed.values()]
        if quiet and "quiet" not in own:
            options.append(_keyword("quiet", Quiet, False))
        options.append(_keyword("json", Json, False))

        @wraps(run_command)
        def run_and_show(*positional: Any, json: bool = False, quiet: bool = False, **given: Any) -> int:
            arguments = {argument_of.get(name, name): value for name, value in given.items()}
            if takes_progress:
                arguments["progress"] = not quiet
            if "quiet" in own:
                arguments["quiet"] = quiet
            with ExitStack() as cleanup:
                if "executor" in arguments:
                    from zarr_core._util.dask_cluster import dask_executor

                    arguments["executor"] = cleanup.enter_context(dask_executor(arguments["executor"]))
                result = run_command(*positional, **arguments)
            if json:
                print_json(result.document)
            elif quiet:
                for problem in result.problems:
                    print(printable(str(problem)), file=sys.stderr)
            elif result.text:
                write_line(result.text)
            return DONE if result.ok else FAILED

        run_and_show.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
        run_and_show.__annotations__ = {}  # cyclopts takes those of the signature
        return run_and_show

    return decorate


def _options(function: Callable[..., Any], without: Collection[str]) -> dict[str, inspect.Parameter]:
    """The options for the keyword arguments of a function, by argument."""
    parameters = inspect.signature(function).parameters.values()
    hints, helps = get_type_hints(function), _descriptions(function)
    options = {}
    for parameter in parameters:
        name, hint = _SHARED.get(parameter.name, (parameter.name, None))
        if parameter.kind is parameter.KEYWORD_ONLY and name not in without:
            if hint is None:
                hint = _option_type(name, hints[parameter.name], parameter.default, helps.get(name, ""))
            options[parameter.name] = _keyword(name, hint, parameter.default)
    return options


def _settings_options(settings: type, without: Collection[str]) -> dict[str, inspect.Parameter]:
    """The options for the fields of a class of settings, which checks their values."""
    helps = _descriptions(settings)
    options = {}
    for name, parameter in inspect.signature(settings).parameters.items():
        if name in without:
            continue
        text = helps.get(name, "")
        if parameter.default is not None:
            text += f" [default of a new store: {parameter.default}]"
        whole = parameter.default is None or isinstance(parameter.default, int)
        hint = Annotated[int | None, number(text, least=None)] if whole else Annotated[str | None, option(text)]
        options[name] = _keyword(name, hint, None)
    return options


def _descriptions(function: Callable[..., Any]) -> dict[str, str]:
    """What a docstring says of each argument or attribute, as help of an option; nothing under ``python -OO``."""
    from docstring_parser import parse

    described = parse(function.__doc__ or "").params
    return {argument.arg_name: _option_help(argument.description or "") for argument in described}


def _option_type(name: str, hint: Any, default: Any, text: str) -> Any:
    """The type of an option for an argument of a type of the library."""
    kinds = [kind for kind in get_args(hint) or (hint,) if kind is not type(None)]
    if kinds == [bool]:
        return Annotated[bool, flag(text)]
    if kinds == [int]:
        return Annotated[hint, number(text, least=0 if default == 0 else 1)]
    if any(get_origin(kind) is Sequence for kind in kinds):
        return Annotated[list[str] | None, option(text, metavar=name.removesuffix("s").upper(), several=True)]
    return Annotated[hint, option(text)]


def _option_help(text: str) -> str:
    """The description of an argument as help of an option: arguments are called as on the command line."""

    def as_option(found: re.Match[str]) -> str:
        name, _ = _SHARED.get(found[1], (found[1], None))
        return f"--{name.replace('_', '-')}"

    sentence = re.sub(r"``(\w+)``", as_option, " ".join(text.split()))
    return sentence[:1].upper() + sentence[1:]


def _keyword(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)


def verb(name: str, examples: str, *, usage: str = "STORE [OPTIONS]") -> App:
    """The command-line application of one verb, whose help ends with examples."""
    lines = "\n".join(f"  {line}" for line in examples.strip().splitlines())
    return application(name, VERBS[name], f"Examples:\n\n{lines}\n", f"Usage: zarr-core {name} {usage}")


def application(name: str, text: str, epilogue: str, usage: str | None = None) -> App:
    """A command-line application whose errors and exit status :func:`run` handles."""
    app = App(
        name=name,
        help=text,
        help_epilogue=epilogue,
        help_format="plaintext",
        usage=usage,
        version_flags=(),
        result_action="return_value",
        suppress_keyboard_interrupt=False,
    )
    app["--help"].group = "Parameters"
    return app


def program(app: App, module: str, alone: str = "") -> Callable[..., int]:
    """The ``main`` of a verb's module, which runs at once and ends the process if the module is the program.

    ``alone`` is shown if there are no arguments; by default the help is.
    """
    if module == "__main__":
        sys.exit(run(app, alone=alone))
    return partial(run, app, alone=alone)


def run(app: App, arguments: Sequence[str] | None = None, *, alone: str = "") -> int:
    """Run a command line, by default that of the process, and return its exit status; errors are one line on stderr."""
    with warnings.catch_warnings(), lasting_stderr(), interrupted_by_signals():
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = _print_warning
        try:
            tokens = sys.argv[1:] if arguments is None else list(arguments)
            refuse_credentials(*tokens)
            _check_file_names()
            if alone and not tokens:
                write_line(alone)
                return DONE
            status = app(tokens, exit_on_error=False, print_error=False)
            write_line("", end="")
            return status or DONE
        except (CycloptsError, WrongUseError) as error:
            # What follows "Tokens:" would be taken for a secret.
            message = str(error).replace("Unused Tokens:", "arguments that the command does not take:")
            _print_error(f"{message} (--help shows the usage)")
            return WRONG_USE
        except (ZarrCoreError, OSError) as error:
            _print_error(str(error))
            return FAILED
        except SystemExit:  # of rich, which prints the help: the reader of the output has gone away
            return DONE
        except KeyboardInterrupt:
            print("interrupted; what was finished is kept", file=sys.stderr)
            return INTERRUPTED


def _check_file_names() -> None:
    """Refuse a process that would read the names of files, which are UTF-8 in stores, as other names."""
    encoding = sys.getfilesystemencoding()
    if encoding != "utf-8":
        raise WrongUseError(
            f"names of files are UTF-8, and this process reads them as {encoding}: set PYTHONUTF8=1, or a locale such "
            "as C.UTF-8"
        )


def print_json(document: Any) -> None:
    """Print the document of a result."""
    from pydantic_core import to_jsonable_python

    # JSON has no infinities and no NaN: they become null.
    plain = to_jsonable_python(document, inf_nan_mode="null", fallback=dict)
    write_line(json.dumps(plain, indent=2, allow_nan=False))


def pairs(name: str, given: Iterable[str], expected: str = "NAME=VALUE") -> dict[str, str]:
    """The values of an option such as ``--values beta=float32``, by name.

    Raises:
        WrongUseError: a value is not a pair.
    """
    found = {}
    for text in given:
        key, _, value = text.partition("=")
        if not (key and value):
            raise WrongUseError(f"{name} {text}: expected {expected}")
        found[key] = value
    return found


def table(rows: Sequence[Sequence[str]]) -> str:
    """Rows of text as aligned columns, the first aligned to the left; the first row is the header."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for first, *others in rows:
        cells = [first.ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True))]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def format_time(seconds: float | None) -> str:
    """A time in seconds since 1970, in UTC."""
    if seconds is None:
        return "at an unknown time"
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def write_line(text: str, end: str = "\n") -> bool:
    """Print to stdout; False if its reader has gone away, as in ``zarr-core log STORE | head``."""
    try:
        print(printable(text), end=end, flush=True)
    except BrokenPipeError:
        # Nothing can be printed any more, and the interpreter's own flush at its exit must not fail either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return False
    return True


def printable(text: str) -> str:
    """The text with control characters as ``\\x1b``: names in stores of others could otherwise control the terminal."""
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def _print_error(message: str) -> None:
    print("error:", printable(redact(" ".join(message.split("\n")))), file=sys.stderr)


def _print_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    print(printable(redact(f"warning: {message}")), file=sys.stderr)
