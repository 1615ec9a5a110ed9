"""Volumes in single files: HDF5, TIFF, PNG, NRRD, MRC, NPY."""
