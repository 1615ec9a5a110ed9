"""Read weights, TorchScript and exported programs; execute Python code of models."""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import pickle
import re
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.export.passes import move_to_device_pass

from chunkflow_py.errors import ModelError
from chunkflow_py.inference.torch_logs import quiet_torch

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import ModuleType

logger = logging.getLogger(__name__)

_DAMAGED = "weight file {} is damaged, or was not written by torch.save; copy or save it again"
_MAGIC = (b"PK\x03\x04", b"\x80")  # an archive, or a pickle as PyTorch wrote before 1.6
# Keys under which trainers store the state dict beside other data; nnU-Net uses the third.
_HOLDERS = ("state_dict", "model_state_dict", "network_weights", "model")
# Names under which wrappers keep a network: DataParallel, Lightning modules, torch.compile.
_WRAPPERS = ("module", "net", "model", "_orig_mod")
_TORCHSCRIPT = "{} is a TorchScript program, not weights; give it as --convnet-model"


def read_weights(
    path: str, *, trust_weights: bool = False
) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Read the state dict of a weight file.

    A weight file is a pickle, and a pickle can run any code. Only tensors and plain containers
    are read, unless the file is trusted.

    Args:
        path: file in which ``torch.save`` stored a state dict, or a dict that contains a state dict
            under a key such as ``state_dict``. Prefixes of the names of weights are not removed.
        trust_weights: unpickle all objects in the file, even those that can run code.

    Returns:
        The state dict, with its tensors on the CPU, and the dict that the file contains under the
        key ``config`` (an empty dict if the file has no such key).

    Raises:
        ModelError: the file is missing or unreadable, contains no weights, or contains other
            objects although *trust_weights* is false.
    """
    if not Path(path).is_file():
        msg = f"weight file {path} does not exist; check --convnet-weight-path"
        raise ModelError(msg)
    try:
        with Path(path).open("rb") as file:
            start = file.read(4)
    except OSError as error:
        msg = f"weight file {path} cannot be read: {error.strerror}; change its permissions"
        raise ModelError(msg) from error
    if not start.startswith(_MAGIC):
        # PyTorch would report that the file may contain code, but trusting it would not help.
        raise ModelError(_DAMAGED.format(path))
    if trust_weights:
        logger.warning("--trust-weights: any code in %s is executed", path)
    try:
        with warnings.catch_warnings():
            # PyTorch warns about TorchScript, then reads it; it is refused below.
            warnings.filterwarnings("ignore", "'torch.load' received a zip file")
            warnings.filterwarnings("ignore", category=DeprecationWarning)
            found = torch.load(path, map_location="cpu", weights_only=not trust_weights)
    except pickle.UnpicklingError as error:
        raise ModelError(_refusal(path, str(error))) from error
    except Exception as error:  # bytes other than a pickle raise anything
        msg = _DAMAGED.format(path)
        if "TorchScript" in str(error):
            msg = _TORCHSCRIPT.format(path)
        raise ModelError(msg) from error
    if isinstance(found, torch.jit.ScriptModule):
        raise ModelError(_TORCHSCRIPT.format(path))
    if isinstance(found, torch.nn.Module):
        found = found.state_dict()
    config: Any = {}
    if isinstance(found, Mapping):
        within = [name for name in _HOLDERS if isinstance(found.get(name), Mapping)]
        if within:
            config = found.get("config", {})
            found = found[within[0]]
    return _state_dict(found, path), dict(config) if isinstance(config, Mapping) else {}


def load_weights(
    network: torch.nn.Module, state: Mapping[str, torch.Tensor], *, path: str, model: str
) -> None:
    """Load *state* into *network*; the names of the weights must match.

    The names in *state* may begin with a prefix that the network's own names lack, such as
    ``module.`` or ``model.``, because a wrapper around the network has added this prefix. The
    prefix is removed. Weights without the prefix, such as the weights of a loss, are not loaded,
    and a warning lists their names. All other names must match exactly.

    Args:
        network: network to change in place.
        state: weights by name.
        path: path of the weight file, for messages.
        model: name or file of the network, for messages.

    Raises:
        ModelError: names or shapes differ, or *state* contains the weights of the network several
            times, each time with another prefix. The message lists a few names or prefixes.
    """
    own = network.state_dict()
    prefix = _prefix(state, own, path)
    outside = [key for key in state if not key.startswith(prefix)]
    state = {k.removeprefix(prefix): value for k, value in state.items() if k.startswith(prefix)}
    if outside:
        logger.warning(
            "weights %s: %d weights are not used, because their names do not begin with %r: %s",
            path, len(outside), prefix, _first(outside),
        )  # fmt: skip
    missing = [key for key in own if key not in state and not _is_optional(key)]
    unexpected = [key for key in state if key not in own]
    shapes = [
        f"{key} is {tuple(state[key].shape)} in the weights, {tuple(own[key].shape)} in the model"
        for key in own
        if key in state and state[key].shape != own[key].shape
    ]
    parts = [
        f"{title} {_first(items)}"
        for title, items in (
            ("the weights lack", missing),
            ("the model lacks", unexpected),
            ("shapes differ:", shapes),
        )
        if items
    ]
    if parts:
        msg = (
            f"weights {path} do not match model {model}: {'; '.join(parts)}; "
            "check that --convnet-weight-path belongs to --convnet-model"
        )
        raise ModelError(msg)
    try:
        network.load_state_dict(dict(state), strict=False)
    except RuntimeError as error:
        msg = f"weights {path} cannot be loaded into model {model}: {error}"
        raise ModelError(msg) from error


def unwrapped(state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return weights by their names, without the prefixes that wrappers around a network add.

    This function needs no network. Use it to read the architecture of a network from the names and
    shapes of its weights. If a network exists, use `load_weights` instead, because `load_weights`
    compares all names with those of the network.

    Args:
        state: weights by name; a name may have a prefix, ``module.`` or ``model._orig_mod.``.
    """
    inner = dict(state)
    while len(found := {key.split(".")[0] for key in inner} & {*_WRAPPERS}) == 1:
        prefix = f"{found.pop()}."
        shorter = {k.removeprefix(prefix): v for k, v in inner.items() if k.startswith(prefix)}
        if not shorter:
            break  # a weight has the name of a wrapper
        inner = shorter
    return inner


