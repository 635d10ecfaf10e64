"""The assets of every declared dataset: source samples, Zarr samples, manifest, statistics and report."""
