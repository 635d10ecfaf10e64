"""What assets and sensors reach the world through: declared datasets, sources and stores, worker processes."""
