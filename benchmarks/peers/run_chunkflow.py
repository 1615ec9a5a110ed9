"""Run chunkflow 1.2.0 on one chunk, by the class that its ``inference`` command uses."""

from typing import Any

import numpy as np
from chunkflow.chunk import Chunk
from chunkflow.flow.divid_conquer.inferencer import Inferencer
from measure import job, network_file, random_image, report, timed
from numpy.typing import NDArray


def main() -> None:
    """Measure the call on a chunk that is in memory; the network is loaded before."""
    asked = job()
    identity = asked["model"] == "identity"
    image = random_image(asked["size"])
    inferencer = Inferencer(
        None if identity else network_file(asked["model"]),
        None,
        input_patch_size=tuple(asked["patch"]),
        output_patch_overlap=tuple(asked["overlap"]),
        num_output_channels=asked["channels"],
        framework="identity" if identity else "pytorch",
        mask_output_chunk=True,
    )

    def call() -> NDArray[Any]:
        return np.asarray(inferencer(Chunk(image, voxel_offset=(0, 0, 0))).array)

    _, result = timed(call)
    report({**result, "patches": len(inferencer.patch_slices_list)})


if __name__ == "__main__":
    main()
