"""Load a network, given the kind of its model (framework) and the library to run it (backend).

`backends/__init__.py` lists the frameworks and the backends.
"""

from __future__ import annotations

import contextlib
import difflib
import logging
from functools import partial
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from chunkflow_py.core.affinity_layout import DEFAULT_LAYOUT, AffinityLayout
from chunkflow_py.core.geometry import Zyx
from chunkflow_py.errors import OptionError
from chunkflow_py.inference.affinity_output import check_layout
from chunkflow_py.inference.backends.compute_profile import device_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from types import ModuleType

    import numpy as np
    import torch
    from numpy.typing import NDArray

    from chunkflow_py.core.affinity_layout import AffinityAt, ChannelOrder
    from chunkflow_py.inference.backends.backend_protocol import Backend
    from chunkflow_py.inference.backends.compute_profile import Dtype
    from chunkflow_py.inference.backends.network_backend import Core
    from chunkflow_py.inference.network_source import NetworkSource

logger = logging.getLogger(__name__)

FRAMEWORKS = ("universal", "identity", "pytorch", "nnunet")
CONVERTED = (".onnx", ".xml")
BACKENDS = ("torch", "openvino", "onnxruntime", "auto")


def create_backend(
    framework: str = "universal",
    *,
    input_patch_size: Iterable[int],
    output_patch_size: Iterable[int],
    model: str | None = None,
    weights: str | None = None,
    num_input_channels: int = 1,
    num_output_channels: int = 3,
    batch_size: int = 1,
    device: str = "auto",
    backend: str = "torch",
    dtype: Dtype = "float32",
    compile: bool = False,
    tf32: bool = False,
    cuda_graphs: bool = True,
    fold: bool = True,
    spatial_dims: int = 3,
    outputs: tuple[str, ...] = (),
    output_channels: tuple[int, ...] = (),
    affinity_order: ChannelOrder = "xyz",
    affinity_at: AffinityAt = "target",
    affinity_channels: tuple[int, ...] = (),
    window: NDArray[np.float32] | None = None,
    trust_weights: bool = False,
    orientations: tuple[str, str] | None = None,
    in_memory: torch.nn.Module | None = None,
    patches: Sequence[torch.Tensor] = (),
    folds: tuple[str, ...] | None = None,
    mirror: bool = True,
) -> Backend:
    """Load a network and return it ready for batches of patches.

    The framework ``pytorch`` runs built-in networks, TorchScript, exported programs, model scripts
    of cellmap-flow, and Python code that defines ``InstantiatedModel``. The framework ``universal``
    runs Python code that defines ``PatchInferencer``; with any other model, ``universal`` does the
    same as ``pytorch``.

    Python code of a model runs with all permissions of the user.

    Args:
        framework: kind of the model: ``universal``, ``identity``, ``pytorch`` or ``nnunet``.
        input_patch_size: size of the input patch in voxels, zyx.
        output_patch_size: size of the output patch in voxels, zyx; equal to the
            input patch size, or smaller by an even number of voxels along each axis.
        model: path of Python code (``.py``), TorchScript (``.pt``, ``.pth``, ``.ts``), a
            ``torch.export`` program (``.pt2``), a converted network (``.onnx``, ``.xml`` of
            OpenVINO), a package of the BioImage Model Zoo or a MONAI bundle, or the name of a
            built-in network.
        weights: path of the weight file, if the model needs one.
        num_input_channels: number of channels of the input.
        num_output_channels: total number of channels of all outputs of the network.
        batch_size: number of patches in every batch.
        device: ``auto``, ``cpu``, ``cuda``, or one of several GPUs such as ``cuda:1``.
        backend: library that runs the network: ``torch``, ``openvino`` or ``onnxruntime``; or
            ``auto`` for the fastest library whose results are accurate enough.
        dtype: dtype in which the network computes: ``float32``, ``bfloat16``, or on CUDA
            ``float16``. Normalisation layers always compute in float32.
        compile: compile the network for the shape of the batch (``torch`` only).
        tf32: let CUDA round float32 numbers to 10 bits of mantissa before they are multiplied.
        cuda_graphs: on CUDA, capture the forward pass once and replay it, where possible.
        fold: fold BatchNorm into the convolutions before it (``torch`` only).
        spatial_dims: 3, or 2 to run a 2D network on one section (z plane) after the other.
        outputs: names of the outputs to join, in order. If the network returns a dict, the names
            are keys of the dict. If the network returns a tuple, the first items of the tuple get
            these names.
        output_channels: number of channels of each of *outputs*.
        affinity_order: order of the affinity channels that the network returns.
        affinity_at: voxel at which the network returns the affinity of two neighbouring voxels:
            ``source`` (the lower index) or ``target`` (the higher index).
        affinity_channels: first channel of each group of three affinities. These affinities are
            converted from *affinity_order* and *affinity_at* to the stored convention, ``xyz`` and
            ``target``.
        window: blending weights of the voxels of an output patch, (z, y, x) float32. Only the
            framework ``universal`` multiplies its results by these weights.
        trust_weights: unpickle all objects in the weight file, even those that can run code.
        orientations: for a MONAI bundle, the orientation of the images for which the network was
            trained, such as ``RAS``, and the orientation of the image to process.
        in_memory: a network that is already in memory; a copy of this network is run. *model* is
            then only a name for messages.
        patches: batches with which ``auto`` compares the backends (default: synthetic batches).
        folds: for ``nnunet``, the folds of the cross-validation whose networks are averaged
            (default: all folds).
        mirror: for ``nnunet``, average the outputs over mirror images of the patch, along the axes
            that were mirrored in training.

    Raises:
        OptionError: an option is invalid, or does not work with other options or on this machine.
        ModelError: the model or its weights cannot be read, or the weights do not match the model.
        MissingExtraError: the library of the backend is not installed.
    """
    given: dict[str, Any] = dict(locals())
    _check_choice("framework", framework, FRAMEWORKS)
    _check_choice("backend", backend, BACKENDS)
    _check_choice("spatial-dims", spatial_dims, (3, 2))
    sizes = Zyx.of(input_patch_size), Zyx.of(output_patch_size)
    layout = AffinityLayout(affinity_order, affinity_at)
    check_layout(layout, affinity_channels, *sizes)
    if framework == "identity":
        from chunkflow_py.inference.backends.backend_protocol import Identity

        _check_torch(backend, "--framework identity")
        _check_layout(layout, "--framework identity")
        return Identity(*sizes, num_output_channels, device_of(device))
    if model is None:
        msg = (
            f"--framework {framework} needs a network; give --convnet-model, or use "
            "--framework identity to test without one"
        )
        raise OptionError(msg)
    from chunkflow_py.inference.backends.cellmap_script import CellmapScript, is_cellmap_script
    from chunkflow_py.inference.backends.network_backend import NetworkBackend, check_outputs
    from chunkflow_py.inference.network_memory import network_memory
    from chunkflow_py.inference.network_source import NetworkSource

    check_outputs(outputs, output_channels, num_output_channels)
    shape = (batch_size, num_input_channels, *sizes[0])
    made_for: tuple[int, ...] = shape
    if spatial_dims == 2:
        made_for = (batch_size * sizes[0].z, num_input_channels, sizes[0].y, sizes[0].x)
    finished = partial(
        NetworkBackend,
        model=model,
        shape=shape,
        output_patch_size=sizes[1],
        num_output_channels=num_output_channels,
        spatial_dims=spatial_dims,
        outputs=outputs,
        output_channels=output_channels,
        affinity_layout=layout,
        affinity_channels=affinity_channels,
    )
    if framework != "nnunet" and in_memory is None and PurePath(model).suffix in CONVERTED:
        _no_weights(weights, model)
        converted = _from_file(model, made_for, backend, dtype, device)
        return finished(converted, device=_device_for(backend, device))
    if framework == "nnunet" and in_memory is None:
        from chunkflow_py.inference.nnunet import read_model

        _no_weights(weights, model)
        in_memory = read_model(model, folds, trust_weights=trust_weights).load(mirror=mirror)
    source = NetworkSource(
        model,
        weights,
        num_input_channels,
        num_output_channels,
        trust_weights,
        in_memory,
        orientations,
    )
    module = source.run_file()
    if module is not None and is_cellmap_script(module):
        script = CellmapScript.of(module, model)
        script.check(*sizes, num_output_channels)
        finished = partial(finished, voxel_size_nm=script.voxel_size_nm)
    if framework == "universal":
        if module is not None and _is_inferencer(module):
            from chunkflow_py.inference.backends.universal_backend import Universal

            _check_torch(backend, f"PatchInferencer of {model}")
            _check_layout(layout, f"PatchInferencer of {model}")
            if device not in {"auto", "cpu"} or dtype != "float32" or compile:
                logger.warning(
                    "PatchInferencer of %s chooses its own device and dtype; --device, --dtype "
                    "and --compile have no effect",
                    model,
                )
            return Universal(
                model,
                weights,
                output_patch_size=sizes[1],
                num_output_channels=num_output_channels,
                window=window,
                module=module,
            )
        logger.info("--framework universal: %s runs as --framework pytorch", model)
    if backend == "auto":
        return _chosen(given, shape)
    where = _device_for(backend, device)
    if compile and backend != "torch":
        logger.warning("--compile has no effect: --backend %s always compiles", backend)
    network = source.load(module, where)
    divisor = next(
        (
            getattr(holder, name)
            for holder, name in ((network, "divisor"), (module, "divisor"), (module, "DIVISOR"))
            if getattr(holder, name, None) is not None
        ),
        None,
    )
    core: Core
    if backend == "torch":
        from chunkflow_py.inference.backends.torch_core import TorchCore

        core = TorchCore(
            network,
            made_for,
            device=where,
            dtype=dtype,
            compile=compile,
            tf32=tf32,
            cuda_graphs=cuda_graphs,
            fold=fold,
        )
    else:
        core = _converted(backend, source, network, made_for, where, dtype)
    return finished(
        core,
        device=where,
        module=module,
        divisor=divisor,
        kernel_dims=_kernel_dims(network),
        memory=partial(network_memory, network, made_for, dtype, where, divisor),
    )


