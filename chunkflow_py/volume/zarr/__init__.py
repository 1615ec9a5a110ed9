"""Zarr 2 and 3, and OME-Zarr."""
