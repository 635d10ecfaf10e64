"""What a point store holds, and what it records about itself."""
