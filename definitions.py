"""The code location: every dataset that is declared in ``assets/datasets``."""

from pathlib import Path

import dagster as dg

from zarr_core.platform import project_definitions


@dg.definitions
def defs() -> dg.Definitions:
    """Every ``assets/datasets/<name>/defs.yaml``, with resources and sensors."""
    return project_definitions(Path(__file__).parent, "assets/datasets")
