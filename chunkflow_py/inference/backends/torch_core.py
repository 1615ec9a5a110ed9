"""Run a network with PyTorch: memory layout, precision, compilation, CUDA graphs, oneDNN."""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode

from chunkflow_py.errors import OptionError
from chunkflow_py.inference.backends.compute_profile import (
    Multiplications,
    bfloat16_unit,
    check_dtype,
    cuda_switches,
)
from chunkflow_py.inference.backends.convolution_check import SeenConvolutions, check_convolutions
from chunkflow_py.inference.backends.fold_batch_norm import fold_batch_norm

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

logger = logging.getLogger(__name__)

_Stream: Any = torch.cuda.Stream  # without type hints

# PyTorch's message for a network that calls view on tensors that are not contiguous.
_NEEDS_CONTIGUOUS = "view size is not compatible"


class TorchCore:
    """A network of PyTorch in evaluation mode, called without gradients.

    ```
    first batch:  compile the network (--compile) --> capture it (CUDA graph) --> check convolutions
    every batch:  copy --> channels last --> autocast --> network
    ```

    - On the CPU, and for TF32 and half precision on CUDA, tensors have the memory format channels
      last, because this format is faster. Two kinds of networks get contiguous tensors instead:
      networks that require them, and (only on the CPU) networks with instance normalisation.
    - Each BatchNorm is folded into the convolution before it, if this changes results only by
      rounding.
    - With bfloat16 and float16, the network runs under autocast: convolutions and matrix products
      use this dtype, weights stay float32, and normalisation layers always compute in float32.
    - With float32, CUDA uses TF32 only on request. cuDNN uses deterministic algorithms and does not
      choose them by a benchmark, so that results are reproducible.
    - On CUDA, and in half precision on the CPU, the largest convolutions of the first batch are
      compared with exact results, because some library versions compute wrong values
      (`chunkflow_py.inference.backends.convolution_check`).

    Attributes:
        profile: entries that this class adds to the compute profile, such as the dtype.
    """

    def __init__(
        self,
        network: Any,
        shape: tuple[int, ...],
        *,
        device: torch.device,
        dtype: str = "float32",
        compile: bool = False,
        tf32: bool = False,
        cuda_graphs: bool = True,
        fold: bool = True,
    ) -> None:
        """Set mode, device and memory layout of a network; the first batch compiles the network.

        Args:
            network: a module (changed in place), or any function that maps a batch to an
                output.
            shape: shape of every batch, (n, c, z, y, x), or (n, c, y, x) for a 2D network.
            device: device to run on.
            dtype: ``float32``, ``bfloat16`` or ``float16``.
            compile: compile the network for *shape*. If the compilation fails, the network runs
                uncompiled, and a warning is logged.
            tf32: allow TF32 on CUDA.
            cuda_graphs: capture a forward pass on CUDA and replay its kernels, if possible.
            fold: fold each BatchNorm into the convolution before it.

        Raises:
            OptionError: the dtype does not work on the device.
        """
        check_dtype(dtype, device)
        self.device = device
        self._shape, self._dtype, self._tf32 = shape, getattr(torch, dtype), tf32
        self._compile, self._graphs = compile, cuda_graphs and device.type == "cuda"
        self._program = isinstance(network, (torch.jit.ScriptModule, torch.fx.GraphModule))
        self._layout = torch.contiguous_format
        tensor_cores = device.type == "cuda" and (dtype != "float32" or tf32)
        # An exported program keeps the layout that it was made with.
        if (device.type == "cpu" or tensor_cores) and not isinstance(network, torch.fx.GraphModule):
            # Measured, 2 threads with AVX-512: the FIB-25 network takes 2.0 s instead of 2.8 s for
            # 24x256x256 voxels, RSUNet 5.4 s instead of 7.8 s for 20x256x256. On an H100, both take
            # 8 to 18 % less time in half precision and with TF32, but 6 to 12 % more in float32.
            self._layout = torch.channels_last_3d if len(shape) == 5 else torch.channels_last
        # Calls inside a program cannot be intercepted. PyTorch already uses oneDNN for bfloat16.
        onednn: Callable[[], bool] = torch.backends.mkldnn.is_available
        intercepts = device.type == "cpu" and dtype == "float32" and not self._program
        self._onednn = intercepts and onednn()
        self._group_norm = intercepts and not compile and _has_instance_norm(network)
        if self._group_norm:
            # With channels last, the kernel of GroupNorm has errors of 5e-5.
            self._layout = torch.contiguous_format
        folded = 0
        if isinstance(network, torch.nn.Module):
            # An exported program cannot change its mode; it keeps the one it was made in.
            with contextlib.suppress(NotImplementedError):
                network.eval()
            network = network.to(device)
            if fold and not self._program:
                folded = fold_batch_norm(network, shape)
            _lay_out(network, self._layout)
        self._network: Callable[[Any], Any] = network
        self._ready = False
        self._is_right = device.type == "cpu" and dtype == "float32"
        self._replay: _Replay | None = None
        self.profile = {
            "backend": "torch",
            "dtype": dtype,
            "memory_layout": str(self._layout).removeprefix("torch."),
            "convolution": "onednn" if self._onednn else "torch",
            "batch_norm": f"{folded} folded",
            "compile": "no",
        }
        if device.type == "cuda":
            self.profile["tf32"] = "on" if tf32 else "off"
        if self._group_norm:
            self.profile["instance_norm"] = "group_norm"
        if dtype == "bfloat16":
            self.profile["bfloat16"] = bfloat16_unit(device)

    @torch.inference_mode()
    def __call__(self, batch: Any) -> Any:
        """Run the network on *batch*, which is not modified; see `Core`."""
        try:
            return self._run(batch)
        except RuntimeError as error:
            if self._layout is torch.contiguous_format or _NEEDS_CONTIGUOUS not in str(error):
                raise
            logger.info("the network needs contiguous tensors, so it runs slower")
            self._layout = torch.contiguous_format
            self.profile["memory_layout"] = "contiguous_format"
            _lay_out(self._network, self._layout)
            return self._run(batch)

    def _run(self, batch: Any) -> Any:
        if not self._ready:
            self._prepare(self._placed(batch))
            self._ready = True
        if self._replay is not None and self._replay.takes(batch):
            return self._replay(batch)
        ready = self._placed(batch)
        with self._arithmetic(), self._checked():
            return self._network(ready)

    def _placed(self, batch: Any) -> Any:
        # A copy, because a network may modify its input.
        if not isinstance(batch, torch.Tensor):
            return batch
        layout = self._layout if batch.ndim == len(self._shape) else torch.contiguous_format
        return batch.to(self.device).clone(memory_format=layout)

    @contextlib.contextmanager
    def _arithmetic(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            if self._onednn and self.profile["compile"] == "no":
                stack.enter_context(OneDnnConvolutions())
            if self._group_norm:
                stack.enter_context(FastInstanceNorm())
            if self.device.type == "cuda":
                stack.enter_context(torch.cuda.device(self.device))
                stack.enter_context(cuda_switches(tf32=self._tf32))
            if isinstance(self._network, torch.jit.ScriptModule):
                # Otherwise the third call would run other kernels than the first.
                jit: Any = torch.jit  # the type stubs leave this out
                stack.enter_context(jit.optimized_execution(False))
            low = self._dtype is not torch.float32
            stack.enter_context(torch.autocast(self.device.type, self._dtype, enabled=low))
            yield

    # --- the first batch -----------------------------------------------------------------------

    @contextlib.contextmanager
    def _checked(self) -> Iterator[None]:
        # The first forward pass runs inside the block; its convolutions are checked afterwards.
        if self._is_right:
            yield
            return
        with SeenConvolutions() as seen:
            yield
        found = seen.largest.values()
        if self.device.type == "cpu":
            found = [each for each in found if each.dtype is not torch.float32]
        check_convolutions(found, self.device, tf32=self._tf32)
        self._is_right = True

    def _prepare(self, example: Any) -> None:
        """Compile and capture the network, if requested."""
        if self._program and self._dtype is not torch.float32:
            self._check_autocast(example)
        if self._compile and not self._is_right:
            # Convolutions inside a compiled network are not seen.
            with self._arithmetic(), self._checked():
                self._network(example.clone())
        if self._compile:
            self._compiled(example)
        if self._graphs and isinstance(example, torch.Tensor):
            with self._arithmetic():
                # Outside the try: an error without a graph is an error of the network.
                with self._checked():
                    self._network(example.clone())
                try:
                    self._replay = _Replay(self._network, example)
                except (RuntimeError, ValueError, TypeError) as error:
                    torch.cuda.synchronize(self.device)
                    logger.info(
                        "the network cannot be captured in a CUDA graph, so its kernels are "
                        "launched one by one: %s",
                        _line(error),
                    )

    def _check_autocast(self, example: Any) -> None:
        with self._arithmetic(), Multiplications() as found:
            self._network(example.clone())
        if found.dtypes == {torch.float32}:
            name = self.profile["dtype"]
            msg = (
                f"--dtype {name} has no effect on this exported program: the convolutions run in "
                "float32, because the program was exported with decomposed operators; choose "
                "--dtype float32, or export the program without run_decompositions"
            )
            raise OptionError(msg)

    def _compiled(self, example: Any) -> None:
        # Freezing treats the weights as constants: it folds and packs them for the kernels.
        made: Any = torch.compile(self._network, dynamic=False, options={"freezing": True})
        name = self.profile["compile"]
        self.profile["compile"] = "inductor"
        try:
            with self._arithmetic():
                made(example.clone())
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # the compiler may raise anything
            self.profile["compile"] = name
            if _NEEDS_CONTIGUOUS in str(error) and self._layout is not torch.contiguous_format:
                raise
            logger.warning("--compile failed, so the network runs uncompiled: %s", _line(error))
            return
        self._network = made


class _Replay:
    """The kernels of one forward pass, captured in a CUDA graph and launched together.

    ```
    batch --copy--> input buffer --graph--> output buffers, which the next call overwrites
    ```
    """

    def __init__(self, network: Callable[[Any], Any], example: torch.Tensor) -> None:
        self._input = example.clone()
        # Libraries allocate memory and select kernels in these runs, before the capture.
        stream: Any = _Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):
                self._input.copy_(example)
                network(self._input)
        torch.cuda.current_stream().wait_stream(stream)
        # A graph has its own memory; that of the earlier calls is no longer needed.
        torch.cuda.empty_cache()
        self._graph = torch.cuda.CUDAGraph()
        # thread_local: other threads may copy and allocate during the capture.
        with torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
            self._output = network(self._input)

    def takes(self, batch: Any) -> bool:
        """Return whether the graph was captured for batches of the shape of *batch*."""
        return isinstance(batch, torch.Tensor) and batch.shape == self._input.shape

    def __call__(self, batch: torch.Tensor) -> Any:
        """Replay the captured forward pass with the values of *batch*."""
        self._input.copy_(batch)
        self._graph.replay()
        return self._output


