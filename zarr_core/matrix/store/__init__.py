"""What a matrix holds: its state, axis, chunk layout, objects and tables."""
