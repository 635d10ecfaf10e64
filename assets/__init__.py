"""What exists: for every declared dataset its source samples, Zarr samples, manifest, statistics and report."""
