"""Load a network by its name, file or package, and list the files that the network needs."""

from __future__ import annotations

import copy
import hashlib
import logging
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from chunkflow_py.core.older_names import NO_FILE
from chunkflow_py.errors import ModelError, OptionError
from chunkflow_py.inference import models
from chunkflow_py.inference.backends.cellmap_script import is_cellmap_script
from chunkflow_py.inference.backends.model_files import (
    load_exported,
    load_torchscript,
    load_weights,
    read_weights,
    run_model_file,
    unwrapped,
)
from chunkflow_py.inference.bioimage import is_package, read_package
from chunkflow_py.inference.models import is_built_in
from chunkflow_py.inference.monai_bundle import Bundle, is_bundle, read_bundle

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from chunkflow_py.inference.bioimage import ModelPackage

logger = logging.getLogger(__name__)

PROGRAM_SUFFIXES = (".pt", ".pth", ".ts", ".pt2")


@dataclass(frozen=True)
class NetworkSource:
    """A network as the user specifies it: model, weights, channels.

    Attributes:
        model: name of a built-in network, or path of a file: Python code, TorchScript, an exported
            program, a package of the BioImage Model Zoo, or a MONAI bundle. Most of these files
            can run code, so use only files that you would run as a program.
        weights: path of the weight file, or ``None`` if the model needs none.
        num_input_channels: number of channels of the network's input.
        num_output_channels: number of channels that the network must return.
        trust_weights: unpickle all objects in the weight file, even those that can run code.
        in_memory: a network that is already in memory, or ``None``. If given, *model* is only a
            name for messages.
        orientations: for a MONAI bundle, two orientations: that of the images for which the network
            was trained, and that of the image to process.
    """

    model: str
    weights: str | None = None
    num_input_channels: int = 1
    num_output_channels: int = 3
    trust_weights: bool = False
    in_memory: torch.nn.Module | None = None
    orientations: tuple[str, str] | None = None

    @cached_property
    def package(self) -> ModelPackage | Bundle | None:
        """The BioImage Model Zoo package or MONAI bundle; ``None`` if the model is neither."""
        if self.in_memory is not None:
            return None
        if is_bundle(self.model):
            return read_bundle(self.model)
        return read_package(self.model) if is_package(self.model) else None

    @property
    def is_program(self) -> bool:
        """Whether the model is a compiled program, such as TorchScript, and not Python code."""
        if self.package is not None:
            return self.package.is_program
        return self.in_memory is None and Path(self.model).suffix in PROGRAM_SUFFIXES

    def run_file(self) -> ModuleType | None:
        """Execute the model file; return it as a module, or ``None`` if it is not Python code.

        Raises:
            ModelError: the file does not exist, or its code raised an exception.
        """
        if self.in_memory is not None or models.is_built_in(self.model) or self.package is not None:
            return None
        if not Path(self.model).is_file():
            msg = (
                f"model file {self.model} does not exist; check --convnet-model "
                f"(built-in networks: {', '.join(models.names())})"
            )
            raise ModelError(msg)
        return None if self.is_program else run_model_file(self.model)

    def load(self, module: ModuleType | None, device: torch.device) -> Any:
        """Return the network with its weights, on the CPU; only an exported program is on *device*.

        Args:
            module: result of `run_file`.
            device: device onto which an exported program is loaded; ignored for other models.

        Raises:
            ModelError: the model or its weights cannot be read, or the weights belong to another
                model.
        """
        if isinstance(self.package, Bundle):
            return self.package.load(
                trust_weights=self.trust_weights, orientations=self.orientations
            )
        if self.package is not None:
            return self.package.load(trust_weights=self.trust_weights)
        if self.in_memory is not None:
            return self._copied(self.in_memory)
        if models.is_built_in(self.model):
            return self._built_in()
        if module is None:
            exported = Path(self.model).suffix == ".pt2"
            network = (
                load_exported(self.model, device) if exported else load_torchscript(self.model)
            )
        else:
            load = getattr(module, "load_model", None)
            if load is not None and (self.weights or not hasattr(module, "InstantiatedModel")):
                return self._loaded_by_file(load)
            network = self._instantiated(module)
        if self.weights is not None:
            if not isinstance(network, torch.nn.Module):
                msg = f"model {self.model} takes no weights; leave --convnet-weight-path out"
                raise ModelError(msg)
            state, _ = read_weights(self.weights, trust_weights=self.trust_weights)
            load_weights(network, state, path=self.weights, model=self.model)
        elif (
            module
            and not is_cellmap_script(module)
            and isinstance(network, torch.nn.Module)
            and network.state_dict()
        ):
            logger.warning(
                "without --convnet-weight-path, model %s runs with the weights that its own file "
                "created",
                self.model,
            )
        return network

    def digest(self, network: torch.nn.Module) -> str:
        """Return a hash of all that decides the results of the loaded *network*.

        The hash covers the model file, the weight file, the Python files that define the layers,
        and the values of the weights. A converted network is stored in the cache under this hash.
        """
        found = hashlib.sha256(f"{self.model} {network}".encode())
        files = {self.model, self.weights or ""}
        if self.package is not None:
            found.update(self.package.checksum.encode())
        for layer in network.modules():
            module = sys.modules.get(type(layer).__module__)
            if module is not None and not module.__name__.startswith("torch."):
                files.add(getattr(module, "__file__", None) or "")
        for file in sorted(path for path in files if Path(path).is_file()):
            found.update(hashlib.sha256(Path(file).read_bytes()).digest())
        for name, value in network.state_dict().items():
            found.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
            found.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
        return found.hexdigest()

    def _copied(self, network: torch.nn.Module) -> torch.nn.Module:
        # A copy, because backends change the weights of a network in place.
        network = copy.deepcopy(network).cpu()
        if self.weights is not None:
            state, _ = read_weights(self.weights, trust_weights=self.trust_weights)
            load_weights(network, state, path=self.weights, model=self.model)
        return network

    def _built_in(self) -> torch.nn.Module:
        channels = (self.num_input_channels, self.num_output_channels)
        if self.weights is None:
            network = models.create_model(self.model, *channels)
            logger.warning(
                "NO WEIGHTS: --convnet-model %s without --convnet-weight-path runs with random "
                "weights; its output is meaningless, so use it only to measure speed",
                self.model,
            )
            return network
        state, config = read_weights(self.weights, trust_weights=self.trust_weights)
        network = models.create_model(self.model, *channels, state=unwrapped(state), config=config)
        load_weights(network, state, path=self.weights, model=self.model)
        return network

    def _loaded_by_file(self, load: Callable[..., Any]) -> Any:
        named = self.weights is not None and self.weights != NO_FILE
        if named and not Path(str(self.weights)).exists():
            msg = f"weight file {self.weights} does not exist; check --convnet-weight-path"
            raise ModelError(msg)
        try:
            network = load(self.weights)
        except Exception as error:
            msg = f"load_model of model file {self.model} failed: {type(error).__name__}: {error}"
            raise ModelError(msg) from error
        if not callable(network):
            msg = (
                f"load_model of model file {self.model} returned a {type(network).__name__}, which "
                "cannot be called; let load_model return the network"
            )
            raise ModelError(msg)
        return network

    def _instantiated(self, module: ModuleType) -> Any:
        name = "model" if is_cellmap_script(module) else "InstantiatedModel"
        network = getattr(module, name, None)
        if network is None:
            other = (
                ", but defines PatchInferencer; use --framework universal"
                if hasattr(module, "PatchInferencer")
                else "; add InstantiatedModel = YourNetwork() at the end of the file"
            )
            msg = f"model file {self.model} defines no InstantiatedModel{other}"
            raise ModelError(msg)
        if isinstance(network, type) or not callable(network):
            msg = (
                f"{name} of {self.model} is a {type(network).__name__}, not a network; "
                f"write {name} = YourNetwork()"
            )
            raise ModelError(msg)
        return network


