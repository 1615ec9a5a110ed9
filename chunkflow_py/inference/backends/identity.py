"""The identity network: what goes in comes out, cropped to the output patch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chunkflow_py.core.geometry import Zyx
from chunkflow_py.inference.backends.device import numerical_profile

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch


class Identity:
    """Returns the first channel of its input, repeated, without the margin.

    ```
    input patch   |mm|------------------|mm|      m = (input - output) / 2
    output patch     |------------------|         the same voxels in every channel
    ```

    It tests a whole line, and the geometry and blending of patches, without a network.

    Attributes:
        device, weighted, divisor, profile: see `chunkflow_py.inference.backends.protocol.Backend`.
    """

    weighted = False

    def __init__(
        self,
        input_patch_size: Iterable[int],
        output_patch_size: Iterable[int],
        num_output_channels: int,
        device: torch.device,
    ) -> None:
        """Take the sizes, voxels, zyx; the margin must be the same on both sides."""
        margin = (Zyx.of(input_patch_size) - output_patch_size) // 2
        self._inside = (
            slice(None),
            slice(0, 1),
            *(slice(m, m + s) for m, s in zip(margin, output_patch_size, strict=True)),
        )
        self._channels = num_output_channels
        self.device = device
        self.divisor: Zyx | None = Zyx(1, 1, 1)
        self.profile = numerical_profile(device, framework="identity", dtype="float32")

    def __call__(self, batch: torch.Tensor) -> torch.Tensor:
        """Return (n, num_output_channels, z, y, x) of the output patch size; see the class.

        It is a view of *batch*: a copy of it would be most of the work.
        """
        return batch[self._inside].expand(-1, self._channels, -1, -1, -1)
