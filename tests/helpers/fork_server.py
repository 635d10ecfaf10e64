"""Processes that start in milliseconds: they are forked from a server that has imported the libraries once.

A new interpreter takes two to three seconds of a core to import torch. Tests start one only where they are about the
start itself: an entry point, a ``spawn``, or what an import brings.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import importlib
import multiprocessing
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from multiprocessing import forkserver, resource_tracker, util
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


def start_early() -> None:
    """Start the server of a process that is going to import the same libraries anyway, so that both share one import.

    Before anything else is imported: a larger process takes longer to fork.
    """
    for name in _PRELOADED[:-1]:
        importlib.import_module(name)
    context().set_forkserver_preload(_PRELOADED)
    start_as_fork(os.devnull)  # pytest does not capture output yet


def start_as_fork(output: str | None = None) -> None:
    """Start the fork server of this process, which has no thread yet that holds a lock, as a fork of it.

    multiprocessing would start an interpreter, which takes seconds to import what this process has imported. Its
    processes print to the file ``output``, by default to where this process does.
    """
    resource_tracker.ensure_running()  # an interpreter of its own, which imports nothing
    with patch.object(util, "spawnv_passfds", partial(_fork, output)):
        forkserver.ensure_running()


_spawn = util.spawnv_passfds


def _fork(output: str | None, _: str, arguments: Sequence[str], kept: Sequence[int]) -> int:
    """Run ``python -c`` in a fork that has only the standard files and these open: the id of its process."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside the thread in which xdist listens
        pid = os.fork()
    if pid:
        return pid
    try:
        # Those of pytest write to files of their own, which are closed below.
        faulthandler.disable()
        gc.enable()  # tests/conftest.py disables it during imports
        if output is not None:
            with open(output, "wb") as file:
                os.dup2(file.fileno(), 1)
                os.dup2(file.fileno(), 2)
        sys.stdout, sys.stderr = (open(file, "w", buffering=1, closefd=False) for file in (1, 2))  # noqa: SIM115
        for name in os.listdir("/proc/self/fd"):
            if int(name) > 2 and int(name) not in kept:
                with contextlib.suppress(OSError):  # that of the listing itself
                    os.close(int(name))
        forkserver._forkserver._lock = threading.Lock()  # the other process holds it just now
        util.spawnv_passfds = _spawn
        exec(arguments[-1], {})
    finally:
        os._exit(1)


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
