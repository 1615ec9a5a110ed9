"""Choose the weights of a bundle, make its network, and reorder the axes of its arrays."""

from __future__ import annotations

import inspect
import warnings
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

import torch

from chunkflow_py.errors import ModelError, needs_extra
from chunkflow_py.inference.backends.model_files import (
    load_torchscript,
    load_weights,
    read_weights,
)

if TYPE_CHECKING:
    from chunkflow_py.inference.monai_bundle.bundle_config import ConfigField
    from chunkflow_py.inference.monai_bundle.bundle_files import BundleFiles
    from chunkflow_py.inference.monai_bundle.bundle_orientation import NetworkAxes

STATE_DICT = "models/model.pt"
TORCHSCRIPT = "models/model.ts"
_SPARE_WEIGHTS = 1 << 20  # numbers that a network may have beyond twice those of its weight file

# Networks of MONAI that neither download nor read files while they are made. Others may: a config
# would then decide what is fetched from where.
NETWORKS = (
    "AttentionUnet", "BasicUNet", "BasicUNetPlusPlus", "DynUNet", "FlexibleUNet", "HighResNet",
    "MedNeXt", "SegResNet", "SegResNetDS", "SegResNetDS2", "SwinUNETR", "UNet", "UNETR", "VNet",
)  # fmt: skip
_SPELLINGS = {name.casefold(): name for name in NETWORKS}

WeightsKind = Literal["state_dict", "torchscript"]


class BundleNetwork(torch.nn.Module):
    """Wraps a network with MONAI's order of axes; takes and returns (n, c, z, y, x)."""

    def __init__(self, network: torch.nn.Module, axes: NetworkAxes, bundle: str) -> None:
        """Wrap *network*, whose spatial axes are *axes*."""
        super().__init__()
        self.network = network
        self._bundle = bundle
        self._there = (0, 1, *(2 + source for source in axes.sources))
        self._back = (0, 1, *(2 + axes.sources.index(axis) for axis in range(3)))
        self._flips = [2 + axis for axis, flipped in enumerate(axes.flipped) if flipped]

    def extra_repr(self) -> str:
        """Return the axes as text, so that the digest of the network depends on the axes."""
        return f"axes={self._there}, flips={self._flips}"

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        """Return the output (n, c, z, y, x) for a batch (n, c, z, y, x).

        Raises:
            ModelError: the network did not return one tensor with five axes.
        """
        batch = batch.permute(self._there)
        if self._flips:
            batch = batch.flip(self._flips)
        found = self.network(batch.contiguous())
        if not isinstance(found, torch.Tensor) or found.ndim != 5:
            shape = f" of {found.ndim} axes" if isinstance(found, torch.Tensor) else ""
            msg = (
                f"the network of MONAI bundle {self._bundle} returned a "
                f"{type(found).__name__}{shape}, but must return one tensor (n, c, x, y, z); let "
                "the network return only the main output"
            )
            raise ModelError(msg)
        if self._flips:
            found = found.flip(self._flips)
        return found.permute(self._back)


def choose_weights(definition: ConfigField, files: BundleFiles) -> WeightsKind:
    """Return whether to use the state dict or the TorchScript program of a bundle.

    The state dict is used if the network can be made from ``network_def``, because a state dict is
    only data, but TorchScript is a program.

    Raises:
        ModelError: neither the state dict nor TorchScript can be used.
    """
    reason: ModelError | None = None
    if files.has(STATE_DICT):
        try:
            network_class(definition)
            definition.arguments()
        except ModelError as error:
            reason = error
        else:
            return "state_dict"
    if files.has(TORCHSCRIPT):
        return "torchscript"
    if reason is not None:
        msg = f"{reason}, or add the network as TorchScript, {TORCHSCRIPT}"
        raise ModelError(msg)
    msg = (
        f"MONAI bundle {files.path} contains neither {STATE_DICT} nor {TORCHSCRIPT}; add the "
        "trained weights"
    )
    raise ModelError(msg)


