"""Activations of a network's output: before blending, on patches, or after it, on slabs.

`torch.sigmoid` and `torch.softmax` are not used: on the CPU they compute the last few voxels of a
block in another way than the rest, so that the last bit of a voxel depends on where it lies in
memory. Here every step is one exact operation a voxel, or `torch.exp`, which has no such ends; a
voxel has one value however the volume is cut.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch

from chunkflow_py.errors import OptionError

Activation = Literal["none", "sigmoid", "softmax"]
ACTIVATIONS: tuple[Activation, ...] = get_args(Activation)

_CHANNEL = -4


def activated(
    values: torch.Tensor,
    activation: Activation,
    channels: tuple[int, ...] = (),
    *,
    in_place: bool = False,
) -> torch.Tensor:
    """Return *values* after an activation.

    Args:
        values: (c, z, y, x) or (n, c, z, y, x), floating point; logits.
        activation: ``none``; ``sigmoid``, each value by itself; ``softmax``, over the channels.
        channels: channels of each of several outputs that lie one after the other; softmax is
            taken over each by itself (default: over all channels).
        in_place: overwrite *values* if they are float32, instead of making a copy.

    Returns:
        float32 in [0, 1], of the same shape; *values* themselves with ``none``.

    Raises:
        OptionError: there is no such activation, or *channels* are not those of *values*.
    """
    if activation == "none":
        return values
    if activation not in ACTIVATIONS:
        msg = f"activation {activation!r} is not one of {', '.join(ACTIVATIONS)}"
        raise OptionError(msg)
    parts = channels or (values.shape[_CHANNEL],)
    if sum(parts) != values.shape[_CHANNEL]:
        msg = (
            f"outputs of {' + '.join(map(str, parts))} channels are {sum(parts)} in all, but the "
            f"network returned {values.shape[_CHANNEL]}; set --num-output-channels"
        )
        raise OptionError(msg)
    result = values.to(torch.float32, copy=not in_place)
    if activation == "sigmoid":
        # exp overflows to infinity below -88, whose reciprocal is 0, as it should be.
        return result.neg_().exp_().add_(1).reciprocal_()
    first = 0
    for number in parts:
        part = result.narrow(_CHANNEL, first, number)
        first += number
        part.sub_(part.amax(_CHANNEL, keepdim=True)).exp_()
        total = part.select(_CHANNEL, 0).clone()
        for channel in range(1, number):
            total += part.select(_CHANNEL, channel)
        part.div_(total.unsqueeze(_CHANNEL))
    return result
