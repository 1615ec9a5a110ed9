"""Write OME-Zarr with ome-zarr-py, in an environment of its own.

Usage: python write_ome_zarr.py VOXELS.npy FOLDER VERSION
"""

import sys

import numpy as np
import zarr
from ome_zarr.format import FormatV04, FormatV05
from ome_zarr.writer import write_image

voxels, folder, version = np.load(sys.argv[1]), sys.argv[2], sys.argv[3]
fmt = {"0.4": FormatV04, "0.5": FormatV05}[version]()
axes = [
    {"name": "t", "type": "time", "unit": "second"},
    {"name": "c", "type": "channel"},
    *({"name": name, "type": "space", "unit": "micrometer"} for name in "zyx"),
]
scales = [{"type": "scale", "scale": [3.0, 1.0, 2.0, 0.5 * 2**level, 0.5 * 2**level]}
          for level in range(2)]  # fmt: skip
root = zarr.open_group(folder, mode="w", zarr_format=fmt.zarr_format)
write_image(
    voxels,
    root,
    axes=axes,
    fmt=fmt,
    scale_factors=[{"y": 2, "x": 2}],
    coordinate_transformations=[[scale] for scale in scales],
    metadata={"omero": {"channels": [{"label": name, "color": color, "window": {
        "start": 0, "end": 250, "min": 0, "max": 65535}} for name, color in
        (("DAPI", "0000FF"), ("GFP", "00FF00"))]}},
)  # fmt: skip
