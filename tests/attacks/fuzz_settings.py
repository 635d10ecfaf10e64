"""Hostile settings: descriptions, split files, dataset configs, loader states, statistics, entries of the cache."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from tests.attacks.mutations import VALUES, mutate_bytes, mutate_document
from tests.attacks.tally import Tally
from tests.helpers.small_source import KIND, write_source
from zarr_core.datasets import build_dataset
from zarr_core.loader import EpochBatchSampler
from zarr_core.points.convert.conversion import convert
from zarr_core.points.statistics import calculate_store_statistics, write_statistics
from zarr_core.sources.selection import open_source, select_samples
from zarr_core.storage import Storage
from zarr_core.storage.disk_cache import DiskCache

_YAML = (
    b"[" * 5000,
    b"a: &a [x, x]\nb: &b [*a, *a]\n"
    + b"".join(
        b"c%d: &c%d [*%s, *%s]\n" % (n, n, p, p)
        for n, p in ((n, b"b" if n == 0 else b"c%d" % (n - 1)) for n in range(40))
    ),
    b"!!python/object/apply:os.system ['touch code_was_run']",
    b"? [a]\n: b",
    b"2001-99-99",
    b"!!timestamp x",
    b"!!int ''",
    b"x: " + b"9" * 5000,
    b"{a: 1, a: 2}",
    b"\xff\xfe\x00",
    b"<<: 1",
    b"",
)
_STATISTICS = "statistics/00000001/train.yaml"


class SettingsFuzz:
    """A source and a store that a hostile document is used with."""

    def __init__(self, folder: Path, target: str, tally: Tally) -> None:
        self.folder, self.target, self.tally = folder, target, tally
        self.source = write_source(folder / "source", ("run_1", "run_2", "run_3"))
        self.store = str(folder / "store")
        convert(KIND, self.store, root=self.source, chunk_points=16)
        write_statistics(self.store, calculate_store_statistics(self.store), of="all", split="train", generation=1)
        self._statistics = Storage(self.store).read(_STATISTICS)
        self._config = {
            "kind": "ahmedml",
            "root": self.store,
            "split": "train",
            "num_surface_points": 10,
            "normalizers": {"surface_pressure": "mean_std", "surface_position": {"kind": "position", "scale": 10}},
            "fields": ["surface_position", "surface_pressure"],
            "cache_limit": "1GB",
            "engine": "direct",
        }
        self._description = {
            "name": "own",
            "samples": "run_*",
            "subfolder": "",
            "blacklists": ["blacklist.txt"],
            "files": {"surface_position": "surface_position_vtp.pt", "surface_pressure": "surface_pressure.pt"},
            "splits": {"rule": "permutation", "count": 9, "seed": 1, "sizes": {"train": 5, "test": 4}},
        }
        self._cache = DiskCache(folder / "cache", "10MB")
        self.round: Callable[[random.Random], None] = getattr(self, f"_{target}_round")

    def _text(self, document: Any, chance: random.Random) -> bytes:
        """As YAML, which JSON is."""
        if chance.random() < 0.1:
            return chance.choice(_YAML)
        text = json.dumps(mutate_document(document, chance)).encode()
        if chance.random() < 0.3:
            text = yaml.safe_dump(document).encode()
        return mutate_bytes(text, chance) if chance.random() < 0.5 else text

    def _description_round(self, chance: random.Random) -> None:
        path = self.folder / "own.yaml"
        document = json.loads(json.dumps(self._description))
        if chance.random() < 0.5:
            document["splits"] = {"rule": "files", "filename": "{split}.txt", "names": ["train", "../../x"]}
        path.write_bytes(self._text(document, chance))
        self.tally.add("faults")
        with self.tally.ours("description"):
            convert(str(path), self.folder / f"own_{chance.random()}", root=self.source, limit=1, chunk_points=16)

    def _splits_round(self, chance: random.Random) -> None:
        path = self.folder / "own.yaml"
        path.write_text(json.dumps(self._description | {"splits": {"rule": "files"}}))
        lines = [
            str(chance.choice(("run_1", "run_2", "nosuch", "../run_1", "/etc/passwd", "a b", "\x1b[2J", "", *VALUES)))
            for _ in range(5)
        ]
        data = "\n".join(lines).encode(errors="surrogatepass")
        for name in ("train_design_ids.txt", "blacklist.txt"):
            (self.source / name).unlink(missing_ok=True)
            (self.source / name).write_bytes(mutate_bytes(data, chance) if chance.random() < 0.5 else data)
        if chance.random() < 0.2:
            secret = self.folder / "secret.txt"
            secret.write_text("run_1\n")
            name = chance.choice(("train_design_ids.txt", "blacklist.txt"))
            (self.source / name).unlink()
            (self.source / name).symlink_to(secret)
        self.tally.add("faults")
        with self.tally.ours("splits"):
            source = open_source(str(path), root=self.source)
            selection = select_samples(source, chance.choice((None, ["train"])))
            documents = source.split_documents()
            if any((self.source / name).is_symlink() for name in documents):
                self.tally.add("wrong", 1, "a file that a link names would have gone into the store")
            if not selection.samples.keys() <= {"run_1", "run_2", "run_3"}:
                self.tally.add("wrong", 1, f"samples {list(selection.samples)}")

    def _config_round(self, chance: random.Random) -> None:
        path = self.folder / "config.yaml"
        path.write_bytes(self._text(self._config, chance))
        self.tally.add("faults")
        with self.tally.ours("config"):
            dataset = build_dataset(path)
            dataset.__getitems__([0])

    def _state_round(self, chance: random.Random) -> None:
        sampler = EpochBatchSampler(100, 8, seed=3)
        state = mutate_document(sampler.state_at(2, 5), chance)
        self.tally.add("faults")
        with self.tally.ours("state"):
            sampler.load_state_dict(state)
            next(iter(sampler))
            sampler.state_dict()

    def _statistics_round(self, chance: random.Random) -> None:
        data = mutate_bytes(self._statistics, chance)
        if chance.random() < 0.6:
            data = self._text(yaml.safe_load(self._statistics), chance)
        if chance.random() < 0.1:
            nested = _YAML[1] + b"surface_pressure_mean: *c39\nsurface_pressure_std: 1.0\n"
            data = nested + b"raw_pos_min: 1.0\nraw_pos_max: *c39\n"
        Storage(self.store).write(_STATISTICS, [data])
        self.tally.add("faults")
        with self.tally.ours("statistics"):
            build_dataset(self._config)[0]

    def _cache_round(self, chance: random.Random) -> None:
        entries = {(str(n), 0, 5000): bytes([n]) * 5000 for n in range(4)} | {("whole", 0, None): b"w" * 9000}
        for place, data in entries.items():
            if self._cache.lookup(*place) is None:
                self._cache.store(*place, data)
        paths = [p for p in Path(self._cache.folder).rglob("*") if p.is_file() and p.stat().st_size < 10**6]
        path = chance.choice(paths)
        match chance.randrange(4):
            case 0:
                path.write_bytes(chance.choice(paths).read_bytes())  # another entry's, or the lock's
            case 1:
                with path.open("r+b") as file:
                    file.truncate(chance.choice((0, 10, 52, 10**13)))  # sparse: no disk is taken
            case _:
                path.write_bytes(mutate_bytes(path.read_bytes(), chance))
        self.tally.add("faults")
        for place, data in entries.items():
            with self.tally.ours("cache"):
                if self._cache.lookup(*place) not in (None, data):
                    self.tally.add("wrong", 1, f"the cache returned what was not stored: {place}")


def make(folder: Path, target: str, tally: Tally) -> Callable[[random.Random], None]:
    """The rounds of a target."""
    return SettingsFuzz(folder, target, tally).round
