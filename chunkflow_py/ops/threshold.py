"""Turn a map into a mask by a threshold.

Example: chunkflow load-h5 --file-name map.h5 threshold --threshold 0.5 save-h5 --file-name mask.h5

The threshold is in the unit of the voxels. A uint8 map holds 255 times the probability, so give
127.5 for a probability of 0.5; --threshold 0.5 is an error for such a map. If the map has several
channels, such as the output of a softmax, select one with --channel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import click

from chunkflow_py.core.map_scale import check_threshold
from chunkflow_py.core.operator_base import OperatorBase, hook, hook_value
from chunkflow_py.errors import OptionError
from chunkflow_py.pipeline.operator import transform
from chunkflow_py.pipeline.params import NUMBER

if TYPE_CHECKING:
    from chunkflow_py.core.chunk import Chunk, Voxels


def threshold(chunk: Chunk, threshold: float = 0.5, channel: int | None = None) -> Chunk:
    """Return a mask that is 1 where the voxels of *chunk* are above *threshold*.

    Args:
        chunk: (z, y, x) or (c, z, y, x), any real dtype.
        threshold: threshold in the unit of the voxels; voxels equal to the threshold become 0.
        channel: channel to compare, counted from 0; needed only if there are several channels.

    Returns:
        A chunk of one channel, uint8: 1 above the threshold, 0 elsewhere.

    Raises:
        OptionError: *channel* does not exist; *channel* is ``None``, but the chunk has several
            channels; or *threshold* is a fraction between 0 and 1, but the chunk is a probability
            or affinity map of integers.
        ChunkError: a voxel is NaN.
    """
    from chunkflow_py.core.chunk import above

    _check_channel(channel, chunk.channels)
    check_threshold(threshold, chunk.dtype, chunk.kind)
    array = chunk.array if channel is None or chunk.ndim == 3 else chunk.array[channel]
    return chunk.with_array(above(array, threshold).astype("uint8"), kind="segmentation")


def _check_channel(channel: int | None, channels: int) -> None:
    if channel is None and channels > 1:
        msg = (
            f"a mask is made from one channel, but the chunk has {channels} channels; choose one "
            f"with --channel 0 to --channel {channels - 1}"
        )
        raise OptionError(msg)
    if channel is not None and not 0 <= channel < channels:
        msg = (
            f"--channel {channel} does not exist, because the chunk has {channels} channels; give "
            f"--channel 0 to --channel {channels - 1}"
        )
        raise OptionError(msg)


@dataclass
class Thresholder(OperatorBase):
    """Turns the chunk of every task into a mask."""

    threshold: float = 0.5
    channel: int | None = None
    is_local: ClassVar[bool] = hook_value(True)

    @hook
    def prepare(self, outline: Any) -> None:
        """Check that the options fit the dtype and channels of the chunks, if these are known.

        Args:
            outline: what the pipeline knows about its tasks before the first task runs.
        """
        if (voxels := outline.voxels) is not None:
            _check_channel(self.channel, voxels.channels)
            check_threshold(self.threshold, voxels.dtype, voxels.kind)

    @hook
    def voxels_from(self, read: Voxels) -> Voxels:
        """Return the dtype, channels and kind of the mask; *read* describes the input."""
        has_axis = read.has_channel_axis and self.channel is None
        names = () if self.channel is not None else read.channel_names
        return type(read)("uint8", 1, "segmentation", has_axis, names)

    def __call__(self, chunk: Chunk) -> Chunk:
        """Return the mask."""
        return threshold(chunk, self.threshold, self.channel)


@transform
@click.option(
    "--threshold",
    "-t",
    type=NUMBER,
    default=0.5,
    show_default=True,
    help="Voxels above this value become 1, other voxels 0.",
)
@click.option(
    "--channel",
    type=click.IntRange(min=0),
    help="Channel to compare, counted from 0; needed if there are several channels.",
)
def command(**options: Any) -> Thresholder:
    """Return the operator, which checks the options when its input is known."""
    return Thresholder(**options)
