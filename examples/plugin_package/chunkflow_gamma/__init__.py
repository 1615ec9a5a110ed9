"""A chunkflow operator in a separate package."""
