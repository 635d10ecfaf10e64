"""The point store: one Zarr group per sample, and the manifest that names them."""