def check_network(network: dict[str, Any]) -> None:
    """Check that a network is given and that its files exist, without reading them.

    Args:
        network: arguments of `chunkflow_py.inference.backend_factory.create_backend`.

    Raises:
        OptionError: no model is given, or a file does not exist.
    """
    model, weights = network.get("model"), network.get("weights")
    if network["framework"] != "identity" and model is None:
        msg = f"--framework {network['framework']} needs a network; give --convnet-model"
        raise OptionError(msg)
    if network["framework"] == "nnunet":
        return  # the model has been read
    files = {"--convnet-weight-path": weights}
    if model is not None and not is_built_in(model):
        files["--convnet-model"] = model
    for option, path in files.items():
        if option == "--convnet-weight-path" and path == NO_FILE and not Path(path).exists():
            continue
        if path is not None and not Path(path).exists():
            msg = f"{option} {path} does not exist (looked in {Path.cwd()})"
            raise OptionError(msg)
        if path is not None and Path(path).is_dir() and not (is_package(path) or is_bundle(path)):
            msg = f"{option} {path} is a folder; give the path of a file"
            raise OptionError(msg)


def network_files(network: dict[str, Any]) -> dict[str, str]:
    """Return the files that another machine needs to load the network.

    Args:
        network: arguments of `chunkflow_py.inference.backend_factory.create_backend`.

    Returns:
        A dict from the path of each file, as the user typed it, to ``code`` if the file can run
        code, else to ``data``.

    Raises:
        OptionError: the network consists of several files, but a run can store only one of them.
    """
    if network.get("framework") == "nnunet":
        return _trained_files(network["model"])
    found = {}
    model, weights = network.get("model"), network.get("weights")
    if model is not None and not is_built_in(model):
        suffix = Path(model).suffix
        if (is_package(model) or is_bundle(model)) and suffix != ".zip":
            msg = (
                f"model package {model} is a folder, but a run can include only single files; pack "
                "all files of the folder into a .zip file, at its top level, and give the "
                ".zip file as --convnet-model"
            )
            raise OptionError(msg)
        if suffix == ".xml":
            msg = (
                f"network {model} consists of two files (.xml and .bin), but a run can store a "
                "network only as one file; give the .onnx file from which the network was "
                "converted, and add --backend openvino"
            )
            raise OptionError(msg)
        found[model] = "data" if suffix == ".onnx" or _is_data(model, network) else "code"
    if weights is not None and (weights != NO_FILE or Path(weights).exists()):
        found[weights] = "code" if network.get("trust_weights") else "data"
    return found


def _trained_files(model: str) -> dict[str, str]:
    from chunkflow_py.inference.nnunet.trained_model import is_imported

    if not is_imported(model):
        msg = (
            f"model {model} contains checkpoints, which are pickles, but a run stores only data; "
            f"run chunkflow import-model {model} --output model.zip once, and give "
            "model.zip as --convnet-model"
        )
        raise OptionError(msg)
    return {model: "data"}


def _is_data(model: str, network: dict[str, Any]) -> bool:
    # TorchScript, and weights that are trusted, can run code.
    return (
        not network.get("trust_weights") and is_bundle(model) and not read_bundle(model).is_program
    )


def network_code(network: dict[str, Any]) -> tuple[str, ...]:
    """Return a phrase, such as "the network a.py", for each file that can run code."""
    kinds = {network.get("model"): "the network", network.get("weights"): "pickled objects in"}
    files = network_files(network)
    return tuple(f"{kinds[path]} {path}" for path, role in files.items() if role == "code")
