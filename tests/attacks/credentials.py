"""URLs that contain credentials, given to every verb, function and declaration. The secret must be in no output."""

from __future__ import annotations

import contextlib
import io
import itertools
import logging
import os
import random
import re
import string
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote

import dagster as dg
import numpy as np
from zarr_core.platform.assets.dataset import DatasetDeclaration

import zarr_core
from tests.attacks.tally import Tally
from tests.helpers import quick_dagster  # noqa: F401
from tests.helpers.small_source import KIND, write_source
from tests.platform.trial import definitions_of
from zarr_core.__main__ import main
from zarr_core.convert import convert
from zarr_core.errors import ZarrCoreError
from zarr_core.exports import ShardItems, croissant_document, export_npy, write_croissant
from zarr_core.matrix import WideMatrix
from zarr_core.sources.survey import survey
from zarr_core.storage import Storage

# "SECRET" stands for a new one each time. The host of the last one serves the store, so verbs that read succeed.
URLS = (
    "s3://AKIAIOSFODNN7EXAMPLE:SECRET@bucket/x",
    "gs://bucket/x?access_token=SECRET",
    "az://container/x?sv=2022-11-02&sig=SECRET",
    "abfs://container@account.dfs.core.windows.net/x?sp=rl&sig=SECRET",
    "DefaultEndpointsProtocol=https;AccountName=a;AccountKey=SECRET==;EndpointSuffix=core.windows.net",
    "BlobEndpoint=https://a.blob.core.windows.net/;SharedAccessSignature=sv=2022&sig=SECRET",
    "oci://user:SECRET@bucket@namespace/x",
    "https://user:SECRET@127.0.0.1:9/x",
    "https://SECRET@127.0.0.1:9/x",
    "https://127.0.0.1:9/x?sas=SECRET",
    "https://127.0.0.1:9/x?page=1&X-Amz-Signature=SECRET",
    "https://127.0.0.1:9/x?key=SECRET",
    "https://127.0.0.1:9/x?token=hf_SECRET",
    "https://127.0.0.1:9/hf_SECRET/x",
    "hf://hf_SECRET@datasets/user/name",
    "hf://datasets/user/name@hf_SECRET/x",
    "tls://user:SECRET@127.0.0.1:9",
    "postgresql://user:SECRET@127.0.0.1:9/catalog",
    "memory://x?private_key=SECRET",
    "HOST/p/SECRET/n/namespace/b/bucket/o/store",
)

# "URL" stands for the URL. All other places exist and are valid.
COMMANDS = """
convert URL --source source --dataset-kind ahmedml
convert out --source URL --dataset-kind ahmedml
convert out --source source --dataset-kind URL
convert out --source source --dataset-kind ahmedml --dataset-name URL
convert out --source source --dataset-kind ahmedml --scheduler URL
inspect URL
inspect source --write URL
info URL
info store URL
verify URL
verify store --source URL
verify store --scheduler URL
verify matrix --samples URL
stage out --source URL
stage URL --source store
stage out --source store --scheduler URL
statistics URL
statistics store --split-file URL
statistics store --output-yaml URL
statistics store --scheduler URL
export webdataset URL out
export webdataset store URL
export webdataset store out --scheduler URL
export npy URL out
export npy matrix URL
export parquet matrix out --features URL
export h5ad matrix URL
export huggingface URL out
export huggingface store URL
export huggingface store out --description URL
export croissant URL out.json
export croissant store URL
export croissant store out.json --url URL
log URL
diff URL 1
tag URL
tag store URL
gc URL
benchmark URL --source source
benchmark store --source URL
benchmark store --source source --output URL
first-step URL
shootout URL --tiers a=tier --output out
shootout store --tiers a=URL --output out
shootout store --tiers a=tier --output URL
quality URL --output out
quality matrix --output URL
matrix URL
matrix create URL --features features.txt
matrix create out --features URL
matrix load URL --source rows.csv
matrix load matrix --source URL
matrix metadata URL
matrix metadata matrix URL
matrix reindex URL out
matrix reindex matrix URL
matrix reindex matrix out --features URL
matrix retire URL --samples a
matrix retire matrix --samples URL
""".strip().splitlines()

