"""What the engine asks of a framework that runs networks, and the table of frameworks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch

    from chunkflow_py.core.geometry import Zyx


class Backend(Protocol):
    """A network, loaded and ready for batches of patches.

    Attributes:
        device: where batches have to be, and where results are.
        weighted: whether results come multiplied by the window already (``universal``).
        divisor: shifts (zyx, voxels) to which the network is equivariant, such as (8, 8, 8) with
            three poolings by 2; ``None`` where it is not known.
        profile: what of this backend decides the bytes of a result, for a person to read. The
            first batch may still change it, such as where compilation fails.

    A backend may have a method ``warm()``, which runs a batch of zeros, so that kernels are made
    and compiled before the first chunk is there. It may be called from another thread than the
    batches, but not at the same time as one.
    """

    device: torch.device
    weighted: bool
    divisor: Zyx | None

    @property
    def profile(self) -> dict[str, str]:
        """What of this backend decides the bytes of a result."""

    def __call__(self, batch: torch.Tensor) -> torch.Tensor:
        """Run the network.

        Args:
            batch: (n, c, z, y, x) float32 on `device`, of the input patch size. All batches have
                the shape that the backend was made for. Must not be kept or changed.

        Returns:
            (n, c, z, y, x) on `device`, of the input patch size or of the output patch size, in
            float32, bfloat16 or float16, with any strides. It must not be changed, may share memory
            with *batch*, and is valid until the next call or until *batch* changes.

        Raises:
            ModelError: the network failed on a batch of this shape.
            OutOfMemoryError: the device has too little memory for a batch of this shape.
        """
