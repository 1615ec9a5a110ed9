"""Make an image of any size that is like the shipped one: mirrored again and again, with noise.

Keys of the job: ``size`` (zyx), ``image``: the HDF5 file, ``path``: of the .npy file to write.
Noise of -2 to 2 keeps a codec from finding the mirrored parts again.
"""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
from measure import job, report

NOISE = 2


def main() -> None:
    """Write the file."""
    asked = job()
    with h5py.File(asked["image"]) as file:
        original = file["main"][:]
    places = []
    for length, wanted in zip(original.shape, asked["size"], strict=True):
        place = np.arange(wanted) % (2 * length)
        places.append(np.minimum(place, 2 * length - 1 - place))
    image = original[np.ix_(*places)]
    random = np.random.default_rng(0)
    for section in image:
        noise = random.integers(-NOISE, NOISE + 1, section.shape, dtype=np.int16)
        section[...] = np.clip(section + noise, 0, 255)
    # Renamed at the end: an interrupted run leaves no half image behind.
    np.save(f"{asked['path']}.part.npy", image)
    Path(f"{asked['path']}.part.npy").rename(asked["path"])
    report({"wall_s": 0.0})


if __name__ == "__main__":
    main()
