"""Run networks of PyTorch: model code, TorchScript, exported programs, built-in networks."""

from __future__ import annotations

import contextlib
import logging
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.export.passes import move_to_device_pass

from chunkflow_py.errors import ModelError, OptionError
from chunkflow_py.geometry import Zyx
from chunkflow_py.inference import models
from chunkflow_py.inference.backends.device import describe_device, numerical_profile
from chunkflow_py.inference.backends.model_file import run_model_file
from chunkflow_py.inference.backends.weights import load_weights, read_weights

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

logger = logging.getLogger(__name__)

PROGRAM_SUFFIXES = (".pt", ".pth", ".ts", ".pt2")


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
        model: str,
        weights: str | None,
        *,
        input_patch_size: Zyx,
        output_patch_size: Zyx,
        num_input_channels: int,
        num_output_channels: int,
        device: torch.device,
        dtype: str = "float32",
        trust_weights: bool = False,
        module: ModuleType | None = None,
    ) -> None:
        """Load the network; see `chunkflow_py.inference.backends.create_backend`.

        Args:
            model: name of a built-in network, or a file.
            weights: file of the weights, or ``None`` if the model needs none.
            input_patch_size: voxels, zyx.
            output_patch_size: voxels, zyx.
            num_input_channels: of a batch.
            num_output_channels: that the network has to return.
            device: where it runs.
            dtype: ``float32``, or ``float16`` for autocast.
            trust_weights: unpickle anything that the weight file holds.
            module: the model file, if it was run already.

        Raises:
            ModelError: model or weights cannot be read or do not fit.
            OptionError: the dtype does not work on the device.
        """
        if dtype != "float32" and not (dtype == "float16" and device.type == "cuda"):
            works = "float32 and float16 work" if device.type == "cuda" else "float32 works"
            msg = f"--dtype {dtype} does not work on {describe_device(device)}; {works} there"
            raise OptionError(msg)
        self.model, self.device = model, device
        self._sizes = (input_patch_size, output_patch_size)
        self._in, self._out = num_input_channels, num_output_channels
        self._half = dtype == "float16"
        self._pre: _Hook | None = None
        self._post: _Hook | None = None
        self._module: ModuleType | None = None
        self._layout = torch.contiguous_format
        self._network = self._placed(self._load(weights, trust_weights, module))
        self.divisor = self._find_divisor()
        self.profile = numerical_profile(
            device, framework="pytorch", dtype=dtype, memory_layout=str(self._layout)
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
            remedy = "check --input-patch-size and --num-input-channels"
            if self.divisor and any(Zyx.of(shape[-3:]) % self.divisor):
                remedy = f"--input-patch-size must be a multiple of {self.divisor}"
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
    def _arithmetic(self) -> Any:
        if self.device.type != "cuda":
            yield
            return
        flags = torch.backends.cudnn.flags(
            enabled=True, benchmark=False, deterministic=True, allow_tf32=False
        )
        with flags, torch.autocast("cuda", torch.float16, enabled=self._half):
            yield

    # --- loading --------------------------------------------------------------------------------

    def _load(self, weights: str | None, trust_weights: bool, module: ModuleType | None) -> Any:
        if models.is_built_in(self.model):
            return self._built_in(weights, trust_weights)
        if not Path(self.model).is_file():
            msg = (
                f"model file {self.model} does not exist; check --convnet-model "
                f"(built-in networks: {', '.join(models.names())})"
            )
            raise ModelError(msg)
        suffix = Path(self.model).suffix
        if suffix in PROGRAM_SUFFIXES:
            network = (
                _exported(self.model, self.device) if suffix == ".pt2" else _torchscript(self.model)
            )
        else:
            self._module = module or run_model_file(self.model)
            self._pre = _Hook.of(self._module, "pre_process", self.device)
            self._post = _Hook.of(self._module, "post_process", self.device)
            load = getattr(self._module, "load_model", None)
            if load is not None and (weights or not hasattr(self._module, "InstantiatedModel")):
                return self._loaded_by_file(load, weights)
            network = self._instantiated()
        if weights is not None:
            if not isinstance(network, torch.nn.Module):
                msg = f"model {self.model} takes no weights; leave --convnet-weight-path out"
                raise ModelError(msg)
            state, _ = read_weights(weights, trust_weights=trust_weights)
            load_weights(network, state, path=weights, model=self.model)
        elif self._module and isinstance(network, torch.nn.Module) and network.state_dict():
            logger.warning("no --convnet-weight-path: %s runs as its file made it", self.model)
        return network

    def _built_in(self, weights: str | None, trust_weights: bool) -> torch.nn.Module:
        channels = (self._in, self._out)
        if weights is None:
            network = models.create_model(self.model, *channels)
            logger.warning(
                "NO WEIGHTS: --convnet-model %s without --convnet-weight-path runs with random "
                "weights; its output means nothing and is good for measuring speed only",
                self.model,
            )
            return network
        state, config = read_weights(weights, trust_weights=trust_weights)
        network = models.create_model(self.model, *channels, state=state, config=config)
        load_weights(network, state, path=weights, model=self.model)
        return network

    def _loaded_by_file(self, load: Callable[..., Any], weights: str | None) -> Any:
        if weights is not None and not Path(weights).exists():
            msg = f"weight file {weights} does not exist; check --convnet-weight-path"
            raise ModelError(msg)
        try:
            network = load(weights)
        except Exception as error:
            msg = f"load_model of {self.model} failed: {type(error).__name__}: {error}"
            raise ModelError(msg) from error
        if not callable(network):
            msg = f"load_model of {self.model} returned a {type(network).__name__}, not a network"
            raise ModelError(msg)
        return network

    def _instantiated(self) -> Any:
        network = getattr(self._module, "InstantiatedModel", None)
        if network is None:
            other = (
                "; it has PatchInferencer: use --framework universal"
                if hasattr(self._module, "PatchInferencer")
                else "; end it with InstantiatedModel = YourNetwork()"
            )
            msg = f"model file {self.model} defines no InstantiatedModel{other}"
            raise ModelError(msg)
        if isinstance(network, type) or not callable(network):
            msg = (
                f"InstantiatedModel of {self.model} is a {type(network).__name__}, not a network; "
                "write InstantiatedModel = YourNetwork()"
            )
            raise ModelError(msg)
        return network

    def _placed(self, network: Any) -> Any:
        if not isinstance(network, torch.nn.Module):
            return network
        # An exported program has no training mode to leave; it keeps the one it was exported in.
        with contextlib.suppress(NotImplementedError):
            network.eval()
        if self.device.type == "cpu" and Path(self.model).suffix not in PROGRAM_SUFFIXES:
            # Measured, 2 threads with AVX-512: the FIB-25 network takes 2.0 s instead of 2.8 s for
            # 24x256x256 voxels, RSUNet 5.4 s instead of 7.8 s for 20x256x256.
            self._layout = torch.channels_last_3d
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


class _Hook:
    """A function of a model file, called with arrays or with tensors, whichever it takes.

    Functions written for other tools take NumPy in ``pre_process`` and tensors in
    ``post_process``; both kinds are found in both places.
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
    def of(cls, module: ModuleType, name: str, device: torch.device) -> _Hook | None:
        """Return the function *name* of *module*, or ``None`` if it has none."""
        call = getattr(module, name, None)
        first = "numpy" if name == "pre_process" else "torch"
        return None if call is None else cls(call, first, device)

    def __call__(self, value: Any) -> Any:
        """Call with the kind that worked before; at first, with one after the other."""
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


def _laid_out(network: torch.nn.Module, layout: torch.memory_format) -> torch.nn.Module:
    # The type stubs of Module.to leave memory_format out.
    place: Callable[..., torch.nn.Module] = network.to
    return place(memory_format=layout)


def _torchscript(path: str) -> torch.nn.Module:
    try:
        with warnings.catch_warnings():
            # TorchScript is deprecated, but users have such files and they run.
            warnings.simplefilter("ignore", DeprecationWarning)
            load: Any = torch.jit.load
            network: torch.nn.Module = load(path, map_location="cpu")
    except (RuntimeError, OSError, ValueError) as error:
        hint = "save it with torch.jit.save, or give model code (.py)"
        if _is_state_dict(path):
            hint = "it holds weights: give it as --convnet-weight-path, and model code as the model"
        msg = f"model file {path} is no TorchScript program; {hint}"
        raise ModelError(msg) from error
    return network


def _exported(path: str, device: torch.device) -> torch.nn.Module:
    # torch.export logs whole tracebacks of what it then raises.
    quiet = [logging.getLogger(f"torch.export{part}") for part in ("", ".pt2_archive._package")]
    before = [(log, log.level) for log in quiet]
    try:
        for log in quiet:
            log.setLevel(logging.CRITICAL)
        program = torch.export.load(path)
        if device.type != "cpu":
            program = move_to_device_pass(program, device)
        return program.module()
    except Exception as error:
        msg = f"model file {path} is no exported program; save it with torch.export.save"
        raise ModelError(msg) from error
    finally:
        for log, level in before:
            log.setLevel(level)


def _is_state_dict(path: str) -> bool:
    try:
        read_weights(path)
    except ModelError:
        return False
    return True
