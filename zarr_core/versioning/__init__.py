"""Commits, retention, garbage collection, tags and history: the same for stores of every kind."""