def network_class(definition: ConfigField) -> tuple[str, str]:
    """Return the names of the module and the class of a network, without importing the module.

    Raises:
        ModelError: the class is neither in torch.nn nor a supported network of MONAI.
    """
    if not definition:
        definition.refuse("it must define the network by _target_ and arguments")
    target = definition["_target_"].text()
    module, _, name = target.rpartition(".")
    if not name.isidentifier() or name.startswith("_"):
        definition["_target_"].refuse("it must be the name of a class")
    if module == "torch.nn" or module.startswith("torch.nn.modules"):
        return "torch.nn", name
    if module not in {"", "monai.networks.nets"} and not module.startswith("monai.networks.nets."):
        definition["_target_"].refuse(
            "only networks of monai.networks.nets and torch.nn can be made, because Python code "
            "in the bundle is never run; use one of them"
        )
    if name.casefold() not in _SPELLINGS:
        definition["_target_"].refuse(
            f"the networks of MONAI that can be made are {', '.join(NETWORKS)}; use one of them"
        )
    if definition["pretrained"].value:
        definition["pretrained"].refuse("weights come from the bundle; set pretrained to false")
    return "monai.networks.nets", _SPELLINGS[name.casefold()]


def load_network(
    kind: WeightsKind, definition: ConfigField, files: BundleFiles, *, trust_weights: bool
) -> torch.nn.Module:
    """Return the network with its weights, on the CPU, in evaluation mode.

    The spatial axes of its input and output have the order that MONAI uses, not z, y, x.

    Raises:
        MissingExtraError: the class of the network is in MONAI, and MONAI is not installed.
        ModelError: the network cannot be made, or the weights do not match the network.
    """
    if kind == "torchscript":
        return load_torchscript(str(files.local(TORCHSCRIPT))).eval()
    module, name = network_class(definition)
    path = str(files.local(STATE_DICT))
    state, _ = read_weights(path, trust_weights=trust_weights)
    arguments = definition.arguments()
    made = _class(module, name, definition, files)
    _check_size(made, arguments, state, definition)
    network = _made(made, arguments, definition)
    shown = f"{name} of MONAI bundle {files.path}"
    load_weights(network, state, path=f"{files.path}/{STATE_DICT}", model=shown)
    return network.eval()


def _class(module: str, name: str, definition: ConfigField, files: BundleFiles) -> Any:
    other = f" (or use a bundle with only {TORCHSCRIPT})" if files.has(TORCHSCRIPT) else ""
    with needs_extra("monai", f"network {name} of MONAI bundle {files.path}{other}"):
        found = getattr(import_module(module), name, None)
    if not inspect.isclass(found) or not issubclass(found, torch.nn.Module):
        definition["_target_"].refuse(f"{module} has no network of this name; correct it")
    return found


def _made(made: Any, arguments: dict[str, Any], definition: ConfigField) -> torch.nn.Module:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what MONAI deprecates is no concern of the user
            network: torch.nn.Module = made(**arguments)
    except Exception as error:  # noqa: BLE001  a class may raise anything
        reason = " ".join(str(error).split())[:300]
        definition.refuse(
            f"{definition.target} does not accept these arguments: {type(error).__name__}: "
            f"{reason.rstrip('.')}; correct them"
        )
    return network


def _check_size(
    made: Any, arguments: dict[str, Any], state: dict[str, torch.Tensor], definition: ConfigField
) -> None:
    # Before memory is allocated: the arguments of a network could demand any amount.
    try:
        with torch.device("meta"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            outline: torch.nn.Module = made(**arguments)
        size = sum(value.numel() for value in outline.state_dict().values())
    except Exception:  # noqa: BLE001  some networks compute with their weights while being made
        return
    most = 2 * sum(value.numel() for value in state.values()) + _SPARE_WEIGHTS
    if size > most:
        definition.refuse(
            f"this network has {size} weights, but {STATE_DICT} contains at most {most // 2}; "
            "the weights belong to another network"
        )
