"""What the engine asks of a framework that runs networks, and the table of frameworks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch

    from chunkflow_py.geometry import Zyx


class Backend(Protocol):
    """A network, loaded and ready for batches of patches.

    Attributes:
        device: where batches have to be, and where results are.
        weighted: whether results come multiplied by the window already (``universal``).
        divisor: shifts (zyx, voxels) to which the network is equivariant, such as (8, 8, 8) with
            three poolings by 2; ``None`` where it is not known.
        profile: what of this backend decides the bytes of a result, for a person to read.
    """

    device: torch.device
    weighted: bool
    divisor: Zyx | None
    profile: dict[str, str]

    def __call__(self, batch: torch.Tensor) -> torch.Tensor:
        """Run the network.

        Args:
            batch: (n, c, z, y, x) float32 on `device`, of the input patch size. Must not be kept
                or changed.

        Returns:
            (n, c, z, y, x) on `device`, of the input patch size or of the output patch size; a
            fresh tensor that the caller may change.

        Raises:
            ModelError: the network failed on a batch of this shape.
        """
