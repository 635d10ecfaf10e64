"""Objects below one root, on a local disk or in object storage."""

from zarr_core.storage.backends import ObjectInfo, StoredObject
from zarr_core.storage.places import absolute, is_local, local_path
from zarr_core.storage.storage import Storage

__all__ = ["ObjectInfo", "Storage", "StoredObject", "absolute", "is_local", "local_path"]
