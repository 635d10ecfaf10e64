"""``python -m zarr_core.tag``."""

import sys

from zarr_core.versioning.tags import main

if __name__ == "__main__":
    sys.exit(main())
