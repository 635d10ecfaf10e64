"""The declaration of a dataset of points: its source, its store and how samples are converted."""

import hashlib
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, Literal, Self

import dagster as dg
import pydantic
from pydantic import Field
from zarr_core.platform.assets.declaration import Declaration, absolute
from zarr_core.platform.assets.exports import POINT_FORMATS, check_exports
from zarr_core.platform.resources.pools import PoolDeclaration

from zarr_core._util.redaction import redact
from zarr_core.errors import ZarrCoreError
from zarr_core.points.convert.request import MAX_RETIRED_SHARE, ConversionRequest
from zarr_core.points.store.settings import NO_BOUND, NO_OWN_DTYPE, ConversionSettings, Layout
from zarr_core.sources import SourceDescription, resolve_kind


class DatasetDeclaration(Declaration):
    """The settings of ``assets.component.PointDataset``."""

    kind: str = Field(description="ahmedml, drivaerml, drivaernet, emmi_wing, shapenet_car, a YAML file, a class.")
    # URLs may hold passwords.
    source: str = Field(repr=False, description="Folder or URL that holds the sample folders; it is watched.")
    store: str = Field(repr=False, description="Folder or URL of the store.")
    notifications: str | None = Field(
        default=None,
        description="URL of a queue of SQS that the source's bucket notifies of its objects. The sensor then looks at "
        "the samples that are named there, and lists the whole source once per hour.",
    )
    dataset_name: str | None = Field(
        default=None,
        description="Name of the dataset in its store, the former one if it was renamed; default: name.",
    )
    splits: list[str] | None = Field(default=None, description="Splits to convert; by default all samples.")
    chunk_points: int = Field(
        default=ConversionSettings.chunk_points, description="Points per chunk; close to what a training step draws."
    )
    shard_points: int | None = Field(default=None, description="Maximum points per shard; by default no limit.")
    values_dtype: str = Field(
        default=ConversionSettings.values_dtype, description="Stored dtype of everything but positions."
    )
    field_dtypes: dict[str, str] = Field(default={}, description="Stored dtype of single fields.")
    max_errors: dict[str, str | float] = Field(
        default={}, description="Largest error of single fields: a number in their units, or 1e-3std."
    )
    codec: str = Field(default=ConversionSettings.codec, description="Compressor of the chunks, name or name:level.")
    shuffle_seed: int = Field(default=0, description="Seed of the order of points.")
    layout: Layout = Field(
        default=ConversionSettings.layout, description="directory: objects per field; packed: one object per sample."
    )
    fingerprint: Literal["version", "content"] | None = Field(
        default=None,
        description="Notice changed files by version (etag or time) or content, by which copies with new times "
        "alone are not converted again; default: as the store.",
    )
    batch_size: int = Field(default=500, description="Maximum number of samples per conversion run.")
    workers: int = Field(default=2, description="Number of processes that convert.")
    pool: PoolDeclaration = Field(
        default=PoolDeclaration(),
        description="What converts: processes, or a Dask cluster, by its address, or as a class (cluster) with its "
        "options and the number of workers (scale).",
    )
    max_retired_share: float = Field(
        default=MAX_RETIRED_SHARE,
        description="Maximum share of the samples that one refresh retires. A single sample is retired in any case, "
        "unless the share is 0.",
    )
    allow_samples_without_split: bool = Field(
        default=False, description="Samples that are in no split are meant to be; otherwise a check warns of them."
    )
    complete_within_hours: int = Field(
        default=24,
        description="Send an alert if a sample is still incomplete N hours after its newest file was written.",
    )
    checked_samples: int = Field(default=4, description="Number of samples that the checks compare with their source.")

    @pydantic.model_validator(mode="after")
    def _check(self) -> Self:
        self._check_range(1, "batch_size", "workers", "checked_samples", "complete_within_hours")
        if self.splits == []:
            raise ValueError("splits is empty, which selects no sample; leave it out to convert all samples")
        if self.notifications is not None and not self.source.startswith("s3://"):
            raise ValueError("notifications: only sources in S3 have them")
        check_exports(self.exports, POINT_FORMATS)
        try:
            ConversionRequest(
                self.kind, self.store, max_retired_share=self.max_retired_share, settings=asdict(self.settings)
            )
        except ZarrCoreError as error:
            raise ValueError(str(error)) from error
        return self

    def with_absolute_paths(self, project: Path, folder: Path) -> Self:
        """Resolve relative paths.

        Args:
            project: folder of ``definitions.py``; sources, stores and reports are relative to it.
            folder: folder of the ``defs.yaml``; a ``kind`` that is a YAML file is relative to it.

        Raises:
            SourceError: the kind is unknown, or has no such field as a setting names.
        """
        kind = absolute(folder, self.kind) if self.kind.endswith((".yaml", ".yml")) else self.kind
        paths = {name: absolute(project, getattr(self, name)) for name in ("source", "store", "report")}
        found = self.model_copy(update={"kind": kind, **paths, **self._absolute_copies(project)})
        found.settings.check_fields(found.description.fields)
        return found

    @property
    def settings(self) -> ConversionSettings:
        """How samples are written; raises SourceError."""
        names = [setting.name for setting in fields(ConversionSettings)]
        return ConversionSettings(**{name: getattr(self, name) for name in names})

    @property
    def description(self) -> SourceDescription:
        """The layout of the source; raises SourceError if the kind is unknown."""
        return resolve_kind(self.kind)

    @property
    def partitions_name(self) -> str:
        """Name of the partitions in the instance: one per sample that the source holds."""
        return f"{self.name}__samples"

    @property
    def partitions(self) -> dg.DynamicPartitionsDefinition:
        """One partition per sample that the source holds."""
        return dg.DynamicPartitionsDefinition(name=self.partitions_name)

    @property
    def concurrency_pool(self) -> str:
        """Dagster's concurrency pool of the conversion runs."""
        return f"convert_{self.name}"

    @property
    def observed(self) -> dg.AssetKey:
        """The asset whose partitions the sensor observes."""
        return self.key("source_samples")

    @property
    def converted(self) -> dg.AssetKey:
        """The asset of the converted samples."""
        return self.key("zarr_samples")

    @property
    def published(self) -> dg.AssetKey:
        """The asset of the manifest."""
        return self.key("manifest")

    @property
    def conversion_job(self) -> str:
        """The job that converts samples."""
        return f"{self.name}_convert"

    @property
    def listing_key(self) -> dg.AssetKey:
        """The asset of the listing as a whole."""
        return self.key("source_listing")

    @property
    def shown_source(self) -> str:
        """The source's URL without secrets."""
        return redact(self.source)

    @property
    def shown_store(self) -> str:
        """The store's URL without secrets."""
        return redact(self.store)

    @property
    def migration_job(self) -> str:
        """The job that begins a migration to the declared settings."""
        return f"{self.name}_migrate"

    def request(
        self, settings: ConversionSettings, held: ConversionSettings | None = None, **options: Any
    ) -> ConversionRequest:
        """What a run converts or publishes.

        Args:
            settings: how samples are written.
            held: settings of the store, which may name fields that the kind no longer has.
            **options: other fields of the request.
        """
        # Every setting is named, also that a field has no dtype and no error bound of its own.
        dtypes: dict[str, str] = {} if held is None else dict.fromkeys(held.field_dtypes, NO_OWN_DTYPE)
        bounds: dict[str, str | float] = {} if held is None else dict.fromkeys(held.max_errors, NO_BOUND)
        for name in self.description.fields:
            dtypes[name] = settings.field_dtypes.get(name, NO_OWN_DTYPE)
            bounds[name] = settings.max_errors.get(name, NO_BOUND)
        return ConversionRequest(
            self.kind,
            self.store,
            source_url=self.source,
            dataset_name=self.dataset_name or self.name,
            splits=self.splits,
            fingerprint=self.fingerprint,
            settings={
                **settings.to_document(),
                "layout": settings.layout,
                "field_dtypes": dtypes,
                "max_errors": bounds,
            },
            **options,
        )

    @property
    def code_version(self) -> str:
        """Code version of a sample that is converted as declared; samples with another one show as stale."""
        return self.code_version_of(self.settings.digest)

    def code_version_of(self, settings_digest: str) -> str:
        """Changes with everything that changes the bytes of a converted sample: field files and conversion settings."""
        # A sample that gets an optional file is another version of its source, and needs no other code version.
        files = {name: field.filename for name, field in self.description.required_fields.items()}
        return hashlib.sha256(f"{settings_digest} {sorted(files.items())}".encode()).hexdigest()[:12]

    def summary(self) -> dict[str, str]:
        """The declaration without secrets, as the UI shows it."""
        shown = {**dict(self), "source": self.shown_source, "store": self.shown_store, **asdict(self.settings)}
        return {name: str(value) for name, value in shown.items() if value is not None}
