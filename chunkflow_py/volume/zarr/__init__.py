"""Read and write zarr volumes: OME-Zarr images and plain arrays, zarr v2 and v3."""
