"""All attacks, with their numbers of rounds in the test suite and in ``make attack``."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from dataclasses import dataclass

from tests.attacks import cache, credentials, disk, kills, matrix, network, sandbox, sources
from tests.attacks.tally import Attack
from tests.helpers.faults import Kill


def _always() -> str:
    return ""


def _without_mounts() -> str:
    return "" if disk.own_mounts() else "this system does not allow mounting a tmpfs"


def _without_endpoint() -> str:
    return "" if "ATTACK_S3_ENDPOINT" in os.environ else "ATTACK_S3_ENDPOINT names no S3 service (Ceph RGW, say)"


def _without_oci() -> str:
    return "" if importlib.util.find_spec("ocifs") else "ocifs is not installed"


@dataclass(frozen=True)
class Entry:
    """An attack.

    Attributes:
        name: for the table.
        attack: what to call.
        full: rounds of ``make attack``.
        quick: rounds of the test suite; those of all fuzzers are one test there, in one process.
        quick_attack: in the test suite, where the attack itself depends on when a process is killed.
        skipped: why it cannot be carried out here, or "".
    """

    name: str
    attack: Attack
    full: int
    quick: int = 0
    skipped: Callable[[], str] = _always
    quick_attack: Attack | None = None


_CONVERTERS_KILLED = kills.converters_killed_at(Kill("create", "run_5/.*/c/0/", 3), Kill("rename", "/manifest.json$"))
_APPENDERS_KILLED = matrix.appenders_killed_at(
    Kill("link", "/c/", 3), Kill("rename", "/HEAD.json$"), Kill("link", "_columns.zarr/c/")
)

ENTRIES = (
    Entry("kill -9 of a converter", kills.killed_converters, 200, 2, quick_attack=_CONVERTERS_KILLED),
    Entry("worker killed for memory", kills.workers_killed_for_memory, 20, 1),
    Entry("4 converters, one folder", network.rivals_on_disk, 8, 1),
    Entry("4 converters, one bucket", network.rivals_on_s3, 5),
    Entry("disk full", disk.full_disks, 40, 2, _without_mounts),
    Entry("read-only disk", disk.read_only_stores, 5, 1, _without_mounts),
    Entry("clocks that jump", sources.jumping_clocks, 20, 1),
    Entry("sources that change", sources.changing_sources, 40, 2),
    Entry("S3 on a bad network", network.bad_network, 6),
    Entry("killed on S3 (moto)", network.object_store(network.on_moto), 6),
    Entry("killed on S3 (endpoint)", network.object_store(network.on_endpoint), 6, skipped=_without_endpoint),
    Entry("killed on OCI", network.object_store(network.on_oci), 6, skipped=_without_oci),
    Entry("hostile manifests", sandbox.fuzz("manifest"), 3000),
    Entry("hostile zarr.json", sandbox.fuzz("group", "array"), 3000),
    Entry("damaged shards", sandbox.fuzz("shard"), 2000),
    Entry("forged checksums", sandbox.fuzz("forged"), 2000),
    Entry("damaged archives", sandbox.fuzz("archive"), 2000),
    Entry("archives that lie", sandbox.fuzz("forged_archive"), 2000),
    Entry("mapped files that change", sandbox.fuzz("mapped", "mapped_archive", "mapped_matrix"), 3000),
    Entry("hostile .pt files", sandbox.fuzz("tensors"), 1000),
    Entry("hostile settings", sandbox.fuzz("description", "splits", "config", "state", "statistics"), 4000),
    Entry("damaged cache entries", sandbox.fuzz("cache"), 1000),
    Entry("kill -9 of cache readers", cache.killed_readers, 100),
    Entry("kill -9 of two appenders", matrix.killed_appenders(matrix.on_disk), 25, 1, quick_attack=_APPENDERS_KILLED),
    Entry("the same on S3 (moto)", matrix.killed_appenders(matrix.on_moto), 6),
    Entry("hostile matrix heads", sandbox.fuzz("head"), 3000),
    Entry("URLs with credentials", credentials.leaked_credentials, 2000, 100),
    Entry("damaged matrices", sandbox.fuzz("beside", "cells", "forged_cells"), 1500),
)
