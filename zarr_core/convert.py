"""``python -m zarr_core.convert``."""

import sys

from zarr_core.points.convert import main

if __name__ == "__main__":
    sys.exit(main())
