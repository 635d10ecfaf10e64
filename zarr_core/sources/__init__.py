"""Where samples come from: descriptions of datasets, and the places their files lie."""

from zarr_core.sources.description import FieldFile, SourceDescription, resolve_kind
from zarr_core.sources.sample import FileInfo, SampleSource, SourceSample
from zarr_core.sources.tree import SampleTree

__all__ = [
    "FieldFile",
    "FileInfo",
    "SampleSource",
    "SampleTree",
    "SourceDescription",
    "SourceSample",
    "resolve_kind",
]
