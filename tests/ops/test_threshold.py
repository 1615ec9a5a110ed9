"""threshold."""

import numpy as np
import pytest
from click.testing import CliRunner

from chunkflow_py.chunk import Chunk, Voxels
from chunkflow_py.cli.main import cli
from chunkflow_py.errors import OptionError
from chunkflow_py.ops.threshold import Thresholder, threshold
from chunkflow_py.stages import Outline


@pytest.mark.parametrize("shape", [(1, 2, 2), (1, 2, 1, 2)])
def test_what_is_above_is_one(shape):
    """A voxel equal to the threshold is not above it; place and voxel size stay."""
    array = np.array([0.25, 0.5, 0.75, -1], np.float32).reshape(shape)
    found = threshold(Chunk(array, (1, 2, 3), (40, 4, 4), "probability"))
    assert found.array.ravel().tolist() == [0, 0, 1, 0]
    assert (found.dtype, found.kind, found.shape) == (np.uint8, "segmentation", shape)
    assert (found.voxel_offset, found.voxel_size_nm) == ((1, 2, 3), (40, 4, 4))
    made = Thresholder().voxels_from(Voxels("float32", 1, "probability"))
    assert made == Voxels("uint8", 1, "segmentation")


def test_in_a_line():
    """The threshold is in the unit of the voxels."""
    line = "create-chunk -p zero threshold -t -1 skip-all-zero crop-margin -m 9 9 9 99 99 99"
    assert CliRunner().invoke(cli, line.split()).exit_code == 1, "nothing is zero, so it goes on"
    assert CliRunner().invoke(cli, line.replace("-t -1", "-t 0").split()).exit_code == 0


def test_one_channel_of_several():
    """Of a softmax, --channel says which channel makes the mask; it is not left open."""
    array = np.array([0.2, 0.7, 0.8, 0.3], np.float32).reshape(2, 1, 1, 2)
    chunk = Chunk(array, (1, 2, 3), kind="probability")
    found = threshold(chunk, 0.5, channel=1)
    assert (found.array.tolist(), found.shape) == ([[[1, 0]]], (1, 1, 2))
    for channel, message in (
        (None, "has 2 channels, and a mask has one; choose by --channel 0 to --channel 1"),
        (2, "--channel 2 is none of the 2 of the chunk, counted from 0"),
    ):
        with pytest.raises(OptionError, match=message):
            threshold(chunk, 0.5, channel)
        with pytest.raises(OptionError, match=message):  # before the first task
            Thresholder(0.5, channel).prepare(Outline(voxels=Voxels("float32", 2, "probability")))
    assert threshold(Chunk(array[0], kind="probability"), channel=0).array.tolist() == [[[0, 1]]]
    softmax = Voxels("float32", 2, "probability", True, ("background", "nucleus"))
    assert Thresholder(0.5, 1).voxels_from(softmax) == Voxels("uint8", 1, "segmentation")