# Texts that are stored as they are given. The URL of a pre-authenticated request may be published like this.
TEXTS = ("--dataset-name URL", "--description URL", "--url URL", "croissant", "matrix, batch")

_ARRAYS = {"surface_position": np.zeros((4, 3)), "surface_pressure": np.arange(4.0)}
_CONFIG = {"kind": "ahmedml", "split": "train"}

FUNCTIONS: dict[str, Callable[[str], Any]] = {
    "convert": lambda url: convert(KIND, url, root="source"),
    "convert, source": lambda url: convert(KIND, "out", source_url=url),
    "write_sample": lambda url: zarr_core.write_sample(url, "a", _ARRAYS),
    "write_sample, parameters": lambda url: zarr_core.write_sample("out", "a", _ARRAYS, parameters={url: 1.0}),
    "reader": lambda url: zarr_core.ZarrChunkReader(url).read_sample("run_1"),
    "reader, cache": lambda url: zarr_core.ZarrChunkReader("store", cache_dir=url),
    "dataset": lambda url: zarr_core.build_dataset({**_CONFIG, "root": url})[0],
    "dataset, unknown option": lambda url: zarr_core.build_dataset({**_CONFIG, "root": "store", "roott": url}),
    "stage_store": lambda url: zarr_core.stage_store(url, "out"),
    "verify_store": lambda url: zarr_core.verify_store("store", source=url),
    "statistics": lambda url: zarr_core.calculate_store_statistics(url),
    "store_info": lambda url: zarr_core.store_info(url),
    "make_store": lambda url: zarr_core.make_store(url),
    "open_store": lambda url: zarr_core.open_store(url),
    "as_tensorstore": lambda url: zarr_core.as_tensorstore(url, "run_1"),
    "survey": survey,
    "storage": lambda url: repr(Storage(url)),
    "export_webdataset": lambda url: zarr_core.export_webdataset("store", url),
    "shards": lambda url: ShardItems(url),
    "croissant": lambda url: write_croissant(croissant_document("store", url=url), "out.json"),
    "matrix": lambda url: WideMatrix.open(url),
    "matrix, create": lambda url: WideMatrix.create(url, ["a", "b"]),
    "matrix, batch": lambda url: WideMatrix.open("matrix").append(url, ["x"], {"beta": np.zeros((1, 2), "float32")}),
    "matrix, npy": lambda url: export_npy(WideMatrix.open("matrix"), url),
    "duckdb": lambda url: zarr_core.DuckDBWarehouse(url).files_of([], None),
    "athena": lambda url: zarr_core.AthenaWarehouse("t", database="d", staging=url),
}


def leaked_credentials(rounds: int, folder: Path, tally: Tally, chance: random.Random) -> None:
    """One door and one URL per round: refused or not, no output and no file contains the secret."""
    with contextlib.chdir(folder), _served(folder) as host, _shown() as shown:
        _prepare()
        doors = {line: partial(_command, line.split()) for line in COMMANDS} | FUNCTIONS
        doors |= {f"declared {name}": partial(_declared, name) for name in ("source", "store", "report", "pool")}
        doors |= {f"run with {name}": partial(_run, folder, name) for name in ("source", "store")}
        for door, form in _shuffled(chance, doors, URLS, rounds):
            if "HOST" in form and door.endswith(TEXTS):
                continue
            secret = "".join(chance.choices(string.ascii_letters + string.digits, k=24))
            url = form.replace("SECRET", secret).replace("HOST", host)
            try:
                doors[door](url)
            except (ZarrCoreError, OSError, ValueError):  # and the whole chain of causes, as a person sees it
                shown.write(traceback.format_exc())
                tally.add("refused")
            except Exception as error:
                shown.write(traceback.format_exc())
                tally.add("tracebacks", 1, f"{door}, {form}: {type(error).__name__}")
            tally.add("faults")
            tally.add("rounds")
            for place in _places_of(secret, shown.getvalue(), folder):
                tally.add("wrong", 1, f"{door}, {form}: the secret is in {place.replace(secret, 'SECRET')}")
            shown.seek(0)
            shown.truncate()


