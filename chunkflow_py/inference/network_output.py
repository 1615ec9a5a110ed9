"""Kinds of network output, and activations.

The column `uint8` says whether values can be stored as uint8. The last two columns say what happens
when the output for a flipped or transposed patch is mapped back. Each value moves with its voxel;
"also" names a change in addition to this move. A link joins two neighbouring voxels. The affinity
of the link is stored at one of the two voxels, and must move to the other voxel after a flip:

| kind          | values    | channels | uint8 | flip along an axis     | swap of y and x         |
|---------------|-----------|----------|-------|------------------------|-------------------------|
| `probability` | in [0, 1] | any      | yes   | moves voxels           | moves voxels            |
| `affinity`    | in [0, 1] | x, y, z  | yes   | also moves links       | also swaps two channels |
| `logit`       | unbounded | any      | no    | moves voxels           | moves voxels            |
| `vector`      | unbounded | x, y, z  | no    | also negates a channel | also swaps two channels |
| `embedding`   | unbounded | any      | no    | moves voxels           | moves voxels            |

Outputs of all kinds may be averaged over patches. For logits, `--activate` chooses whether the
activation is applied before or after averaging, because the results differ.
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
        activation: ``none``, ``sigmoid`` (of each value) or ``softmax`` (over the channels).
        channels: number of channels of each output, if *values* are the joined channels of several
            outputs. Softmax is computed over the channels of each output separately (default: over
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
    """Properties of a network's output that follow from its kind, such as ``affinity``.

    Attributes:
        bounded: whether values are in [0, 1], so that they can be checked and stored as uint8.
        axes: whether the output has one channel for each of the axes x, y and z. If so, a flip or
            transpose of a patch changes not only the positions of values, but also the values.
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
        name: name of the resulting chunk. If the network returns a dict, also the key of the output
            in this dict.
        channels: number of channels of the output.
        kind: what the values mean, such as ``affinity``.
    """

    name: str
    channels: int
    kind: OutputKind
