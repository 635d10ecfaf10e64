"""An array job of parts, on a Slurm of one node that the test starts."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.small_source import write_source
from tests.helpers.stores import objects
from tests.helpers.waiting import wait_for
from zarr_core.convert import convert
from zarr_core.points.store.head import load_manifest
from zarr_core.sources.parts import Part

PROGRAMS = ("slurmctld", "slurmd", "sbatch", "sinfo")
IDS = ("run_1", "run_2", "run_3", "run_4")

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or None in map(shutil.which, PROGRAMS),
    reason="needs root and Slurm's programs: apt-get install slurmctld slurmd slurm-client",
)


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


@pytest.fixture
def slurm(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Slurm with one node of two cores, without authentication: the environment of its commands."""
    controller, node = free_ports(2)
    host = socket.gethostname()
    conf = tmp_path / "slurm.conf"
    plugins = os.environ.get("TEST_SLURM_PLUGINS")
    settings = {
        "ClusterName": "test",
        "SlurmctldHost": f"{host}(127.0.0.1)",
        "SlurmctldPort": controller,
        "SlurmdPort": node,
        "SlurmUser": "root",
        "AuthType": "auth/none",
        "CredType": "cred/none",
        "ProctrackType": "proctrack/linuxproc",
        "TaskPlugin": "task/none",
        "SelectType": "select/cons_res",
        "SelectTypeParameters": "CR_Core",
        "JobAcctGatherType": "jobacct_gather/none",
        "StateSaveLocation": tmp_path / "state",
        "SlurmdSpoolDir": tmp_path / "spool",
        "SlurmctldPidFile": tmp_path / "slurmctld.pid",
        "SlurmdPidFile": tmp_path / "slurmd.pid",
        "ReturnToService": 2,
    } | ({"PluginDir": plugins} if plugins else {})
    lines = [f"{name}={value}" for name, value in settings.items()]
    lines += [
        f"NodeName={host} NodeAddr=127.0.0.1 CPUs=2 RealMemory=2000",
        f"PartitionName=all Nodes={host} Default=YES",
    ]
    conf.write_text("\n".join(lines) + "\n")
    environment = os.environ | {"SLURM_CONF": str(conf)}
    stepd = os.environ.get("TEST_SLURM_STEPD")
    daemons = [["slurmctld", "-D", "-f", conf], ["slurmd", "-D", "-f", conf, *(["-d", stepd] if stepd else [])]]
    processes = []
    with (tmp_path / "slurm.log").open("wb") as log:
        processes = [subprocess.Popen(command, env=environment, stdout=log, stderr=log) for command in daemons]
    try:
        state = ["sinfo", "--noheader", "--format", "%T"]
        wait_for(lambda: "idle" in subprocess.run(state, env=environment, capture_output=True, text=True).stdout)
        yield environment
    finally:
        for process in processes:
            process.terminate()
            process.wait()


@pytest.mark.slow
def test_an_array_job_makes_the_store_of_one_process(tmp_path: Path, slurm: dict[str, str]) -> None:
    source = write_source(tmp_path / "source", IDS)
    convert("ahmedml", tmp_path / "one", root=source, chunk_points=32)
    assert {Part(number, 2).has(sample_id) for number in range(2) for sample_id in IDS} == {True, False}
    script = tmp_path / "convert.sh"
    script.write_text(
        "#!/bin/sh\n#SBATCH --array=0-1 --cpus-per-task=1\nunset LD_LIBRARY_PATH\n"
        f"exec {sys.executable} -m zarr_core convert {tmp_path / 'store'} --source {source} --dataset-kind ahmedml "
        "--chunk-points 32 --part auto --quiet\n"
    )
    path = os.pathsep.join(["", *sys.path]).strip(os.pathsep)
    log = tmp_path / "job-%a.log"
    command = ["sbatch", "--wait", f"--output={log}", f"--export=ALL,PYTHONPATH={path}", script]
    job = subprocess.run(command, env=slurm, cwd=tmp_path, capture_output=True, text=True)
    logs = [file.read_text() for file in sorted(tmp_path.glob("job-*.log"))]
    assert (job.returncode, len(logs)) == (0, 2), (job.stderr, logs)
    manifest = load_manifest(tmp_path / "store")
    assert manifest.generation == 2
    assert manifest.samples == load_manifest(tmp_path / "one").samples
    made, expected = objects(tmp_path / "store"), objects(tmp_path / "one")
    assert {k: v for k, v in made.items() if k.startswith("samples/")} == {
        k: v for k, v in expected.items() if k.startswith("samples/")
    }
