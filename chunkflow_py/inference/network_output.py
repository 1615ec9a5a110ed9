"""Kinds of network output, and activations.

| kind          | values    | channels | uint8 | flip along an axis     | swap of y and x         |
|---------------|-----------|----------|-------|------------------------|-------------------------|
| `probability` | in [0, 1] | any      | yes   | moves voxels           | moves voxels            |
| `affinity`    | in [0, 1] | x, y, z  | yes   | moves voxels and links | also swaps two channels |
| `logit`       | unbounded | any      | no    | moves voxels           | moves voxels            |
| `vector`      | unbounded | x, y, z  | no    | also negates component | also swaps two channels |
| `embedding`   | unbounded | any      | no    | moves voxels           | moves voxels            |

Outputs of all kinds may be averaged over patches. The activation of the mean of logits differs from
the mean of their activations; `--activate` chooses between the two.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

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
    """Return *values* after an activation function.

    Args:
        values: logits, (c, z, y, x) or (n, c, z, y, x), floating point.
        activation: ``none``; ``sigmoid``, of each value; ``softmax``, over the channels.
        channels: number of channels of each output, if *values* contain several outputs, one
            after the other. Softmax is then computed over each output separately (default: over
            all channels).
        in_place: overwrite *values* if they are float32, instead of making a copy.

    Returns:
        Array of the shape of *values*, float32 in [0, 1]; with ``none``, *values* themselves.

    Raises:
        OptionError: the activation is unknown, or the sum of *channels* is not the number of
            channels of *values*.
    """
    if activation == "none":
        return values
    if activation not in ACTIVATIONS:
        msg = f"activation {activation!r} is not one of {', '.join(ACTIVATIONS)}"
        raise OptionError(msg)
    parts = channels or (values.shape[_CHANNEL],)
    if sum(parts) != values.shape[_CHANNEL]:
        msg = (
            f"the outputs have {' + '.join(map(str, parts))} channels, {sum(parts)} in all, but "
            f"the network returned {values.shape[_CHANNEL]} channels; correct --output-channels "
            "and --num-output-channels"
        )
        raise OptionError(msg)
    result = values.to(torch.float32, copy=not in_place)
    if activation == "sigmoid":
        # exp overflows to infinity for values below -88; its reciprocal is 0, as required.
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


OutputKind = Literal["probability", "affinity", "logit", "vector", "embedding"]
OUTPUT_KINDS: tuple[OutputKind, ...] = get_args(OutputKind)


class Meaning(NamedTuple):
    """Properties of the output that follow from its kind.

    Attributes:
        bounded: whether values are in [0, 1]. Such values can be checked, and stored as uint8.
        axes: whether there are three channels, which belong to the axes x, y and z. A flip or
            transpose of a patch then changes the values as well as their positions.
    """

    bounded: bool
    axes: bool


MEANING: dict[OutputKind, Meaning] = {
    "probability": Meaning(bounded=True, axes=False),
    "affinity": Meaning(bounded=True, axes=True),
    "logit": Meaning(bounded=False, axes=False),
    "vector": Meaning(bounded=False, axes=True),
    "embedding": Meaning(bounded=False, axes=False),
}


class NetworkOutput(NamedTuple):
    """One of several outputs of a network.

    Attributes:
        name: key of the output in the dict that the network returns (any name if it returns a
            tuple); also the name of the resulting chunk.
        channels: number of channels of the output.
        kind: kind of the output, which decides what its values mean.
    """

    name: str
    channels: int
    kind: OutputKind
