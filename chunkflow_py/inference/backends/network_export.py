"""Record the operators of a network, without data, to convert the network for other libraries."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from chunkflow_py.errors import ChunkflowError, ModelError
from chunkflow_py.inference.torch_logs import quiet_logs

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Outputs = int | tuple[str, ...] | None
"""Structure of a network's result: ``None`` for one tensor, the length of a tuple, or dict keys."""


_TALKATIVE = (
    "onnx_ir",
    "onnxscript",
    "torch.export",
    "torch.fx.experimental.symbolic_shapes",
    "torch.onnx",
    "torch.onnx._internal.exporter._registration",
)


class _Note:
    # torch.export undoes changes of lists that `forward` makes, but not those of this attribute.
    outputs: Outputs = None


class Leaves(torch.nn.Module):
    """Wraps a network so that it always returns a tuple of tensors."""

    def __init__(self, network: torch.nn.Module) -> None:
        """Wrap the network, which is not modified."""
        super().__init__()
        self.network = network
        self._note = _Note()

    @property
    def outputs(self) -> Outputs:
        """Structure of the result that the wrapped network returned when it was last called."""
        return self._note.outputs

    def forward(self, batch: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Call the network on *batch*.

        Raises:
            ModelError: the network did not return tensors.
        """
        # A network may modify its input in place; converters drop the copy.
        found = self.network(batch.clone())
        outputs: Outputs = None
        leaves: tuple[Any, ...] = (found,)
        if isinstance(found, dict):
            outputs, leaves = tuple(map(str, found)), tuple(found.values())
        elif isinstance(found, (tuple, list)):
            outputs, leaves = len(found), tuple(found)
        for leaf in leaves:
            if not isinstance(leaf, torch.Tensor):
                msg = (
                    f"the network returns a {type(found).__name__} that contains a "
                    f"{type(leaf).__name__}, but only tensors can be converted; let the network "
                    "return only tensors, or choose --backend torch"
                )
                raise ModelError(msg)
        self._note.outputs = outputs
        return leaves


def export(network: Leaves, shape: Sequence[int]) -> torch.export.ExportedProgram:
    """Export the operators of *network* for one shape of batch.

    The network is run on tensors that have a shape but no values. Such a run is fast and needs no
    memory for feature maps.

    Args:
        network: network in evaluation mode, on the CPU.
        shape: shape of every batch.

    Raises:
        Exception: the network cannot be exported, for example because its code branches on the
            values of a tensor. The type of the error varies.
    """
    with quiet(), FakeTensorMode():
        example = torch.empty(tuple(shape))
    with quiet(), torch.no_grad():
        return torch.export.export(network, (example,), strict=False)


def as_network_returns(tensors: Sequence[torch.Tensor], outputs: Outputs) -> Any:
    """Arrange *tensors* in the structure that the network returns."""
    if outputs is None:
        return tensors[0]
    if isinstance(outputs, int):
        return tuple(tensors)
    return dict(zip(outputs, tensors, strict=True))


def check_batch(batch: Any, shape: tuple[int, ...]) -> torch.Tensor:
    """Return *batch* as contiguous float32, copied only if necessary.

    Raises:
        ModelError: *batch* does not have the shape that the network was converted for.
    """
    tensor = torch.as_tensor(batch, dtype=torch.float32)
    if tuple(tensor.shape) != shape:
        msg = (
            f"the network was converted for batches of shape {shape}, but received a batch of "
            f"shape {tuple(tensor.shape)}; let pre_process keep the shape of its input, "
            "or choose --backend torch"
        )
        raise ModelError(msg)
    return tensor.contiguous()


def reason(error: BaseException) -> str:
    """Return the type of *error* and the first informative line of its message."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    preamble = ("Exception", "Check '", "Couldn't get TorchScript module")
    own = [line for line in lines if not line.startswith(preamble)]
    text = next(iter(own or lines), "no reason given")[:300]
    return text if isinstance(error, ChunkflowError) else f"{type(error).__name__}: {text}"


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence log messages, warnings and stderr of converters in a ``with`` block.

    None of these messages asks the user to do anything.
    """
    # torch.export prints all operators before the one that it cannot export.
    with (
        quiet_logs(_TALKATIVE, logging.ERROR),
        warnings.catch_warnings(),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        warnings.filterwarnings("ignore", ".*LeafSpec.* is deprecated", FutureWarning)
        # Tracing and TorchScript are deprecated, but still work.
        warnings.filterwarnings("ignore", r".*torch\.jit\.\w+. is (deprecated|not supported)")
        traced: Any = torch.jit  # does not list its names
        warnings.filterwarnings("ignore", category=traced.TracerWarning)
        yield
