"""Objects below one root, on a local disk or in object storage."""

from zarr_core.storage.local_paths import local_path
from zarr_core.storage.storage import ObjectInfo, Storage, StoredObject, absolute, is_local

__all__ = ["ObjectInfo", "Storage", "StoredObject", "absolute", "is_local", "local_path"]
