"""A dataset as Dagster sees it: everything that one ``defs.yaml`` stands for."""

import re
from pathlib import Path

import dagster as dg
import pydantic
from pydantic import Field

from assets.checks import dataset_checks
from assets.locations import absolute
from assets.manifest import manifest_asset
from assets.report import report_asset
from assets.source_samples import source_listing_asset, source_samples_asset
from assets.statistics import statistics_asset
from assets.zarr_samples import zarr_samples_asset
from resources.dataset import DeclaredDataset
from sensors.arrivals import arrivals_sensor
from sensors.refresh import refresh_schedule
from zarr_core.errors import ZarrCoreError
from zarr_core.format.codecs import DEFAULT_CODEC
from zarr_core.points.settings import ConversionSettings


class PointDataset(dg.Component, dg.Model, dg.Resolvable):
    """A dataset of point-cloud samples, converted to a Zarr store as the samples arrive.

    Relative paths are relative to the project; a ``kind`` that is a YAML file, to the folder of the ``defs.yaml``.
    """

    name: str = Field(description="Prefix of the asset keys, and the asset group.")
    kind: str = Field(description="ahmedml, drivaerml, drivaernet, emmi_wing, shapenet_car, a YAML file, a class.")
    source: str = Field(description="Folder or URL that holds the sample folders; it is watched.")
    store: str = Field(description="Folder or URL of the store.")
    report: str = Field(description="Local folder for the benchmark report.")
    splits: list[str] | None = Field(default=None, description="Splits to convert; all samples if left out.")
    chunk_points: int = Field(default=16_384, description="Points in a chunk; close to what a training step draws.")
    shard_points: int | None = Field(default=None, description="Cap on the points in a shard; none if left out.")
    values_dtype: str = Field(default="float16", description="Stored dtype of everything but positions.")
    field_dtypes: dict[str, str] = Field(default={}, description="Stored dtype of single fields.")
    codec: str = Field(default=DEFAULT_CODEC, description="Compressor of the chunks, name or name:level.")
    shuffle_seed: int = Field(default=0, description="Seed of the order of points.")
    batch_size: int = Field(default=100, description="Most samples that one conversion run takes.")
    workers: int = Field(default=2, description="Processes that convert.")
    look_every_seconds: int = Field(default=30, description="Pause between two looks at the source.")
    refresh_schedule: str = Field(default="0 3 * * *", description="When manifest, statistics, report are refreshed.")
    retry_schedule: str = Field(default="0 * * * *", description="When failed samples are tried again.")
    checked_samples: int = Field(default=4, description="Samples that the checks compare with their source.")

    @pydantic.model_validator(mode="after")
    def _makes_sense(self) -> "PointDataset":
        # Not as constraints of the fields: those would be applied to "{{ ... }}" before it is filled in.
        if not re.fullmatch(r"[a-z][a-z0-9_]*", self.name):
            raise ValueError(f"name {self.name!r} must be lower case letters, digits and underscores")
        for name in ("batch_size", "workers", "look_every_seconds", "checked_samples"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        try:
            self.settings()
        except ZarrCoreError as error:
            raise ValueError(str(error)) from error
        return self

    def settings(self) -> ConversionSettings:
        """How samples are written, as zarr_core takes it."""
        return ConversionSettings(
            self.chunk_points, self.shard_points, self.values_dtype, self.field_dtypes, self.codec, self.shuffle_seed
        )

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """The assets, checks, jobs, sensor and schedule of the dataset."""
        return dataset_definitions(self.declare(context.project_root, context.path))

    def declare(self, project: Path, folder: Path) -> DeclaredDataset:
        """The declaration with absolute paths.

        Args:
            project: folder of ``definitions.py``.
            folder: folder of the ``defs.yaml``.
        """
        return DeclaredDataset(
            name=self.name,
            kind=absolute(folder, self.kind) if self.kind.endswith((".yaml", ".yml")) else self.kind,
            source=absolute(project, self.source),
            store=absolute(project, self.store),
            report=absolute(project, self.report),
            splits=None if self.splits is None else tuple(self.splits),
            settings=self.settings(),
            batch_size=self.batch_size,
            workers=self.workers,
            look_every_seconds=self.look_every_seconds,
            refresh_schedule=self.refresh_schedule,
            retry_schedule=self.retry_schedule,
            checked_samples=self.checked_samples,
        )


def dataset_definitions(dataset: DeclaredDataset) -> dg.Definitions:
    """Everything that exists for one dataset.

    The three jobs are what the automation does, for a person to start: look at the source, convert what it holds, and
    publish and describe the result.
    """
    convert, refresh = f"{dataset.name}_convert", f"{dataset.name}_refresh"
    observed = [dataset.key("source_samples"), dataset.key("source_listing")]
    derived = [dataset.key("manifest"), dataset.key("statistics"), dataset.key("benchmark_report")]
    return dg.Definitions(
        assets=[
            source_samples_asset(dataset),
            source_listing_asset(dataset),
            zarr_samples_asset(dataset),
            manifest_asset(dataset),
            statistics_asset(dataset),
            report_asset(dataset),
        ],
        asset_checks=dataset_checks(dataset),
        jobs=[
            dg.define_asset_job(f"{dataset.name}_look", selection=dg.AssetSelection.assets(*observed)),
            dg.define_asset_job(convert, selection=dg.AssetSelection.assets(dataset.key("zarr_samples"))),
            dg.define_asset_job(refresh, selection=dg.AssetSelection.assets(*derived)),
        ],
        sensors=[arrivals_sensor(dataset)],
        schedules=[refresh_schedule(dataset, refresh)],
    )
