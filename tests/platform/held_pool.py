"""The pool of the tests' daemon: worker processes, and a conversion that waits if the test wants it to."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from zarr_core.platform.resources.pools import ConversionPool

from tests.helpers.holding import held


class HeldPool(ConversionPool):
    """Worker processes, each call through :func:`tests.helpers.holding.held`."""

    @contextmanager
    def executor(self, workers: int, *_: object) -> Iterator[Executor]:
        with super().executor(workers) as pool:
            yield _Holding(pool, Path(os.environ["DAGSTER_HOME"]))


class _Holding(Executor):
    def __init__(self, pool: Executor, folder: Path) -> None:
        self.pool, self.folder = pool, folder

    def submit(self, call: Callable[..., Any], /, *arguments: Any, **options: Any) -> Future[Any]:
        return self.pool.submit(held, self.folder, partial(call, *arguments, **options))
