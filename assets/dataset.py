"""One declared dataset: where its samples come from, where they go and how they are converted."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

import dagster as dg

from zarr_core._util.redaction import redact_url
from zarr_core.points.settings import ConversionSettings
from zarr_core.sources import SourceDescription, resolve_kind


@dataclass(frozen=True)
class DeclaredDataset:
    """What a ``defs.yaml`` says, with every path absolute.

    Attributes:
        name: prefix of the dataset's asset keys, its group and its partitions.
        kind: what ``zarr_core.sources.resolve_kind`` understands.
        source: folder or URL that holds the sample folders; it is watched.
        store: folder or URL of the Zarr store.
        report: local folder for the benchmark report.
        splits: splits to convert; None converts every sample that the source holds.
        settings: how samples are written.
        batch_size: most samples that one conversion run takes.
        workers: processes that convert.
        look_every_seconds: pause between two looks at the source.
        refresh_schedule: cron line on which manifest, statistics and report are made afresh.
        retry_schedule: cron line on which failed samples are tried again although their source did not change.
        checked_samples: how many samples the checks compare with their source, row by row.
    """

    name: str
    kind: str
    source: str = field(repr=False)  # URLs may hold passwords
    store: str = field(repr=False)
    report: str
    splits: tuple[str, ...] | None
    settings: ConversionSettings
    batch_size: int
    workers: int
    look_every_seconds: int
    refresh_schedule: str
    retry_schedule: str
    checked_samples: int

    @cached_property
    def description(self) -> SourceDescription:
        """The layout of the source; raises SourceError where the kind is unknown."""
        return resolve_kind(self.kind)

    @cached_property
    def samples(self) -> dg.DynamicPartitionsDefinition:
        """One partition per sample that the source holds."""
        return dg.DynamicPartitionsDefinition(name=f"{self.name}__samples")

    @property
    def partitions_name(self) -> str:
        """Name under which the instance keeps the partitions."""
        return f"{self.name}__samples"

    @property
    def pool(self) -> str:
        """Concurrency pool of the conversion runs."""
        return f"convert_{self.name}"

    def key(self, asset: str) -> dg.AssetKey:
        """Key of one of the dataset's assets ("zarr_samples")."""
        return dg.AssetKey([self.name, asset])

    @property
    def observed(self) -> dg.AssetKey:
        """The samples as the sensor reports them."""
        return self.key("source_samples")

    @property
    def shown_source(self) -> str:
        """The source's URL as it may be printed."""
        return redact_url(self.source)

    @property
    def shown_store(self) -> str:
        """The store's URL as it may be printed."""
        return redact_url(self.store)

    @property
    def source_arguments(self) -> dict[str, Any]:
        """Keyword arguments that tell ``zarr_core.points.convert`` what to read and how to write it."""
        return {"source_url": self.source, "splits": self.splits, **asdict(self.settings)}

    @cached_property
    def code_version(self) -> str:
        """Changes with whatever changes the bytes of a converted sample: field files and conversion settings."""
        files = {name: field.filename for name, field in self.description.fields.items()}
        said = f"{self.settings.digest} {sorted(files.items())}"
        return hashlib.sha256(said.encode()).hexdigest()[:12]

    def summary(self) -> dict[str, str]:
        """What the UI shows of the declaration, without passwords."""
        shown = {**asdict(self), "source": self.shown_source, "store": self.shown_store}
        settings = shown.pop("settings")
        return {name: str(value) for name, value in {**shown, **settings}.items() if value is not None}
