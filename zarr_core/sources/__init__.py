"""Sources of samples: descriptions of datasets, and access to their files."""

from zarr_core.sources.description import FieldFile, SourceDescription
from zarr_core.sources.resolve import resolve_kind
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
