"""The operators of a network, taken down without running it, for libraries other than PyTorch."""

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
"""What a network returns: one tensor (``None``), so many in a tuple, or a dict with these keys."""


_TALKATIVE = (
    "onnx_ir",
    "onnxscript",
    "torch.export",
    "torch.fx.experimental.symbolic_shapes",
    "torch.onnx",
    "torch.onnx._internal.exporter._registration",
)


class _Note:
    """Holds a record; torch.export would undo changes to a list, but not to this class."""

    outputs: Outputs = None


class Leaves(torch.nn.Module):
    """A network that returns a tuple of tensors, whatever the one inside returns."""

    def __init__(self, network: torch.nn.Module) -> None:
        """Wrap the network, which is not modified."""
        super().__init__()
        self.network = network
        self._note = _Note()

    @property
    def outputs(self) -> Outputs:
        """Last output of the wrapped network, also for tensors without values."""
        return self._note.outputs

    def forward(self, batch: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Call the network on *batch*.

        Raises:
            ModelError: it returned something else than tensors.
        """
        # A network may work in place on what it is given; converters drop the copy.
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
                    f"the network returns a {type(leaf).__name__} in a {type(found).__name__}, "
                    "which cannot be converted; let it return tensors, or choose --backend torch"
                )
                raise ModelError(msg)
        self._note.outputs = outputs
        return leaves


def export(network: Leaves, shape: Sequence[int]) -> torch.export.ExportedProgram:
    """Return the operators of *network* for one shape of batch.

    It is run on tensors that have a shape and no values, which costs neither time nor memory.

    Args:
        network: in evaluation mode, on the CPU.
        shape: of every batch.

    Raises:
        Exception: of any kind, if the network does what cannot be taken down, such as to choose
            by the values of a tensor.
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
        ModelError: it is of another shape than the network was converted for.
    """
    tensor = torch.as_tensor(batch, dtype=torch.float32)
    if tuple(tensor.shape) != shape:
        msg = (
            f"the network was converted for batches of shape {shape} and was given "
            f"{tuple(tensor.shape)}; pre_process must not change the shape, or choose "
            "--backend torch"
        )
        raise ModelError(msg)
    return tensor.contiguous()


def reason(error: BaseException) -> str:
    """Return the message of *error* in one line, without the preamble that libraries add."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    preamble = ("Exception", "Check '", "Couldn't get TorchScript module")
    own = [line for line in lines if not line.startswith(preamble)]
    text = next(iter(own or lines), "no reason given")[:300]
    return text if isinstance(error, ChunkflowError) else f"{type(error).__name__}: {text}"


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence messages of converters that no user can act upon."""
    # torch.export prints the operators up to the one that it cannot take down.
    with (
        quiet_logs(_TALKATIVE, logging.ERROR),
        warnings.catch_warnings(),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        warnings.filterwarnings("ignore", ".*LeafSpec.* is deprecated", FutureWarning)
        # Tracing, and networks saved as TorchScript, work though they are deprecated.
        warnings.filterwarnings("ignore", r".*torch\.jit\.\w+. is (deprecated|not supported)")
        traced: Any = torch.jit  # does not list its names
        warnings.filterwarnings("ignore", category=traced.TracerWarning)
        yield
