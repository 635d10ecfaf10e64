"""Copies of a store, or of a part of it, on faster storage."""
