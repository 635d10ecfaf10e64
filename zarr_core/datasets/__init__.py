"""PyTorch datasets over stores (``Zarr...``) and over ``.pt`` trees. Items are dicts of tensors.

``build_dataset`` creates one from YAML; the ``...Config`` of each class documents its settings.
"""

from zarr_core.datasets.batch import Batch, collate
from zarr_core.datasets.build import build_dataset
from zarr_core.datasets.config import (
    ZarrAhmedMLDatasetConfig,
    ZarrDrivAerMLDatasetConfig,
    ZarrDrivAerNetDatasetConfig,
    ZarrEmmiWingDatasetConfig,
    ZarrPointDatasetConfig,
    ZarrShapeNetCarDatasetConfig,
)
from zarr_core.datasets.matrix import MatrixDataset, m_values
from zarr_core.datasets.normalizers import Normalizers, load_normalizers
from zarr_core.datasets.points import (
    ZarrAhmedMLDataset,
    ZarrDrivAerMLDataset,
    ZarrDrivAerNetDataset,
    ZarrEmmiWingDataset,
    ZarrPointDataset,
    ZarrShapeNetCarDataset,
)
from zarr_core.datasets.pt import (
    AhmedMLDataset,
    DrivAerMLDataset,
    DrivAerNetDataset,
    EmmiWingDataset,
    PtDataset,
    ShapeNetCarDataset,
)

__all__ = [
    "AhmedMLDataset",
    "Batch",
    "DrivAerMLDataset",
    "DrivAerNetDataset",
    "EmmiWingDataset",
    "MatrixDataset",
    "Normalizers",
    "PtDataset",
    "ShapeNetCarDataset",
    "ZarrAhmedMLDataset",
    "ZarrAhmedMLDatasetConfig",
    "ZarrDrivAerMLDataset",
    "ZarrDrivAerMLDatasetConfig",
    "ZarrDrivAerNetDataset",
    "ZarrDrivAerNetDatasetConfig",
    "ZarrEmmiWingDataset",
    "ZarrEmmiWingDatasetConfig",
    "ZarrPointDataset",
    "ZarrPointDatasetConfig",
    "ZarrShapeNetCarDataset",
    "ZarrShapeNetCarDatasetConfig",
    "build_dataset",
    "collate",
    "load_normalizers",
    "m_values",
]
