"""``python -m zarr_core.verify``."""

import sys

from zarr_core.points.verify.store import main

if __name__ == "__main__":
    sys.exit(main())
