"""Names of a store's objects and of what they record, each in one place. They are part of the stored format."""

from __future__ import annotations

import unicodedata

#: Current state of a point store.
MANIFEST = "manifest.json"
#: Folder of the sample groups of a point store.
SAMPLES = "samples"
#: Stands for a blank of a sample's id in the names of its objects. An id does not contain it.
BLANK = "!"
#: Zarr metadata of a group or an array.
ZARR_JSON = "zarr.json"
#: Why a sample was refused; takes the place of the group's ``zarr.json``.
QUARANTINE = "quarantine.json"
#: Key in a sample group's attributes under which this library records what it knows of the sample.
ATTRIBUTES_KEY = "zarr_core"
#: Key in a sample group's attributes of the conventions that they follow, by the Zarr Conventions Specification.
CONVENTIONS_KEY = "zarr_conventions"
#: The convention of what this library records, which ``docs/schema/sample.json`` describes.
CONVENTION = {
    "uuid": "bd25bb73-df24-4e16-a84a-013f6053b49d",
    "name": ATTRIBUTES_KEY,
    "description": "A sample of points in random order: their moments, the sample's parameters and its source files.",
}
#: Takes the place of a split's name in the names of statistics of all samples.
ALL_SAMPLES = "all"
#: Folder of a point store's statistics, by generation and split.
STATISTICS = "statistics"
#: Statistics of a point store that training normalizes with, for people and for programs.
STATISTICS_YAML = "stats.yaml"
STATISTICS_JSON = "stats.json"
#: Lists of sample ids that belong to no split.
BLACKLISTS = ("blacklist.txt", "blacklist2.txt")


def spelled_alike(name: str) -> str:
    """The same text for all spellings of a name that some disk takes for one: it ignores case, or normalizes Unicode.

    Such a disk may list an object by another spelling than the one by which it was written and is read.
    """
    if name.isascii():
        return name.lower()
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())


def sample_folder(sample_id: str) -> str:
    """Folder of the groups of a sample. Different ids have different folders, whose names have no blanks.

    Blanks would need quoting in URLs and shells. Servers decode ``%20``, so it is not used.
    """
    return f"{SAMPLES}/{sample_id.replace(' ', BLANK)}"


def statistics_folder(generation: int) -> str:
    """Folder of the statistics of one generation, one pair of files per split."""
    return f"{STATISTICS}/{generation:08d}"


def statistics_name(generation: int, split: str | None) -> str:
    """Name of the statistics of a generation's split, without the suffix; None stands for all samples."""
    return f"{statistics_folder(generation)}/{ALL_SAMPLES if split is None else split}"


def split_list(split: str) -> str:
    """Name of the object that lists the sample ids of a split."""
    return f"{split}_design_ids.txt"
