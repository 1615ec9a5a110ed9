"""N5 volumes, read only."""
