"""Processes that start in milliseconds: they are forked from a server that has imported the libraries once.

A new interpreter takes two to three seconds of a core to import torch. Tests start one only where they are about the
start itself: an entry point, a ``spawn``, or what an import brings.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.context import BaseContext, ForkServerContext, ForkServerProcess
from typing import Any
from unittest.mock import patch

_PRELOADED = [
    "torch",
    "torchdata.stateful_dataloader",
    "s3fs",
    "ocifs",
    "zarr_core.points.convert.conversion",
    "zarr_core.points.stage.store",
    "zarr_core.matrix",
    "zarr_core.datasets",
    "zarr_core.loader",
    "tests.helpers.faults",
    "tests.helpers.frozen",
]


@contextmanager
def one_fork_server() -> Iterator[None]:
    """All processes that this one forks from a server share one, whose imports suit every test.

    Without this, the first that needs a server decides what it imports: a test, the library or a DataLoader.
    """
    context().set_forkserver_preload(_PRELOADED)
    with patch.object(BaseContext, "set_forkserver_preload", lambda *_: None):
        yield


def context() -> ForkServerContext:
    """The context of multiprocessing whose processes come from the server."""
    return multiprocessing.get_context("forkserver")


def start(
    function: Callable[..., Any], *arguments: Any, environment: Mapping[str, object] | None = None, **options: Any
) -> ForkServerProcess:
    """Start a process that calls a function, with the variables of this process's environment and further ones."""
    variables = {**os.environ, **{name: str(value) for name, value in (environment or {}).items()}}
    process = context().Process(target=_call, args=(variables, function, arguments, options), daemon=False)
    process.start()
    return process


def _call(
    variables: Mapping[str, str], function: Callable[..., Any], arguments: tuple[Any, ...], options: dict[str, Any]
) -> None:
    import fsspec.config
    import torch

    os.environ.clear()  # those of the time when the server started
    os.environ.update(variables)
    fsspec.config.conf.clear()  # read from the variables on import
    fsspec.config.set_conf_env(fsspec.config.conf)
    os.fsync, os.sync = lambda _: None, lambda: None  # see tests/conftest.py
    torch.set_num_threads(1)
    function(*arguments, **options)
