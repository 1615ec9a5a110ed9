"""The files of a network: what stops them from being loaded, and what other machines need."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from chunkflow_py.core.older_names import NO_FILE
from chunkflow_py.errors import OptionError
from chunkflow_py.inference.bioimage import is_package
from chunkflow_py.inference.models import is_built_in


def check_network(network: dict[str, Any]) -> None:
    """Find out before any work what would stop the network from being loaded.

    Args:
        network: arguments of `chunkflow_py.inference.backend_factory.create_backend`.

    Raises:
        OptionError: no model is named, or a file does not exist.
    """
    model, weights = network.get("model"), network.get("weights")
    if network["framework"] != "identity" and model is None:
        msg = f"--framework {network['framework']} needs a network; give --convnet-model"
        raise OptionError(msg)
    files = {"--convnet-weight-path": weights}
    if model is not None and not is_built_in(model):
        files["--convnet-model"] = model
    for option, path in files.items():
        if option == "--convnet-weight-path" and path == NO_FILE and not Path(path).exists():
            continue
        if path is not None and not Path(path).exists():
            msg = f"{option} {path} does not exist (looked in {Path.cwd()})"
            raise OptionError(msg)
        if path is not None and Path(path).is_dir() and not is_package(path):
            msg = f"{option} {path} is a folder; name a file in it"
            raise OptionError(msg)


def network_files(network: dict[str, Any]) -> dict[str, str]:
    """Return the files that another machine needs to load the network.

    Args:
        network: arguments of `chunkflow_py.inference.backend_factory.create_backend`.

    Returns:
        Path of each, as it was typed -> ``code`` (it is run as a program), or ``data``.

    Raises:
        OptionError: a network needs files beside the one that is named.
    """
    found = {}
    model, weights = network.get("model"), network.get("weights")
    if model is not None and not is_built_in(model):
        suffix = Path(model).suffix
        if is_package(model) and suffix != ".zip":
            msg = (
                f"model package {model} is a folder of files, and a run takes along one; zip it, "
                "with the description at its top, and name the .zip"
            )
            raise OptionError(msg)
        if suffix == ".xml":
            msg = (
                f"the network {model} is in two files (.xml and .bin), and a run takes along one; "
                "name the .onnx file that it was made of, with --backend openvino"
            )
            raise OptionError(msg)
        found[model] = "data" if suffix == ".onnx" else "code"
    if weights is not None and (weights != NO_FILE or Path(weights).exists()):
        found[weights] = "code" if network.get("trust_weights") else "data"
    return found


def network_code(network: dict[str, Any]) -> tuple[str, ...]:
    """Return what of a network is run as a program and is not part of this package, in words."""
    kinds = {network.get("model"): "the network", network.get("weights"): "what is pickled in"}
    files = network_files(network)
    return tuple(f"{kinds[path]} {path}" for path, role in files.items() if role == "code")
