"""Normalization of fields and its inverse, with the statistics of the dataset's generation (``points.statistics``).

Every kind is an affine map (x - shift) / unit of each component, for "logscale_mean_std" applied to
sign(x) * log(1 + |x|). A constant component has no spread to divide by, so it is only shifted.
"""

from __future__ import annotations

import reprlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, TypeAlias

import numpy as np
import pydantic
import torch
from torch import Tensor

from zarr_core._util import reused_memory
from zarr_core._util.arguments import check_mapping
from zarr_core._util.documents import describe_problems
from zarr_core.datasets.collation import clear_padding
from zarr_core.errors import ZarrCoreError
from zarr_core.points.statistics_files import (
    load_statistics,
    read_statistics,
    statistics_file_hint,
    statistics_hint,
)
from zarr_core.points.store.manifest import ArrayColumn, StoreManifest
from zarr_core.storage import Storage

#: Positions that are drawn for themselves, and the field that they are positions of.
GEOMETRY_POSITION = "geometry_position"
GEOMETRY_SOURCE = "surface_position"

# A spread that is smaller relative to the mean is rounding error. float16 is normalized as float32. Of float64, the
# digits of the values do not count, but those of the statistics: moments are recorded with 12, an error of 5e-12.
_RESOLUTION = {"float64": 2.0**-36, "float32": 2.0**-23, "float16": 2.0**-23}
# Points in a row of values that are normalized together.
_ROW_POINTS = 256


class _NormalizerModel(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)


class MeanStdConfig(_NormalizerModel):
    """(x - mean) / std: each component has mean 0 and standard deviation 1.

    Mean and std are over all points of all samples together; std divides by n - 1.
    """

    kind: Literal["mean_std"] = "mean_std"


class LogscaleMeanStdConfig(_NormalizerModel):
    """(s - mean) / std with s = sign(x) * log(1 + |x|), mean and std of s: for fields with long tails.

    The inverse is sign(s) * (exp(|s|) - 1).
    """

    kind: Literal["logscale_mean_std"] = "logscale_mean_std"


class MinMaxConfig(_NormalizerModel):
    """(x - min) / (max - min): each component lies in [0, 1]. One extreme value determines the range."""

    kind: Literal["min_max"] = "min_max"


class PositionConfig(_NormalizerModel):
    """scale * (x - low) / (high - low), where low and high bound all coordinates of all position fields.

    All axes share one factor, which preserves shapes.

    Attributes:
        scale: upper end of the range; AB-UPT uses 1000.
    """

    kind: Literal["position"] = "position"
    scale: pydantic.PositiveFloat = 1.0


def _as_tuple(value: object) -> object:
    return (value,) if isinstance(value, float | int) else value


_Numbers = Annotated[tuple[pydantic.FiniteFloat, ...], pydantic.BeforeValidator(_as_tuple)]


class FixedConfig(_NormalizerModel):
    """The map (x - shift) / unit with recorded numbers instead of a store's statistics.

    ``dataset.normalizers`` returns these for all fields of a training run, to be saved with the model.

    Attributes:
        shift: one number per component; a number for one component.
        unit: the same, not 0.
        logscale: whether to apply sign(x) * log(1 + |x|) first.
    """

    kind: Literal["fixed"] = "fixed"
    shift: _Numbers
    unit: _Numbers
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
        MeanStdConfig | LogscaleMeanStdConfig | MinMaxConfig | PositionConfig | FixedConfig,
        pydantic.Field(discriminator="kind"),
    ],
    pydantic.BeforeValidator(_with_kind),
]