def _prepare() -> None:
    write_source(Path("source"), ("run_1",), surface=20, volume=30)
    convert(KIND, "store", root="source", chunk_points=16)
    matrix = WideMatrix.create("matrix", ["cg1", "cg2"], values={"beta": "float32"})
    matrix.append("first", ["a", "b"], {"beta": np.ones((2, 2), "float32")})
    Path("features.txt").write_text("cg1 cg2\n")
    Path("rows.csv").write_text("batch_id,sample_id,cpg_id,beta\nsecond,c,cg1,0.5\n")


def _shuffled(chance: random.Random, doors: dict[str, Any], urls: tuple[str, ...], rounds: int) -> Iterator[Any]:
    """Pairs of a door and a URL, all of them before one is repeated. Of few rounds, every door is in one."""
    pairs: list[tuple[str, str]] = []
    names = list(doors)
    for shift in chance.sample(range(len(urls)), len(urls)):
        pairs += [(door, urls[(number + shift) % len(urls)]) for number, door in enumerate(names)]
    return itertools.islice(itertools.cycle(pairs), rounds)


def _command(words: list[str], url: str) -> None:
    if main([word.replace("URL", url) for word in words]) not in (0, 1, 2):
        raise RuntimeError("the command ended with another status")


def _declaration(**settings: Any) -> DatasetDeclaration:
    return DatasetDeclaration(**{"name": "trial", "kind": KIND, "source": "source", "store": "out"} | settings)


def _declared(name: str, url: str) -> None:
    _declaration(**{name: {"kind": "dask", "address": url} if name == "pool" else url})


def _run(folder: Path, name: str, url: str) -> None:
    """A job of a declaration that was not checked, on an instance whose database lies in the folder."""
    declared = _declaration().with_absolute_paths(folder, folder).model_copy(update={name: url})
    (folder / "dagster").mkdir(exist_ok=True)
    with dg.DagsterInstance.local_temp(str(folder / "dagster"), {"telemetry": {"enabled": False}}) as instance:
        job = definitions_of(declared).resolve_job_def("trial_look" if name == "source" else "trial_refresh")
        job.execute_in_process(instance=instance, raise_on_error=False)


def _places_of(secret: str, shown: str, folder: Path) -> Iterator[str]:
    """Lines of the output, and files, that contain the secret or are named by it."""
    yield from (line[:300] for line in shown.splitlines() if secret in line)
    for path in folder.rglob("*"):
        if secret in path.name or (path.is_file() and secret.encode() in path.read_bytes()):
            yield str(path.relative_to(folder))


@contextlib.contextmanager
def _shown() -> Iterator[io.StringIO]:
    """What is printed, logged and warned of."""
    text = io.StringIO()
    handler = logging.StreamHandler(text)
    root, ours = logging.getLogger(), logging.getLogger("zarr_core")
    levels = root.level, ours.level
    with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text), warnings.catch_warnings():
        warnings.simplefilter("always")
        root.addHandler(handler)
        ours.setLevel(logging.DEBUG)
        try:
            yield text
        finally:
            root.removeHandler(handler)
            root.setLevel(levels[0])
            ours.setLevel(levels[1])


class _Handler(BaseHTTPRequestHandler):
    """Serves a folder below any pre-authenticated request, as Oracle's object storage does."""

    folder: ClassVar[Path]

    def do_GET(self) -> None:
        path = self.folder / self.path.partition("/o/")[2].partition("?")[0]
        if "/o/" not in self.path or not path.is_file():
            self.send_error(404)
            return
        data = path.read_bytes()
        span = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
        if span and span[1]:
            data = data[int(span[1]) : int(span[2]) + 1 if span[2] else None]
        elif span:
            data = data[-int(span[2]) :]
        self.send_response(206 if span else 200)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("ETag", f'"{quote(path.name)}{path.stat().st_mtime_ns}"')
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data)

    do_HEAD = do_GET

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def _served(folder: Path) -> Iterator[str]:
    """A web server of the folder's objects; its URL."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"folder": folder}))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    before = dict(os.environ)
    os.environ["DO_NOT_TRACK"] = "1"
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        os.environ.clear()
        os.environ.update(before)
        server.shutdown()
        server.server_close()
