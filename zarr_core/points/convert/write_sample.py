"""Conversions in code: a sample from arrays in memory, and Noether's writer with the functions that convert into it."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import Any

from zarr_core._util.arguments import check_mapping
from zarr_core.errors import SampleError, SourceError, StoreError
from zarr_core.format.array_metadata import COORDS_DTYPE
from zarr_core.format.object_names import MANIFEST
from zarr_core.points.convert.conversion import ConversionReport, run_conversion
from zarr_core.points.convert.request import ConversionRequest
from zarr_core.points.convert.sample import ConversionResult
from zarr_core.points.store.head import load_if_any
from zarr_core.points.store.manifest import StoreManifest
from zarr_core.points.store.settings import ConversionSettings
from zarr_core.sources.description import SourceDescription
from zarr_core.sources.objects import AeroDataset, ArraySource, check_fields
from zarr_core.sources.resolve import describe_filemap, resolve_kind, shipped_kinds
from zarr_core.storage import Storage

logger = logging.getLogger(__name__)

# Kind of a store that is created from arrays without one, and with a file map and without a name.
_OF_ARRAYS, _OF_FILES = "arrays", "filemap"
# The compressor of Noether's stores, whose level its writer takes.
_CODEC = "blosc-zstd"


def write_sample(
    store_root: str | os.PathLike[str],
    sample_id: str,
    arrays: Mapping[str, Any],
    *,
    split: str | None = None,
    kind: str | SourceDescription | None = None,
    parameters: Mapping[str, Any] | None = None,
    dataset_name: str | None = None,
    **settings: Any,
) -> ConversionResult:
    """Write one sample from arrays and commit it. The store is created if there is none.

    The sample is converted as :func:`zarr_core.convert.convert` converts the files of one: with the settings of the
    store, shuffled, its moments and its rounding errors recorded. Arrays with the content of the stored sample write
    nothing. Many programs may write to the same store.

    Each call commits a generation. For thousands of samples, pass an object with ``sample_ids``, ``filemap`` and
    ``_load`` to :func:`~zarr_core.convert.convert`, which commits once a minute.

    Args:
        store_root: the store, a local path or fsspec URL.
        sample_id: id of the sample. A sample of this id is replaced.
        arrays: by field, ``<domain>_<name>`` ("surface_pressure"), (points,) or (points, components) of any real dtype;
            NumPy arrays, torch tensors, or anything that NumPy makes an array of. Each domain needs its position,
            (points, 3).
        split: the split that the sample is added to, and removed from all others; None leaves the splits as they are.
        kind: the fields that a sample must have, as for :func:`~zarr_core.convert.convert`. None: the kind of the
            store, if it comes with the library, else the fields of the store's other samples.
        parameters: scalars, and arrays of one axis with at most 1,000 numbers, of the whole sample. None is recorded,
            and is an error in a dataset that asks for it: leave out what the sample does not have.
        dataset_name: name of the store; the kind's name if None and the store is new.
        **settings: as for :func:`~zarr_core.convert.convert`; only those of the store for one that exists.

    Returns:
        The result, "converted" or "up to date".

    Raises:
        SampleError: the sample is refused: a field is missing, unknown, misaligned, of another width than in the store,
            not finite, or would lose too much by rounding. A store that exists records the reason, unless a field is
            missing or unknown, or ``arrays`` or ``parameters`` have values of another kind or parameters that are not
            finite.
        SourceError: an id, a field name or a setting is invalid.
        StoreError: the store cannot be used, is another dataset's, or has other settings.

    Examples:
        >>> import numpy as np
        >>> arrays = {"surface_position": np.zeros((200, 3)), "surface_pressure": np.arange(200.0)}
        >>> write_sample("store", "case_9", arrays, split="train", parameters={"speed": 20.0}).status
        'converted'
    """
    check_mapping("arrays", arrays, "{'surface_position': positions, 'surface_pressure': pressure}")
    manifest = load_if_any(Storage(store_root))
    if kind is None and manifest is not None and manifest.dataset_kind in shipped_kinds():
        kind = manifest.dataset_kind
    described = None if kind is None else resolve_kind(kind)
    name = _OF_ARRAYS if manifest is None else manifest.dataset_kind
    if described is not None:
        name = described.name
    description = describe_filemap(name, {str(field): str(field) for field in arrays})
    if len(description.fields) != len(arrays):
        raise SourceError("design_parameters is not a point field: pass it as parameters")
    if described is not None:
        check_fields(sample_id, set(description.fields), set(described.required_fields), set(described.fields))
    source = ArraySource(sample_id, arrays, description, split, parameters, like_others=described is None)
    source.check_others([] if manifest is None else [manifest.fields_of(i) for i in manifest.samples if i != sample_id])
    request = ConversionRequest(source, store_root, dataset_name=dataset_name, settings=settings)
    (result,) = run_conversion(request).results
    if result.quarantine is not None:
        raise SampleError(sample_id, result.quarantine.field, result.quarantine.reason)
    if result.status == "failed":
        raise StoreError(f"{sample_id}: {result.reason}")
    return result


class ZarrStoreWriter:
    """Writes arrays and datasets to one store, with the arguments of Noether's writer.

    What is not given is that of the store, or of :class:`~zarr_core.points.store.settings.ConversionSettings` for a new
    store.

    Args:
        store_root: the store, a local path or fsspec URL.
        filemap: the fields that each sample must have: a mapping or an object with a file name per field.
        dataset_name: name of the store.
        shuffle_seed, chunk_points, shard_points, values_dtype, field_dtypes: settings of the conversion.
        coords_dtype: "float32"; positions have no other dtype.
        compression_level: of blosc with zstd.
        max_errors: error bounds of fields, another setting of the conversion.

    Raises:
        SourceError: a setting or the file map is invalid.

    Examples:
        >>> import numpy as np
        >>> writer = ZarrStoreWriter("store")
        >>> result = writer.write_sample("new", {"surface_position": np.zeros((8, 3)), "surface_pressure": np.ones(8)})
        >>> "new" in writer.manifest.samples
        True
    """

    def __init__(
        self,
        store_root: str | os.PathLike[str],
        filemap: object = None,
        dataset_name: str | None = None,
        shuffle_seed: int | None = None,
        chunk_points: int | None = None,
        shard_points: int | None = None,
        coords_dtype: str = COORDS_DTYPE,
        values_dtype: str | None = None,
        field_dtypes: Mapping[str, str] | None = None,
        compression_level: int | None = None,
        max_errors: Mapping[str, str | float] | None = None,
    ) -> None:
        if coords_dtype != COORDS_DTYPE:
            raise SourceError(f"coords_dtype must be {COORDS_DTYPE}, not {coords_dtype!r}: positions are exact")
        given = {
            "shuffle_seed": shuffle_seed,
            "chunk_points": chunk_points,
            "shard_points": shard_points,
            "values_dtype": values_dtype,
            "field_dtypes": field_dtypes,
            "max_errors": max_errors,
            "codec": None if compression_level is None else f"{_CODEC}:{compression_level}",
        }
        #: The settings that the caller gave, by name.
        self.settings: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        ConversionSettings(**self.settings)
        self.storage, self.dataset_name = Storage(store_root), dataset_name
        self.kind = None if filemap is None else describe_filemap(dataset_name or _OF_FILES, filemap)

    @property
    def manifest(self) -> StoreManifest:
        """What the store holds now."""
        return load_if_any(self.storage) or StoreManifest(self.dataset_name or "")

    def write_sample(self, sample_id: str, field_arrays: Mapping[str, Any]) -> ConversionResult:
        """Write and commit one sample; arguments, errors and result as for :func:`zarr_core.write_sample`."""
        root, name = self.storage.root, self.dataset_name
        return write_sample(root, sample_id, field_arrays, kind=self.kind, dataset_name=name, **self.settings)

    def save_manifest(self) -> str:
        """The URL of the manifest, which samples and conversions have committed; raises StoreError if there is none."""
        if load_if_any(self.storage) is None:
            raise StoreError(f"{self.storage.url} is not a store: no sample was written")
        return f"{self.storage.url.rstrip('/')}/{MANIFEST}"


def convert_aero_dataset(
    dataset: AeroDataset, writer: ZarrStoreWriter, *, max_workers: int = 1, limit: int | None = None
) -> ConversionReport:
    """Convert and commit a dataset object of any framework that has a ``filemap``, a ``_load`` method and sample ids.

    Args:
        dataset: the object; its ``split``, if any, is kept in the store. It is pickled if ``max_workers > 1``.
        writer: of the store.
        max_workers: processes.
        limit: convert at most this many of the samples that are missing or changed.

    Returns:
        What was converted. A sample that was refused is named by a warning in the log.

    Raises:
        SourceError: the object cannot be converted, or each of its samples was refused.
        StoreError: the store cannot be used, or has other settings.
    """
    return _convert(dataset, None, writer, max_workers, limit)


def convert_fsspec_source(
    source_url: str, filemap: object, writer: ZarrStoreWriter, *, max_workers: int = 1, limit: int | None = None
) -> ConversionReport:
    """Convert and commit a tree of files at any fsspec location; see :func:`convert_aero_dataset`.

    Args:
        source_url: the location; its samples are the folders, at any depth, that have all files.
        filemap: a mapping or an object with a file name per field, or a kind of dataset as for
            :func:`~zarr_core.convert.convert`.
        writer, max_workers, limit: as for :func:`convert_aero_dataset`.
    """
    return _convert(filemap, source_url, writer, max_workers, limit)


def _convert(
    source: Any, source_url: str | None, writer: ZarrStoreWriter, workers: int, limit: int | None
) -> ConversionReport:
    """Convert a dataset object, or the files of a file map or a kind, and say what was left out as Noether does."""
    if not isinstance(writer, ZarrStoreWriter):
        raise SourceError(
            f"the writer is a {type(writer).__name__}; the arguments are (dataset, writer) and "
            "(source_url, filemap, writer)"
        )
    if source_url is not None and not isinstance(source, str | SourceDescription | type):
        source = describe_filemap(writer.dataset_name or _OF_FILES, source)
    request = ConversionRequest(
        source,
        writer.storage.root,
        source_url=source_url,
        limit=limit,
        dataset_name=writer.dataset_name,
        settings=writer.settings,
    )
    report = run_conversion(request, workers=workers)
    for note in report.notes:
        logger.warning("%s", note)
    refused = [*report.having("quarantined"), *report.having("failed")]
    for result in refused:
        logger.warning("sample %s is left out: %s", result.sample_id, result.reason)
    if refused and len(refused) == len(report.results):
        first = refused[0]
        raise SourceError(f"all {len(refused)} samples failed; the first, {first.sample_id}: {first.reason}")
    return report