@dataclass(frozen=True)
class Normalizer:
    """The map of a :class:`FixedConfig` for a field. Holds plain numbers, so copies are cheap."""

    field: str
    shift: tuple[float, ...]
    unit: tuple[float, ...]
    logscale: bool = False

    def normalize_(self, values: Tensor) -> Tensor:
        """Normalize physical values in place, (..., components), or any shape for scalars: float32 or float64."""
        if self.logscale:
            sign = values.sign()
            values.abs_().log1p_().mul_(sign)
        if values.device.type != "cpu" or len(self.shift) == 1 or not values.is_contiguous():
            return values.sub_(self._on(values, self.shift)).div_(self._on(values, self.unit))
        # On a CPU, rows of a few components take ten times as long as rows of many points.
        shift, unit = self._on(values, self.shift), self._on(values, self.unit)
        flat = values.view(-1)
        in_rows = len(flat) - len(flat) % (_ROW_POINTS * len(shift))
        for part, points in ((flat[:in_rows], _ROW_POINTS), (flat[in_rows:], 1)):
            of_row = [numbers.expand(points, -1).reshape(-1) for numbers in (shift, unit)]
            part.view(-1, points * len(shift)).sub_(of_row[0]).div_(of_row[1])
        return values

    def denormalize(self, values: Tensor) -> Tensor:
        """Physical values of normalised ones, (..., components), on the device of ``values``. Differentiable."""
        _check_tensor(self.field, values)
        values = values * self._on(values, self.unit) + self._on(values, self.shift)
        return values.sign() * values.abs().expm1() if self.logscale else values

    def _on(self, values: Tensor, numbers: tuple[float, ...]) -> Tensor:
        if len(numbers) > 1 and (values.ndim == 0 or values.shape[-1] != len(numbers)):
            raise ZarrCoreError(
                f"{self.field}: values of shape {tuple(values.shape)} need {len(numbers)} components in the last axis"
            )
        # At least float32: half-precision predictions are promoted instead of rounding the statistics.
        dtype = torch.promote_types(values.dtype, torch.float32)
        # A single number for a single value: the result of a shape () has this shape, too.
        constants = torch.tensor(numbers if values.ndim else numbers[0], dtype=dtype)
        if not values.is_cuda:
            return constants.to(values.device)
        # From other memory, the copy would wait until the device has done all that it was given.
        return constants.pin_memory().to(values.device, non_blocking=True)


class NormalizedBatch(dict[str, Tensor]):
    """A batch that was normalized, so that a second call can be refused."""