def _lay_out(network: Any, layout: torch.memory_format) -> None:
    # A memory format exists only for tensors with a certain number of axes.
    axes = {torch.channels_last_3d: (5,), torch.channels_last: (4,)}.get(layout, (4, 5))
    if isinstance(network, torch.nn.Module):
        for tensor in (*network.parameters(), *network.buffers()):
            if tensor.ndim in axes:
                tensor.data = tensor.data.contiguous(memory_format=layout)


def _line(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


class OneDnnConvolutions(TorchFunctionMode):
    """Runs 3D convolutions with oneDNN inside the ``with`` block.

    By default, PyTorch does not use oneDNN for a small batch (n·c·z·y up to 20480), although 3D
    convolutions are much slower without oneDNN. Measured with PyTorch 2.13 on one patch (2 threads,
    AVX-512), in seconds:

    | network | patch, voxels | without oneDNN | with oneDNN |
    |---------|---------------|----------------|-------------|
    | FIB-25  | 16x64x64      | 0.88           | 0.05        |
    | FIB-25  | 24x256x256    | 3.1            | 2.5         |
    | RSUNet  | 16x64x64      | 0.69           | 0.25        |

    Measured results with and without oneDNN differ by about 1e-6.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func is torch.nn.functional.conv3d:
            return _conv3d(func, *args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _conv3d(
    original: Callable[..., Any],
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Any:
    if isinstance(padding, str) or not _suits(input, weight):
        return original(input, weight, bias, stride, padding, dilation, groups)
    return torch.mkldnn_convolution(
        input, weight, bias, _three(padding), _three(stride), _three(dilation), groups
    )


class FastInstanceNorm(TorchFunctionMode):
    """Runs instance normalisation with the kernel of GroupNorm inside the ``with`` block.

    Instance normalisation is the same as group normalisation with one channel per group. On the
    CPU, PyTorch runs instance normalisation as batch normalisation, without vector instructions.
    Measured with PyTorch 2.13 (2 threads, AVX-512):

    | input                                      | GroupNorm | batch normalisation |
    |--------------------------------------------|-----------|---------------------|
    | 16x64x64x64 values, only the normalisation | 2.1 ms    | 9.2 ms              |
    | 64x64x64 voxels, nnU-Net's U-Net, CPU time | 0.39 s    | 0.52 s              |

    The rounding errors of both kernels are equally large: at most 1e-6 for values with mean 0, and
    at most 1e-5 if the mean is 100 times the standard deviation.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func is torch.nn.functional.instance_norm:
            return _instance_norm(func, *args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _instance_norm(
    original: Callable[..., Any],
    input: torch.Tensor,
    running_mean: torch.Tensor | None = None,
    running_var: torch.Tensor | None = None,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Any:
    is_float = input.dtype == torch.float32 and input.device.type == "cpu"
    if not (is_float and input.ndim > 3 and use_input_stats and running_mean is None):
        return original(
            input, running_mean, running_var, weight, bias, use_input_stats, momentum, eps
        )
    channels = input.shape[1]
    return torch.nn.functional.group_norm(input.contiguous(), channels, weight, bias, eps)


def _has_instance_norm(network: Any) -> bool:
    kinds = (torch.nn.InstanceNorm2d, torch.nn.InstanceNorm3d)
    return isinstance(network, torch.nn.Module) and any(
        isinstance(module, kinds) and not module.track_running_stats for module in network.modules()
    )


def _suits(image: torch.Tensor, weight: torch.Tensor) -> bool:
    return (
        image.ndim == 5
        and image.device.type == "cpu"
        and image.dtype == weight.dtype == torch.float32
        and image.numel() > 0
    )


def _three(value: Any) -> list[int]:
    values = [value] if isinstance(value, int) else list(value)
    return values * 3 if len(values) == 1 else values
