"""N5, read only."""
