"""Creates a dataset from a mapping or a YAML file, by its ``kind``."""

from __future__ import annotations

import json
import os
import reprlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pydantic

from zarr_core._util.documents import describe_problems, parse_yaml
from zarr_core._util.redaction import redact
from zarr_core.datasets import kinds
from zarr_core.datasets.points import ZarrPointDataset
from zarr_core.errors import SourceError, ZarrCoreError
from zarr_core.sources.resolve import import_dotted, shipped_name

_SHORT_NAMES = {
    "point": ZarrPointDataset,
    "shapenet_car": kinds.ZarrShapeNetCarDataset,
    "ahmedml": kinds.ZarrAhmedMLDataset,
    "drivaerml": kinds.ZarrDrivAerMLDataset,
    "drivaernet": kinds.ZarrDrivAerNetDataset,
    "emmi_wing": kinds.ZarrEmmiWingDataset,
}


def build_dataset(config: Mapping[str, Any] | str | os.PathLike[str]) -> ZarrPointDataset:
    """Create the dataset that a config describes.

    Args:
        config: a mapping, or the path of a YAML file that contains one. Its ``kind`` is "point" for any store, the
            name of a published dataset ("ahmedml"), or the dotted path of a dataset class, of Noether's too; the other
            keys are settings of that class's config, which ``help("zarr_core.datasets.config.StoreDatasetConfig")``
            explains.

    Raises:
        ZarrCoreError: the config cannot be read, names no dataset class, or has invalid settings.

    Examples:
        >>> dataset = build_dataset({"kind": "point", "root": "store", "split": "train", "num_surface_points": 64})
        >>> dataset[0]["surface_position"].shape
        torch.Size([64, 3])
    """
    if not isinstance(config, (Mapping, str, os.PathLike)):
        raise ZarrCoreError(f"config must be a mapping or the path of a YAML file, not {reprlib.repr(config)}")
    settings, where = (config, "dataset config") if isinstance(config, Mapping) else (_read(config), str(config))
    kind = settings.get("kind")
    if not isinstance(kind, str):
        raise ZarrCoreError(f"{where}: kind is missing; use one of {', '.join(_SHORT_NAMES)} or a dotted path")
    dataset_class = _resolve(kind, where)
    try:
        checked = dataset_class.config_class.model_validate(dict(settings))
    except pydantic.ValidationError as error:
        text = f"{where}: {describe_problems(error)}{_examples(error, dataset_class.config_class)}"
        raise ZarrCoreError(redact(text)) from None
    return dataset_class(checked)


def _examples(error: pydantic.ValidationError, config_class: type[pydantic.BaseModel]) -> str:
    """An example of each setting that has another form than it must have, to be added to a message."""
    shown: dict[str, str] = {}
    for problem in error.errors(include_url=False):
        setting = str(problem["loc"][0]) if problem["loc"] else ""
        described = config_class.model_fields.get(setting)
        if problem["type"] != "value_error" and described is not None and described.examples:
            shown[setting] = f"; for example {setting}: {json.dumps(described.examples[0])}"
    return "".join(shown.values())


def _resolve(kind: str, where: str) -> type[ZarrPointDataset]:
    if shipped_name(kind) in _SHORT_NAMES:
        return _SHORT_NAMES[shipped_name(kind)]
    if "." not in kind:
        raise ZarrCoreError(f"{where}: no dataset kind {kind!r}; use one of {', '.join(_SHORT_NAMES)} or a dotted path")
    try:
        found = import_dotted(kind)
    except SourceError as error:
        raise ZarrCoreError(f"{where}: kind {error}") from error
    if not (isinstance(found, type) and issubclass(found, ZarrPointDataset)):
        raise ZarrCoreError(f"{where}: {kind} is not a subclass of ZarrPointDataset")
    return found


def _read(path: str | os.PathLike[str]) -> dict[str, Any]:
    try:
        settings = parse_yaml(Path(path).read_bytes())
    except (OSError, ValueError) as error:
        raise ZarrCoreError(f"{os.fspath(path)} cannot be read: {error}") from error
    if not isinstance(settings, dict):
        raise ZarrCoreError(f"{os.fspath(path)} must contain a mapping of settings")
    return settings
