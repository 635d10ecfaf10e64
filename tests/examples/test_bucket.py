"""The example of a watched bucket, with an S3 server and a daemon of its own; only the daemon's pauses are shorter."""

from __future__ import annotations

import os
import re
import sys
from unittest.mock import patch

import boto3
import pytest

from examples.bucket import main as example
from tests.helpers.servers.s3 import quick_moto
from zarr_core.points.store.manifest import StoreManifest
from zarr_core.storage import Storage

pytestmark = pytest.mark.slow


def test_every_claim_of_the_example(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    manifests: list[StoreManifest] = []
    wait = example.wait

    def keep(*arguments: object) -> StoreManifest:
        manifests.append(wait(*arguments))  # type: ignore[arg-type]
        return manifests[-1]

    monkeypatch.setattr(example, "wait", keep)
    monkeypatch.setattr(example, "DAEMON", [sys.executable, "-m", "tests.helpers.quick_daemon"])
    # The server of the other tests may run in this process; its address stays theirs.
    paths = os.pathsep.join([str(example.PROJECT), os.environ.get("PYTHONPATH", "")])
    with patch.dict(os.environ, {"PYTHONPATH": paths}), quick_moto():
        example.main([])

    first, second = manifests
    bundled = {folder.name for folder in example.SAMPLES.glob("run_*")}
    assert first.samples.keys() == second.samples.keys() == bundled
    assert list(second.quarantine) == [example.BROKEN]
    assert second.generation > first.generation
    changed = {name for name in bundled if first.samples[name].relpath != second.samples[name].relpath}
    assert changed == {example.CHANGED}, "only the changed sample has another group"

    out = capsys.readouterr().out
    source, store = (re.search(pattern, out)[1] for pattern in (r"to (s3://\S+/source)\n", r"in (s3://\S+/store)\n"))  # type: ignore[index]
    after = r", after \d+ s"
    steps = [rf"step {number}: loss \d\.\d{{4}}, volume: volume_\w+(, volume_\w+)*" for number in (1, 2, 3)]
    both = f"a changed {example.CHANGED} and a broken {example.BROKEN}"
    refusal = second.quarantine[example.BROKEN]
    assert refusal.field == "surface_pressure"
    before, now = (manifest.samples[example.CHANGED].relpath for manifest in manifests)
    expected = [
        *(f"uploading {name} to {source}" for name in sorted(bundled)),
        f"waiting for the bundled samples in {store}",
        rf"generation {first.generation} has the bundled samples{after}",
        *steps,
        f"uploading {example.CHANGED} to {source}",
        f"uploading {example.BROKEN} to {source}",
        f"waiting for {both} in {store}",
        rf"generation {second.generation} has {both}{after}",
        f"{example.CHANGED}: {before} in generation {first.generation}, {now} since then",
        re.escape(f"{example.BROKEN} is refused: {refusal.field}: {refusal.reason}"),
    ]
    lines = out.splitlines()
    assert [line for line, pattern in zip(lines, expected, strict=True) if not re.fullmatch(pattern, line)] == []


@pytest.mark.usefixtures("s3_root")  # no client knows the server of the test before
def test_its_bucket_is_removed_with_its_objects() -> None:
    with example.new_bucket() as bucket:
        Storage(f"s3://{bucket}/source").write("run_1/a.pt", [b"1"])
    assert bucket not in [each["Name"] for each in boto3.client("s3").list_buckets()["Buckets"]]
