"""Verbs on the workers of a Dask cluster, whose scheduler and workers are processes of their own."""

from __future__ import annotations

import copyreg
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from threading import Thread
from typing import Any

import pytest

from tests.helpers.small_source import write_source
from tests.helpers.stores import objects
from tests.helpers.waiting import wait_for
from zarr_core import convert as convert_verb
from zarr_core import stage, statistics, verify
from zarr_core._util.dask_cluster import _DaskExecutor, dask_executor
from zarr_core.convert import ConversionResult, convert
from zarr_core.errors import ZarrCoreError
from zarr_core.points.convert_sample import convert_sample
from zarr_core.points.head import load_manifest

pytestmark = pytest.mark.skipif(
    find_spec("distributed") is None, reason="needs dask.distributed: pip install 'zarr-core[dask]'"
)

IDS = tuple(f"run_{n}" for n in range(1, 5))
CONVERT = ("--dataset-kind", "ahmedml", "--chunk-points", "32", "--quiet")


@pytest.fixture(autouse=True, scope="module")
def _pickling_as_before() -> Iterator[None]:
    """Dask changes how this process pickles exceptions: with all that led to them, which other tests do not expect."""
    before = dict(copyreg.dispatch_table)
    yield
    copyreg.dispatch_table.clear()
    copyreg.dispatch_table.update(before)


@dataclass
class Cluster:
    """Address and processes, the scheduler first."""

    address: str
    processes: list[subprocess.Popen[bytes]]

    def end(self) -> None:
        """Kill all processes, and those that they started."""
        for process in self.processes:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@contextmanager
def running(folder: Path, address: str = "127.0.0.1", namespaces: Sequence[str] = ()) -> Iterator[Cluster]:
    """A scheduler and two workers of one thread, or one in each network namespace."""
    file = folder / "scheduler.json"
    # Workers import the functions of these tests.
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(["", *sys.path]).strip(os.pathsep)}
    options = ["--scheduler-file", str(file), "--no-dashboard"]
    cluster = Cluster("", [])

    def start(program: str, *more: str, prefix: Sequence[str] = ()) -> None:
        command = [*prefix, sys.executable, "-m", f"distributed.cli.dask_{program}", *options, *more]
        with (folder / f"{program}.log").open("ab") as log:
            process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
        cluster.processes.append(process)

    def written() -> dict[str, str] | None:
        try:
            return json.loads(file.read_text())
        except (FileNotFoundError, json.JSONDecodeError):  # not there, or not yet whole
            return None

    try:
        start("scheduler", "--port", "0", "--host", address)
        wait_for(written)
        worker = ("worker", "--nthreads", "1", "--local-directory", str(folder))
        for namespace in namespaces:
            start(*worker, prefix=("ip", "netns", "exec", namespace))
        if not namespaces:
            start(*worker, "--nworkers", "2")
        cluster.address = json.loads(file.read_text())["address"]
        yield cluster
    finally:
        cluster.end()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_source(tmp_path_factory.mktemp("data") / "source", IDS)


@pytest.fixture(scope="module")
def sequential(source: Path) -> Path:
    """A store that one process made, with its statistics, and a staged copy."""
    store = source.with_name("sequential")
    run_verbs(source, store)
    return store


def run_verbs(source: Path, store: Path, *options: str) -> None:
    assert convert_verb.main([str(store), "--source", str(source), *CONVERT, *options]) == 0
    assert statistics.main([str(store), "--recompute", "--split", "train", "--quiet", *options]) == 0
    assert verify.main([str(store), "--source", str(source), "--quiet", *options]) == 0
    assert stage.main([f"{store}_copy", "--source", str(store), "--quiet", *options]) == 0


def contents(store: Path, *folders: str) -> dict[str, bytes]:
    """Objects below some of a store's folders."""
    return {name: data for name, data in objects(store).items() if name.startswith(folders)}


def test_all_verbs_make_what_one_process_makes(
    cluster: Cluster, source: Path, sequential: Path, tmp_path: Path
) -> None:
    run_verbs(source, tmp_path / "store", "--scheduler", cluster.address)
    for name in ("", "_copy"):
        made, expected = Path(f"{tmp_path / 'store'}{name}"), Path(f"{sequential}{name}")
        assert contents(made, "samples/", "statistics/") == contents(expected, "samples/", "statistics/")
    assert load_manifest(tmp_path / "store").samples == load_manifest(sequential).samples


def _dies_once_at_run_2(mark: Path, writer: Any, source: Any, sample: Any, *options: Any) -> ConversionResult:
    if sample.sample_id == "run_2" and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return convert_sample(writer, source, sample, *options)


