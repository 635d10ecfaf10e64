"""Stores on object stores, and object stores behind a bad network."""

from __future__ import annotations

import os
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from tests.attacks import places
from tests.attacks.convert_some import convert_some
from tests.attacks.kills import rival_converters
from tests.attacks.processes import Forked
from tests.attacks.tally import Attack, Tally
from tests.attacks.truth import CHUNK_POINTS, check_samples, named_objects, stored_sample
from tests.helpers.servers.fault_proxy import Faults
from tests.helpers.small_source import KIND, write_source
from zarr_core.points.convert.conversion import convert
from zarr_core.points.store.head import load_manifest
from zarr_core.points.verify.store import verify_store
from zarr_core.storage import Storage

_IDS = ("run_1", "run_2", "run_3", "run_4")
BAD_NETWORK = Faults(latency_s=0.02, slow_down=0.10, reset=0.03, truncate=0.03)
_INJECTED = ("503", "reset before", "reset after", "truncated")


def bad_network(rounds: int, folder: Path, tally: Tally, chance: random.Random) -> None:
    """Convert, read and verify through a proxy that refuses, resets and cuts short."""
    with places.moto() as upstream:
        source = write_source(folder / "source", _IDS, surface=200, volume=800)
        truth = {sample_id: stored_sample(source, sample_id) for sample_id in _IDS}
        convert(KIND, folder / "undisturbed", root=source, chunk_points=CHUNK_POINTS)
        expected = _groups(str(folder / "undisturbed"))
        for number in range(rounds):
            root = places.new_root()
            with places.behind_faults(upstream, BAD_NETWORK, chance.randrange(2**32)) as proxy:
                _use(source, root, truth, tally, f"round {number}")
                tally.add("faults", sum(proxy.counts[name] for name in _INJECTED))
            _compare(root, expected, tally, f"round {number}")
            tally.add("rounds")


def object_store(place: Callable[[], AbstractContextManager[Callable[[], str]]]) -> Attack:
    """An attack on a kind of object store: a converter is killed there, the next run finishes, everything is read."""

    def attack(rounds: int, folder: Path, tally: Tally, chance: random.Random) -> None:
        source = write_source(folder / "source", _IDS, surface=200, volume=800)
        truth = {sample_id: stored_sample(source, sample_id) for sample_id in _IDS}
        convert(KIND, folder / "undisturbed", root=source, chunk_points=CHUNK_POINTS)
        expected = _groups(str(folder / "undisturbed"))
        with place() as new_root:
            for number in range(rounds):
                root, what = new_root(), f"round {number}"
                convert(KIND, root, root=source, limit=1, chunk_points=CHUNK_POINTS)
                process = Forked(convert_some, source, root, list(_IDS))
                storage = Storage(root)
                before = len(storage.list("samples"))
                while process.running and len(storage.list("samples")) == before:
                    time.sleep(0.05)
                time.sleep(chance.uniform(0, 1))
                tally.add("faults", process.kill_and_look(tally, what))
                check_samples(root, {"run_1": truth["run_1"]}, tally, f"{what}, after the kill")
                _use(source, root, truth, tally, what)
                check_samples(root, {"run_1": truth["run_1"]}, tally, f"{what}, generation 1", 1)
                _compare(root, expected, tally, what)
                tally.add("rounds")

    return attack


@contextmanager
def on_moto() -> Iterator[Callable[[], str]]:
    """Buckets of moto."""
    with places.moto():
        yield places.new_root


@contextmanager
def on_endpoint() -> Iterator[Callable[[], str]]:
    """Buckets of the service that ``ATTACK_S3_ENDPOINT`` names, with the credentials of the environment."""
    with places.set_environment(AWS_ENDPOINT_URL=os.environ["ATTACK_S3_ENDPOINT"]):
        yield places.new_root


@contextmanager
def on_oci() -> Iterator[Callable[[], str]]:
    """Buckets of an OCI object storage on loopback."""
    import fsspec.config
    import ocifs

    from tests.helpers.servers.oci import NAMESPACE, OciServer

    def new_root() -> str:
        ocifs.OCIFileSystem.clear_instance_cache()
        bucket = f"attack-{os.urandom(6).hex()}"
        server.buckets[bucket] = {}
        return f"oci://{bucket}@{NAMESPACE}/store"

    with OciServer() as server, tempfile.TemporaryDirectory() as folder:
        names = server.environment(Path(folder))
        fsspec.config.set_conf_env(fsspec.config.conf, names)
        with places.set_environment(**names):
            yield new_root
        fsspec.config.conf.pop("oci", None)


def rivals_on_disk(rounds: int, folder: Path, tally: Tally, chance: random.Random) -> None:
    """Four converters at a time on one folder."""
    rival_converters([str(folder / f"store_{n}") for n in range(rounds)], folder, tally, chance)


def rivals_on_s3(rounds: int, folder: Path, tally: Tally, chance: random.Random) -> None:
    """Four converters at a time on one bucket."""
    with places.moto():
        rival_converters([places.new_root() for _ in range(rounds)], folder, tally, chance)


def _use(source: Path, root: str, truth: dict, tally: Tally, what: str) -> None:
    """Convert until all samples are there, at most three times; then read and verify."""
    for _ in range(3):
        with tally.ours(f"{what}, convert"):
            if convert(KIND, root, root=source, chunk_points=CHUNK_POINTS).ok and len(load_manifest(root).samples) == 4:
                break
    check_samples(root, truth, tally, what)
    with tally.ours(f"{what}, verify"):
        report = verify_store(root, source=str(source))
        if not report.ok:
            tally.add("lost", 1, f"{what}: verify: {[str(problem) for problem in report.problems[:3]]}")


def _groups(root: str) -> dict[str, str]:
    return {name: digest for name, digest in named_objects(root).items() if "/" in name}


def _compare(root: str, expected: dict[str, str], tally: Tally, what: str) -> None:
    with tally.ours(f"{what}, compare"):
        if _groups(root) != expected:
            tally.add("wrong", 1, f"{what}: the named objects differ from an undisturbed run's")
