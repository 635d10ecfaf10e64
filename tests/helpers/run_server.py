"""Imported once by the server that forks the runs of the tests' daemon: no run has to load the definitions."""

from __future__ import annotations

import os
from multiprocessing import forkserver

from dagster._core.definitions.reconstruct import ReconstructableRepository

import tests.helpers.quick_dagster  # noqa: F401
from tests.helpers.quick_dagster import change

_loaded = ReconstructableRepository.for_module("definitions", "defs", os.getcwd()).get_definition()
_loaded.load_all_definitions()
change(ReconstructableRepository, "get_definition", lambda _: _loaded)
# The worker processes of a run come from this server, too. CPython would start another one, with all its imports.
change(forkserver._forkserver, "ensure_running", lambda: None)
