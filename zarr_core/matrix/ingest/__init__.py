"""Load a wide matrix from a warehouse, and audit it."""
