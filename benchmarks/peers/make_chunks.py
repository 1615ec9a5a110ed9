"""Make what the operators work on: chunks as .npy files, and the files that are loaded.

Keys of the job: ``size`` (zyx), ``image``: .npy of an image of that size, ``folder``.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import cc3d
import h5py
import numpy as np
import scipy.ndimage
import tifffile
from cloudvolume import CloudVolume
from measure import job, report
from PIL import Image

if TYPE_CHECKING:
    from numpy.typing import NDArray

VOXEL_SIZE_NM = (40, 8, 8)
FACTOR = (1, 4, 4)  # voxels of the image in one of the mask


def _write(place: Path, array: NDArray[Any], factor: tuple[int, int, int], kind: str) -> None:
    voxel_size = [s * f for s, f in zip(VOXEL_SIZE_NM, factor, strict=True)]
    CloudVolume.from_numpy(
        np.ascontiguousarray(array).T,
        vol_path=f"file://{place}",
        resolution=voxel_size[::-1],
        chunk_size=(64, 64, 16),
        layer_type=kind,
        encoding="raw",
        progress=False,
    )


def main() -> None:
    """Write them all."""
    asked = job()
    folder = Path(asked["folder"])
    image = np.load(asked["image"])
    smooth = scipy.ndimage.gaussian_filter(image, (0, 2, 2), output=np.float32) / 255
    smooth = (smooth - smooth.min()) / (smooth.max() - smooth.min())
    high = float(np.quantile(smooth, 0.4))
    truth = cc3d.connected_components(smooth > high, connectivity=6).astype(np.uint32)
    segmentation = cc3d.connected_components(smooth > 1.1 * high, connectivity=6).astype(np.uint32)
    chunks = {
        "image": image,
        "map": smooth,
        "affinity": np.stack([smooth, smooth[:, ::-1], smooth[:, :, ::-1]]),
        "segmentation": segmentation,
        "truth": truth,
    }
    for name, array in chunks.items():
        np.save(folder / f"{name}.npy", array)
    with h5py.File(folder / "image.h5", "w") as file:
        file.create_dataset("main", data=image, compression="gzip")
    tifffile.imwrite(folder / "image.tif", image, compression="zlib")
    (folder / "png").mkdir(exist_ok=True)
    for number, section in enumerate(image):
        Image.fromarray(section).save(folder / "png" / f"{number:05d}.png")
    coarse = smooth[tuple(slice(None, None, f) for f in FACTOR)] > high
    _write(folder / "mask", coarse.astype(np.uint8), FACTOR, "image")
    _write(folder / "seg", segmentation[:1, :64, :64], (1, 1, 1), "segmentation")  # for meshes
    (folder / "ready").touch()
    report({"wall_s": 0.0})


if __name__ == "__main__":
    main()
