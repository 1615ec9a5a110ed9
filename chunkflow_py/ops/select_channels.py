"""Keep some channels of a chunk, in a given order.

Example: chunkflow load-zarr --store classes.zarr select-channels --channels 1 threshold \
  --threshold 0.5 save-zarr --store mask.zarr

A single channel becomes a chunk without a channel axis, because connected-components and other
operators need such a chunk. If only some channels of an affinity map are kept, the result is a
probability map.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import click

from chunkflow_py.core.operator_base import OperatorBase, hook, hook_value
from chunkflow_py.errors import ChunkError, OptionError
from chunkflow_py.pipeline.operator import transform
from chunkflow_py.pipeline.params import ChannelsType

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chunkflow_py.core.chunk import Chunk, Kind, Voxels

_AXES = (0, 1, 2)  # channels of a whole affinity map


def select_channels(chunk: Chunk, channels: Sequence[int]) -> Chunk:
    """Return a chunk with only the listed *channels*, in the order of the list.

    Args:
        chunk: (c, z, y, x) or (z, y, x), any dtype.
        channels: numbers of channels, from 0.

    Returns:
        A chunk (c, z, y, x), or (z, y, x) for a single channel.

    Raises:
        ChunkError: the chunk lacks one of the channels, or *channels* is empty.
    """
    missing = [channel for channel in channels if not 0 <= channel < chunk.channels]
    if missing or not channels:
        msg = (
            f"cannot keep the channels {list(channels)} of chunk {chunk.bbox}, because the chunk "
            f"has the channels 0 to {chunk.channels - 1}; give one or more of these numbers"
        )
        raise ChunkError(msg)
    array = chunk.array if chunk.ndim == 4 else chunk.array[None]
    part = array[channels[0]] if len(channels) == 1 else array[list(channels)]
    return chunk.with_array(part, kind=_kind(chunk.kind, channels))


def _kind(kind: Kind | None, channels: Sequence[int]) -> Kind | None:
    return "probability" if kind == "affinity" and tuple(channels) != _AXES else kind


@dataclass
class ChannelSelector(OperatorBase):
    """Keeps some channels of the chunk of every task.

    Attributes:
        channels: numbers of the channels, in the order of the result.
    """

    channels: tuple[int, ...]
    is_local: ClassVar[bool] = hook_value(True)

    @hook
    def prepare(self, outline: Any) -> None:
        """Check that chunks have the selected channels, if the channels of chunks are known.

        Args:
            outline: what the pipeline knows about its tasks before the first task runs.

        Raises:
            OptionError: a channel does not exist.
        """
        if (voxels := outline.voxels) is not None and max(self.channels) >= voxels.channels:
            msg = (
                f"--channels {','.join(map(str, self.channels))} does not fit, because the chunk "
                f"has {voxels.channels} channels; give numbers from 0 to {voxels.channels - 1}"
            )
            raise OptionError(msg)

    @hook
    def voxels_from(self, read: Voxels) -> Voxels:
        """Return the channels and kind of the result; *read* describes the input."""
        names = read.channel_names
        return read._replace(
            channels=len(self.channels),
            kind=_kind(read.kind, self.channels),
            has_channel_axis=len(self.channels) > 1,
            channel_names=tuple(names[each] for each in self.channels if each < len(names)),
        )

    def __call__(self, chunk: Chunk) -> Chunk:
        """Return the chunk with only the selected channels."""
        return select_channels(chunk, self.channels)


@transform
@click.option(
    "--channels",
    "-c",
    type=ChannelsType(),
    required=True,
    help="Channels to keep, such as 0,2, counted from 0.",
)
def command(channels: tuple[int, ...]) -> ChannelSelector:
    """Return the operator, which checks the channels when its input is known."""
    return ChannelSelector(channels)
