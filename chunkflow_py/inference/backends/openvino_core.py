"""Run a network with OpenVINO, on the CPU."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

logger = logging.getLogger(__name__)

_PRECISIONS = {"float32": "f32", "bfloat16": "bf16"}
_OUTPUTS = "chunkflow_outputs"  # metadata key in the converted network: structure of its result


class OpenVinoCore:
    """A network converted to OpenVINO and compiled for one shape of batch.

    ```
    network --export--> operators --convert--> network.xml, network.bin --compile--> machine code
            or tracing                         stored in the cache           at each start
    ```

    Measured for RSUNet on a patch of 20x256x256 voxels (2 threads, AVX-512): OpenVINO takes 3.4 s
    in float32 and 1.7 s in bfloat16; PyTorch takes 3.6 s and 2.0 s. Batches and results are not
    copied.

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
        threads: int | None = None,
    ) -> None:
        """Convert the network, or read the converted network from the cache, and compile it.

        Args:
            network: network in evaluation mode, on the CPU; not changed.
            shape: shape of every batch, (n, c, z, y, x), or (n, c, y, x) for a 2D network.
            dtype: ``float32`` or ``bfloat16``.
            digest: hash of the model and its weights, for the cache (default: do not cache).
            threads: number of threads (default: as many as PyTorch uses).

        Raises:
            MissingExtraError: OpenVINO is not installed.
            ModelError: the network cannot be converted.
            OptionError: OpenVINO or this processor does not support the dtype.
        """
        with needs_extra("openvino", "--backend openvino"):
            import openvino
        _check_dtype(dtype)
        key = cache_key(
            digest,
            library=f"openvino {openvino.__version__} torch {torch.__version__}",
            shape=shape,
        )
        with converted(key, lambda folder: _convert(network, shape, folder)) as folder:
            self._compile(_read(folder / "network.xml"), shape, dtype, threads)

    @classmethod
    def from_file(
        cls,
        path: str | os.PathLike[str],
        shape: tuple[int, ...],
        *,
        dtype: str = "float32",
        threads: int | None = None,
    ) -> OpenVinoCore:
        """Load a network that is already converted, as OpenVINO ``.xml`` or as ``.onnx``.

        A network with several outputs returns a dict. The keys are the names of the outputs in the
        file.

        Args:
            path: path of the file.
            shape: shape of every batch, which the network must accept.
            dtype: ``float32`` or ``bfloat16``.
            threads: number of threads (default: as many as PyTorch uses).

        Raises:
            MissingExtraError: OpenVINO is not installed.
            ModelError: the file cannot be read, or its network does not accept *shape*.
            OptionError: OpenVINO or this processor does not support the dtype.
        """
        with needs_extra("openvino", f"model {path}"):
            import openvino  # noqa: F401
        _check_dtype(dtype)
        core = cls.__new__(cls)
        core._compile(_read(Path(path)), shape, dtype, threads)
        return core

    def __call__(self, batch: torch.Tensor) -> Any:
        """Run the network; see `chunkflow_py.inference.backends.network_backend.Core`.

        The next call overwrites the memory of the result.
        """
        ready = check_batch(batch, self._shape)
        self._request.infer([ready.detach().numpy()], share_inputs=True, share_outputs=True)
        tensors = [torch.from_numpy(tensor.data) for tensor in self._request.output_tensors]
        return as_network_returns(tensors, self._outputs)

    def _compile(self, model: Any, shape: tuple[int, ...], dtype: str, threads: int | None) -> None:
        import openvino

        _fit(model, shape)
        self._shape, self._outputs = shape, _outputs_of(model)
        compiled = openvino.Core().compile_model(
            model,
            "CPU",
            {
                "INFERENCE_PRECISION_HINT": _PRECISIONS[dtype],
                "PERFORMANCE_HINT": "LATENCY",
                "NUM_STREAMS": 1,
                "INFERENCE_NUM_THREADS": threads or torch.get_num_threads(),
                # Pinned threads of two processes would share the first cores; measured, each of
                # two took twice as long while the other cores were idle.
                "ENABLE_CPU_PINNING": False,
            },
        )
        self._request = compiled.create_infer_request()
        precision = compiled.get_property("INFERENCE_PRECISION_HINT").to_string()
        if precision != _PRECISIONS[dtype]:
            msg = (
                f"--dtype {dtype} does not work with --backend openvino on this processor, which "
                f"computes in {precision}; choose --dtype float32"
            )
            raise OptionError(msg)
        self.profile = {
            "backend": "openvino",
            "openvino": openvino.__version__,
            "dtype": dtype,
            "threads": str(compiled.get_property("INFERENCE_NUM_THREADS")),
            "instructions": _instructions(compiled),
        }


def _check_dtype(dtype: str) -> None:
    import openvino

    if dtype not in _PRECISIONS:
        msg = (
            f"--dtype {dtype} does not work with --backend openvino; choose "
            f"{' or '.join(_PRECISIONS)}"
        )
        raise OptionError(msg)
    able = openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    if dtype == "bfloat16" and "BF16" not in able:
        msg = (
            "--dtype bfloat16 does not work with --backend openvino on this processor, which "
            f"supports {', '.join(able)}; choose --dtype float32"
        )
        raise OptionError(msg)


