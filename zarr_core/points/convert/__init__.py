"""Conversion: from source samples to groups, and from groups to a commit."""
