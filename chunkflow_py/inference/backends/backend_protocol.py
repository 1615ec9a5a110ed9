"""The interface of a backend, and its simplest implementation, the identity network."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from chunkflow_py.core.geometry import Zyx
from chunkflow_py.inference.backends.compute_profile import profile_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch


class Backend(Protocol):
    """A network, loaded and ready for batches of patches.

    Attributes:
        device: device of batches and results.
        weighted: whether the backend has already multiplied the results by the window. Only the
            backend ``universal`` does this.
        divisor: shifts (zyx, voxels) to which the network is equivariant, such as (8, 8, 8) with
            three poolings by 2; ``None`` if unknown.
        profile: compute profile, as text for people. The first batch may still change it, for
            example if compilation fails.

    A backend may have a method ``warm()``, which runs a batch of zeros, so that kernels are
    selected and compiled before the first chunk. It may be called from a different thread than
    the backend itself, but not at the same time.
    """

    device: torch.device
    weighted: bool
    divisor: Zyx | None

    @property
    def profile(self) -> dict[str, str]:
        """Compute profile: everything in this backend that decides the bytes of a result."""

    def __call__(self, batch: torch.Tensor) -> torch.Tensor:
        """Run the network.

        Args:
            batch: (n, c, z, y, x) float32 on `device`, of the input patch size. All batches have
                the shape that the backend was created for. The backend must neither keep nor change
                *batch*.

        Returns:
            (n, c, z, y, x) on `device`, of the input patch size or of the output patch size, in
            float32, bfloat16 or float16, with any strides. The caller must not change this result.
            It may share memory with *batch*, and is valid until the next call or until *batch*
            changes.

        Raises:
            ModelError: the network failed on a batch of this shape.
            OutOfMemoryError: the device has too little memory for a batch of this shape.
        """


class Identity:
    """A network that returns the first channel of its input, without the margin, in every channel.

    ```
    input patch   |mm|------------------|mm|      m = (input - output) / 2
    output patch     |------------------|         the same voxels in every channel
    ```

    Use it to test a pipeline, and the geometry and blending of patches, without a network.

    Attributes:
        device, weighted, divisor, profile: see `Backend`.
    """

    weighted = False

    def __init__(
        self,
        input_patch_size: Iterable[int],
        output_patch_size: Iterable[int],
        num_output_channels: int,
        device: torch.device,
    ) -> None:
        """Store the patch sizes (voxels, zyx); the margin must be the same on both sides."""
        margin = (Zyx.of(input_patch_size) - output_patch_size) // 2
        self._inside = (
            slice(None),
            slice(0, 1),
            *(slice(m, m + s) for m, s in zip(margin, output_patch_size, strict=True)),
        )
        self._channels = num_output_channels
        self.device = device
        self.divisor: Zyx | None = Zyx(1, 1, 1)
        self.profile = profile_of(device, framework="identity", dtype="float32")

    def __call__(self, batch: torch.Tensor) -> torch.Tensor:
        """Return (n, num_output_channels, z, y, x) of the output patch size; see the class.

        The result is a view of *batch*, because copying would take most of the time.
        """
        return batch[self._inside].expand(-1, self._channels, -1, -1, -1)
