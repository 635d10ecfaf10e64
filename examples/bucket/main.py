"""A watched bucket from end to end: ``python examples/bucket/main.py``.

Starts an S3 server (moto) and Dagster's daemon, uploads the bundled samples, waits until they are in the store, trains
three steps from ``s3://``, then uploads a changed and a broken sample and shows what the store makes of them. At the
end everything that it started is stopped, and its files and its bucket are removed.
"""

from __future__ import annotations

import argparse
import io
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import s3fs
import torch

from zarr_core.first_step import train
from zarr_core.points.store.head import load_if_any
from zarr_core.points.store.manifest import StoreManifest
from zarr_core.storage import Storage

PROJECT = Path(__file__).resolve().parents[2]
SAMPLES = PROJECT / "examples" / "data" / "ahmed_rans"
CHANGED, BROKEN, FIELD = "run_4", "run_99", "surface_pressure.pt"
DAEMON = [str(Path(sys.executable).with_name("dagster-daemon"))]
# Longest time from an upload to its commit.
PATIENCE_S = 1200


def main(arguments: list[str] | None = None) -> None:
    """Run the example."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--endpoint", help="URL of another S3 service, such as Ceph RGW; with credentials of the environment"
    )
    options = parser.parse_args(arguments)
    with (
        tempfile.TemporaryDirectory() as folder,
        moto() if options.endpoint is None else nullcontext(options.endpoint) as url,
    ):
        os.environ["AWS_ENDPOINT_URL"] = url
        with new_bucket() as bucket, daemon(Path(folder), bucket) as log:
            run(bucket, log)


def run(bucket: str, log: Path) -> None:
    """Upload, wait and train."""
    source, store = Storage(f"s3://{bucket}/source"), f"s3://{bucket}/store"
    folders = sorted(SAMPLES.glob("run_*"))
    for folder in folders:
        upload(source, folder.name, folder)
    ids = {folder.name for folder in folders}
    first = wait(store, "the bundled samples", log, lambda manifest: manifest.samples.keys() >= ids)
    domain, fields, losses = train(store, steps=3)
    for step, loss in enumerate(losses, 1):
        print(f"step {step}: loss {loss:.4f}, {domain}: {', '.join(fields)}")

    values = io.BytesIO()
    torch.save(2 * torch.load(SAMPLES / CHANGED / FIELD, weights_only=True), values)
    upload(source, CHANGED, SAMPLES / CHANGED, {FIELD: values.getvalue()})
    upload(source, BROKEN, SAMPLES / "run_1", {FIELD: (SAMPLES / "run_1" / FIELD).read_bytes()[:1000]})
    before = first.samples[CHANGED].relpath
    second = wait(
        store,
        f"a changed {CHANGED} and a broken {BROKEN}",
        log,
        lambda manifest: BROKEN in manifest.quarantine and manifest.samples[CHANGED].relpath != before,
    )
    print(f"{CHANGED}: {before} in generation {first.generation}, {second.samples[CHANGED].relpath} since then")
    print(f"{BROKEN} is refused: {second.quarantine[BROKEN].field}: {second.quarantine[BROKEN].reason}")


def upload(source: Storage, sample_id: str, folder: Path, others: dict[str, bytes] | None = None) -> None:
    """Upload the files of a sample; ``others`` are uploaded in place of the files of these names."""
    print(f"uploading {sample_id} to {source.url}", flush=True)
    for file in sorted(folder.iterdir()):
        source.write(f"{sample_id}/{file.name}", [(others or {}).get(file.name, file.read_bytes())])


def wait(store: str, what: str, log: Path, arrived: Callable[[StoreManifest], bool]) -> StoreManifest:
    """The store's manifest as soon as it has what was uploaded; exits with the daemon's log if that takes too long."""
    print(f"waiting for {what} in {store}", flush=True)
    began = time.monotonic()
    while time.monotonic() - began < PATIENCE_S:
        manifest = load_if_any(Storage(store))
        if manifest is not None and arrived(manifest):
            print(f"generation {manifest.generation} has {what}, after {time.monotonic() - began:.0f} s", flush=True)
            return manifest
        time.sleep(1)
    raise SystemExit(
        f"error: {what} did not arrive in {PATIENCE_S} s; the daemon's log ends:\n{log.read_text()[-4000:]}"
    )


@contextmanager
def new_bucket() -> Iterator[str]:
    """A bucket for the example alone: its name. It is deleted with its objects."""
    bucket = f"example-{os.urandom(4).hex()}"
    service = s3fs.S3FileSystem(use_listings_cache=False, skip_instance_cache=True)
    service.mkdir(bucket)
    try:
        yield bucket
    finally:
        service.rm(bucket, recursive=True)


@contextmanager
def moto() -> Iterator[str]:
    """An S3 server in this process: its URL."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    os.environ |= {
        "AWS_ACCESS_KEY_ID": "example",
        "AWS_SECRET_ACCESS_KEY": "example",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        yield "http://{}:{}".format(*server.get_host_and_port())
    finally:
        server.stop()


@contextmanager
def daemon(folder: Path, bucket: str) -> Iterator[Path]:
    """Dagster's daemon on an instance of its own, which watches the bucket: the path of its log.

    The datasets are those of the project. Variables name the bucket and, for the other dataset, an empty warehouse.
    """
    shutil.copy(PROJECT / "deploy" / "local" / "dagster.yaml", folder)
    environment = {
        "DAGSTER_HOME": str(folder),
        "DAGSTER_DISABLE_TELEMETRY": "1",
        "AHMED_RANS_SOURCE": f"s3://{bucket}/source",
        "AHMED_RANS_STORE": f"s3://{bucket}/store",
        "AHMED_RANS_REPORT": str(folder / "report"),
        "METHYLATION_FILES": str(folder / "no_batches" / "*.parquet"),
        "METHYLATION_MATRIX": str(folder / "matrix"),
        "METHYLATION_REPORT": str(folder / "quality"),
    }
    log = folder / "daemon.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*DAEMON, "run", "-w", "workspace.yaml"],
            cwd=PROJECT,
            env=os.environ | environment,
            stdout=output,
            stderr=output,
            start_new_session=True,  # ends with all that it starts
        )
    try:
        yield log
    finally:
        for sign in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(process.pid, sign)
                process.wait(30)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                continue


if __name__ == "__main__":
    main()
