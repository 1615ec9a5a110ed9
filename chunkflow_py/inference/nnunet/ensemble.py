"""The network of a trained model, which averages outputs over folds and mirror images."""

from __future__ import annotations

import re
from importlib import import_module
from itertools import combinations
from typing import TYPE_CHECKING, Any

import torch

from chunkflow_py.errors import ModelError, needs_extra

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from chunkflow_py.core.geometry import Zyx
    from chunkflow_py.inference.nnunet.plans import NnunetPlan

_CLASS = re.compile(r"torch\.nn\.(?:modules\.[a-z]+\.)?([A-Za-z0-9]+)")


class EnsembleNetwork(torch.nn.Module):
    """Averages the outputs of the networks of all folds for all mirror images of a patch.

    ```
    (n, c, z, y, x) -> axes of plans.json -> slices, if 2D -> mirrored -> network of each fold
    (n, c, z, y, x) <- axes of the image <- slices stacked <- mirrored back, mean
    ```
    """

    def __init__(
        self,
        networks: Iterable[torch.nn.Module],
        axes: tuple[int, int, int] = (0, 1, 2),
        *,
        divisor: Zyx | None = None,
        mirror_axes: Sequence[int] = (),
        by_slice: bool = False,
    ) -> None:
        """Store the networks, and the combinations of axes along which patches are mirrored.

        Args:
            networks: network of each fold.
            axes: axis k of the networks is axis ``axes[k]`` of the image (z, y, x).
            divisor: three numbers of voxels, zyx. Patch sizes must be multiples of these numbers.
            mirror_axes: axes of the networks along which patches are mirrored.
            by_slice: whether the networks are 2D. If so, a patch is cut into slices perpendicular
                to image axis ``axes[0]``.
        """
        super().__init__()
        self.folds = torch.nn.ModuleList(networks)
        self._axes, self._by_slice, self.divisor = axes, by_slice, divisor
        number = len(mirror_axes)
        # The order of the sum is that of nnU-Net.
        self._flips = [
            [axis + 2 for axis in chosen]
            for count in range(1, number + 1)
            for chosen in combinations(mirror_axes, count)
        ]

    def extra_repr(self) -> str:
        """Return axes and flips as text, so that the digest of the network depends on both."""
        return f"axes={self._axes}, by_slice={self._by_slice}, flips={self._flips}"

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        """Return the mean logits, (n, c, z, y, x), for a normalised batch (n, c, z, y, x)."""
        turned = batch
        if self._axes != (0, 1, 2):
            turned = turned.permute(0, 1, *(axis + 2 for axis in self._axes)).contiguous()
        number, depth = turned.shape[0], turned.shape[2]
        if self._by_slice:
            turned = turned.transpose(1, 2).flatten(0, 1)
        total = self._mirrored(self.folds[0], turned)
        for network in self.folds[1:]:
            total = total + self._mirrored(network, turned)
        if len(self.folds) > 1:
            total = total / len(self.folds)
        if self._by_slice:
            total = total.reshape(number, depth, *total.shape[1:]).transpose(1, 2)
        if self._axes != (0, 1, 2):
            back = [self._axes.index(axis) + 2 for axis in range(3)]
            total = total.permute(0, 1, *back)
        return total

    def _mirrored(self, network: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
        total: torch.Tensor = network(batch)
        for axes in self._flips:
            total = total + network(batch.flip(axes)).flip(axes)
        return total / (len(self._flips) + 1) if self._flips else total


def create_network(
    plan: NnunetPlan, weights: Mapping[str, torch.Tensor], path: str, trainer: str
) -> torch.nn.Module:
    """Return the network of one fold with its weights, on the CPU, in evaluation mode.

    Args:
        plan: plan with the architecture.
        weights: state dict. Its tensors become the weights of the network, without a copy.
        path: path of the model, for messages.
        trainer: name of the trainer's class, for messages.

    Raises:
        MissingExtraError: dynamic-network-architectures is not installed.
        ModelError: the architecture cannot be created, or the weights do not match the network.
    """
    with needs_extra("nnunet", "--framework nnunet"):
        unet: Any = import_module("dynamic_network_architectures.architectures.unet")
    arguments = dict(plan.arguments)
    for name in plan.imported:
        if arguments.get(name) is not None:
            arguments[name] = _class_of(arguments[name], name, path)
    arguments |= {"deep_supervision": False}
    try:
        # Without memory for weights: those of the file take their place.
        with torch.device("meta"):
            network: torch.nn.Module = getattr(unet, plan.architecture)(
                input_channels=len(plan.channels), num_classes=plan.output_channels, **arguments
            )
    except Exception as error:  # the library raises anything for arguments that do not fit
        msg = (
            f"plans.json of model {path} describes a {plan.architecture} that cannot be created: "
            f"{type(error).__name__}: {error}"
        )
        raise ModelError(msg) from error
    own = network.state_dict()
    problems = [f"the weights lack {key}" for key in own if key not in weights]
    problems += [f"the network of the plan has no {key}" for key in weights if key not in own]
    problems += [
        f"{key} is {tuple(weights[key].shape)}, not {tuple(own[key].shape)}"
        for key in own
        if key in weights and own[key].shape != weights[key].shape
    ]
    if problems:
        msg = (
            f"the weights of model {path} do not match the {plan.architecture} of its plans: "
            f"{problems[0]}, and {len(problems) - 1} other differences; if the trainer {trainer} "
            "has changed the network, export the network with torch.export, and give the exported "
            "file with --framework pytorch"
        )
        raise ModelError(msg)
    network.load_state_dict(dict(weights), assign=True)
    return network.eval().requires_grad_(False)


def _class_of(name: Any, argument: str, path: str) -> type[torch.nn.Module]:
    # Only classes of torch.nn: another module could run any code when it is imported.
    match = _CLASS.fullmatch(name) if isinstance(name, str) else None
    found = getattr(torch.nn, match[1], None) if match else None
    if not isinstance(found, type) or not issubclass(found, torch.nn.Module):
        msg = (
            f"plans.json of model {path} has {argument} {name!r}, but only classes of torch.nn are "
            "supported; export the network with torch.export, and give the exported file with "
            "--framework pytorch"
        )
        raise ModelError(msg)
    return found