class Normalizers(Mapping[str, Normalizer]):
    """Normalizers by field: those of a training run, without its store.

    ``Normalizers(dataset.normalizers)`` has the numbers of a dataset; ``Normalizers(saved)`` those of a checkpoint.
    ``to_device(loader, "cuda", transform=normalizers.normalize)`` normalizes on the device. The dataset must have
    ``dtype="stored"``, or no normalizers: else its batches are normalized already.

    Args:
        state: the :attr:`~zarr_core.datasets.ZarrPointDataset.normalizers` of a dataset, or a :meth:`state_dict`.

    Raises:
        ZarrCoreError: ``state`` is something else.

    Examples:
        >>> import torch
        >>> config = {"kind": "point", "root": "store", "split": "train"}
        >>> fixed = {"surface_pressure": {"kind": "fixed", "shift": [1.0], "unit": [2.0]}}
        >>> saved = build_dataset(config | {"normalizers": fixed}).normalizers
        >>> Normalizers(saved).inverse({"surface_pressure": torch.tensor([0.0, 1.0])})
        {'surface_pressure': tensor([1., 3.])}
    """

    def __init__(self, state: Mapping[str, Any] | None = None) -> None:
        self._by_field: dict[str, Normalizer] = {}
        if state is not None:
            self.load_state_dict(state)

    def __getitem__(self, field: str) -> Normalizer:
        return self._by_field[field]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_field)

    def __len__(self) -> int:
        return len(self._by_field)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {', '.join(self._by_field) or 'no field'}>"

    def state_dict(self) -> dict[str, dict[str, Any]]:
        """Plain numbers, for a checkpoint, or for the ``normalizers`` of a dataset's config."""
        state: dict[str, dict[str, Any]] = {}
        for normalizer in self.values():
            numbers = {"shift": list(normalizer.shift), "unit": list(normalizer.unit)}
            state[normalizer.field] = {"kind": "fixed", **numbers, "logscale": normalizer.logscale}
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Replace all normalizers by those of a :meth:`state_dict`.

        Raises:
            ZarrCoreError: ``state`` is something else.
        """
        try:
            fixed = pydantic.TypeAdapter(dict[str, FixedConfig]).validate_python(state)
        except pydantic.ValidationError as error:
            raise ZarrCoreError(f"not a saved dataset.normalizers: {describe_problems(error)}") from error
        self._by_field = {}
        for field, config in fixed.items():
            self.add(Normalizer(field, config.shift, config.unit, config.logscale))

    def add(self, normalizer: Normalizer) -> None:
        """Set the normalizer of its field; ``geometry_position`` has that of the field it is drawn from."""
        self._by_field[normalizer.field] = normalizer
        if normalizer.field == GEOMETRY_SOURCE:
            self._by_field[GEOMETRY_POSITION] = normalizer

    def normalize(self, batch: Mapping[str, Any]) -> NormalizedBatch:
        """Normalize a batch of physical values, on its device.

        Args:
            batch: tensors by field, (..., components), or any shape for scalars. Floating-point fields without a
                normalizer are cast only; everything else is passed on.

        Returns:
            float32 tensors; ``batch`` is unchanged.

        Raises:
            ZarrCoreError: the batch is one that this method returned (those that a dataset has normalized are not
                recognized) or has none of the normalized fields, or one of them is not a tensor or has other components
                than its normalizer.
        """
        self._check_names(batch)
        return self._normalized_batch(batch)

    def _normalized_batch(self, batch: Mapping[str, Any]) -> NormalizedBatch:
        """The same of a batch that may have none of the normalized fields. What was padded is zero again."""
        if isinstance(batch, NormalizedBatch):
            raise ZarrCoreError("this batch is normalized already: call normalize once per batch")
        normalized = NormalizedBatch(batch)
        floating = floating_fields(batch)
        for field, values in batch.items():
            if field in self:
                normalized[field] = clear_padding(field, self.normalized(field, values), batch)
            elif field in floating:
                normalized[field] = self.normalized(field, values)
        return normalized

    def normalized(self, field: str, values: Tensor) -> Tensor:
        """Physical values of one field as float32, normalized if it has a normalizer.

        A copy in either case, except float32 values without a normalizer.

        Raises:
            ZarrCoreError: the values are not a tensor, have other components than the normalizer, or are too large for
                float32.
        """
        _check_tensor(field, values)
        normalizer = self.get(field)
        # float64 is rounded after the mean is subtracted: float32 may not tell values apart that are close to it.
        dtype = torch.float64 if normalizer is not None and values.dtype == torch.float64 else torch.float32
        if normalizer is not None:
            return normalizer.normalize_(_copied(values, dtype)).float()
        if values.dtype == dtype:
            return values
        cast = _copied(values, dtype)
        if values.dtype == torch.float64 and bool((cast.isinf() & values.isfinite()).any()):
            largest = float(values.abs().max())
            raise ZarrCoreError(f'{field}: float32 does not hold {largest:.6g}; normalize it, or use dtype="stored"')
        return cast

    def inverse(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Physical values of normalized ones, such as predictions, on their devices. Differentiable.

        Args:
            values: tensors by field, as for :meth:`normalize`, of any floating-point dtype.

        Returns:
            At least float32; fields without a normalizer are passed on.

        Raises:
            ZarrCoreError: there are none of the normalized fields, or one is not a tensor or has other components than
                its normalizer.
        """
        self._check_names(values)
        physical = dict(values)
        for field, tensor in values.items():
            normalizer = self.get(field)
            if normalizer is not None:
                physical[field] = clear_padding(field, normalizer.denormalize(tensor), values)
        return physical

    def _check_names(self, fields: Mapping[str, Any]) -> None:
        _check_mapping(fields)
        if self and self.keys().isdisjoint(fields):
            raise ZarrCoreError(
                f"none of {', '.join(fields) or 'nothing'} has a normalizer: pass canonical names, which are "
                f"{', '.join(self)}"
            )


