"""Run a network of any framework through a user's class that takes and returns NumPy arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from chunkflow_py.errors import ModelError
from chunkflow_py.inference.backends.compute_profile import profile_of
from chunkflow_py.inference.backends.network_backend import ChannelSpreader

if TYPE_CHECKING:
    from types import ModuleType

    from numpy.typing import NDArray

    from chunkflow_py.core.geometry import Zyx


_FLOATING = (np.float32, np.float16)


class Universal:
    """The ``PatchInferencer`` of a model file.

    ```python
    class PatchInferencer:
        def __init__(self, weight_path, output_patch_mask): ...
        def __call__(self, input_patch):   # (n, c, z, y, x) float32
            return output_patch            # (n, c, z, y, x), multiplied by output_patch_mask
    ```

    The class must multiply its output by ``output_patch_mask``, the blending weights of the voxels
    of an output patch. The class chooses the device of the network, and can compute the product
    there. ``input_patch`` and ``output_patch`` are on the CPU.

    Attributes:
        device, weighted, divisor, profile: see
            `chunkflow_py.inference.backends.backend_protocol.Backend`.
    """

    weighted = True

    def __init__(
        self,
        model: str,
        weights: str | None,
        *,
        output_patch_size: Zyx,
        num_output_channels: int,
        window: NDArray[np.float32] | None,
        module: ModuleType,
    ) -> None:
        """Create the user's PatchInferencer.

        Args:
            model: Python file with the class.
            weights: path of the weight file, which the class receives as ``weight_path``.
            output_patch_size: size of the output patch, voxels, zyx.
            num_output_channels: number of channels that the class must return.
            window: blending weights, which the class receives as ``output_patch_mask``: (z, y, x)
                float32 of the output patch size (default: ones).
            module: the executed model file.

        Raises:
            ModelError: the file does not define PatchInferencer, or its constructor fails.
        """
        self.model = model
        self._expected = (num_output_channels, *output_patch_size)
        self._spread = ChannelSpreader(model, num_output_channels)
        factory = getattr(module, "PatchInferencer", None)
        if factory is None:
            msg = (
                f"model file {model} defines neither PatchInferencer (for --framework universal) "
                "nor InstantiatedModel (for --framework pytorch); define one of the two names"
            )
            raise ModelError(msg)
        mask = np.ones(output_patch_size, np.float32) if window is None else window.copy()
        try:
            self._inferencer = factory(weights, mask)
        except Exception as error:
            msg = f"PatchInferencer of {model} cannot be created: {type(error).__name__}: {error}"
            raise ModelError(msg) from error
        self.device = torch.device("cpu")
        self.divisor: Zyx | None = None
        where = getattr(self._inferencer, "compute_device", None)
        more = {"compute_device": str(where)} if where is not None else {}
        self.profile = profile_of(self.device, framework="universal", **more)

    def __call__(self, batch: torch.Tensor) -> torch.Tensor:
        """Return the output of the user's class, multiplied by the blending weights.

        The result is (n, c, z, y, x), with the size of the output patch along z, y and x.
        """
        shape = tuple(batch.shape)
        try:
            # A copy: the user's class may modify it in place.
            found: Any = self._inferencer(batch.numpy(force=True).copy())
        except Exception as error:
            msg = (
                f"PatchInferencer of {self.model} failed on a batch of shape {shape} "
                f"(n, c, z, y, x): {type(error).__name__}: {error}"
            )
            raise ModelError(msg) from error
        if isinstance(found, torch.Tensor):
            found = found.numpy(force=True)
        if not isinstance(found, np.ndarray):
            msg = (
                f"PatchInferencer of {self.model} returned a {type(found).__name__}, not an array; "
                "let __call__ return a NumPy array"
            )
            raise ModelError(msg)
        expected = (shape[0], *self._expected)
        if found.shape not in (expected, (shape[0], 1, *self._expected[1:])):
            msg = (
                f"PatchInferencer of {self.model} returned shape {found.shape} for a batch of "
                f"shape {shape}, but --num-output-channels and --output-patch-size require "
                f"{expected} (n, c, z, y, x)"
            )
            raise ModelError(msg)
        usable = found.dtype in _FLOATING and found.flags.writeable and min(found.strides) >= 0
        patches = torch.from_numpy(found if usable else found.astype(np.float32, order="C"))
        return self._spread(patches)
