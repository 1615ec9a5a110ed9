"""Make a synthetic time series of nuclei as an OME-TIFF file: two channels, three time points.

Usage: python make_film.py FOLDER

Nuclei are ellipsoids that do not touch. They drift, and new ones appear. The first channel is a
stain of all nuclei; the second one is a marker that only some nuclei have. The script prints the
true number of nuclei at each time point.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import tifffile
from scipy.ndimage import gaussian_filter

SIZE = np.array((24, 144, 160))  # zyx
VOXEL_UM = np.array((2.0, 0.6, 0.6))
COUNTS = (40, 42, 45)  # nuclei at each time point
RADIUS_UM, NEAREST_UM, MARGIN_UM = 4.2, 13.0, 6.0
DRIFT_UM = np.array((0.0, 1.2, 1.8))  # from one time point to the next
POINT_SPREAD = (0.8, 1.2, 1.2)  # standard deviation, voxels
BACKGROUND, BRIGHTNESS, CAMERA_NOISE = 120, 900, 10.0


def centres(rng: np.random.Generator) -> np.ndarray:
    """Return positions of the nuclei at the first time point, micrometres, zyx."""
    low, high = np.full(3, MARGIN_UM), SIZE * VOXEL_UM - MARGIN_UM - 2 * DRIFT_UM
    found: list[np.ndarray] = []
    while len(found) < max(COUNTS):
        centre = rng.uniform(low, high)
        if all(np.linalg.norm(centre - other) >= NEAREST_UM for other in found):
            found.append(centre)
    return np.array(found)


def main(folder: str) -> None:
    """Write cells.ome.tif into *folder*."""
    rng = np.random.default_rng(3)
    places = centres(rng)
    radii = RADIUS_UM * rng.uniform(0.85, 1.15, (len(places), 3))
    brightness = rng.uniform(0.7, 1.3, len(places)) * BRIGHTNESS
    marked = rng.random(len(places)) < 0.4
    grid = np.stack(np.meshgrid(*map(np.arange, SIZE), indexing="ij"), axis=-1) * VOXEL_UM
    film = np.zeros((len(COUNTS), 2, *SIZE), np.uint16)
    for time, count in enumerate(COUNTS):
        light = np.zeros((2, *SIZE))
        for number in range(count):
            place = places[number] + time * DRIFT_UM
            inside = (((grid - place) / radii[number]) ** 2).sum(axis=-1) < 1
            light[0, inside] = brightness[number]
            light[1, inside] = brightness[number] * marked[number]
        for channel in range(2):
            seen = gaussian_filter(light[channel], POINT_SPREAD) + BACKGROUND
            noisy = rng.poisson(seen) + rng.normal(100, CAMERA_NOISE, seen.shape)
            film[time, channel] = np.clip(np.rint(noisy), 0, 65535)
    Path(folder).mkdir(parents=True, exist_ok=True)
    sizes = {f"PhysicalSize{axis}": size for axis, size in zip("ZYX", VOXEL_UM, strict=True)}
    units = {f"PhysicalSize{axis}Unit": "µm" for axis in "ZYX"}
    names = {"Name": ["nuclei", "marker"], "Color": [0x3060FFFF, -0x00FF0001]}  # blue, magenta
    tifffile.imwrite(
        f"{folder}/cells.ome.tif",
        film,
        metadata={"axes": "TCZYX", **sizes, **units, "Channel": names},
    )
    print(f"{folder}/cells.ome.tif: {', '.join(map(str, COUNTS))} nuclei at the three time points")


if __name__ == "__main__":
    main(*sys.argv[1:])