def _instructions(compiled: Any) -> str:
    if "RUNTIME_REQUIREMENTS" in compiled.get_property("SUPPORTED_PROPERTIES"):
        needed = str(compiled.get_property("RUNTIME_REQUIREMENTS"))
        for part in needed.split(";"):
            if part.startswith("isa="):
                return part.removeprefix("isa=")
    return "unknown"


# --- conversion -----------------------------------------------------------------------------------


def _convert(network: torch.nn.Module, shape: tuple[int, ...], folder: Path) -> None:
    import openvino

    leaves = Leaves(network)
    try:
        model = _exported(leaves, shape)
        _fit(model, shape)
    except ModelError:
        raise
    except Exception as first:
        logger.debug("torch.export failed, tracing instead", exc_info=True)
        try:
            model = _traced(leaves, shape)
        except Exception as second:
            msg = (
                f"--backend openvino cannot convert the network: torch.export failed "
                f"({reason(first)}), and tracing failed ({reason(second)}); choose --backend torch"
            )
            raise ModelError(msg) from second
    model.set_rt_info(json.dumps(leaves.outputs), _OUTPUTS)
    # float16 weights, the default, would change the results.
    openvino.save_model(model, folder / "network.xml", compress_to_fp16=False)


def _exported(network: Leaves, shape: tuple[int, ...]) -> Any:
    from openvino.frontend.pytorch.fx_decoder import TorchFXPythonDecoder
    from openvino.frontend.pytorch.torchdynamo.export_decompositions import ops_to_not_decompose

    program = export(network, shape)
    with quiet():
        table: Any = torch.export.default_decompositions()
        for operator in ops_to_not_decompose():
            table.pop(operator, None)
        graph = program.run_decompositions(table).module()
        return _from_decoder(TorchFXPythonDecoder(graph, dynamic_shapes=False))


def _from_decoder(decoder: Any) -> Any:
    # openvino.convert_model does the same, but also sends telemetry.
    from openvino.frontend import FrontEndManager

    frontend = FrontEndManager().load_by_framework("pytorch")
    return frontend.convert(frontend.load(decoder))


def _traced(network: Leaves, shape: tuple[int, ...]) -> Any:
    # Tracing runs the network on an example. It records numbers and branches of Python code with
    # their values in this run, although they may depend on the input. The traced network is
    # therefore compared with the original network on a patch with other values and, if possible, of
    # another size. The smallest example is tried first, the full patch last.
    from openvino.frontend.pytorch.ts_decoder import TorchScriptPythonDecoder

    generator = torch.Generator().manual_seed(0)
    error: Exception | None = None
    for example, other in _examples(shape):
        try:
            with quiet(), torch.no_grad():
                bright = torch.rand(example, generator=generator)
                network(bright)
                model = _from_decoder(TorchScriptPythonDecoder(network, example_input=(bright,)))
            _check_same(model, network, 0.2 * torch.rand(other, generator=generator))
            _fit(model, shape)
        except Exception as each:  # noqa: BLE001  (whatever a user's network raises)
            error = each
        else:
            return model
    raise error or ModelError("no example")


def _examples(shape: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    # Pairs: the shape to trace with, and the shape to compare with.
    for size in (16, 32, 64):
        small = tuple(min(size, axis) for axis in shape[2:])
        other = tuple(min(2 * size, axis) for axis in shape[2:])
        if other == shape[2:]:
            break
        yield (*shape[:2], *small), (*shape[:2], *other)
    yield shape, shape


def _check_same(model: Any, network: Leaves, batch: torch.Tensor) -> None:
    import openvino

    _fit(model, tuple(batch.shape))
    settings = {"INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}
    compiled = openvino.Core().compile_model(model, "CPU", settings)
    found = compiled([batch.numpy()])
    with torch.no_grad():
        for index, wanted in enumerate(network(batch)):
            got = torch.from_numpy(found[index])
            scale = max(1.0, float(wanted.abs().max()))
            if got.shape != wanted.shape or float((got - wanted).abs().max()) > 1e-3 * scale:
                msg = "the traced network returns values that differ from the original network's"
                raise ModelError(msg)


def _read(path: Path) -> Any:
    import openvino

    if not path.is_file():
        msg = f"model file {path} does not exist; check --convnet-model"
        raise ModelError(msg)
    try:
        return openvino.Core().read_model(path)
    except RuntimeError as error:
        msg = (
            f"model file {path} cannot be read by OpenVINO: {reason(error)}; "
            "convert the model again"
        )
        raise ModelError(msg) from error


def _fit(model: Any, shape: tuple[int, ...]) -> None:
    if len(model.inputs) != 1:
        names = ", ".join(each.any_name for each in model.inputs)
        msg = (
            f"the network has {len(model.inputs)} inputs ({names}), but only a network with one "
            "input can be run; give a network with one input"
        )
        raise ModelError(msg)
    try:
        model.reshape(list(shape))
    except RuntimeError as error:
        own = model.inputs[0].get_partial_shape()
        msg = (
            f"the network accepts batches of shape {own}, but not of shape {shape} "
            f"({reason(error)}); check --input-patch-size, --num-input-channels and --batch-size"
        )
        raise ModelError(msg) from error


def _outputs_of(model: Any) -> Outputs:
    if model.has_rt_info(_OUTPUTS):
        found = json.loads(model.get_rt_info(_OUTPUTS).astype(str))
        return tuple(found) if isinstance(found, list) else found
    if len(model.outputs) == 1:
        return None
    return tuple(
        min(each.get_names(), default=str(index)) for index, each in enumerate(model.outputs)
    )
