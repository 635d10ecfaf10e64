"""Reads a generation of a store over and over, in a process of its own; says how often, and what it read."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

from zarr_core.points.reader import ZarrChunkReader


def digest(reader: ZarrChunkReader) -> str:
    """Of every field of every sample, drawn and whole."""
    content = hashlib.sha256()
    for sample_id in reader.sample_ids:
        for num_points in (None, {"surface": 20, "volume": 50}):
            for name, rows in reader.read_sample(sample_id, num_points, seed=3).items():
                content.update(name.encode() + rows.tobytes())
    return content.hexdigest()


def main(store: str, generation: str, folder: str) -> None:
    """Read until a file "stop" appears in the folder; "passes" there says how often, "digests" what."""
    pinned = int(generation) if generation.isdecimal() else generation
    old = ZarrChunkReader(store, generation=pinned)
    digests, passes = set(), 0
    while not Path(folder, "stop").exists():
        # One reader that was opened at the start, and a new one each time.
        for reader in (old, ZarrChunkReader(store, generation=pinned)):
            digests.add(digest(reader))
        passes += 1
        Path(folder, "digests").write_text("\n".join(sorted(digests)))
        Path(folder, "passes.new").write_text(str(passes))
        Path(folder, "passes.new").replace(Path(folder, "passes"))


if __name__ == "__main__":
    main(*sys.argv[1:])
