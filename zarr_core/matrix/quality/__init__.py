"""The quality report of a wide matrix."""
