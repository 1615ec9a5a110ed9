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
        weighted: whether the results are already multiplied by the blending weights of the voxels
            of a patch. Only the framework ``universal`` does this.
        divisor: number of voxels along z, y and x, or ``None`` if unknown. A shift of the input by
            a multiple of the divisor shifts the output by the same distance, without any other
            change. A network with three poolings by 2 has the divisor (8, 8, 8).
        profile: compute profile, a dict of strings: the settings that decide the bytes of a result.
            The first batch may still change this dict, for example if compilation fails.

    A backend may have a method ``warm()`` that runs a batch of zeros. Kernels are then selected
    and compiled before the first chunk. One thread may call ``warm()`` and another thread may run
    the batches, but ``warm()`` must not run while a batch runs.
    """

    device: torch.device
    weighted: bool
    divisor: Zyx | None

    @property
    def profile(self) -> dict[str, str]:
        """Compute profile: the settings of this backend that decide the bytes of a result."""

    def __call__(self, batch: torch.Tensor) -> torch.Tensor:
        """Run the network.

        Args:
            batch: (n, c, z, y, x) float32 on `device`, of the input patch size. All batches have
                the shape that the backend was created for. The backend must not change *batch*, nor
                use *batch* after the call.

        Returns:
            (n, c, z, y, x) on `device`, in float32, bfloat16 or float16. The size along z, y and x
            is the input patch size or the output patch size. The tensor may have any strides. The
            caller must not change this result. The result may share memory with *batch*. The result
            is valid until the next call, or until *batch* changes.

        Raises:
            ModelError: the network failed on a batch of this shape.
            OutOfMemoryError: the device has too little memory for a batch of this shape.
        """


class Identity:
    """A network that returns input channel 0, without the margin, as every output channel.

    ```
    input patch   |mm|------------------|mm|      m = (input - output) / 2
    output patch     |------------------|         the voxels of input channel 0, in every channel
    ```

    Use it to test a pipeline, and the geometry and blending of patches, without a network.

    Attributes:
        device, weighted, divisor, profile: the attributes of `Backend`.
    """

    weighted = False

    def __init__(
        self,
        input_patch_size: Iterable[int],
        output_patch_size: Iterable[int],
        num_output_channels: int,
        device: torch.device,
    ) -> None:
        """Store the sizes of the input and the output patch, in voxels, zyx.

        The sizes must differ by an even number along each axis, because the same margin is cut off
        at both ends.
        """
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
        """Return input channel 0, without the margin, as every output channel.

        The result is a view of *batch*, because copying would take most of the time.
        """
        return batch[self._inside].expand(-1, self._channels, -1, -1, -1)
