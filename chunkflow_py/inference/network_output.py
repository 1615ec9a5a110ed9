"""Kinds of network output, and activations.

| kind          | values    | channels | uint8 | a flip along an axis | y and x swapped   |
|---------------|-----------|----------|-------|----------------------|-------------------|
| `probability` | in [0, 1] | any      | yes   | moves voxels         | moves voxels      |
| `affinity`    | in [0, 1] | x, y, z  | yes   | also moves links     | and swaps y and x |
| `logit`       | any       | any      | no    | moves voxels         | moves voxels      |
| `vector`      | any       | x, y, z  | no    | and negates that one | and swaps y and x |
| `embedding`   | any       | any      | no    | moves voxels         | moves voxels      |

All kinds may be averaged, but the activation of mean logits differs from the mean of activations:
`--activate` chooses between the two.
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
    """Apply an activation to *values*.

    Args:
        values: logits, (c, z, y, x) or (n, c, z, y, x), floating point.
        activation: ``none``; ``sigmoid``, of each value; ``softmax``, over the channels.
        channels: number of channels of each of several consecutive outputs; softmax is computed
            over each output separately (default: over all channels).
        in_place: overwrite *values* if they are float32, instead of making a copy.

    Returns:
        float32 in [0, 1], of the same shape; *values* unchanged with ``none``.

    Raises:
        OptionError: the activation is unknown, or *channels* do not add up to those of *values*.
    """
    if activation == "none":
        return values
    if activation not in ACTIVATIONS:
        msg = f"activation {activation!r} is not one of {', '.join(ACTIVATIONS)}"
        raise OptionError(msg)
    parts = channels or (values.shape[_CHANNEL],)
    if sum(parts) != values.shape[_CHANNEL]:
        msg = (
            f"outputs of {' + '.join(map(str, parts))} channels make {sum(parts)}, but the "
            f"network returned {values.shape[_CHANNEL]}; correct --output-channels and "
            "--num-output-channels"
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
        bounded: whether values are in [0, 1], so that they can be checked and stored as uint8.
        axes: whether the channels belong to the axes x, y and z. Then there are three, and a flip
            or transpose of a patch changes the values as well as their positions.
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
        channels: number of channels.
        kind: kind of its values.
    """

    name: str
    channels: int
    kind: OutputKind