def _check_tensor(field: str, values: object) -> None:
    if not isinstance(values, Tensor):
        raise ZarrCoreError(f"{field} is {type(values).__name__}, not a tensor; give torch.as_tensor(...) of it")


def _copied(values: Tensor, dtype: torch.dtype) -> Tensor:
    """A copy of values, on their device."""
    if values.device.type != "cpu":
        return values.to(dtype, copy=True)
    name = str(dtype).removeprefix("torch.")
    return torch.from_numpy(reused_memory.empty(values.shape, name)).copy_(values)


#: The name of earlier versions.
load_normalizers = Normalizers


def floating_fields(batch: Mapping[str, Any]) -> list[str]:
    """Names of the tensors of floating-point numbers: fields and parameters."""
    _check_mapping(batch)
    return [field for field, values in batch.items() if isinstance(values, Tensor) and values.is_floating_point()]


def _check_mapping(batch: object) -> None:
    """Raise ZarrCoreError for a list of items (``collate: list``), or a tensor."""
    check_mapping("a batch", batch, '{"surface_pressure": tensor}, or an item of a list')


def make_normalizers(
    storage: Storage,
    manifest: StoreManifest,
    configs: Mapping[str, NormalizerConfig],
    statistics: str | None = None,
) -> Normalizers:
    """Normalizers by field or parameter, with the statistics of a file, or those of the store's generation.

    Raises:
        ZarrCoreError: a statistic is missing, not finite, or has the wrong number of components.
    """
    found = _Statistics({}, "", "")
    if not all(isinstance(config, FixedConfig) for config in configs.values()):
        if statistics is None:
            found = _Statistics(*load_statistics(storage, manifest), statistics_hint(storage, manifest))
        else:
            found = _Statistics(*read_statistics(statistics), statistics_file_hint(statistics))
    normalizers = Normalizers()
    of_parameters = replace(found, hint=f"{_HINT_OF_PARAMETERS}: {found.hint}")
    for field, config in configs.items():
        column, source = manifest.fields.get(field), found
        if column is None:  # a parameter
            dim = len(config.shift) if isinstance(config, FixedConfig) else found.components(field)
            column = ArrayColumn(field, field, "float64", dim)
            source = of_parameters
        normalizers.add(source.normalizer(field, column, config))
    return normalizers


# Text has no mean, nor has what no sample has.
_HINT_OF_PARAMETERS = "no sample has a number of this name (text cannot be normalized), or the file is older than it"


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
        if isinstance(config, PositionConfig | MinMaxConfig):
            prefix, scale = ("raw_pos", config.scale) if isinstance(config, PositionConfig) else (field, 1.0)
            low = self._numbers(field, column, f"{prefix}_min")
            high = self._numbers(field, column, f"{prefix}_max")
            extents = (np.array(high) - low) / scale
            # Relative to the bounds on the same scale.
            return Normalizer(field, low, _units((np.array(low) / scale).tolist(), extents.tolist(), column.dtype))
        logscale = isinstance(config, LogscaleMeanStdConfig)
        key = f"{field}_logscale" if logscale else field
        mean = self._numbers(field, column, f"{key}_mean")
        std = self._numbers(field, column, f"{key}_std")
        return Normalizer(field, mean, _units(mean, std, column.dtype), logscale)

    def components(self, parameter: str) -> int:
        """Components of a parameter, which no column tells."""
        mean = self.values.get(f"{parameter}_mean")
        return len(mean) if isinstance(mean, list) else 1

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
