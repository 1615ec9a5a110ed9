"""Make image files with tifffile: a folder of TIFF pages, and one tiled OME-TIFF with deflate.

Keys of the job: ``image``: the .npy file of the voxels, uint8; ``folder``: where the files are
made; ``names``: name of each folder of pages, with its number of pages.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import tifffile
from measure import job, report


def main() -> None:
    """Write the files; the voxels become 16 bits wide, as those of most cameras."""
    asked = job()
    folder = Path(asked["folder"])
    image = np.load(asked["image"], mmap_mode="r")
    first: dict[int, Path] = {}
    for name, pages in asked["names"].items():
        (folder / name).mkdir(parents=True)
        for number in range(pages):
            path = folder / name / f"page_{number:05}.tif"
            if number in first:
                os.link(first[number], path)
                continue
            tifffile.imwrite(path, image[number].astype(np.uint16) * 16)
            first[number] = path
    tifffile.imwrite(
        folder / "image.ome.tif",
        image.astype(np.uint16) * 16,
        ome=True,
        tile=(256, 256),
        compression="deflate",
        metadata={"axes": "ZYX"},
    )
    report({"wall_s": 0.0})


if __name__ == "__main__":
    main()