def test_a_killed_worker_is_replaced(
    cluster: Cluster, source: Path, sequential: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dies_once = partial(_dies_once_at_run_2, tmp_path / "died")
    monkeypatch.setattr("zarr_core.points.convert.convert_sample", dies_once)
    with dask_executor(cluster.address) as executor:
        report = convert("ahmedml", tmp_path / "store", root=source, executor=executor, chunk_points=32)
    assert report.ok
    assert (tmp_path / "died").exists()
    assert contents(tmp_path / "store", "samples/") == contents(sequential, "samples/")


def _waits_at_run_2(folder: Path, writer: Any, source: Any, sample: Any, *options: Any) -> ConversionResult:
    if sample.sample_id == "run_2":
        (folder / "waiting").touch()
        wait_for((folder / "go on").exists)
    return convert_sample(writer, source, sample, *options)


def test_a_lost_scheduler_ends_the_run_and_the_next_one_continues_it(
    cluster: Cluster, source: Path, sequential: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last test with this cluster: a start of workers takes ten seconds of a core."""
    monkeypatch.setattr("zarr_core.points.convert.convert_sample", partial(_waits_at_run_2, tmp_path))
    with dask_executor(cluster.address) as executor:

        def lose() -> None:
            wait_for((tmp_path / "waiting").exists)
            cluster.processes[0].kill()

        losing = Thread(target=lose)
        losing.start()
        report = convert("ahmedml", tmp_path / "store", root=source, executor=executor, chunk_points=32)
        losing.join()
        failed = report.having("failed")
        assert "run_2" in {result.sample_id for result in failed}
        assert len(report.results) == len(IDS)
        assert set(report.manifest.samples) == set(IDS) - {result.sample_id for result in failed}
    cluster.end()
    monkeypatch.undo()
    assert convert("ahmedml", tmp_path / "store", root=source, chunk_points=32).ok
    assert contents(tmp_path / "store", "samples/") == contents(sequential, "samples/")


@contextmanager
def two_hosts() -> Iterator[tuple[str, dict[str, str]]]:
    """Two network namespaces on a bridge: its address, and each namespace with the cable that connects it."""
    number = os.getpid() % 10_000
    bridge, cables = f"zc{number}", {f"zc{number}-{host}": f"zc{number}{host}" for host in "ab"}

    def ip(*arguments: str) -> None:
        subprocess.run(["ip", *arguments], check=True)

    try:
        ip("link", "add", bridge, "type", "bridge")
        ip("addr", "add", "10.231.7.1/24", "dev", bridge)
        ip("link", "set", bridge, "up")
        for at, (namespace, cable) in enumerate(cables.items(), start=2):
            ip("netns", "add", namespace)
            ip("link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", namespace)
            ip("link", "set", cable, "master", bridge, "up")
            ip("-n", namespace, "addr", "add", f"10.231.7.{at}/24", "dev", "eth0")
            ip("-n", namespace, "link", "set", "lo", "up")
            ip("-n", namespace, "link", "set", "eth0", "up")
        yield "10.231.7.1", cables
    finally:
        for namespace in cables:
            subprocess.run(["ip", "netns", "delete", namespace], check=False)
        subprocess.run(["ip", "link", "delete", bridge], check=False)


def _waits_on_the_host_to_be_cut_off(
    folder: Path, writer: Any, source: Any, sample: Any, *options: Any
) -> ConversionResult:
    if sample.sample_id == "run_2" and not (folder / "cut off").exists():
        (folder / "pid.new").write_text(str(os.getpid()))
        (folder / "pid.new").rename(folder / "pid")
        wait_for((folder / "cut off").exists)
    return convert_sample(writer, source, sample, *options)


@pytest.mark.skipif(
    os.environ.get("TEST_NETWORK_NAMESPACES") != "1" or os.geteuid() != 0 or which("ip") is None,
    reason="TEST_NETWORK_NAMESPACES=1 is not set, or this is not root on a system with network namespaces",
)
def test_a_host_that_is_cut_off_loses_no_sample(
    source: Path, sequential: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the middle of a sample, which the other host then converts."""
    monkeypatch.setenv("DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL", "30s")
    monkeypatch.setattr("zarr_core.points.convert.convert_sample", partial(_waits_on_the_host_to_be_cut_off, tmp_path))
    with (
        two_hosts() as (address, cables),
        running(tmp_path, address, list(cables)) as cluster,
        dask_executor(cluster.address) as executor,
    ):

        def cut_off() -> None:
            wait_for((tmp_path / "pid").exists)
            command = ["ip", "netns", "identify", (tmp_path / "pid").read_text()]
            namespace = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
            subprocess.run(["ip", "link", "set", cables[namespace], "down"], check=True)
            (tmp_path / "cut off").touch()

        cutting = Thread(target=cut_off)
        cutting.start()
        report = convert("ahmedml", tmp_path / "store", root=source, executor=executor, chunk_points=32)
        cutting.join()
    assert report.ok
    assert contents(tmp_path / "store", "samples/") == contents(sequential, "samples/")


class _LostClient:
    """Of a scheduler that is lost after a submission, whose call never ends."""

    status = "running"

    def get_executor(self, pure: bool) -> _LostClient:
        return self

    def submit(self, call: Any) -> Future[Any]:
        self.status = "connecting"
        return Future()


def test_a_call_that_was_submitted_when_the_scheduler_was_lost_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zarr_core._util.dask_cluster._PAUSE_SECONDS", 0.01)
    with _DaskExecutor(_LostClient()) as executor:
        future = executor.submit(print)
        with pytest.raises(ZarrCoreError, match="the connection to the Dask scheduler is lost"):
            future.result(timeout=60)
        with pytest.raises(ZarrCoreError, match="the connection to the Dask scheduler is lost"):
            executor.submit(print)


def test_a_cluster_without_workers_is_reported_and_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    from distributed import LocalCluster

    monkeypatch.setattr("zarr_core._util.dask_cluster._WORKER_PATIENCE_SECONDS", 0.1)
    warnings: list[str] = []
    with LocalCluster(n_workers=0, threads_per_worker=1, processes=False, dashboard_address=None) as cluster:

        def warn(message: str) -> None:
            warnings.append(message)
            cluster.scale(1)

        with dask_executor(cluster.scheduler_address, warn) as executor:
            assert executor is not None
            assert cluster.scheduler.workers
            assert executor.submit(abs, -1).result() == 1
    assert ["has had no worker for 0 s" in message for message in warnings] == [True]


def test_no_scheduler_at_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zarr_core._util.dask_cluster._PATIENCE", "1s")
    with (
        pytest.raises(ZarrCoreError, match="no Dask scheduler answers at tcp://127.0.0.1:9"),
        dask_executor("tcp://127.0.0.1:9"),
    ):
        pass