def _prefix(state: Mapping[str, torch.Tensor], own: Mapping[str, torch.Tensor], path: str) -> str:
    # Lightning modules add a prefix such as `net.` or `model.`; torch.compile adds `_orig_mod.`.
    needed = [key for key in own if not _is_optional(key)]
    if not needed or all(key in state for key in needed):
        return ""
    ending = f".{needed[0]}"
    found = [key.removesuffix(needed[0]) for key in state if key.endswith(ending)]
    found = [
        prefix
        for prefix in found
        if all(f"{prefix}{key}" in state for key in needed)
        # Beside a prefix that no wrapper has, other weights may be those of a larger network.
        and {*prefix[:-1].split(".")} <= {*_WRAPPERS}
    ]
    if len(found) > 1:
        msg = (
            f"weights {path} contain the weights of the model {len(found)} times, with the "
            f"prefixes {_first(found)}; save only one copy with torch.save(net.state_dict())"
        )
        raise ModelError(msg)
    return found[0] if found else _shared_prefix(state, own)


def _shared_prefix(state: Mapping[str, torch.Tensor], own: Mapping[str, torch.Tensor]) -> str:
    whole = ""
    short = list(state)
    while short and not any(key in own for key in short):
        prefix = f"{short[0].partition('.')[0]}."
        if not all(key.startswith(prefix) and key != prefix for key in short):
            return ""  # weights of another network: keep their names
        short = [key.removeprefix(prefix) for key in short]
        whole += prefix
    return whole if short else ""


def _is_optional(key: str) -> bool:
    # BatchNorm counts batches since PyTorch 0.4.1; nothing in evaluation mode depends on it.
    return key.endswith("num_batches_tracked")


