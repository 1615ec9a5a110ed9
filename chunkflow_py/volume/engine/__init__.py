"""Volumes of blocks: reading, writing and caching, for every block format."""
