"""``python -m zarr_core.stage``."""

import sys

from zarr_core.points.stage import main

if __name__ == "__main__":
    sys.exit(main())
