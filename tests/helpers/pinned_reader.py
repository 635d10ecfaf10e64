"""A process that reads a generation of a store repeatedly and writes the number of passes and a digest of the data."""

from __future__ import annotations

import hashlib
from pathlib import Path

from zarr_core.points.read.reader import ZarrChunkReader


def digest(reader: ZarrChunkReader) -> str:
    """Digest of every field of every sample, drawn and whole."""
    content = hashlib.sha256()
    for sample_id in reader.sample_ids:
        for num_points in (None, {"surface": 20, "volume": 50}):
            for name, rows in reader.read_sample(sample_id, num_points, seed=3).items():
                content.update(name.encode() + rows.tobytes())
    return content.hexdigest()


def main(store: str, generation: str, folder: str) -> None:
    """Read until a file "stop" appears in the folder; the files "passes" and "digests" there hold the results."""
    pinned = int(generation) if generation.isdecimal() else generation
    old = ZarrChunkReader(store, generation=pinned)
    digests, passes = set(), 0
    while not Path(folder, "stop").exists():
        # One reader that stays open, and a new one per pass.
        for reader in (old, ZarrChunkReader(store, generation=pinned)):
            digests.add(digest(reader))
        passes += 1
        Path(folder, "digests").write_text("\n".join(sorted(digests)))
        Path(folder, "passes.new").write_text(str(passes))
        Path(folder, "passes.new").replace(Path(folder, "passes"))
