"""What is at a root, whatever its kind."""
