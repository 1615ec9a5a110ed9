"""Blocks of a stored array: read, written, cached, in parallel."""
