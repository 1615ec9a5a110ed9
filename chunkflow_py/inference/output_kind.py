"""What the values of a network mean, and what follows from it.

| kind          | values    | channels | uint8 | a flip along an axis | y and x swapped   |
|---------------|-----------|----------|-------|----------------------|-------------------|
| `probability` | in [0, 1] | any      | yes   | moves voxels         | moves voxels      |
| `affinity`    | in [0, 1] | x, y, z  | yes   | and links            | and swaps y and x |
| `logit`       | any       | any      | no    | moves voxels         | moves voxels      |
| `vector`      | any       | x, y, z  | no    | and negates that one | and swaps y and x |
| `embedding`   | any       | any      | no    | moves voxels         | moves voxels      |

Averaging is right for all of them but one: the activation of a mean of logits is not the mean of
the activations; `--activation` says which of the two is meant.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

OutputKind = Literal["probability", "affinity", "logit", "vector", "embedding"]
OUTPUT_KINDS: tuple[OutputKind, ...] = get_args(OutputKind)


class Meaning(NamedTuple):
    """What follows from a kind.

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
