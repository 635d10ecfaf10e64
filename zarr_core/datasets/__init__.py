"""PyTorch datasets over stores (``Zarr...``) and over ``.pt`` trees. Items are dicts of tensors.

``build_dataset`` creates one from YAML; the ``...Config`` of each class documents its settings.
"""

from zarr_core.datasets.batch import Batch, Slab, collate
from zarr_core.datasets.build import build_dataset
from zarr_core.datasets.collation import Collate
from zarr_core.datasets.config import (
    ZarrAhmedMLDatasetConfig,
    ZarrDrivAerMLDatasetConfig,
    ZarrDrivAerNetDatasetConfig,
    ZarrEmmiWingDatasetConfig,
    ZarrPointDatasetConfig,
    ZarrShapeNetCarDatasetConfig,
)
from zarr_core.datasets.kinds import (
    ZarrAhmedMLDataset,
    ZarrDrivAerMLDataset,
    ZarrDrivAerNetDataset,
    ZarrEmmiWingDataset,
    ZarrShapeNetCarDataset,
)
from zarr_core.datasets.matrix import MatrixDataset, m_values
from zarr_core.datasets.mixed import MixedDataset
from zarr_core.datasets.normalizers import Normalizers, load_normalizers
from zarr_core.datasets.points import ZarrPointDataset
from zarr_core.datasets.predictions import Predictions, write_vtk
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
    "Collate",
    "DrivAerMLDataset",
    "DrivAerNetDataset",
    "EmmiWingDataset",
    "MatrixDataset",
    "MixedDataset",
    "Normalizers",
    "Predictions",
    "PtDataset",
    "ShapeNetCarDataset",
    "Slab",
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
    "write_vtk",
]
