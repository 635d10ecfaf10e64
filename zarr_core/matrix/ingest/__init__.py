"""Filling a wide matrix from a warehouse."""