def _kernel_dims(network: Any) -> frozenset[int]:
    weights = network.parameters() if hasattr(network, "parameters") else ()
    return frozenset(weight.ndim - 2 for weight in weights if weight.ndim in {4, 5})


def _no_weights(weights: str | None, model: str) -> None:
    if weights is not None:
        msg = f"model {model} contains its weights; leave --convnet-weight-path {weights} out"
        raise OptionError(msg)


def _from_file(model: str, shape: tuple[int, ...], backend: str, dtype: str, device: str) -> Core:
    if backend == "openvino" or PurePath(model).suffix == ".xml":
        from chunkflow_py.inference.backends.openvino_core import OpenVinoCore

        return OpenVinoCore.from_file(model, shape, dtype=dtype)
    from chunkflow_py.inference.backends.onnx_core import OnnxCore

    if backend == "torch":
        logger.info("%s runs on ONNX Runtime; --backend openvino can run it too", model)
    return OnnxCore.from_file(model, shape, dtype=dtype, device=device_of(device))


def _chosen(given: dict[str, Any], shape: tuple[int, ...]) -> Backend:

    from chunkflow_py.inference.backend_comparison import choose_backend, example_patches

    device = device_of(given["device"])
    patches = [batch.to(device) for batch in given.pop("patches")]

    def make(name: str, dtype: str) -> Backend:
        return create_backend(**given | {"backend": name, "dtype": dtype, "device": str(device)})

    names = ("torch", "onnxruntime") if device.type == "cuda" else BACKENDS[:-1]
    choice = choose_backend(
        make, names, patches or example_patches(shape, device=device), dtype=given["dtype"]
    )
    return make(choice.name, given["dtype"])