def _state_dict(found: Any, path: str) -> dict[str, torch.Tensor]:
    if not isinstance(found, Mapping):
        msg = (
            f"weight file {path} contains a {type(found).__name__}, not a state dict; "
            "save a state dict with torch.save(net.state_dict())"
        )
        raise ModelError(msg)
    state = {k: v for k, v in found.items() if isinstance(k, str) and isinstance(v, torch.Tensor)}
    if len(state) < len(found) or not state:
        others = [str(key) for key in found if key not in state]
        msg = (
            f"weight file {path} must contain a state dict, or a dict with a state dict under one "
            f"of {', '.join(map(repr, _HOLDERS))}, but "
            + (f"the values of {_first(others)} are not tensors" if others else "it is empty")
        )
        raise ModelError(msg)
    return state


def _refusal(path: str, reason: str) -> str:
    # PyTorch names what it refused as "GLOBAL module.name", or as an unsupported operand or class.
    named = re.search(r"GLOBAL ([\w.]+)", reason)
    if named is None and "nsupported" not in reason:
        return _DAMAGED.format(path)
    what = f" ({named[1]})" if named else ""
    return (
        f"weight file {path} contains more than weights{what} and was not read; if you trust its "
        "author, add --trust-weights, which executes any code in it"
    )


def _first(items: Iterable[str], number: int = 3) -> str:
    listed = list(items)
    more = f" and {len(listed) - number} more" if len(listed) > number else ""
    return ", ".join(listed[:number]) + more


def run_model_file(path: str) -> ModuleType:
    """Execute a Python file and return its module.

    The file can run any code with the permissions of the user, so run only files that you trust.
    The file is executed again at each call, so that two networks made from one file share no
    weights.

    Args:
        path: path of a ``.py`` file.

    Raises:
        ModelError: the file does not exist, is not valid Python, or raised an exception.
    """
    file = Path(path)
    if not file.is_file():
        msg = f"model file {path} does not exist; check --convnet-model"
        raise ModelError(msg)
    tag = hashlib.sha256(str(file.resolve()).encode()).hexdigest()[:12]
    name = f"_chunkflow_model_{file.stem}_{tag}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        msg = f"model file {path} is not a Python file (.py); check --convnet-model"
        raise ModelError(msg)
    module = importlib.util.module_from_spec(spec)
    # Dataclasses and TorchScript look up their module by name while the file is executed.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        del sys.modules[name]
        msg = f"model file {path} is not valid Python: {error.msg} on line {error.lineno}"
        raise ModelError(msg) from error
    except Exception as error:  # a user's file may raise anything
        del sys.modules[name]
        msg = f"model file {path} raised an error: {type(error).__name__}: {error}"
        raise ModelError(msg) from error
    return module


def load_torchscript(path: str) -> torch.nn.Module:
    """Load a TorchScript program, on the CPU.

    Raises:
        ModelError: the file is not a TorchScript program.
    """
    try:
        with warnings.catch_warnings():
            # TorchScript is deprecated, but users' files still work.
            warnings.simplefilter("ignore", DeprecationWarning)
            load: Any = torch.jit.load
            network: torch.nn.Module = load(path, map_location="cpu")
    except (RuntimeError, OSError, ValueError) as error:
        hint = "save it with torch.jit.save, or give model code (.py)"
        if _is_state_dict(path):
            hint = (
                "it is a weight file: give it as --convnet-weight-path, and give the model code as "
                "--convnet-model"
            )
        msg = f"model file {path} is not a TorchScript program; {hint}"
        raise ModelError(msg) from error
    return network


def load_exported(path: str, device: torch.device) -> torch.nn.Module:
    """Load a ``torch.export`` program and move it to *device*.

    Raises:
        ModelError: the file is not an exported program.
    """
    try:
        with quiet_torch():
            program = torch.export.load(path)
            if device.type != "cpu":
                program = move_to_device_pass(program, device)
            return program.module()
    except Exception as error:
        msg = f"model file {path} is not an exported program; save it with torch.export.save"
        raise ModelError(msg) from error


def _is_state_dict(path: str) -> bool:
    try:
        read_weights(path)
    except ModelError:
        return False
    return True
