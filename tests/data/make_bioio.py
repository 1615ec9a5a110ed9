"""Make bioio.ome.tiff, a file that another program has written: two time points, two channels.

Needs ``pip install bioio-ome-tiff``; the file of this folder was made with its version 1.4.0.
"""

from pathlib import Path

import numpy as np
from bioio_base.types import PhysicalPixelSizes
from bioio_ome_tiff.writers import OmeTiffWriter

OmeTiffWriter.save(
    np.random.default_rng(0).integers(1, 250, (2, 2, 6, 40, 50)).astype("uint16"),
    Path(__file__).with_name("bioio.ome.tiff"),
    dim_order="TCZYX",
    channel_names=["DAPI", "GFP"],
    physical_pixel_sizes=PhysicalPixelSizes(Z=2.0, Y=0.5, X=0.5),
)
