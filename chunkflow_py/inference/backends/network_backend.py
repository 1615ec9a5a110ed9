"""Run a network between ``pre_process`` and ``post_process``, and join and check its outputs."""

from __future__ import annotations

import logging
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import torch

from chunkflow_py.core.affinity_layout import DEFAULT_LAYOUT
from chunkflow_py.core.allocator import apart_from_heap
from chunkflow_py.core.geometry import Zyx
from chunkflow_py.errors import ChunkflowError, ModelError, OptionError, OutOfMemoryError
from chunkflow_py.inference.affinity_output import as_stored, check_whole
from chunkflow_py.inference.backends.compute_profile import profile_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from chunkflow_py.core.affinity_layout import AffinityLayout
    from chunkflow_py.inference.network_memory import NetworkMemory

# Dtypes that the engine can multiply by the window without conversion.
_FLOATING = (torch.float32, torch.bfloat16, torch.float16)


class Core(Protocol):
    """A network without ``pre_process`` and ``post_process``, for batches of one shape.

    Attributes:
        profile: entries that the core adds to the compute profile: library, precision, layout.
    """

    profile: dict[str, str]

    def __call__(self, batch: Any) -> Any:
        """Run the network on a batch.

        Args:
            batch: (n, c, z, y, x), or (n, c, y, x) for a 2D network, float32, on the device; must
                not be changed. If the model file defines ``pre_process``, *batch* is the result of
                ``pre_process``.

        Returns:
            What the network returned: a tensor, or a dict, list or tuple of tensors, on the device.
            The tensors may have any strides, and are valid until the next call.
        """


