"""Epochs from a point store compared with epochs from tar shards of it, on a local disk and on S3.

``python -m benchmarks.tars`` takes the server of AWS_ENDPOINT_URL, or starts Ceph's gateway, and puts the fault proxy
in front of it, which adds the latency. 16 synthetic samples of four fields are exported to eight tar shards of whole
samples. In turn, an epoch is read in batches of eight: draws and whole samples, from the store; from the shards by
``ShardStream``; and from the shards by the ``webdataset`` library (the extra ``rivals``), which streams them in random
order. A draw from a shard is the first points of a whole sample. The export itself is compared with reading the store
and writing the same arrays by ``tarfile``.
"""

from __future__ import annotations

import argparse
import io
import os
import random
import shutil
import statistics
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from webdataset.filters import shuffle
from webdataset.tariterators import group_by_keys, tar_file_expander

from benchmarks.result import Result, Value, parse
from benchmarks.s3 import upload
from benchmarks.servers import ProxyProcess, s3_endpoint
from benchmarks.synthetic import DRAWN, FIELDS, make_source, make_store
from zarr_core import ShardStream, ZarrChunkReader, export_webdataset
from zarr_core.points.store.settings import ConversionSettings
from zarr_core.storage import Storage

SAMPLES, SHARDS, BATCH = 16, 8, 8
STORE, STREAM, WEBDATASET = "store", "ShardStream", "webdataset"
#: Reads one epoch: its number, and the points of a draw (None: whole samples). Returns the values that it got.
Epoch = Callable[[int, int | None], int]


def store_epoch(url: str) -> Epoch:
    """Batches of the store's reader, in random order."""
    reader = ZarrChunkReader(url)

    def epoch(number: int, points: int | None) -> int:
        order = random.Random(number).sample(reader.sample_ids, SAMPLES)
        count = 0
        for start in range(0, SAMPLES, BATCH):
            batch = [
                read
                for sample in order[start : start + BATCH]
                for read in reader.field_reads(sample, {"volume": points}, epoch=number).values()
            ]
            count += sum(array.size for array in reader.execute(batch))
        return count

    return epoch


def stream_epoch(url: str) -> Epoch:
    """Items by their offsets, in the order of ``ShardStream``."""
    stream = ShardStream(url, batch_size=BATCH)

    def epoch(number: int, points: int | None) -> int:
        stream.set_epoch(number)
        return sum(tensor[:points].clone().numel() for item in stream for tensor in item.values())

    return epoch


def webdataset_epoch(url: str) -> Epoch:
    """Shards in random order, each streamed, their items shuffled."""
    storage = Storage(url)
    names = sorted(name for name in storage.list() if name.endswith(".tar"))

    def opened(order: list[str]) -> Iterator[dict[str, Any]]:
        for name in order:
            with io.BytesIO(storage.read(name)) if "://" in url else open(Path(url, name), "rb") as stream:
                yield {"url": name, "stream": stream}

    def epoch(number: int, points: int | None) -> int:
        generator = random.Random(number)
        items = group_by_keys(tar_file_expander(opened(generator.sample(names, len(names)))))
        arrays = (
            np.load(io.BytesIO(content))
            for item in shuffle(SAMPLES, rng=generator)(items)
            for member, content in item.items()
            if member.endswith(".npy")
        )
        return sum(torch.from_numpy(array)[:points].clone().numel() for array in arrays)

    return epoch


