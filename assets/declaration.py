"""Locations as declarations name them."""

from pathlib import Path


def absolute(folder: Path, location: str) -> str:
    """A location that no longer depends on where a process was started; URLs stay as they are."""
    return location if "://" in location else str(folder / Path(location).expanduser())
