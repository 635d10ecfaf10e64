"""What every declared dataset has in common, whichever kind of store it becomes."""

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any, get_args

import dagster as dg
import pydantic
from pydantic import Field
from zarr_core.platform.assets.exports import ExportDeclaration
from zarr_core.platform.assets.shootout import ShootoutDeclaration
from zarr_core.platform.sensors.dagster_internals.conditions import is_cron
from zarr_core.platform.sensors.failures import PUBLISHED_WITHIN_HOURS

from zarr_core import storage
from zarr_core._util.redaction import refuse_credentials
from zarr_core._util.units import parse_duration
from zarr_core.errors import ZarrCoreError
from zarr_core.versioning.gc import DEFAULT_GRACE

# Of any number that a declaration gives: no time that is made of it leaves the range of Python's.
_MOST = 1_000_000


class _WithoutBools(pydantic.BaseModel):
    @pydantic.field_validator("*", mode="before")
    @classmethod
    def _check_not_bool(cls, value: object, info: pydantic.ValidationInfo) -> object:
        annotation = cls.model_fields[info.field_name or ""].annotation
        given = [value, *value.values()] if isinstance(value, Mapping) else [value]
        for each in given:
            if isinstance(each, bool) and bool not in (annotation, *get_args(annotation)):  # pydantic takes true for 1
                raise ValueError(f"must not be {str(each).lower()}")
        return value


class Declaration(dg.Model, dg.Resolvable, _WithoutBools):
    """Settings that each ``defs.yaml`` may give, and the names that follow from them."""

    name: str = Field(
        description="Prefix of the asset keys, the asset group, and in the names of the partitions, jobs and pool."
    )
    report: str = Field(
        description="Local folder for the report. As any text, it may name a variable: {{ env('REPORTS', 'reports') }}."
    )
    owners: list[str] = Field(
        default=[],
        description="Who answers for the dataset: addresses of mail, and teams as team:data. The UI shows them.",
    )
    look_every_seconds: int = Field(
        default=30,
        description="Pause between two listings of the source; the automation is evaluated as often, at least twice a "
        "minute.",
    )
    settle_seconds: float = Field(
        default=1.0, description="Pause between the two listings of an observation by hand; a copy grows meanwhile."
    )
    refresh_schedule: str = Field(
        default="0 3 * * *", description="When everything that is derived is refreshed, also without arrivals."
    )
    retry_schedule: str = Field(
        default="0 * * * *",
        description="When partitions that failed by the network, memory or a crash are tried again.",
    )
    gc_schedule: str | None = Field(
        default=None, description="When garbage of the store is collected; omit to disable."
    )
    gc_grace: str = Field(
        default=DEFAULT_GRACE, description="Garbage collection keeps what was replaced less than this ago: 24h, 7d."
    )
    verify_within_days: int | None = Field(
        default=None,
        description="Read every chunk in all kept generations once every N days, a part of the samples each day (days "
        "without success are made up for), of a matrix all chunks; omit to read by hand.",
    )
    fresh_within_days: int | None = Field(
        default=None, description="Send an alert if nothing was converted for N days; omit to disable."
    )
    published_within_hours: int | None = Field(
        default=None,
        description="Send an alert if a change of the source is not followed by a manifest within N hours; omit to "
        "disable.",
    )
    exports: list[ExportDeclaration] = Field(default=[], description="Copies of the store in other formats.")
    shootout: ShootoutDeclaration | None = Field(
        default=None, description="Formats, settings and storage to compare; omit to disable."
    )
    retry_seconds: float = Field(
        default=20.0, description="Pause before a run whose network or storage failed is tried again."
    )

    @classmethod
    @cache
    def model(cls) -> type[pydantic.BaseModel]:
        """The attributes of a ``defs.yaml`` with its templates. Dagster's own model takes true for 1."""
        return pydantic.create_model(f"{cls.__name__}Model", __base__=(super().model(), _WithoutBools))

    @pydantic.model_validator(mode="after")
    def _check_common(self) -> "Declaration":
        # Not as constraints of the fields: those would apply to the text "{{ ... }}" of a template.
        if not re.fullmatch(r"[a-z][a-z0-9_]*", self.name):
            raise ValueError(f"name {self.name!r} must be lower case letters, digits and underscores")
        try:
            refuse_credentials(*_texts_of(self.model_dump()))
        except ZarrCoreError as error:
            raise ValueError(str(error)) from None
        days = ("verify_within_days", "fresh_within_days", "published_within_hours")
        self._check_range(1, "look_every_seconds", *days)
        self._check_range(0, "settle_seconds", "retry_seconds")
        try:
            parse_duration(self.gc_grace)
        except ZarrCoreError as error:
            raise ValueError(f"gc_grace: {error}") from error
        for name in ("source", "store", "matrix", "features", "report"):
            if getattr(self, name, None) == "":  # the folder of the project otherwise
                raise ValueError(f"{name} is empty; a template may name a variable of the environment that is empty")
        for name in ("refresh_schedule", "retry_schedule", "gc_schedule"):
            cron = getattr(self, name)
            if cron is not None and not is_cron(cron):
                raise ValueError(f"{name}: {cron!r} is not a cron schedule such as '0 3 * * *', at 03:00 every day")
        return self

    def _check_range(self, minimum: int, *names: str) -> None:
        for name in names:
            value = getattr(self, name)
            if value is not None and not minimum <= value <= _MOST:
                raise ValueError(f"{name} must be at least {minimum} and at most {_MOST:,}, not {value}")

    def _absolute_copies(self, project: Path) -> dict[str, Any]:
        """``exports`` and ``shootout`` with absolute paths."""
        exports = [each.model_copy(update={"output": absolute(project, each.output)}) for each in self.exports]
        shootout = self.shootout
        if shootout is not None:
            tiers = {name: absolute(project, place) for name, place in shootout.tiers.items()}
            shootout = shootout.model_copy(update={"tiers": tiers})
        return {"exports": exports, "shootout": shootout}

    @property
    def freshness_policy(self) -> dg.FreshnessPolicy | None:
        """Policy of the asset of the converted items."""
        days = self.fresh_within_days
        return None if days is None else dg.FreshnessPolicy.time_window(fail_window=timedelta(days=days))

    @property
    def published_metadata(self) -> dict[str, int]:
        """Metadata of the asset that publishes, by which a sensor notices that it is late."""
        hours = self.published_within_hours
        return {} if hours is None else {PUBLISHED_WITHIN_HOURS: hours}

    def owned(
        self, assets: Sequence[dg.AssetsDefinition | dg.SourceAsset | dg.AssetSpec]
    ) -> list[dg.AssetsDefinition | dg.SourceAsset | dg.AssetSpec]:
        """The same assets with the declared owners. Dagster's assets that are only observed have none."""
        observed = [asset for asset in assets if isinstance(asset, dg.SourceAsset)]
        others = [asset for asset in assets if not isinstance(asset, dg.SourceAsset)]
        return [*observed, *dg.map_asset_specs(lambda spec: spec.replace_attributes(owners=self.owners), others)]

    def key(self, asset: str) -> dg.AssetKey:
        """Key of one of the dataset's assets ("manifest")."""
        return dg.AssetKey([self.name, asset])


def absolute(folder: Path, location: str) -> str:
    """Resolve a path against a folder, so that it does not depend on the working directory. URLs stay unchanged."""
    return storage.absolute(location if "://" in location else folder / Path(location).expanduser())


def _texts_of(value: Any) -> Iterator[str]:
    """All texts in a value of lists and mappings."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _texts_of(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts_of(item)
