"""Objects below one root, on a local disk or in object storage."""

from zarr_core.storage.storage import ObjectInfo, Storage, StoredObject, absolute, is_local, open_backend

__all__ = ["ObjectInfo", "Storage", "StoredObject", "absolute", "is_local", "open_backend"]
