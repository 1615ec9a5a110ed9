"""fill-segmentation-holes as an operator."""

import numpy as np

from chunkflow_py.core.chunk import Chunk
from chunkflow_py.ops.fill_segmentation_holes import fill_segmentation_holes


def test_holes_are_filled_and_the_rest_stays() -> None:
    """Each object fills its own hole; a channel axis, the type and the place stay."""
    labels = np.zeros((1, 5, 5, 10), np.uint64)
    labels[0, 1:4, 1:4, 1:4] = 7
    labels[0, 1:4, 1:4, 6:9] = 2**63
    labels[0, 2, 2, [2, 7]] = 0
    filled = fill_segmentation_holes(Chunk(labels, (3, 4, 5), (40, 4, 4), "segmentation"))
    assert (filled.shape, filled.dtype, filled.voxel_offset) == (labels.shape, "u8", (3, 4, 5))
    assert filled.array[0, 2, 2].tolist() == [0, 7, 7, 7, 0, 0, 2**63, 2**63, 2**63, 0]
    assert (filled.array != labels).sum() == 2