def _converted(
    backend: str,
    source: NetworkSource,
    network: Any,
    shape: tuple[int, ...],
    device: torch.device,
    dtype: str,
) -> Core:
    """Convert the network for a library other than PyTorch."""
    import torch

    if not isinstance(network, torch.nn.Module):
        msg = (
            f"--backend {backend} can convert only a torch.nn.Module, but the network of model "
            f"{source.model} is a {type(network).__name__}; choose --backend torch"
        )
        raise OptionError(msg)
    # A program has no training mode to leave.
    with contextlib.suppress(NotImplementedError):
        network.eval()
    digest = source.digest(network)
    if backend == "openvino":
        from chunkflow_py.inference.backends.openvino_core import OpenVinoCore

        return OpenVinoCore(network, shape, dtype=dtype, digest=digest)
    from chunkflow_py.inference.backends.onnx_core import OnnxCore

    return OnnxCore(network, shape, dtype=dtype, digest=digest, device=device)


def _device_for(backend: str, name: str) -> torch.device:
    if backend != "openvino":
        return device_of(name)
    if name not in {"auto", "cpu"}:
        msg = (
            f"--backend openvino runs on the CPU, not on --device {name}; choose --device cpu, or "
            "--backend torch"
        )
        raise OptionError(msg)
    return device_of("cpu")


def _is_inferencer(module: ModuleType) -> bool:
    from chunkflow_py.inference.backends.cellmap_script import is_cellmap_script

    if is_cellmap_script(module):
        return False
    pytorch = any(hasattr(module, name) for name in ("InstantiatedModel", "load_model"))
    return hasattr(module, "PatchInferencer") or not pytorch


def _check_torch(backend: str, what: str) -> None:
    if backend not in {"torch", "auto"}:
        msg = f"--backend {backend} cannot run {what}; choose --backend torch"
        raise OptionError(msg)


def _check_layout(layout: AffinityLayout, what: str) -> None:
    if layout != DEFAULT_LAYOUT:
        msg = (
            f"--affinity-order and --affinity-at cannot convert the output of {what}; leave both "
            "options out of inference, and give both to agglomerate or segment-affinity"
        )
        raise OptionError(msg)


def _check_choice(option: str, value: object, choices: tuple[Any, ...]) -> None:
    if value not in choices:
        listed = ", ".join(map(str, choices))
        near = difflib.get_close_matches(str(value), map(str, choices), n=1, cutoff=0.0)[0]
        msg = f"{option} {value!r} is not one of {listed}; the nearest is {near!r}"
        raise OptionError(msg)
