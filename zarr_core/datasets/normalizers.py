"""Normalization of fields and its inverse, with the statistics of the dataset's generation (``points.statistics``).

Every kind is an affine map (x - shift) / unit, for "logscale_mean_std" applied to sign(x) * log(1 + |x|). A constant
component has no spread to divide by, so it is only shifted.
"""

from __future__ import annotations

import reprlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeAlias

import numpy as np
import pydantic
import torch
from torch import Tensor

from zarr_core._util.documents import describe_problems
from zarr_core.errors import ZarrCoreError
from zarr_core.points.statistics import load_statistics, statistics_hint
from zarr_core.points.store.manifest import ArrayColumn, StoreManifest
from zarr_core.storage import Storage

# A spread that is smaller relative to the mean is rounding error. float16 is normalized as float32.
_RESOLUTION = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-23}


class _NormalizerModel(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)


class MeanStdConfig(_NormalizerModel):
    """Scales each component to mean 0 and standard deviation 1."""

    kind: Literal["mean_std"] = "mean_std"


class LogscaleMeanStdConfig(_NormalizerModel):
    """Scales sign(x) * log(1 + |x|) to mean 0 and standard deviation 1, for fields with long tails."""

    kind: Literal["logscale_mean_std"] = "logscale_mean_std"


class PositionConfig(_NormalizerModel):
    """Maps the bounds of all positions of the store to [0, scale]. All axes share one factor, which preserves shapes.

    Attributes:
        scale: upper end of the range; AB-UPT uses 1000.
    """

    kind: Literal["position"] = "position"
    scale: pydantic.PositiveFloat = 1.0


class FixedConfig(_NormalizerModel):
    """The map (x - shift) / unit with recorded numbers instead of a store's statistics.

    ``dataset.normalizers`` returns these for all fields of a training run, to be saved with the model.

    Attributes:
        shift: one number per component.
        unit: one number per component, not 0.
        logscale: whether to apply sign(x) * log(1 + |x|) first.
    """

    kind: Literal["fixed"] = "fixed"
    shift: tuple[pydantic.FiniteFloat, ...]
    unit: tuple[pydantic.FiniteFloat, ...]
    logscale: bool = False

    @pydantic.model_validator(mode="after")
    def _check_numbers(self) -> FixedConfig:
        if not 0 < len(self.shift) == len(self.unit):
            raise ValueError(f"{len(self.shift)} numbers in shift and {len(self.unit)} in unit; give one per component")
        if not all(self.unit):
            raise ValueError("a unit cannot be 0")
        return self


def _with_kind(value: object) -> object:
    return {"kind": value} if isinstance(value, str) else value


NormalizerConfig: TypeAlias = Annotated[
    Annotated[
        MeanStdConfig | LogscaleMeanStdConfig | PositionConfig | FixedConfig, pydantic.Field(discriminator="kind")
    ],
    pydantic.BeforeValidator(_with_kind),
]


@dataclass(frozen=True)
class Normalizer:
    """The map (x - shift) / unit of a field, or of its signed logarithm. Holds plain numbers, so copies are cheap.

    Attributes:
        field: canonical name, for error messages.
        shift: one number per component.
        unit: one number per component.
        logscale: whether to apply sign(x) * log(1 + |x|) first.
    """

    field: str
    shift: tuple[float, ...]
    unit: tuple[float, ...]
    logscale: bool = False

    def normalize(self, values: Tensor) -> Tensor:
        """Normalised values of physical ones, (..., components), or any shape for scalars."""
        if self.logscale:
            values = values.sign() * values.abs().log1p()
        return (values - self._on(values, self.shift)) / self._on(values, self.unit)

    def normalize_(self, values: Tensor) -> Tensor:
        """The same in place, for float32 and float64 without gradients: no further memory."""
        if self.logscale:
            sign = values.sign()
            values.abs_().log1p_().mul_(sign)
        return values.sub_(self._on(values, self.shift)).div_(self._on(values, self.unit))

    def denormalize(self, values: Tensor) -> Tensor:
        """Physical values of normalised ones, (..., components), on the device of ``values``. Differentiable."""
        values = values * self._on(values, self.unit) + self._on(values, self.shift)
        return values.sign() * values.abs().expm1() if self.logscale else values

    def _on(self, values: Tensor, numbers: tuple[float, ...]) -> Tensor:
        if len(numbers) > 1 and (values.ndim == 0 or values.shape[-1] != len(numbers)):
            raise ZarrCoreError(
                f"{self.field}: values of shape {tuple(values.shape)} need {len(numbers)} components in the last axis"
            )
        # At least float32: half-precision predictions are promoted instead of rounding the statistics.
        return torch.tensor(numbers, dtype=torch.promote_types(values.dtype, torch.float32), device=values.device)


