"""The code location: the datasets that are declared in ``assets/datasets``, or in ``$ZARR_CORE_DATASETS``."""

import os
from pathlib import Path

import dagster as dg

from zarr_core.platform import project_definitions

#: Variable of the environment: the folder of the declarations, where it is not the one of the checkout.
DATASETS = "ZARR_CORE_DATASETS"


@dg.definitions
def defs() -> dg.Definitions:
    """Every ``<name>/defs.yaml`` of the folder, with resources and sensors."""
    return project_definitions(Path(__file__).parent, os.environ.get(DATASETS) or "assets/datasets")
