"""Meaning of a network's output values, and its activation.

| kind          | values    | channels | uint8 | a flip along an axis | y and x swapped   |
|---------------|-----------|----------|-------|----------------------|-------------------|
| `probability` | in [0, 1] | any      | yes   | moves voxels         | moves voxels      |
| `affinity`    | in [0, 1] | x, y, z  | yes   | and links            | and swaps y and x |
| `logit`       | any       | any      | no    | moves voxels         | moves voxels      |
| `vector`      | any       | x, y, z  | no    | and negates that one | and swaps y and x |
| `embedding`   | any       | any      | no    | moves voxels         | moves voxels      |

All of them may be averaged, but the activation of mean logits is not the mean of the activations:
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
        OptionError: the activation is unknown, or *channels* are not those of *values*.
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


OutputKind = Literal["probability", "affinity", "logit", "vector", "embedding"]
OUTPUT_KINDS: tuple[OutputKind, ...] = get_args(OutputKind)


class Meaning(NamedTuple):
    """Properties of the output that follow from its kind.

    Attributes:
        bounded: values lie in [0, 1], so that they can be checked, and kept as uint8.
        axes: channels are the axes x, y and z, so that there are three, and a flip or a transpose
            of a patch changes them and not only their place.
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
        name: key of the dict that the network returns (of a tuple, any name), and of the chunk.
        channels: number of channels.
        kind: what its values mean.
    """

    name: str
    channels: int
    kind: OutputKind
