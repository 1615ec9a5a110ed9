"""Convert affinities from the convention of a network to the convention in which they are stored.

An affinity belongs to an edge between two neighbouring voxels. The network may store an affinity at
the voxel of the edge that has the lower index (the lower voxel; ``source``) or at the voxel that
has the higher index (the upper voxel; ``target``). The stored convention is ``target``, with the
channels in the order x, y, z:

```
network, at source      a   b   c   .      value at the lower voxel of each edge
input patch           |---------------|
stored, at target       .   a   b   c      value at the upper voxel: moved up by one voxel
output patch              |-------|        complete, because the margin is at least one voxel
```

Values are moved within each patch, before the margin of the patch is cut off. A patch therefore
needs no values of other patches. Blending and `--augment` receive affinities in the stored
convention.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from chunkflow_py.core.affinity_layout import DEFAULT_LAYOUT, AffinityLayout
from chunkflow_py.errors import ModelError, OptionError

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch

    from chunkflow_py.core.geometry import Zyx

_STORE = (
    "or leave --affinity-at out here, and give --affinity-at source to agglomerate or "
    "segment-affinity"
)


def as_stored(
    output: torch.Tensor, layout: AffinityLayout, first_channels: Iterable[int]
) -> torch.Tensor:
    """Return the output of a network, with the affinities in the stored convention.

    In this convention, an affinity is stored at the upper voxel of its edge (the voxel with the
    higher index), and the channels have the order x, y, z.

    Args:
        output: (n, c, z, y, x); not changed.
        layout: order and position of the affinities in *output*.
        first_channels: index of the first channel of each group of three affinities.

    Returns:
        (n, c, z, y, x): *output* itself if *layout* is the stored convention, else a copy. Values
        at the lower voxel of an edge are moved to the upper voxel. Plane 0 along the axis of the
        edge then receives no value and is set to 0.
    """
    if layout == DEFAULT_LAYOUT:
        return output
    stored = output.clone()
    for first in first_channels:
        for axis in range(3):
            values = output[:, first + layout.channels[axis]]
            target = stored[:, first + DEFAULT_LAYOUT.channels[axis]]
            if layout.at == "target":
                target.copy_(values)
                continue
            along, size = axis - 3, values.shape[axis - 3]
            target.narrow(along, 0, 1).zero_()
            target.narrow(along, 1, size - 1).copy_(values.narrow(along, 0, size - 1))
    return stored


def check_layout(
    layout: AffinityLayout,
    first_channels: Iterable[int],
    input_patch_size: Zyx,
    output_patch_size: Zyx,
) -> None:
    """Check that affinities in *layout* can be converted to the stored convention.

    Args:
        layout: order and position of the affinities that the network returns.
        first_channels: index of the first channel of each group of three affinities.
        input_patch_size: size of the input patch, voxels, zyx.
        output_patch_size: size of the output patch, voxels, zyx.

    Raises:
        OptionError: affinities must be converted, but the output contains no affinities; or
            affinities must be moved by one voxel, but the patch has no margin along an axis.
    """
    if layout == DEFAULT_LAYOUT:
        return
    option = f"--affinity-order {layout.order}"
    if layout.at != DEFAULT_LAYOUT.at:
        option = f"--affinity-at {layout.at}"
    if not tuple(first_channels):
        msg = (
            f"{option} converts affinities, but --output-kind says that the output contains none; "
            f"give --output-kind affinity, or leave {option} out"
        )
        raise OptionError(msg)
    margin = (input_patch_size - output_patch_size) // 2
    if layout.at == "source" and min(margin) < 1:
        most = (input_patch_size - 2).low(output_patch_size)
        text = " ".join(map(str, most))
        msg = (
            f"--affinity-at source moves values by one voxel, but the margin between an input "
            f"patch of {input_patch_size} and an output patch of {output_patch_size} is {margin} "
            f"(zyx, voxels); give --output-patch-size {text}, {_STORE}"
        )
        raise OptionError(msg)


def check_whole(model: str, layout: AffinityLayout, size: Zyx, input_patch_size: Zyx) -> None:
    """Check the size of the patches that a network returned, if affinities must be moved.

    Affinities that are moved by one voxel come partly from the margin of the patch. The network
    must therefore return patches of the input size, which include the margin.

    Args:
        model: name or file of the network, for the message.
        layout: order and position of the affinities that the network returns.
        size: size of the patches that the network returned, voxels, zyx.
        input_patch_size: size of the input patch, voxels, zyx.

    Raises:
        ModelError: affinities must be moved, and *size* differs from *input_patch_size*.
    """
    if layout.at == "source" and size != input_patch_size:
        msg = (
            f"--affinity-at source needs the margin of each patch, but model {model} returned "
            f"patches of size {size}, not of the input patch size {input_patch_size} (zyx, "
            f"voxels); let the network return the whole patch, {_STORE}"
        )
        raise ModelError(msg)
