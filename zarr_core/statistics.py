"""``python -m zarr_core.statistics``."""

import sys

from zarr_core.points.statistics import main

if __name__ == "__main__":
    sys.exit(main())
