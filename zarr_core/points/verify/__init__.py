"""Comparison of a point store with its manifest, its checksums and its source."""
