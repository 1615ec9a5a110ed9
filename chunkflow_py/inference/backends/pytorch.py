"""Run networks of PyTorch: model code, TorchScript, exported programs, built-in networks."""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Any

import torch

from chunkflow_py.errors import ModelError, OptionError
from chunkflow_py.geometry import Zyx
from chunkflow_py.inference.backends.convolution import OneDnnConvolutions
from chunkflow_py.inference.backends.device import describe_device, numerical_profile
from chunkflow_py.inference.backends.hook import Hook

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType

    from chunkflow_py.inference.backends.network import NetworkSource

logger = logging.getLogger(__name__)


class PyTorch:
    """A PyTorch network in evaluation mode, called without gradients.

    ```
    batch --> pre_process --> network --> post_process --> checked, float32
              (model file)                (model file)
    ```

    ``pre_process`` and ``post_process`` of a model file may take NumPy arrays or tensors, and
    may return either; which one they take is found out on the first batch. ``pre_process`` is
    given (n, c, z, y, x) float32, ``post_process`` whatever the network returned.

    On the CPU the maps lie channels last, which is faster; the result is contiguous.

    float32 is float32: TF32 is off, and cuDNN keeps to deterministic algorithms, so that a batch
    has one result. float16 is autocast, on CUDA only.

    Attributes:
        device, weighted, divisor, profile: see `chunkflow_py.inference.backends.protocol.Backend`.
    """

    weighted = False

    def __init__(
        self,
        source: NetworkSource,
        *,
        input_patch_size: Zyx,
        output_patch_size: Zyx,
        device: torch.device,
        dtype: str = "float32",
        module: ModuleType | None = None,
    ) -> None:
        """Load the network; see `chunkflow_py.inference.backends.create_backend`.

        Args:
            source: model, weights and numbers of channels.
            input_patch_size: voxels, zyx.
            output_patch_size: voxels, zyx.
            device: where it runs.
            dtype: ``float32``, or ``float16`` for autocast.
            module: the model file, if it was run already.

        Raises:
            ModelError: model or weights cannot be read or do not fit.
            OptionError: the dtype does not work on the device.
        """
        if dtype != "float32" and not (dtype == "float16" and device.type == "cuda"):
            works = "float32 and float16 work" if device.type == "cuda" else "float32 works"
            msg = f"--dtype {dtype} does not work on {describe_device(device)}; {works} there"
            raise OptionError(msg)
        self.model, self.device = source.model, device
        self._sizes = (input_patch_size, output_patch_size)
        self._out = source.num_output_channels
        self._half = dtype == "float16"
        self._module = module or source.run_file()
        self._pre = Hook.of(self._module, "pre_process", device)
        self._post = Hook.of(self._module, "post_process", device)
        self._layout = torch.contiguous_format
        if device.type == "cpu" and not source.is_program:
            # Measured, 2 threads with AVX-512: the FIB-25 network takes 2.0 s instead of 2.8 s for
            # 24x256x256 voxels, RSUNet 5.4 s instead of 7.8 s for 20x256x256.
            self._layout = torch.channels_last_3d
        # Programs call their operators by themselves, out of reach.
        onednn: Callable[[], bool] = torch.backends.mkldnn.is_available
        self._onednn = device.type == "cpu" and not source.is_program and onednn()
        self._network = self._placed(source.load(self._module, device))
        self.divisor = self._find_divisor()
        self.profile = numerical_profile(
            device,
            framework="pytorch",
            dtype=dtype,
            memory_layout=str(self._layout),
            convolution="onednn" if self._onednn else "torch",
        )

    def __call__(self, batch: torch.Tensor) -> torch.Tensor:
        """Run the network on (n, c, z, y, x) float32; see `Backend`."""
        with torch.inference_mode(), self._arithmetic():
            found = self._only_tensor(self._run(batch))
        self._check(tuple(found.shape), tuple(batch.shape))
        # One pass makes it float32, contiguous, the caller's own and no inference tensor.
        return torch.empty(found.shape, dtype=torch.float32, device=self.device).copy_(found)

    def _run(self, batch: torch.Tensor) -> Any:
        shape = tuple(batch.shape)
        try:
            # A network may work in place on what it is given, and the batch is the caller's.
            ready = batch.clone()
            ready = self._pre(ready) if self._pre else ready
            if isinstance(ready, torch.Tensor):
                layout = self._layout if ready.ndim == 5 else torch.contiguous_format
                ready = ready.to(self.device, memory_format=layout)
            result = self._network(ready)
            return self._post(result) if self._post else result
        except torch.OutOfMemoryError as error:
            msg = (
                f"model {self.model} needs more memory than {self.device} has for a batch of "
                f"shape {shape} (n, c, z, y, x); lower --batch-size or --input-patch-size"
            )
            raise ModelError(msg) from error
        except Exception as error:
            reason = str(error).strip().partition("\n")[0]
            if self._layout is torch.channels_last_3d and "view size is not" in reason:
                self._use_contiguous()
                return self._run(batch)
            remedy = "check --input-patch-size, --num-input-channels and --batch-size"
            if self.divisor and any(Zyx.of(shape[-3:]) % self.divisor):
                near = -(-Zyx.of(shape[-3:]) // self.divisor) * self.divisor
                remedy = f"--input-patch-size must be a multiple of {self.divisor}, such as {near}"
            msg = (
                f"model {self.model} failed on a batch of shape {shape} (n, c, z, y, x): "
                f"{type(error).__name__}: {reason}; {remedy}"
            )
            raise ModelError(msg) from error

    def _only_tensor(self, found: Any) -> torch.Tensor:
        if isinstance(found, dict):
            found = list(found.values())
        if isinstance(found, (list, tuple)) and len(found) == 1:
            found = found[0]
        if hasattr(found, "__array__") and not isinstance(found, torch.Tensor):
            found = torch.as_tensor(found)
        if not isinstance(found, torch.Tensor):
            many = f" of {len(found)} items" if isinstance(found, (list, tuple)) else ""
            msg = (
                f"model {self.model} returned a {type(found).__name__}{many}, not one tensor; "
                "define post_process in the model file to choose one"
            )
            raise ModelError(msg)
        return found

    def _check(self, found: tuple[int, ...], batch: tuple[int, ...]) -> None:
        if len(found) != 5 or found[0] != batch[0]:
            msg = (
                f"model {self.model} returned shape {found} for a batch of shape {batch}; "
                f"it must return ({batch[0]}, {self._out}, z, y, x)"
            )
            raise ModelError(msg)
        if found[1] != self._out:
            msg = (
                f"model {self.model} returned {found[1]} channels, --num-output-channels is "
                f"{self._out}; give --num-output-channels {found[1]}"
            )
            raise ModelError(msg)
        if found[2:] not in self._sizes:
            msg = (
                f"model {self.model} returned patches of size {Zyx.of(found[2:])}, neither "
                f"the input patch size {self._sizes[0]} nor the output patch size {self._sizes[1]} "
                f"(zyx, voxels); give --output-patch-size {' '.join(map(str, found[2:]))}"
            )
            raise ModelError(msg)

    @contextlib.contextmanager
    def _arithmetic(self) -> Iterator[None]:
        if self.device.type != "cuda":
            with OneDnnConvolutions() if self._onednn else contextlib.nullcontext():
                yield
            return
        flags = torch.backends.cudnn.flags(
            enabled=True, benchmark=False, deterministic=True, allow_tf32=False
        )
        with flags, torch.autocast("cuda", torch.float16, enabled=self._half):
            yield

    def _placed(self, network: Any) -> Any:
        if not isinstance(network, torch.nn.Module):
            return network
        # An exported program has no training mode to leave; it keeps the one it was exported in.
        with contextlib.suppress(NotImplementedError):
            network.eval()
        return _laid_out(network.to(self.device), self._layout)

    def _use_contiguous(self) -> None:
        """Give up the faster layout, for a network that calls ``view`` on its maps."""
        logger.info("%s needs contiguous tensors; it runs slower for that", self.model)
        self._layout = torch.contiguous_format
        self._network = _laid_out(self._network, self._layout)
        self.profile["memory_layout"] = str(self._layout)

    def _find_divisor(self) -> Zyx | None:
        found = getattr(self._network, "divisor", None)
        if found is None:
            found = getattr(self._module, "DIVISOR", None)
        if found is None:
            return None
        triple = (found,) * 3 if isinstance(found, int) else tuple(found)
        if len(triple) != 3 or not all(isinstance(v, int) and v > 0 for v in triple):
            msg = f"divisor of {self.model} is {found!r}; it must be one or three positive integers"
            raise ModelError(msg)
        return Zyx.of(triple)


def _laid_out(network: torch.nn.Module, layout: torch.memory_format) -> torch.nn.Module:
    # The type stubs of Module.to leave memory_format out.
    place: Callable[..., torch.nn.Module] = network.to
    return place(memory_format=layout)
