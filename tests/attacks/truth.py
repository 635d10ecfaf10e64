"""Comparison of a store with its source."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np

from tests.attacks.tally import Tally
from tests.helpers.small_source import KIND, load_field
from zarr_core.errors import ZarrCoreError
from zarr_core.format.shuffle import shuffle_permutation
from zarr_core.points.read.reader import ZarrChunkReader
from zarr_core.points.store.head import load_manifest
from zarr_core.sources import resolve_kind
from zarr_core.storage import Storage

CHUNK_POINTS = 64
Sample = dict[str, np.ndarray]


def stored_sample(source: Path, sample_id: str, seed: int = 0) -> Sample:
    """The rows of a sample's fields as a store holds them: shuffled, rounded to what is stored by default."""
    fields = {}
    for canonical, file in resolve_kind(KIND).required_fields.items():
        values = load_field(source, sample_id, canonical)
        order = shuffle_permutation(seed, sample_id, file.domain, len(values))
        fields[canonical] = values[order].astype("float32" if file.field.is_position else "float16")
    return fields


def same(read: Sample, expected: Sample) -> bool:
    """Whether they are equal, bit for bit."""
    return read.keys() == expected.keys() and all(
        read[name].dtype == values.dtype and np.array_equal(read[name], values) for name, values in expected.items()
    )


def check_samples(
    root: str, expected: dict[str, Sample], tally: Tally, what: str, generation: int | None = None
) -> None:
    """Read whole samples; one that is absent or cannot be read counts as lost."""
    try:
        reader = ZarrChunkReader(root, generation=generation)
    except ZarrCoreError as error:
        tally.add("lost", len(expected), f"{what}: {error}")
        return
    for sample_id, fields in expected.items():
        try:
            if not same(reader.read_sample(sample_id), fields):
                tally.add("wrong", 1, f"{what}: {sample_id}")
        except ZarrCoreError as error:
            tally.add("lost", 1, f"{what}: {error}")
        except Exception as error:
            tally.add("tracebacks", 1, f"{what}: {sample_id}: {type(error).__name__}: {error}")


def named_objects(root: str) -> dict[str, str]:
    """Digest of the manifest and of every object below the groups that it names.

    The generation number is left out: an interrupted run takes more commits.
    """
    storage = Storage(root)
    manifest = load_manifest(storage)
    digests = {"manifest.json": hashlib.sha256(replace(manifest, generation=1).to_json()).hexdigest()}
    groups = tuple(f"{entry.relpath}/" for entry in manifest.samples.values())
    # A temporary file of a killed writer; nothing refers to it.
    names = [name for name in storage.list("samples") if name.startswith(groups) and not name.endswith(".tmp")]
    return digests | {name: hashlib.sha256(storage.read(name)).hexdigest() for name in names}


def compare(root: str, undisturbed: dict[str, str], tally: Tally, what: str) -> None:
    """Compare every named object with that of an undisturbed run; count the samples that differ."""
    try:
        found = named_objects(root)
    except ZarrCoreError as error:
        tally.add("lost", 1, f"{what}: {error}")
        return
    different = {
        name.split("/")[1] if name.startswith("samples/") else name
        for name in found.keys() | undisturbed.keys()
        if found.get(name) != undisturbed.get(name)
    }
    if different:
        tally.add("wrong", len(different), f"{what}: differs from an undisturbed run: {sorted(different)[:5]}")
