"""Make a synthetic light-sheet image of nuclei, and its true labels.

Usage: python make_nuclei.py FOLDER

Nuclei are ellipsoids of about 10 µm at random positions; some touch. They are blurred by the point
spread function of the microscope. Deeper sections and the sides of the light sheet are darker.
Background, shot noise and camera noise are added.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from scipy.ndimage import gaussian_filter

from chunkflow_py import Chunk, Zyx
from chunkflow_py.ops.save_h5 import save_h5

SIZE = Zyx(40, 192, 192)
VOXEL_SIZE_NM = (2000.0, 600.0, 600.0)  # zyx
OFFSET = Zyx(100, 0, 0)  # a part of a larger specimen
COUNT = 90
RADIUS_UM, NEAREST_UM = 4.6, 10.5  # mean radius; smallest distance of two centres
POINT_SPREAD = (0.8, 1.2, 1.2)  # standard deviation, voxels
BACKGROUND, BRIGHTNESS, CAMERA_NOISE = 120, 900, 12.0  # photons


def nuclei(rng: np.random.Generator) -> np.ndarray:
    """Return labels of ellipsoids, (z, y, x) uint32; background is 0."""
    voxel = np.array(VOXEL_SIZE_NM) / 1000
    grid = np.stack(np.meshgrid(*map(np.arange, SIZE), indexing="ij"), axis=-1) * voxel
    labels = np.zeros(SIZE, np.uint32)
    centres: list[np.ndarray] = []
    while len(centres) < COUNT:
        centre = rng.uniform(0, 1, 3) * SIZE * voxel
        if centres and min(np.linalg.norm(centre - other) for other in centres) < NEAREST_UM:
            continue
        centres.append(centre)
        radii = RADIUS_UM * rng.uniform(0.85, 1.2, 3)
        inside = (((grid - centre) / radii) ** 2).sum(axis=-1) < 1
        labels[inside & (labels == 0)] = len(centres)
    return labels


def image_of(labels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return the camera image of *labels*, (z, y, x) uint16."""
    brightness = rng.uniform(0.7, 1.3, labels.max() + 1) * BRIGHTNESS
    brightness[0] = 0
    light = gaussian_filter(brightness[labels], POINT_SPREAD) + BACKGROUND
    light *= np.linspace(1, 0.45, SIZE.z)[:, None, None]  # deeper is darker
    light *= 1 - 0.25 * np.linspace(-1, 1, SIZE.x) ** 2  # the sheet is weaker at its sides
    seen = rng.poisson(light) + rng.normal(100, CAMERA_NOISE, light.shape)
    return np.clip(np.rint(seen), 0, 65535).astype(np.uint16)


def main(folder: str) -> None:
    """Write raw.h5 and truth.h5 into *folder*."""
    rng = np.random.default_rng(1)
    labels = nuclei(rng)
    Path(folder).mkdir(parents=True, exist_ok=True)
    place = {"voxel_offset": OFFSET, "voxel_size_nm": VOXEL_SIZE_NM}
    image = Chunk(image_of(labels, rng), kind="image", **place)
    save_h5(image, f"{folder}/raw.h5")
    save_h5(Chunk(labels, kind="segmentation", **place), f"{folder}/truth.h5")
    print(f"{folder}: {COUNT} nuclei in {image.bbox}, voxels of {VOXEL_SIZE_NM} nm")


if __name__ == "__main__":
    main(*sys.argv[1:])
