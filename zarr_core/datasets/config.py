"""Settings of datasets, validated before anything is opened."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Collection, Mapping
from typing import Annotated, Any, Literal, Self

import pydantic
from pydantic import AfterValidator, BeforeValidator, NonNegativeInt, PositiveInt

from zarr_core._util.arguments import did_you_mean
from zarr_core._util.documents import checked_by
from zarr_core._util.units import parse_size
from zarr_core.datasets.collation import Way
from zarr_core.datasets.normalizers import NormalizerConfig, PositionConfig
from zarr_core.datasets.splits import check_shares, parse_split
from zarr_core.storage import absolute
from zarr_core.storage.disk_cache import DEFAULT_LIMIT

_HOME = "zarr_core.datasets"

_DOMAIN_POINTS = re.compile(r"num_[a-z0-9_]+_points")

# Keys of Noether's dataset configs whose work is done elsewhere here.
_COUNTERPARTS = {
    "pipeline": "num_surface_points, num_volume_points and num_geometry_points, and the DataLoader's collate_fn",
    "dataset_normalizers": "normalizers, such as {surface_pressure: mean_std}",
    "dataset_wrappers": 'part of a split, such as "train[:50]", or torch.utils.data.Subset',
    "wrappers": 'part of a split, such as "train[:50]", or torch.utils.data.Subset',
}


def _as_text(place: Any) -> Any:
    """A ``Path`` as text; anything else as it is, to be checked."""
    return os.fspath(place) if isinstance(place, os.PathLike) else place


# Absolute, as a worker process that gets the config may have another working directory.
_Place = Annotated[str, BeforeValidator(_as_text), AfterValidator(absolute)]
_Size = Annotated[int | str, checked_by(parse_size)]


def _with_num_points(settings: Mapping[str, Any], known: Collection[str]) -> Mapping[str, Any]:
    """The settings with the number of points of other domains than surface and volume in ``num_points``."""
    own = [key for key in settings if key not in known and _DOMAIN_POINTS.fullmatch(str(key))]
    num_points = settings.get("num_points") or {}
    merged = {key: value for key, value in settings.items() if key not in own}
    if not own or not isinstance(num_points, Mapping):  # other types are refused with the other settings
        return merged
    merged["num_points"] = dict(num_points)
    for key in own:
        domain = key[len("num_") : -len("_points")]
        if domain in num_points:
            raise ValueError(f"num_points repeats {domain}; set the number of points once")
        if settings[key] is not None:  # None reads all
            merged["num_points"][domain] = settings[key]
    return merged


class StoreDatasetConfig(pydantic.BaseModel):
    """Settings common to all datasets over a store.

    Attributes:
        kind: the dataset class for ``build_dataset``: dotted path or short name.
        root: local path or fsspec URL of the store.
        generation: number or tag of the generation to read, for example to resume a run that started with it; None
            reads the latest.
        split: "train", or part of a split: "train[:50]", "test[0]", "train[10:20:2]". "all" is every sample that no
            blacklist excludes, unless the store has a split of that name.
        sample_ids: instead of ``split``, the samples in this order.
        splits: for a store without splits, the share of each split, such as ``{train: 0.8, val: 0.2, seed: 1}``. The
            split of a sample depends on its id and the seed (0 by default) alone, so further samples change the split
            of none; a split has about its share of the samples.
        num_surface_points: surface points to draw per item; None reads all.
        num_volume_points: volume points to draw per item; None reads all.
        num_geometry_points: surface positions to draw per item for ``geometry_position``, independently of the surface
            fields; None or 0 omits that field.
        num_points: points to draw by domain, for domains other than surface and volume. ``num_wake_points: 4096`` is
            another spelling of ``num_points: {wake: 4096}``.
        fields: canonical names of the fields to read; None reads all.
        included_properties: canonical names of the fields to read, and "geometry_position"; None reads all. Either this
            or ``fields``.
        excluded_properties: fields, or "geometry_position", that are not read, even if they are included. It may name
            fields that the store does not have.
        missing_fields: "raise" an error if a sample lacks a field to be read (samples that were converted before a
            field was added), or "skip" such samples with a warning.
        sampling_seed: seed of the draws. Seed, epoch and sample id determine the drawn points once an epoch is set.
            None draws new points with torch's random generator on every access, whatever the epoch.
        engine: "direct", "zarr" or "tensorstore"; None chooses one.
        read_concurrency: fields of a sample that the engine "zarr" reads concurrently; other engines ignore it.
        cache_dir: folder on a fast local disk for a cache shared by all processes of the host; None disables it.
        cache_limit: size limit of that cache, for example "200GB".
        cache_bytes: size limit of a memory cache for remote stores, for example "2GB". Each reading process (each
            DataLoader worker) has its own. None disables it.
        dtype: "float32", or "stored" for tensors of the stored dtype, which are smaller and not normalised: call
            ``dataset.normalize(batch)`` after the copy to the device.
        scalar_axis: keep the last axis of scalar fields: (points, 1) instead of (points,).
        collate: how a DataLoader makes batches of samples with different numbers of points, as they are read without
            ``num_surface_points`` and the like: "pad", "concat" or "list", see :class:`Collate`. None: it is an error.
        with_index: items have ``index``, their position in the dataset, an int64 tensor.
        with_sample_id: items have ``sample_id``, a string; batches have a list of them.
        parameters: parameters that the conversion recorded, tensors of items, float32 (float64, and not normalised,
            with ``dtype="stored"``): () for a number, (components,) for a list of numbers, which has one length in all
            samples.
        item: keys of the items, and the field, parameter, "index" or "sample_id" of each. A list of names is one
            tensor, joined along the components, (points, components); parameters are repeated for each point. Only
            the fields that it names are read.
        transform: function, or its dotted path, of an item; returns the item to use, also one that is not a dict.
            Runs where items are read: in a worker process or thread, on the CPU. Its items are copied into batches.
        batch_transform: function, or its dotted path, of a batch, a dict of tensors (items, ...); returns one. Runs
            where batches are read. An item is a part of the result.
        filter_categories: keep only samples of these categories. The category is the sample id without its last
            "_" part.
        normalizers: by field, "mean_std", "logscale_mean_std", "min_max", "position" or ``{kind: position, scale:
            1000}``, with the statistics of the generation that is read; or the ``normalizers`` of another dataset.
        statistics: path or URL of a YAML file whose statistics ``normalizers`` use instead, such as
            "STORE/statistics/00000003/train.yaml", so that datasets of several stores share them.
    """

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    kind: str
    root: _Place
    split: Annotated[str, checked_by(parse_split)] | None = None
    sample_ids: Annotated[tuple[str, ...], pydantic.Field(min_length=1)] | None = None
    splits: dict[str, pydantic.NonNegativeFloat] = {}
    generation: PositiveInt | str | None = None
    num_surface_points: PositiveInt | None = None
    num_volume_points: PositiveInt | None = None
    num_geometry_points: NonNegativeInt | None = None
    num_points: Annotated[dict[str, PositiveInt], pydantic.Field(examples=[{"wake": 4096}])] = {}
    fields: Annotated[tuple[str, ...] | None, pydantic.Field(min_length=1, examples=[["surface_pressure"]])] = None
    included_properties: frozenset[str] | None = None
    excluded_properties: frozenset[str] | None = None
    missing_fields: Literal["raise", "skip"] = "raise"
    sampling_seed: int | None = 0
    engine: Literal["direct", "zarr", "tensorstore"] | None = None
    read_concurrency: PositiveInt = 1
    cache_dir: _Place | None = None
    cache_limit: _Size = DEFAULT_LIMIT
    cache_bytes: _Size | None = None
    dtype: Literal["float32", "stored"] = "float32"
    scalar_axis: bool = False
    collate: Way | None = None
    with_index: bool = False
    with_sample_id: bool = False
    parameters: Annotated[tuple[str, ...], pydantic.Field(examples=[["drag"]])] = ()
    item: Annotated[
        dict[str, str | Annotated[tuple[str, ...], pydantic.Field(min_length=1)]],
        pydantic.Field(examples=[{"x": ["surface_position", "drag"], "y": "surface_pressure"}]),
    ] = {}
    transform: Callable[[Any], Any] | str | None = None
    batch_transform: Callable[[Any], Any] | str | None = None
    filter_categories: Annotated[tuple[str, ...], pydantic.Field(min_length=1)] | None = None
    normalizers: Annotated[
        dict[str, NormalizerConfig], pydantic.Field(examples=[{"surface_pressure": "mean_std"}])
    ] = {}
    statistics: _Place | None = None

    @pydantic.model_validator(mode="before")
    @classmethod
    def _name_counterparts(cls, settings: Any) -> Any:
        if not isinstance(settings, Mapping):
            return settings
        for key, counterpart in _COUNTERPARTS.items():
            if settings.get(key):
                raise ValueError(f"{key} is not a setting of this library; use {counterpart}")
        settings = _with_num_points(settings, cls.model_fields)
        for key in settings.keys() - cls.model_fields.keys() - _COUNTERPARTS.keys():
            if nearest := did_you_mean(str(key), cls.model_fields):
                raise ValueError(f"{key} is not a setting of this library{nearest}")
        return {key: value for key, value in settings.items() if key not in _COUNTERPARTS}

    @pydantic.model_validator(mode="after")
    def _check_combinations(self) -> Self:
        for domain, points in {"surface": self.num_surface_points, "volume": self.num_volume_points}.items():
            if points is not None and domain in self.num_points:
                raise ValueError(f"num_points repeats {domain}; set the number of points once")
        if self.fields is not None and self.included_properties is not None:
            raise ValueError("fields and included_properties both name the fields to read; set one of them")
        if self.split is None and self.sample_ids is None:
            raise ValueError("split is missing; set a split of the store, all, or sample_ids")
        if self.split is not None and self.sample_ids is not None:
            raise ValueError("split and sample_ids both name the samples; set one of them")
        if len(set(self.sample_ids or ())) < len(self.sample_ids or ()):
            raise ValueError("sample_ids names a sample twice; repeat it with the weights of an EpochBatchSampler")
        if self.splits:
            check_shares(self.splits, self.split)
        if self.item and self.dtype == "stored":
            raise ValueError('item forms keys of float32 values; dtype="stored" keeps the names of the fields')
        added = {**dict.fromkeys(self.parameters, True), "index": self.with_index, "sample_id": self.with_sample_id}
        for name, asked in added.items():
            if self.item and asked and name not in self.item_names:
                raise ValueError(
                    f"item leaves {name} out, which the config asks for; name it in item, such as "
                    f"`item: {{{name}: {name}}}`, or do not ask for it"
                )
        if self.batch_transform is not None and self.collate is not None:
            raise ValueError(
                "batch_transform changes batches of samples of one size, before collate; use transform, or "
                "to_device(loader, device, transform=...)"
            )
        for key, names in self.item.items():
            if not isinstance(names, str) and "sample_id" in names:
                raise ValueError(f"item {key!r}: sample_id is text, and cannot be joined with others")
        return self

    @pydantic.field_validator("*", mode="before")
    @classmethod
    def _check_not_bool(cls, value: object, info: pydantic.ValidationInfo) -> object:
        values = value.values() if isinstance(value, Mapping) else [value]
        takes_bool = info.field_name in ("scalar_axis", "with_index", "with_sample_id")
        if not takes_bool and bool in map(type, values):  # pydantic takes True for 1
            raise ValueError("must not be true or false")
        return value

    @pydantic.field_validator("normalizers")
    @classmethod
    def _check_normalizers(cls, normalizers: dict[str, NormalizerConfig]) -> dict[str, NormalizerConfig]:
        for field, normalizer in normalizers.items():
            if isinstance(normalizer, PositionConfig) and not field.endswith("_position"):
                raise ValueError(f"{field}: 'position' applies to positions only; use mean_std for other fields")
        return normalizers

    @property
    def item_names(self) -> list[str]:
        """What ``item`` names, each once."""
        names: dict[str, None] = {}
        for chosen in self.item.values():
            names |= dict.fromkeys([chosen] if isinstance(chosen, str) else chosen)
        return list(names)

    @property
    def points_by_domain(self) -> dict[str, int]:
        """Points to draw by domain, without the domains that are read whole."""
        wanted = {"surface": self.num_surface_points, "volume": self.num_volume_points}
        named = {domain: points for domain, points in wanted.items() if points is not None}
        return named | self.num_points

    @classmethod
    def __pydantic_init_subclass__(cls, **options: Any) -> None:
        # ``help`` shows the signature first; with the types of all keys it is several screens.
        keys = [key.replace(annotation=key.empty) for key in inspect.signature(cls).parameters.values()]
        cls.__signature__ = inspect.Signature(keys)


class ZarrPointDatasetConfig(StoreDatasetConfig):
    """Settings of ``ZarrPointDataset``, the dataset over any store.

    ``help("zarr_core.datasets.config.StoreDatasetConfig")`` describes them.

    Examples:
        >>> config = ZarrPointDatasetConfig(root="store", split="train", num_surface_points=64)
        >>> len(ZarrPointDataset(config))
        4
    """

    kind: str = f"{_HOME}.ZarrPointDataset"


class ZarrShapeNetCarDatasetConfig(StoreDatasetConfig):
    """Settings of ``ZarrShapeNetCarDataset``."""

    kind: str = f"{_HOME}.ZarrShapeNetCarDataset"


class ZarrAhmedMLDatasetConfig(StoreDatasetConfig):
    """Settings of ``ZarrAhmedMLDataset``."""

    kind: str = f"{_HOME}.ZarrAhmedMLDataset"


class ZarrDrivAerMLDatasetConfig(StoreDatasetConfig):
    """Settings of ``ZarrDrivAerMLDataset``."""

    kind: str = f"{_HOME}.ZarrDrivAerMLDataset"


class ZarrDrivAerNetDatasetConfig(StoreDatasetConfig):
    """Settings of ``ZarrDrivAerNetDataset``."""

    kind: str = f"{_HOME}.ZarrDrivAerNetDataset"


class ZarrEmmiWingDatasetConfig(StoreDatasetConfig):
    """Settings of ``ZarrEmmiWingDataset``."""

    kind: str = f"{_HOME}.ZarrEmmiWingDataset"
