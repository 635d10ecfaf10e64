"""``python -m zarr_core.gc``."""

import sys

from zarr_core.versioning.gc import main

if __name__ == "__main__":
    sys.exit(main())
