"""select-channels."""

import numpy as np
import pytest
from click.testing import CliRunner

from chunkflow_py.cli.main import cli
from chunkflow_py.core.chunk import Chunk
from chunkflow_py.errors import ChunkError
from chunkflow_py.ops.select_channels import select_channels
from chunkflow_py.volume import open_volume


def chunk(channels=3, kind=None):
    """Return a chunk whose voxels differ."""
    size = channels * 4 * 5 * 6
    array = np.arange(size, dtype=np.uint16).reshape(channels, 4, 5, 6)
    return Chunk(array, (7, 8, 9), (3, 2, 1), kind)


@pytest.mark.parametrize("channels", [(0, 2), (2, 0), (1, 1), (0, 1, 2)])
def test_channels_in_the_given_order(channels):
    """Position, voxel size and dtype stay."""
    whole = chunk()
    part = select_channels(whole, channels)
    np.testing.assert_array_equal(part.array, whole.array[list(channels)])
    assert (part.voxel_offset, part.voxel_size_nm) == (whole.voxel_offset, whole.voxel_size_nm)


def test_a_single_channel_has_no_channel_axis():
    """Also that of a chunk which had no channel axis."""
    part = select_channels(chunk(), (1,))
    np.testing.assert_array_equal(part.array, chunk().array[1])
    assert part.ndim == 3
    np.testing.assert_array_equal(select_channels(part, (0,)).array, part.array)


def test_kind_of_some_affinities():
    """One affinity map has three channels; a part of it has none of its meaning."""
    assert select_channels(chunk(kind="affinity"), (0, 1, 2)).kind == "affinity"
    assert select_channels(chunk(kind="affinity"), (0, 1)).kind == "probability"
    assert select_channels(chunk(kind="image"), (0, 1)).kind == "image"


@pytest.mark.parametrize("channels", [(3,), (-1,), (0, 7), ()])
def test_fault_channel_that_does_not_exist(channels):
    """The channels that there are, are named."""
    with pytest.raises(ChunkError, match="has the channels 0 to 2"):
        select_channels(chunk(), channels)


def test_two_classes_to_a_mask(tmp_path):
    """The second class of a softmax is thresholded; tasks give what the whole gives."""
    np.save(tmp_path / "b.npy", np.random.default_rng(0).random((2, 8, 16, 16), np.float32))
    done = CliRunner().invoke(
        cli,
        f"generate-tasks --volume-path {tmp_path}/b.npy --chunk-size 4 8 8 load-volume "
        f"--volume-path {tmp_path}/b.npy --voxel-size 1um 1um 1um select-channels --channels 1 "
        f"threshold --threshold 0.5 save-zarr --store {tmp_path}/mask.zarr".split(),
    )
    assert done.exit_code == 0, done.output
    mask = open_volume(f"{tmp_path}/mask.zarr")
    assert mask.channels is None
    expected = np.load(tmp_path / "b.npy")[1] > 0.5
    np.testing.assert_array_equal(mask.read(mask.bounds).array, expected)


def test_fault_channel_before_the_first_task(tmp_path):
    """Where the channels of the volume are known, nothing is read."""
    np.save(tmp_path / "b.npy", np.ones((2, 8, 16, 16), np.float32))
    done = CliRunner().invoke(
        cli,
        f"generate-tasks --volume-path {tmp_path}/b.npy --chunk-size 4 8 8 load-volume "
        f"--volume-path {tmp_path}/b.npy select-channels --channels 2 skip-none".split(),
    )
    assert done.exit_code == 2
    assert "--channels 2 does not fit, because the chunk has 2 channels" in done.output
