"""What runs a network: one file a framework.

| framework   | file           | what the model is                                                |
|-------------|----------------|------------------------------------------------------------------|
| `identity`  | `identity.py`  | nothing                                                          |
| `pytorch`   | `pytorch.py`   | Python code, TorchScript, an exported program, a built-in name   |
| `universal` | `universal.py` | Python code with `PatchInferencer`, or whatever `pytorch` takes  |
"""

from __future__ import annotations

import difflib
import logging
from typing import TYPE_CHECKING, Literal

from chunkflow_py.errors import OptionError
from chunkflow_py.inference.backends.device import device_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from chunkflow_py.geometry import Zyx
    from chunkflow_py.inference.backends.protocol import Backend

__all__ = ["FRAMEWORKS", "create_backend", "device_of"]

logger = logging.getLogger(__name__)

FRAMEWORKS = ("universal", "identity", "pytorch")


def create_backend(
    framework: str = "universal",
    *,
    input_patch_size: Zyx,
    output_patch_size: Zyx,
    model: str | None = None,
    weights: str | None = None,
    num_input_channels: int = 1,
    num_output_channels: int = 3,
    device: str = "auto",
    dtype: Literal["float32", "float16"] = "float32",
    window: NDArray[np.float32] | None = None,
    trust_weights: bool = False,
) -> Backend:
    """Load a network and return it ready for batches of patches.

    With ``universal`` a model that is a built-in name, a TorchScript or exported program, or
    Python code with ``InstantiatedModel`` and no ``PatchInferencer`` goes to ``pytorch``.

    A model given as Python code is run as a program, with all rights of the user.

    Args:
        framework: ``universal``, ``identity`` or ``pytorch``.
        input_patch_size: voxels, zyx.
        output_patch_size: voxels, zyx; at most the input patch size, by an even difference.
        model: path of Python code (``.py``), TorchScript (``.pt``, ``.pth``, ``.ts``) or of a
            ``torch.export`` program (``.pt2``), or the name of a built-in network.
        weights: path of the weight file, if the model needs one.
        num_input_channels: channels of a batch.
        num_output_channels: channels that the network returns.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:1``.
        dtype: arithmetic of the network; ``float16`` is autocast and needs CUDA.
        window: (z, y, x) float32 of the output patch size; ``universal`` multiplies by it.
        trust_weights: unpickle anything the weight file holds, which runs code inside of it.

    Raises:
        OptionError: an option cannot work, alone or here.
        ModelError: the model or its weights cannot be read or do not fit.
    """
    if framework not in FRAMEWORKS:
        near = difflib.get_close_matches(framework, FRAMEWORKS, n=1, cutoff=0.0)[0]
        msg = f"framework {framework!r} is not one of {', '.join(FRAMEWORKS)}; nearest is {near!r}"
        raise OptionError(msg)
    if framework == "identity":
        from chunkflow_py.inference.backends.identity import Identity

        return Identity(input_patch_size, output_patch_size, num_output_channels, device_of(device))
    if model is None:
        msg = f"--framework {framework} needs a network; give --convnet-model, or try identity"
        raise OptionError(msg)
    from chunkflow_py.inference.backends.network import NetworkSource
    from chunkflow_py.inference.backends.pytorch import PyTorch

    source = NetworkSource(model, weights, num_input_channels, num_output_channels, trust_weights)
    module = source.run_file()
    if framework == "universal":
        pytorch = any(hasattr(module, name) for name in ("InstantiatedModel", "load_model"))
        if module is not None and (hasattr(module, "PatchInferencer") or not pytorch):
            from chunkflow_py.inference.backends.universal import Universal

            if device not in {"auto", "cpu"} or dtype != "float32":
                logger.warning("PatchInferencer of %s chooses its own device and dtype", model)
            return Universal(
                model,
                weights,
                output_patch_size=output_patch_size,
                num_output_channels=num_output_channels,
                window=window,
                module=module,
            )
        logger.info("--framework universal: %s is run by pytorch", model)
    return PyTorch(
        source,
        input_patch_size=input_patch_size,
        output_patch_size=output_patch_size,
        device=device_of(device),
        dtype=dtype,
        module=module,
    )