class NormalizedBatch(dict[str, Tensor]):
    """A batch that ``dataset.normalize`` has normalized, so that a second call can be refused."""


def load_normalizers(document: Mapping[str, Any]) -> dict[str, Normalizer]:
    """Normalizers by field from a saved ``dataset.normalizers``, for inference without a store.

    Raises:
        ZarrCoreError: the document is something else.
    """
    try:
        fixed = pydantic.TypeAdapter(dict[str, FixedConfig]).validate_python(document)
    except pydantic.ValidationError as error:
        raise ZarrCoreError(f"not a saved dataset.normalizers: {describe_problems(error)}") from error
    return {field: Normalizer(field, config.shift, config.unit, config.logscale) for field, config in fixed.items()}


def make_normalizers(
    storage: Storage, manifest: StoreManifest, configs: Mapping[str, NormalizerConfig]
) -> dict[str, Normalizer]:
    """Normalizers by field.

    Args:
        storage: the store whose statistics are used; not read if no config needs statistics.
        manifest: of the generation that the dataset reads; it has all fields of ``configs``.
        configs: config of the normalizer by field.

    Raises:
        ZarrCoreError: a statistic is missing, not finite, or has the wrong number of components.
    """
    fixed = all(isinstance(config, FixedConfig) for config in configs.values())
    values, where = ({}, "") if fixed else load_statistics(storage, manifest)
    statistics = _Statistics(values, where, statistics_hint(storage, manifest))
    return {field: statistics.normalizer(field, manifest.fields[field], config) for field, config in configs.items()}


@dataclass(frozen=True)
class _Statistics:
    """The statistics of a generation; for messages, where they are and how to write them anew."""

    values: Mapping[str, Any]
    where: str
    hint: str

    def normalizer(self, field: str, column: ArrayColumn, config: NormalizerConfig) -> Normalizer:
        if isinstance(config, FixedConfig):
            if len(config.shift) != column.dim:
                raise ZarrCoreError(
                    f"the fixed normalizer of {field} has {len(config.shift)} components, the field has {column.dim}"
                )
            return Normalizer(field, config.shift, config.unit, config.logscale)
        if isinstance(config, PositionConfig):
            low = self._numbers(field, column, "raw_pos_min")
            high = self._numbers(field, column, "raw_pos_max")
            extents = (np.array(high) - low) / config.scale
            return Normalizer(field, low, _units(low, extents.tolist(), column.dtype))
        logscale = isinstance(config, LogscaleMeanStdConfig)
        key = f"{field}_logscale" if logscale else field
        mean = self._numbers(field, column, f"{key}_mean")
        std = self._numbers(field, column, f"{key}_std")
        return Normalizer(field, mean, _units(mean, std, column.dtype), logscale)

    def _numbers(self, field: str, column: ArrayColumn, key: str) -> tuple[float, ...]:
        if key not in self.values:
            raise ZarrCoreError(f"{self.where} has no {key!r}, which the normalizer of {field} needs; {self.hint}")
        value = self.values[key]
        listed = value if isinstance(value, list) else [value]
        if not all(isinstance(number, int | float) and abs(number) <= sys.float_info.max for number in listed):
            text = reprlib.repr(value)  # the full text of nested YAML lists could fill any memory
            raise ZarrCoreError(f"{self.where}: {key} is {text}, not a finite number; {self.hint}")
        if key.startswith("raw_pos_") and len(listed) == 1:  # one bound for all axes
            listed *= column.dim
        if len(listed) != column.dim:
            raise ZarrCoreError(f"{self.where}: {key} has {len(listed)} components, {field} has {column.dim}")
        return tuple(map(float, listed))


def _units(shifts: Sequence[float], spreads: Sequence[float], dtype: str) -> tuple[float, ...]:
    """The spreads; 1 for a component that is constant."""
    units = []
    for shift, spread in zip(shifts, spreads, strict=True):
        units.append(spread if spread > _RESOLUTION[dtype] * abs(shift) else 1.0)
    return tuple(units)