class NetworkBackend:
    """A network that a `Core` runs, between the functions ``pre_process`` and ``post_process``.

    ```
    batch --> pre_process --> core --> post_process --> named outputs joined --> checked
              (model file)             (model file)     (--output-names)
          --> affinities converted to the stored convention
    ```

    ``pre_process`` and ``post_process`` of a model file may take NumPy arrays or tensors, and may
    return NumPy arrays or tensors. On the first batch, `Hook` finds out whether a function takes
    arrays or tensors. ``pre_process`` receives (n, c, z, y, x) float32, and ``post_process``
    receives the result of the network.

    A 2D network, and the two functions of its model file, receive the sections (z planes) of all
    patches as one batch: (n, c, z, y, x) -> (n·z, c, y, x) -> network -> (n, c, z, y, x).

    Attributes:
        device, weighted, divisor, profile: see
            `chunkflow_py.inference.backends.backend_protocol.Backend`.
        shape: shape of every batch, (n, c, z, y, x).
        memory: function that measures how much memory the network needs; ``None`` if unknown.
        voxel_size_nm: voxel size that the network was trained with, nanometres, zyx; ``None`` if
            the model file declares no voxel size.
    """

    weighted = False

    def __init__(
        self,
        core: Core,
        *,
        model: str,
        shape: tuple[int, ...],
        output_patch_size: Zyx,
        num_output_channels: int,
        device: torch.device,
        module: ModuleType | None = None,
        divisor: object = None,
        kernel_dims: frozenset[int] = frozenset(),
        spatial_dims: int = 3,
        outputs: tuple[str, ...] = (),
        output_channels: tuple[int, ...] = (),
        affinity_layout: AffinityLayout = DEFAULT_LAYOUT,
        affinity_channels: tuple[int, ...] = (),
        memory: Callable[[], NetworkMemory] | None = None,
        voxel_size_nm: tuple[float, float, float] | None = None,
    ) -> None:
        """Wrap a network in the functions of its model file, and in checks of its outputs.

        Args:
            core: the network, prepared by a library such as PyTorch or OpenVINO.
            model: name or file of the network, for messages.
            shape: shape of every batch, (n, c, z, y, x).
            output_patch_size: size of the output patch, voxels, zyx.
            num_output_channels: number of channels of all outputs together.
            device: device of batches and results.
            module: the executed model file, which may define ``pre_process`` and ``post_process``.
            divisor: `Backend.divisor`, as the network or the model file declares it: one integer
                for all axes, or an integer for each axis.
            kernel_dims: numbers of spatial axes of the network's kernels: 2, 3, or 2 and 3.
            spatial_dims: 3, or 2 for a network that takes single sections (z planes).
            outputs: names of the outputs to join, in order. If the network returns a dict, the
                names are keys of the dict. If the network returns a tuple, the first items of the
                tuple get these names.
            output_channels: number of channels of each of *outputs*.
            affinity_layout: order and position of the affinities that the network returns.
            affinity_channels: first channel of each group of three affinities. The channels of all
                outputs are numbered consecutively.
            memory: function that measures how much memory the network needs.
            voxel_size_nm: voxel size that the network was trained with, if the model file declares
                one.

        Raises:
            ModelError: *divisor* is invalid.
        """
        self.memory, self._first = memory, True
        self.voxel_size_nm = voxel_size_nm
        self.model, self.device, self.shape = model, device, shape
        self._core, self._flat = core, spatial_dims == 2
        self._sizes = (Zyx.of(shape[2:]), Zyx.of(output_patch_size))
        self._channels = num_output_channels
        self._outputs = dict(zip(outputs, output_channels, strict=True))
        self._layout, self._affinities = affinity_layout, affinity_channels
        self._spread = ChannelSpreader(model, num_output_channels)
        self._pre = Hook.of(module, "pre_process", device)
        self._post = Hook.of(module, "post_process", device)
        self._kernel_dims = kernel_dims
        self.divisor = self._as_divisor(divisor)
        self._more = {
            "framework": "pytorch",
            "batch": "x".join(map(str, shape)),
            **({"spatial_dims": "2"} if self._flat else {}),
        }

    @property
    def profile(self) -> dict[str, str]:
        """Compute profile; the first batch may change this profile if the compilation fails."""
        return profile_of(self.device, **self._more, **self._core.profile)

    def warm(self) -> None:
        """Run a batch of zeros, so that kernels are selected and compiled before the first chunk.

        Raises:
            ModelError: the network failed, or its result has a wrong shape.
        """
        self(torch.zeros(self.shape, dtype=torch.float32, device=self.device))

    def __call__(self, batch: torch.Tensor) -> torch.Tensor:
        """Run the network on (n, c, z, y, x) float32; see `Backend`."""
        first, self._first = self._first, False
        with torch.inference_mode(), apart_from_heap() if first else nullcontext():
            found = self._joined(self._run(batch))
            found = self._stacked(found, batch)
            if not self._outputs:
                found = self._spread(found)
            self._check(tuple(found.shape), tuple(batch.shape))
            if self._affinities:
                check_whole(self.model, self._layout, Zyx.of(found.shape[2:]), self._sizes[0])
                found = as_stored(found, self._layout, self._affinities)
            found = found.to(self.device)
            return found if found.dtype in _FLOATING else found.to(torch.float32)

    # --- the network ---------------------------------------------------------------------------

    def _run(self, batch: torch.Tensor) -> Any:
        shape = tuple(batch.shape)
        try:
            # A hook may modify its argument in place, but the batch belongs to the caller.
            ready = batch.clone() if self._pre else batch
            if self._flat:
                ready = ready.transpose(1, 2).flatten(0, 1)
            ready = self._pre(ready) if self._pre else ready
            result = self._core(ready)
            return self._post(result) if self._post else result
        except (torch.OutOfMemoryError, MemoryError) as error:
            raise OutOfMemoryError(self._too_large(shape)) from error
        except ChunkflowError:
            raise
        except Exception as error:
            reason = str(error).strip().partition("\n")[0]
            if "can't allocate memory" in reason or "not enough memory" in reason:
                raise OutOfMemoryError(self._too_large(shape)) from error
            remedy = "check --input-patch-size, --num-input-channels and --batch-size"
            dims = 2 if self._flat else 3
            if self._kernel_dims and dims not in self._kernel_dims:
                (other,) = self._kernel_dims
                remedy = (
                    f"the kernels of the network have {other} axes, but --spatial-dims is {dims}; "
                    f"use --spatial-dims {other}"
                )
            elif self.divisor and any(Zyx.of(shape[-3:]) % self.divisor):
                near = -(-Zyx.of(shape[-3:]) // self.divisor) * self.divisor
                remedy = f"--input-patch-size must be a multiple of {self.divisor}, such as {near}"
            msg = (
                f"model {self.model} failed on a batch of shape {shape} (n, c, z, y, x): "
                f"{type(error).__name__}: {reason}; {remedy}"
            )
            raise ModelError(msg) from error

    def _too_large(self, shape: tuple[int, ...]) -> str:
        return (
            f"model {self.model} needs more memory than {self.device} has for a batch of "
            f"shape {shape} (n, c, z, y, x); lower --batch-size or --input-patch-size"
        )

    # --- the result ----------------------------------------------------------------------------

    def _joined(self, found: Any) -> torch.Tensor:
        if isinstance(found, dict) and self._outputs:
            lacking = [name for name in self._outputs if name not in found]
            if lacking:
                msg = (
                    f"model {self.model} returned a dict with the keys "
                    f"{', '.join(map(str, found))}, but --output-names also lists "
                    f"{', '.join(lacking)}; list only keys of the dict"
                )
                raise ModelError(msg)
            found = [found[name] for name in self._outputs]
        names = ""
        if isinstance(found, dict):
            names = f" ({', '.join(map(str, found))})"
            found = list(found.values())
        if isinstance(found, (list, tuple)) and len(found) == 1:
            found = found[0]
        if isinstance(found, (list, tuple)) and self._outputs:
            return self._concatenated(found)
        tensor = _as_tensor(found)
        if tensor is None:
            many = f" of {len(found)} items{names}" if isinstance(found, (list, tuple)) else ""
            kind = "dict" if names else type(found).__name__
            msg = (
                f"model {self.model} returned a {kind}{many}, not one tensor; name the outputs "
                "to store with --output-names, or return one tensor from post_process in the "
                "model file"
            )
            raise ModelError(msg)
        return tensor

    def _concatenated(self, found: Any) -> torch.Tensor:
        if len(found) < len(self._outputs):
            msg = (
                f"model {self.model} returned {len(found)} outputs, but --output-names lists "
                f"{len(self._outputs)} ({', '.join(self._outputs)}); list only "
                "outputs that the network returns"
            )
            raise ModelError(msg)
        parts: list[torch.Tensor] = []
        for (name, channels), item in zip(self._outputs.items(), found, strict=False):
            tensor = _as_tensor(item)
            if tensor is None:
                msg = (
                    f"output {name} of model {self.model} is a {type(item).__name__}, not a "
                    "tensor; list only outputs that are tensors in --output-names"
                )
                raise ModelError(msg)
            if tensor.ndim < 2 or tensor.shape[1] != channels:
                msg = (
                    f"output {name} of model {self.model} has shape {tuple(tensor.shape)}, but "
                    f"--output-channels is {channels} for this output; correct --output-channels "
                    "or the model"
                )
                raise ModelError(msg)
            if parts and tensor.shape[2:] != parts[0].shape[2:]:
                msg = (
                    f"output {name} of model {self.model} has {tuple(tensor.shape[2:])} voxels, "
                    f"but output {next(iter(self._outputs))} has {tuple(parts[0].shape[2:])}; list "
                    "only outputs of equal size in --output-names"
                )
                raise ModelError(msg)
            parts.append(tensor)
        return torch.cat(parts, 1)

    def _stacked(self, found: torch.Tensor, batch: torch.Tensor) -> torch.Tensor:
        # A 2D network returned (n·z, c, y, x); the result is (n, c, z, y, x).
        if not self._flat:
            return found
        number, depth = batch.shape[0], batch.shape[2]
        if found.ndim != 4 or found.shape[0] != number * depth:
            msg = (
                f"model {self.model} returned shape {tuple(found.shape)} for {number * depth} "
                f"sections, but with --spatial-dims 2 a model must return "
                f"({number * depth}, {self._channels}, y, x); correct the model"
            )
            raise ModelError(msg)
        return found.view(number, depth, *found.shape[1:]).transpose(1, 2)

    def _check(self, found: tuple[int, ...], batch: tuple[int, ...]) -> None:
        if len(found) != 5 or found[0] != batch[0]:
            msg = (
                f"model {self.model} returned shape {found} for a batch of shape {batch}, but "
                f"must return ({batch[0]}, {self._channels}, z, y, x); correct the model"
            )
            raise ModelError(msg)
        if found[1] != self._channels:
            msg = (
                f"model {self.model} returned {found[1]} channels, but --num-output-channels is "
                f"{self._channels}; use --num-output-channels {found[1]}"
            )
            raise ModelError(msg)
        if found[2:] not in self._sizes:
            msg = (
                f"model {self.model} returned patches of size {Zyx.of(found[2:])}, but must return "
                f"patches of the input patch size {self._sizes[0]} or of the output patch size "
                f"{self._sizes[1]} (zyx, voxels); use --output-patch-size "
                f"{' '.join(map(str, found[2:]))}"
            )
            raise ModelError(msg)

    def _as_divisor(self, found: object) -> Zyx | None:
        if found is None:
            return None
        number = 2 if self._flat else 3
        values: Any = (found,) * number if isinstance(found, int) else found
        axes = tuple(values) if isinstance(values, (tuple, list, Zyx)) else ()
        if len(axes) == 2 and self._flat:
            axes = (1, *axes)
        if len(axes) != 3 or not all(isinstance(v, int) and v > 0 for v in axes):
            numbers = "one, two (y, x) or three" if self._flat else "one or three"
            msg = (
                f"divisor of model {self.model} is {found!r}; "
                f"a divisor must be {numbers} positive integers"
            )
            raise ModelError(msg)
        return Zyx.of(axes)


def check_outputs(
    outputs: tuple[str, ...], output_channels: tuple[int, ...], num_output_channels: int
) -> None:
    """Check the names of outputs against the numbers of channels of each output.

    Args:
        outputs: names of the outputs to store.
        output_channels: number of channels of each of *outputs*.
        num_output_channels: number of channels of all *outputs* together.

    Raises:
        OptionError: *outputs* and *output_channels* differ in length, a name is given twice, or
            the sum of *output_channels* is not *num_output_channels*.
    """
    if len(outputs) != len(output_channels):
        msg = (
            f"--output-names lists {len(outputs)} outputs ({', '.join(outputs)}), but "
            f"--output-channels has {len(output_channels)} numbers; give one number for each output"
        )
        raise OptionError(msg)
    if len(set(outputs)) < len(outputs):
        msg = f"--output-names {','.join(outputs)} lists an output twice; list each output once"
        raise OptionError(msg)
    if outputs and sum(output_channels) != num_output_channels:
        msg = (
            f"--output-channels {','.join(map(str, output_channels))} add up to "
            f"{sum(output_channels)}, but --num-output-channels is {num_output_channels}; "
            f"use --num-output-channels {sum(output_channels)}"
        )
        raise OptionError(msg)


def _as_tensor(value: Any) -> torch.Tensor | None:
    if hasattr(value, "__array__") and not isinstance(value, torch.Tensor):
        value = torch.as_tensor(value)
    return value if isinstance(value, torch.Tensor) else None


logger = logging.getLogger(__name__)


@dataclass
class ChannelSpreader:
    """Repeats the only channel of an output for all requested channels, and warns once.

    Attributes:
        model: name or file of the network, for the warning.
        channels: number of channels requested.
    """

    model: str
    channels: int
    _warned: bool = field(default=False, init=False)

    def __call__(self, output: torch.Tensor) -> torch.Tensor:
        """Expand (n, 1, z, y, x) to all channels as a view; return other shapes unchanged."""
        if output.ndim != 5 or output.shape[1] != 1 or self.channels == 1:
            return output
        if not self._warned:
            self._warned = True
            logger.warning(
                "model %s returned 1 channel, which is stored %d times; give "
                "--num-output-channels 1 to store it once",
                self.model,
                self.channels,
            )
        return output.expand(-1, self.channels, -1, -1, -1)


class Hook:
    """A function of a model file, called with NumPy arrays or with tensors, whichever it accepts.

    If the first parameter has the type hint of an array or a tensor, the hint decides. Without such
    a hint, the first call tries an array for ``pre_process`` and a tensor for ``post_process``,
    because most model files written for other tools expect these. If that call fails with a
    TypeError or an AttributeError, the other type is tried.
    """

    def __init__(self, call: Callable[..., Any], first: str, device: torch.device) -> None:
        self._call, self._device = call, device
        second = "torch" if first == "numpy" else "numpy"
        self._order: tuple[str, ...] = (first, second)
        annotations = getattr(call, "__annotations__", {})
        wanted = str(next(iter(v for k, v in annotations.items() if k != "return"), ""))
        if "Tensor" in wanted:
            self._order = ("torch",)
        elif "ndarray" in wanted or "NDArray" in wanted:
            self._order = ("numpy",)

    @classmethod
    def of(cls, module: ModuleType | None, name: str, device: torch.device) -> Hook | None:
        """Wrap the function *name* of *module*; return ``None`` if there is no such function."""
        call = getattr(module, name, None) if module else None
        first = "numpy" if name == "pre_process" else "torch"
        return None if call is None else cls(call, first, device)

    def __call__(self, value: Any) -> Any:
        """Call the function with an array or a tensor; convert a returned array to a tensor."""
        for kind in self._order:
            try:
                result = self._call(_as_numpy(value) if kind == "numpy" else value)
            except (TypeError, AttributeError):
                if kind == self._order[-1]:
                    raise
                continue
            self._order = (kind,)
            break
        if hasattr(result, "__array__") and not isinstance(result, torch.Tensor):
            return torch.as_tensor(result, device=self._device)
        return result


def _as_numpy(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().numpy()
    return value
