"""Names of a store's objects and of what they record, each in one place. They are part of the stored format."""

from __future__ import annotations

#: Current state of a point store.
MANIFEST = "manifest.json"
#: Folder of the sample groups of a point store.
SAMPLES = "samples"
#: Zarr metadata of a group or an array.
ZARR_JSON = "zarr.json"
#: Why a sample was refused; takes the place of the group's ``zarr.json``.
QUARANTINE = "quarantine.json"
#: Key in a sample group's attributes under which this library records what it knows of the sample.
ATTRIBUTES_KEY = "zarr_core"
#: Statistics of a point store, for people and for programs.
STATISTICS_YAML = "stats.yaml"
STATISTICS_JSON = "stats.json"
#: Lists of sample ids that belong to no split.
BLACKLISTS = ("blacklist.txt", "blacklist2.txt")


def split_list(split: str) -> str:
    """Name of the object that lists the sample ids of a split."""
    return f"{split}_design_ids.txt"