def measure(ways: dict[str, Epoch], points: int | None, rounds: int) -> tuple[dict[str, float], dict[str, float]]:
    """Median seconds of an epoch, and of this process's CPU, every way in turn; the first round is left out."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    used: dict[str, list[float]] = {name: [] for name in ways}
    counts = set()
    for number in range(rounds + 1):
        for name, epoch in ways.items():
            started = time.perf_counter(), time.process_time()
            counts.add(epoch(number, points))
            if number:
                seconds[name].append(time.perf_counter() - started[0])
                used[name].append(time.process_time() - started[1])
    assert len(counts) == 1, counts
    medians = [{name: statistics.median(values) for name, values in each.items()} for each in (seconds, used)]
    return medians[0], medians[1]


def export_ratio(store: Path, folder: Path, rounds: int) -> float:
    """Seconds of the export over seconds of reading the store and writing its arrays by ``tarfile``."""
    reader = ZarrChunkReader(store)
    seconds: dict[str, list[float]] = {"export": [], "by hand": []}
    for _ in range(rounds + 1):
        target = folder / "export"
        shutil.rmtree(target, ignore_errors=True)
        started = time.perf_counter()
        export_webdataset(store, target, shards=SHARDS, workers=1)
        seconds["export"].append(time.perf_counter() - started)
        target = folder / "by-hand"
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir()
        started = time.perf_counter()
        for shard in range(SHARDS):
            with tarfile.open(target / f"{shard}.tar", "w") as tar:
                for sample in reader.sample_ids[shard::SHARDS]:
                    for name, array in reader.read_sample(sample).items():
                        content = io.BytesIO()
                        np.save(content, array)
                        info = tarfile.TarInfo(f"{sample}.{name}.npy")
                        info.size = content.tell()
                        content.seek(0)
                        tar.addfile(info, content)
        os.sync()  # as the export does at its end
        seconds["by hand"].append(time.perf_counter() - started)
    return statistics.median(seconds["export"][1:]) / statistics.median(seconds["by hand"][1:])


def add_place(result: Result, place: str, store: str, shards: str, points: int, rounds: int) -> None:
    """The table and the targets of one place."""
    ways = {STORE: store_epoch(store), STREAM: stream_epoch(shards), WEBDATASET: webdataset_epoch(shards)}
    (draws, draws_cpu), (whole, whole_cpu) = measure(ways, DRAWN, rounds), measure(ways, None, rounds)
    rows: list[list[Value]] = [
        [
            name,
            SAMPLES / draws[name],
            1000 * draws_cpu[name] / SAMPLES,
            SAMPLES / whole[name],
            1000 * whole_cpu[name] / SAMPLES,
        ]
        for name in ways
    ]
    columns = ("read", "draws/s", "CPU ms per draw", "whole samples/s", "CPU ms per whole sample")
    result.add_table(f"Epochs, {place}", columns, rows)
    aim = points / DRAWN / 2
    for rival in (STREAM, WEBDATASET):
        result.add_target(f"{place}: draws, store / {rival}", draws[rival] / draws[STORE], "at least", aim, "x")
        result.add_target(f"{place}: whole samples, store / {rival}", whole[rival] / whole[STORE], "at least", 1, "x")
    slower = whole[STREAM] / whole[WEBDATASET]
    result.add_target(f"{place}: whole samples, seconds of ShardStream / webdataset", slower, "at most", 1.1, "x")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, default=1_000_000)
    parser.add_argument("--latency", type=int, default=10, metavar="MS")
    arguments = parse(parser, rounds=9)
    result = Result("tars", "Tar shards", arguments)
    result.describe(
        f"{SAMPLES} samples of {arguments.points:,} points, {len(FIELDS)} fields, {DRAWN:,} drawn, batches of {BATCH}, "
        f"packed, {ConversionSettings.codec}, {SHARDS} shards; one process; median of {arguments.rounds} epochs; "
        f"Ceph's gateway or AWS_ENDPOINT_URL behind a proxy that adds {arguments.latency} ms."
    )
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source = make_source(folder / "source", SAMPLES, arguments.points)
        store = make_store(source, folder / "store", ConversionSettings.codec, layout="packed")
        shutil.rmtree(source)
        ratio = export_ratio(store, folder, max(3, arguments.rounds // 3))
        result.add_target("export / reading and tarfile", ratio, "at most", 1.3, "x")
        add_place(result, "local disk", str(store), str(folder / "export"), arguments.points, arguments.rounds)
        with s3_endpoint() as server, ProxyProcess(server) as proxy:
            os.environ["AWS_ENDPOINT_URL"] = proxy.url
            remote = [upload(folder / part) for part in ("store", "export")]
            proxy.set_faults(latency_s=arguments.latency / 1000)
            place = f"S3 at {arguments.latency} ms"
            add_place(result, place, remote[0], remote[1], arguments.points, arguments.rounds)
    result.add_note("Gateway and proxy share the cores with the reader; the CPU time is that of the reader alone.")
    result.save()


if __name__ == "__main__":
    main()
