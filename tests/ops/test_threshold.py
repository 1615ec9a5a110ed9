"""threshold."""

import numpy as np
import pytest
from click.testing import CliRunner

from chunkflow_py.cli import catalog
from chunkflow_py.cli.main import cli
from chunkflow_py.core.chunk import Chunk, Voxels
from chunkflow_py.errors import ChunkError, OptionError
from chunkflow_py.ops.channel_voting import channel_voting
from chunkflow_py.ops.threshold import Thresholder, threshold
from chunkflow_py.pipeline.operator import Outline
from chunkflow_py.segmentation.labels.components import connected_components


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


@pytest.mark.parametrize("dtype", [np.int64, np.uint64])
def test_integers_of_64_bits_are_compared_exactly(dtype):
    """2**53 + 1 is above 2**53, though both are the same float; also on the command line."""
    array = np.array([2**53 - 1, 2**53, 2**53 + 1, 2**53 + 2], dtype).reshape(1, 2, 2)
    found = threshold(Chunk(array), 2**53)
    assert found.array.ravel().tolist() == [0, 0, 1, 1]
    labels = connected_components(array, 2**53 + 1)
    assert np.count_nonzero(labels) == 1
    for name in ("threshold", "connected-components"):
        given = catalog.load(name).make_context(name, ["-t", str(2**53 + 1)]).params["threshold"]
        assert given == 2**53 + 1
    for value, count in ((-0.5, 4), (2**53 + 0.0, 2), (np.inf, 0), (-np.inf, 4), (2**70, 0)):
        assert threshold(Chunk(array), value).array.sum() == count
    refused = CliRunner().invoke(cli, ["create-chunk", "threshold", "-t", "nan"])
    assert refused.exit_code == 2


def test_a_voxel_that_is_no_number_is_refused():
    """NaN is on no side of a threshold and in no channel the strongest: the error counts them."""
    array = np.full((2, 1, 2, 2), 0.25, np.float32)
    array[1, 0, 0] = np.nan
    with pytest.raises(ChunkError, match="2 of 4 voxels"):
        threshold(Chunk(array[1]))
    with pytest.raises(ChunkError, match="2 of"):
        channel_voting(Chunk(array))
    with pytest.raises(ChunkError, match="2 of 4 voxels are NaN"):
        connected_components(array[1], 0.5)
    with pytest.raises(ChunkError, match="NaN"):
        connected_components(np.concatenate((array, array[:1])), 0.5)


def test_blurring_a_mask_is_refused_before_the_first_task(tmp_path, monkeypatch):
    """What a filter cannot take is known when the line is built: nothing is made."""
    monkeypatch.chdir(tmp_path)
    line = "create-chunk save-h5 -f made.h5 threshold gaussian-filter save-h5 -f out.h5"
    result = CliRunner().invoke(cli, line.split())
    assert result.exit_code == 1
    assert "gaussian-filter averages values, but its input holds uint8 labels" in result.output
    assert not list(tmp_path.iterdir())


def test_one_channel_of_several():
    """Of a softmax, --channel says which channel makes the mask; it is not left open."""
    array = np.array([0.2, 0.7, 0.8, 0.3], np.float32).reshape(2, 1, 1, 2)
    chunk = Chunk(array, (1, 2, 3), kind="probability")
    found = threshold(chunk, 0.5, channel=1)
    assert (found.array.tolist(), found.shape) == ([[[1, 0]]], (1, 1, 2))
    for channel, message in (
        (None, "the chunk has 2 channels; choose one with --channel 0 to --channel 1"),
        (2, "--channel 2 does not exist, because the chunk has 2 channels"),
    ):
        with pytest.raises(OptionError, match=message):
            threshold(chunk, 0.5, channel)
        with pytest.raises(OptionError, match=message):  # before the first task
            Thresholder(0.5, channel).prepare(Outline(voxels=Voxels("float32", 2, "probability")))
    assert threshold(Chunk(array[0], kind="probability"), channel=0).array.tolist() == [[[0, 1]]]
    softmax = Voxels("float32", 2, "probability", True, ("background", "nucleus"))
    assert Thresholder(0.5, 1).voxels_from(softmax) == Voxels("uint8", 1, "segmentation")
