"""Datasets over stores of the kinds that come with the library."""

from __future__ import annotations

from zarr_core.datasets import config as configs
from zarr_core.datasets.points import ZarrPointDataset


class ZarrShapeNetCarDataset(ZarrPointDataset):
    """ShapeNet-Car from a store."""

    config_class = configs.ZarrShapeNetCarDatasetConfig
    description = "shapenet_car"


class ZarrAhmedMLDataset(ZarrPointDataset):
    """AhmedML from a store."""

    config_class = configs.ZarrAhmedMLDatasetConfig
    description = "ahmedml"


class ZarrDrivAerMLDataset(ZarrPointDataset):
    """DrivAerML from a store."""

    config_class = configs.ZarrDrivAerMLDatasetConfig
    description = "drivaerml"


class ZarrDrivAerNetDataset(ZarrPointDataset):
    """DrivAerNet and DrivAerNet++ from a store."""

    config_class = configs.ZarrDrivAerNetDatasetConfig
    description = "drivaernet"


class ZarrEmmiWingDataset(ZarrPointDataset):
    """Emmi-Wing from a store."""

    config_class = configs.ZarrEmmiWingDatasetConfig
    description = "emmi_wing"
