"""Verbs on the workers of a Dask cluster, whose scheduler and workers are processes of their own."""

from __future__ import annotations

import copyreg
import json
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest

import zarr_core
from tests.helpers.small_source import write_source
from tests.helpers.stores import objects
from tests.helpers.waiting import wait_for
from zarr_core import convert as convert_verb
from zarr_core import stage, statistics, verify
from zarr_core._util.dask_cluster import _LOST, _DaskExecutor, _software, dask_executor
from zarr_core.convert import ConversionReport, ConversionResult, convert
from zarr_core.errors import ZarrCoreError
from zarr_core.points.convert.sample import convert_sample
from zarr_core.points.store.head import load_manifest

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


# Of a worker: what its command begins with, and a folder in which it works and whose modules it imports first.
Host = tuple[tuple[str, ...], Path | None]


@contextmanager
def running(folder: Path, address: str = "127.0.0.1", hosts: Sequence[Host] = ()) -> Iterator[Cluster]:
    """A scheduler, and two workers of one thread, or one on each host."""
    file = folder / "scheduler.json"
    # Workers import the functions of these tests.
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(["", *sys.path]).strip(os.pathsep)}
    options = ["--scheduler-file", str(file), "--no-dashboard"]
    cluster = Cluster("", [])

    def start(program: str, *more: str, host: Host = ((), None)) -> None:
        prefix, path = host
        command = [*prefix, sys.executable, "-m", f"distributed.cli.dask_{program}", *options, *more]
        own = environment if path is None else environment | {"PYTHONPATH": f"{path}:{environment['PYTHONPATH']}"}
        with (folder / f"{program}.log").open("ab") as log:
            process = subprocess.Popen(command, cwd=path, env=own, stdout=log, stderr=log, start_new_session=True)
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
        for host in hosts:
            start(*worker, host=host)
        if not hosts:
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_killed_worker_is_replaced(
    cluster: Cluster, source: Path, sequential: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dies_once = partial(_dies_once_at_run_2, tmp_path / "died")
    monkeypatch.setattr("zarr_core.points.convert.conversion.convert_sample", dies_once)
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


@pytest.mark.slow
def test_a_lost_scheduler_ends_the_run_and_the_next_one_continues_it(
    cluster: Cluster,
    source: Path,
    sequential: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The last test with this cluster: a start of workers takes ten seconds of a core."""
    logging.getLogger("distributed.client").addHandler(caplog.handler)
    monkeypatch.setattr("zarr_core.points.convert.conversion.convert_sample", partial(_waits_at_run_2, tmp_path))
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
        assert {result.reason for result in failed} == {f"ZarrCoreError: {_LOST}"}
        assert len(report.results) == len(IDS)
        assert set(report.manifest.samples) == set(IDS) - {result.sample_id for result in failed}
    logging.getLogger("distributed.client").removeHandler(caplog.handler)
    # Tornado, below Dask, may report the connection that was just being made.
    printed = [record for record in caplog.records if record.exc_info and not record.name.startswith("tornado")]
    assert printed == [], "attempts to connect again"
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
        for namespace, cable in cables.items():
            # First: that of a namespace that is deleted goes some time later, and its name is taken until then.
            subprocess.run(["ip", "link", "delete", cable], check=False)
            subprocess.run(["ip", "netns", "delete", namespace], check=False)
        subprocess.run(["ip", "link", "delete", bridge], check=False)


def in_namespace(name: str) -> tuple[str, ...]:
    return "ip", "netns", "exec", name


def _waits_on_the_host_to_be_cut_off(
    folder: Path, writer: Any, source: Any, sample: Any, *options: Any
) -> ConversionResult:
    if sample.sample_id == "run_2" and not (folder / "cut off").exists():
        (folder / "pid.new").write_text(str(os.getpid()))
        (folder / "pid.new").rename(folder / "pid")
        wait_for((folder / "cut off").exists)
    return convert_sample(writer, source, sample, *options)


needs_namespaces = pytest.mark.skipif(
    os.environ.get("TEST_NETWORK_NAMESPACES") != "1" or os.geteuid() != 0 or shutil.which("ip") is None,
    reason="TEST_NETWORK_NAMESPACES=1 is not set, or this is not root on a system with network namespaces",
)


@needs_namespaces
def test_a_host_that_is_cut_off_loses_no_sample(
    source: Path, sequential: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the middle of a sample, which the other host then converts."""
    monkeypatch.setenv("DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL", "30s")
    monkeypatch.setattr(
        "zarr_core.points.convert.conversion.convert_sample", partial(_waits_on_the_host_to_be_cut_off, tmp_path)
    )
    with (
        two_hosts() as (address, cables),
        running(tmp_path, address, [(in_namespace(name), None) for name in cables]) as cluster,
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


def write_hdf5_source(root: Path) -> Path:
    """Samples of HDF5 files; returns their description."""
    import h5py  # some workers that import this module cannot

    for number, sample_id in enumerate(IDS):
        (root / sample_id).mkdir(parents=True)
        with h5py.File(root / sample_id / "fields.h5", "w") as file:
            file["xyz"] = np.arange(300.0, dtype=np.float32).reshape(100, 3) + number
    files = {"volume_position": {"file": "fields.h5", "array": "xyz"}}
    description = root.with_suffix(".yaml")
    description.write_text(json.dumps({"name": "own", "samples": "run_*", "files": files}))
    return description


def _waits_to_be_killed(folder: Path, writer: Any, source: Any, sample: Any, *options: Any) -> ConversionResult:
    if sample.sample_id == "run_2" and not (folder / "killed").exists():
        (folder / "pid.new").write_text(str(os.getpid()))
        (folder / "pid.new").rename(folder / "pid")
        wait_for((folder / "killed").exists)
    return convert_sample(writer, source, sample, *options)


@needs_namespaces
def test_hosts_that_differ_and_die_make_right_data_or_errors_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two hosts work in other folders than the client, one without h5py; one dies, then the scheduler."""
    description = write_hdf5_source(tmp_path / "source")
    paths = [without(tmp_path / "a"), without(tmp_path / "b", "h5py")]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("zarr_core.points.convert.conversion.convert_sample", partial(_waits_to_be_killed, tmp_path))

    def run(store: Path, executor: Executor | None = None, ids: Sequence[str] = IDS) -> ConversionReport:
        return convert(str(description), store, root="source", sample_ids=ids, executor=executor, chunk_points=32)

    with two_hosts() as (address, cables):
        hosts: list[Host] = [(in_namespace(name), path) for name, path in zip(cables, paths, strict=True)]
        with running(tmp_path, address, hosts) as cluster, dask_executor(cluster.address) as executor:

            def kill_one() -> None:
                wait_for((tmp_path / "pid").exists)
                os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
                (tmp_path / "killed").touch()

            killing = Thread(target=kill_one)
            killing.start()
            first = run(Path("store"), executor)
            killing.join()
            assert {result.sample_id for result in first.results} == set(IDS)
            for result in first.having("failed"):
                assert result.reason == "SourceError: fields.h5 cannot be read: pip install 'zarr-core[hdf5]'"
            assert first.having("converted")
            assert list(first.manifest.samples) == [result.sample_id for result in first.having("converted")]
            cluster.processes[0].kill()
            lost = run(Path("other store"), executor)
            assert {result.reason for result in lost.results} == {f"ZarrCoreError: {_LOST}"}
    assert {path.name for folder in paths for path in folder.iterdir()} <= {"sitecustomize.py", "__pycache__"}
    assert run(Path("store")).ok
    assert run(Path("expected")).ok
    assert contents(tmp_path / "store", "samples/") == contents(tmp_path / "expected", "samples/")


def without(folder: Path, *modules: str) -> Path:
    """A folder for a worker that has none of these modules."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(f"import sys\nsys.modules.update(dict.fromkeys({modules!r}))\n")
    return folder


@pytest.mark.slow
def test_workers_with_other_software_fail_samples_by_name(source: Path, s3_root: str, tmp_path: Path) -> None:
    """Without the extra of the store, with another version of this package, and without it."""
    paths = [without(tmp_path / "a", "s3fs", "obstore"), tmp_path / "b", without(tmp_path / "c", "zarr_core")]
    package = Path(zarr_core.__file__).parent
    shutil.copytree(package, paths[1] / "zarr_core", ignore=shutil.ignore_patterns("__pycache__"))
    with (paths[1] / "zarr_core" / "errors.py").open("a") as file:
        file.write("# another version\n")
    hosts: list[Host] = [((), path) for path in paths]
    with running(tmp_path, hosts=hosts) as cluster, dask_executor(cluster.address) as executor:
        assert executor is not None
        executor._client.wait_for_workers(3, timeout=120)  # type: ignore[attr-defined]
        report = convert("ahmedml", s3_root, root=source, executor=executor, chunk_points=32)
    reasons = {result.reason for result in report.results}
    assert {result.status for result in report.results} == {"failed"}
    for pattern in (
        re.escape(f"StoreError: {s3_root} needs s3fs: pip install 'zarr-core[s3]'"),
        rf"the Dask worker tcp://\S+ has zarr_core .*, and its client has {re.escape(_software())}: they must have",
        rf"a Dask worker cannot run {re.escape(_software())}: .*zarr_core",
    ):
        assert any(re.search(pattern, reason) for reason in reasons), (pattern, reasons)


class _LostClient:
    """Of a scheduler that is lost after a submission, whose call never ends."""

    status = "running"

    def scheduler_info(self, n_workers: int) -> dict[str, Any]:
        return {"workers": {"a worker": {}}}

    def get_executor(self, pure: bool) -> _LostClient:
        return self

    def submit(self, call: Any, pickled: bytes) -> Future[Any]:
        self.status = "connecting"
        return Future()


def test_a_call_that_was_submitted_when_the_scheduler_was_lost_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zarr_core._util.dask_cluster._PAUSE_SECONDS", 0.01)
    with _DaskExecutor(_LostClient(), "tcp://127.0.0.1:9", print) as executor:
        future = executor.submit(print)
        with pytest.raises(ZarrCoreError, match="the connection to the Dask scheduler is lost"):
            future.result(timeout=60)
        with pytest.raises(ZarrCoreError, match="the connection to the Dask scheduler is lost"):
            executor.submit(print)


def test_a_cluster_without_workers_is_reported_and_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the start, and when all of them are lost in the middle."""
    from distributed import LocalCluster

    monkeypatch.setattr("zarr_core._util.dask_cluster._PAUSE_SECONDS", 0.01)
    monkeypatch.setattr("zarr_core._util.dask_cluster._WORKER_PATIENCE_SECONDS", 0.1)
    warnings: list[str] = []
    with LocalCluster(n_workers=0, threads_per_worker=1, processes=False, dashboard_address=None) as cluster:

        def warn(message: str) -> None:
            warnings.append(message)
            cluster.scale(1)

        with dask_executor(cluster.scheduler_address, warn) as executor:
            assert executor is not None
            assert executor.submit(abs, -1).result(timeout=60) == 1
            assert len(warnings) == 1
            cluster.scale(0)
            wait_for(lambda: not cluster.scheduler.workers)
            assert executor.submit(abs, -2).result(timeout=60) == 2
    assert ["has had no worker for 0 s" in message for message in warnings] == [True, True]


def test_an_encrypted_cluster(tmp_path: Path) -> None:
    """With the certificates that Dask's settings name."""
    import dask
    from distributed import LocalCluster
    from distributed.security import Security

    security = Security.temporary()
    settings = {"distributed.comm.require-encryption": True}
    for name, text in security.get_tls_config_for_role("client").items():
        if name in ("ca_file", "cert", "key"):
            (tmp_path / name).write_text(text)
            path = "ca-file" if name == "ca_file" else f"client.{name}"
            settings[f"distributed.comm.tls.{path}"] = str(tmp_path / name)
    with (
        dask.config.set(settings),
        LocalCluster(1, processes=False, protocol="tls://", security=security, dashboard_address=None) as cluster,
        dask_executor(cluster.scheduler_address) as executor,
    ):
        assert cluster.scheduler_address.startswith("tls://")
        assert executor is not None
        assert executor.submit(abs, -1).result(timeout=60) == 1


def test_no_scheduler_at_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zarr_core._util.dask_cluster._PATIENCE", "1s")
    with (
        pytest.raises(ZarrCoreError, match="no Dask scheduler answers at tcp://127.0.0.1:9"),
        dask_executor("tcp://127.0.0.1:9"),
    ):
        pass


def test_an_address_of_no_scheduler_is_refused_before_a_client_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dask's client of such an address fails, and then waits for a minute when the process ends."""
    monkeypatch.setattr("distributed.Client", None)
    with pytest.raises(ZarrCoreError, match="unknown address scheme 'http'"), dask_executor("http://127.0.0.1:9"):
        pass
