"""What can be set on a dataset, checked before anything is opened."""

from __future__ import annotations

from typing import Annotated, Literal

import pydantic
from pydantic import PositiveInt

from zarr_core._util.units import parse_size
from zarr_core.datasets.normalizers import NormalizerConfig, PositionConfig
from zarr_core.datasets.splits import parse_split
from zarr_core.errors import ZarrCoreError
from zarr_core.storage.disk_cache import DEFAULT_LIMIT

_HOME = "zarr_core.datasets"


class StoreDatasetConfig(pydantic.BaseModel):
    """Settings that all datasets over a store share.

    Attributes:
        kind: the dataset class, as a dotted path or a short name; ``build_dataset`` goes by it.
        root: local path or fsspec URL of the store.
        generation: read the store as that commit left it, such as to go on with a run that began then; None reads the
            latest.
        split: "train", or a part of it: "train[:50]", "test[0]", "train[10:20:2]".
        num_surface_points: surface points to draw for each item; None reads all of them.
        num_volume_points: volume points to draw for each item; None reads all of them.
        num_geometry_points: adds ``geometry_position``, so many surface positions drawn independently of the surface
            fields; None leaves it out.
        fields: canonical names of the fields to read; None reads all.
        sampling_seed: with the epoch and the sample, decides which points are drawn.
        engine: what reads: "direct", "zarr" or "tensorstore"; None chooses.
        read_concurrency: fields of a sample that the engine "zarr" reads at the same time; the others need no threads.
        cache_dir: folder on a fast local disk where what was fetched is kept for all processes of the host; None keeps
            nothing.
        cache_limit: bytes to keep there, as in "200GB".
        cache_bytes: memory for what was fetched from a remote store, in each process that reads (each worker of a
            DataLoader), as in "2GB"; None keeps nothing.
        dtype: "float32", or "stored": tensors as they are stored, half as large and not normalised, for
            ``dataset.normalize(batch)`` after the copy to the device.
        filter_categories: keep only samples whose id, less its last "_" part, is one of these.
        normalizers: by field, "mean_std", "logscale_mean_std", "position" or ``{kind: position, scale: 1000}``, with
            the numbers of the store's ``stats.yaml``.
    """

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    kind: str
    root: str
    split: str
    generation: PositiveInt | str | None = None
    num_surface_points: PositiveInt | None = None
    num_volume_points: PositiveInt | None = None
    num_geometry_points: PositiveInt | None = None
    fields: Annotated[tuple[str, ...], pydantic.Field(min_length=1)] | None = None
    sampling_seed: int = 0
    engine: Literal["direct", "zarr", "tensorstore"] | None = None
    read_concurrency: PositiveInt = 1
    cache_dir: str | None = None
    cache_limit: int | str = DEFAULT_LIMIT
    cache_bytes: int | str | None = None
    dtype: Literal["float32", "stored"] = "float32"
    filter_categories: Annotated[tuple[str, ...], pydantic.Field(min_length=1)] | None = None
    normalizers: dict[str, NormalizerConfig] = {}

    @pydantic.field_validator("split")
    @classmethod
    def _check_split(cls, split: str) -> str:
        try:
            parse_split(split)
        except ZarrCoreError as error:
            raise ValueError(str(error)) from None
        return split

    @pydantic.field_validator("cache_limit", "cache_bytes")
    @classmethod
    def _check_size(cls, size: int | str | None) -> int | str | None:
        try:
            if size is not None:
                parse_size(size)
        except ZarrCoreError as error:
            raise ValueError(str(error)) from None
        return size

    @pydantic.field_validator("normalizers")
    @classmethod
    def _check_normalizers(cls, normalizers: dict[str, NormalizerConfig]) -> dict[str, NormalizerConfig]:
        for field, normalizer in normalizers.items():
            if isinstance(normalizer, PositionConfig) and not field.endswith("_position"):
                raise ValueError(f"{field}: 'position' uses the bounds of positions; use mean_std for other fields")
        return normalizers

    @property
    def points_by_domain(self) -> dict[str, int]:
        """Points to draw, for the domains that are not read whole."""
        wanted = {"surface": self.num_surface_points, "volume": self.num_volume_points}
        return {domain: points for domain, points in wanted.items() if points is not None}


class ZarrPointDatasetConfig(StoreDatasetConfig):
    """Settings of ``ZarrPointDataset``, the dataset over any store.

    Attributes:
        num_points: points to draw by domain, for domains other than surface and volume.
    """

    kind: str = f"{_HOME}.ZarrPointDataset"
    num_points: dict[str, PositiveInt] = {}

    @pydantic.model_validator(mode="after")
    def _check_num_points(self) -> ZarrPointDatasetConfig:
        twice = super().points_by_domain.keys() & self.num_points.keys()
        if twice:
            raise ValueError(f"num_points of {', '.join(sorted(twice))} is given twice")
        return self

    @property
    def points_by_domain(self) -> dict[str, int]:
        """Points to draw, for the domains that are not read whole."""
        return super().points_by_domain | self.num_points


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
