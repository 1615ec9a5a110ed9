"""Run a network with ONNX Runtime, on the CPU or with CUDA."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

import torch

from chunkflow_py.errors import ModelError, OptionError, needs_extra
from chunkflow_py.inference.backends.conversion_cache import cache_key, converted
from chunkflow_py.inference.backends.network_export import (
    Leaves,
    Outputs,
    as_network_returns,
    check_batch,
    export,
    quiet,
    reason,
)

logger = logging.getLogger(__name__)

_OUTPUTS = "chunkflow_outputs"  # metadata key in the converted network: structure of its result


class OnnxCore:
    """A network converted to ONNX, for one shape of batch, and run by ONNX Runtime.

    ```
    network --export--> operators --> network.onnx --> session
                                      stored in the cache
    ```

    The network computes in float32.

    Attributes:
        profile: entries that this class adds to the compute profile, such as the dtype.
    """

    def __init__(
        self,
        network: torch.nn.Module,
        shape: tuple[int, ...],
        *,
        dtype: str = "float32",
        digest: str | None = None,
        device: torch.device | None = None,
    ) -> None:
        """Convert the network, or read the converted network from the cache, and open a session.

        Args:
            network: network in evaluation mode, on the CPU; not changed.
            shape: shape of every batch, (n, c, z, y, x), or (n, c, y, x) for a 2D network.
            dtype: must be ``float32``.
            digest: hash of the model and its weights, for the cache (default: do not cache).
            device: device of batches and results (default: the CPU).

        Raises:
            MissingExtraError: ONNX or its runtime is not installed.
            ModelError: the network cannot be converted.
            OptionError: the dtype or the device is not supported.
        """
        with needs_extra("onnx", "--backend onnxruntime"):
            onnxruntime = _runtime()
            import onnx
            import onnxscript
        _check_dtype(dtype)
        versions = {each.__name__: each.__version__ for each in (onnx, onnxruntime, onnxscript)}
        key = cache_key(digest, library=versions | {"torch": torch.__version__}, shape=shape)
        with converted(key, lambda folder: _convert(network, shape, folder)) as folder:
            self._open(folder / "network.onnx", shape, device)

    @classmethod
    def from_file(
        cls,
        path: str | os.PathLike[str],
        shape: tuple[int, ...],
        *,
        dtype: str = "float32",
        device: torch.device | None = None,
    ) -> OnnxCore:
        """Load a network from an ``.onnx`` file.

        A network with several outputs returns a dict. The keys are the names of the outputs in the
        file.

        Args:
            path: path of the file.
            shape: shape of every batch, which the network must accept.
            dtype: must be ``float32``.
            device: device of batches and results (default: the CPU).

        Raises:
            MissingExtraError: ONNX Runtime is not installed.
            ModelError: the file cannot be read, or its network does not accept *shape*.
            OptionError: the dtype or the device is not supported.
        """
        with needs_extra("onnx", f"model {path}"):
            _runtime()
        _check_dtype(dtype)
        core = cls.__new__(cls)
        core._open(Path(path), shape, device)
        return core

    def __call__(self, batch: torch.Tensor) -> Any:
        """Run the network; see `chunkflow_py.inference.backends.network_backend.Core`."""
        ready = check_batch(batch, self._shape).detach().to(self._device)
        where, index = self._device.type, self._device.index or 0
        if where == "cuda":
            # The session uses a separate stream.
            torch.cuda.current_stream(self._device).synchronize()
        binding = self._session.io_binding()
        binding.bind_input(self._input, where, index, "float32", self._shape, ready.data_ptr())
        for name in self._names:
            binding.bind_output(name, where, index)
        self._session.run_with_iobinding(binding)
        tensors = [torch.utils.dlpack.from_dlpack(value) for value in binding.get_outputs()]
        return as_network_returns(tensors, self._outputs)

    def _open(self, path: Path, shape: tuple[int, ...], device: torch.device | None) -> None:
        onnxruntime = _runtime()
        self._shape, self._device = shape, device or torch.device("cpu")
        if not path.is_file():
            msg = f"model file {path} does not exist; check --convnet-model"
            raise ModelError(msg)
        provider = _provider(self._device)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.inter_op_num_threads = 1
        options.use_deterministic_compute = True
        options.log_severity_level = 3  # errors; they are raised as well
        # Threads that wait in a loop would take the cores from those of PyTorch.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        try:
            self._session: Any = onnxruntime.InferenceSession(
                str(path), options, providers=[provider]
            )
        except Exception as error:
            msg = (
                f"model file {path} cannot be read by ONNX Runtime: {reason(error)}; convert the "
                "model again"
            )
            raise ModelError(msg) from error
        if provider[0] not in self._session.get_providers():
            msg = (
                f"ONNX Runtime cannot use {self._device}; it has loaded only the execution "
                f"providers {', '.join(self._session.get_providers())}; choose --backend torch"
            )
            raise OptionError(msg)
        self._input = _input_for(self._session, shape)
        self._names = [each.name for each in self._session.get_outputs()]
        self._outputs = _outputs_of(self._session)
        self.profile = {
            "backend": "onnxruntime",
            "onnxruntime": onnxruntime.__version__,
            "provider": provider[0].removesuffix("ExecutionProvider"),
            "dtype": "float32",
        }


def _runtime() -> Any:
    """Import ONNX Runtime with its telemetry disabled."""
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    import onnxruntime

    return onnxruntime


def _check_dtype(dtype: str) -> None:
    if dtype != "float32":
        msg = (
            f"--dtype {dtype} does not work with --backend onnxruntime; choose --dtype float32, or "
            f"use --dtype {dtype} with --backend torch or openvino"
        )
        raise OptionError(msg)


def _provider(device: torch.device) -> tuple[str, dict[str, str]]:
    if device.type == "cpu":
        return "CPUExecutionProvider", {}
    onnxruntime = _runtime()
    found = onnxruntime.get_available_providers()
    if "CUDAExecutionProvider" not in found:
        msg = (
            f"--backend onnxruntime cannot use --device {device}: ONNX Runtime "
            f"{onnxruntime.__version__} has only the execution providers {', '.join(found)}; "
            "install onnxruntime-gpu in place of onnxruntime, or choose --backend torch"
        )
        raise OptionError(msg)
    return "CUDAExecutionProvider", {
        "device_id": str(device.index or 0),
        "use_tf32": "0",
        # The default benchmarks kernels, and the fastest may differ from one start to the next.
        "cudnn_conv_algo_search": "HEURISTIC",
    }


def _convert(network: torch.nn.Module, shape: tuple[int, ...], folder: Path) -> None:
    if isinstance(network, torch.jit.ScriptModule):
        msg = (
            "--backend onnxruntime cannot convert TorchScript; give the code of the network "
            "(.py), or choose --backend torch or openvino"
        )
        raise ModelError(msg)
    leaves = Leaves(network)
    try:
        program = export(leaves, shape)
        with quiet():
            made: Any = torch.onnx.export(program, dynamo=True, verbose=False)
        made.model.metadata_props[_OUTPUTS] = json.dumps(leaves.outputs)
        made.save(str(folder / "network.onnx"))
    except ModelError:
        raise
    except Exception as error:
        msg = (
            f"--backend onnxruntime cannot convert the network: {reason(error)}; "
            "choose --backend torch"
        )
        raise ModelError(msg) from error


def _input_for(session: Any, shape: tuple[int, ...]) -> str:
    inputs = session.get_inputs()
    if len(inputs) != 1:
        names = ", ".join(each.name for each in inputs)
        msg = (
            f"the network has {len(inputs)} inputs ({names}), but only a network with one input "
            "can be run; give a network with one input"
        )
        raise ModelError(msg)
    own = inputs[0].shape
    fits = len(own) == len(shape) and all(
        a == b or not isinstance(a, int) for a, b in zip(own, shape, strict=True)
    )
    if not fits or inputs[0].type != "tensor(float)":
        msg = (
            f"the network takes {inputs[0].type} of shape {own}, but batches are tensor(float) of "
            f"shape {list(shape)}; check --input-patch-size, --num-input-channels and --batch-size"
        )
        raise ModelError(msg)
    name: str = inputs[0].name
    return name


def _outputs_of(session: Any) -> Outputs:
    noted = session.get_modelmeta().custom_metadata_map
    if _OUTPUTS in noted:
        found = json.loads(noted[_OUTPUTS])
        return tuple(found) if isinstance(found, list) else found
    names = tuple(each.name for each in session.get_outputs())
    return None if len(names) == 1 else names
