"""Fold BatchNorm into the convolution before it."""

from __future__ import annotations

import copy
import logging
from collections import Counter
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_eval
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

logger = logging.getLogger(__name__)

_CONVOLUTIONS = (
    *(nn.Conv1d, nn.Conv2d, nn.Conv3d),
    *(nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d),
)
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def fold_batch_norm(network: nn.Module, shape: Sequence[int]) -> int:
    """Fold each BatchNorm, with its stored statistics, into the convolution before it.

    ```
    scale · (w * x + b - mean) + shift   =   (scale · w) * x + (scale · (b - mean) + shift)
    ```

    Here, w and b are the weights and the bias of the convolution of input x. The stored statistics
    and the weights of the BatchNorm give mean, scale and shift. The right side is one convolution
    with a bias.

    Folding saves a pass over the feature maps, and the memory of one feature map. A folded
    BatchNorm is replaced by a layer that returns its input, so ``forward`` of the network need not
    be changed.

    To find the pairs of convolution and BatchNorm, a copy of the network is run without data (on
    the ``meta`` device, where tensors have shapes but no values). A network is not changed if it
    cannot run without data, for example because its forward pass depends on values. A convolution
    is not changed if its result or its weights are also used elsewhere.

    Args:
        network: network in float32 and evaluation mode; changed in place.
        shape: shape of the network's input.

    Returns:
        Number of BatchNorm layers that were folded.
    """
    try:
        pairs = _pairs(network, shape)
    except Exception as error:  # noqa: BLE001  (a user's forward may raise anything)
        logger.debug("BatchNorm is not folded: %s: %s", type(error).__name__, error)
        return 0
    for convolution, norm in pairs:
        before, after = network.get_submodule(convolution), network.get_submodule(norm)
        transposed = isinstance(before, nn.modules.conv._ConvTransposeNd)
        # In float64, so that the weights are rounded once.
        wide: list[Any] = [copy.deepcopy(layer).double() for layer in (before, after)]
        fused = fuse_conv_bn_eval(wide[0], wide[1], transpose=transposed).float()
        _replace(network, convolution, fused)
        _replace(network, norm, nn.Identity())
    return len(pairs)


class _Uses(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts, for each tensor given to `watch`, the operations that use the tensor."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._watched: dict[int, torch.Tensor] = {}  # kept, so that no address is used twice
        self._count: Counter[int] = Counter()

    def watch(self, tensor: torch.Tensor) -> None:
        self._watched[id(tensor)] = tensor

    def count(self, tensor: torch.Tensor) -> int:
        return self._count[id(tensor)]

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        for value in tree_leaves((args, kwargs)):
            if id(value) in self._watched:
                self._count[id(value)] += 1
        return func(*args, **(kwargs or {}))


def _pairs(network: nn.Module, shape: Sequence[int]) -> list[tuple[str, str]]:
    # Names of a convolution and of the BatchNorm that is the only reader of its result.
    simple = {name for name, module in network.named_modules() if _is_simple(module)}
    if not any(isinstance(network.get_submodule(name), _NORMS) for name in simple):
        return []  # a run on `meta` imports PyTorch's compiler, which takes a second and more
    ghost = copy.deepcopy(network).to("meta")
    uses = _Uses()
    made: list[tuple[str, torch.Tensor]] = []
    taken: list[tuple[str, torch.Tensor]] = []

    def after_convolution(name: str, result: torch.Tensor) -> None:
        uses.watch(result)
        made.append((name, result))

    for name, module in ghost.named_modules():
        if name not in simple:
            continue
        for parameter in module.parameters():
            uses.watch(parameter)
        if isinstance(module, _CONVOLUTIONS):
            module.register_forward_hook(lambda _, __, out, name=name: after_convolution(name, out))
        else:
            module.register_forward_pre_hook(
                lambda _, given, name=name: taken.append((name, given[0]))
            )
    with torch.inference_mode(), uses:
        returned = ghost(torch.empty(tuple(shape), device="meta"))
    outputs = {id(value) for value in tree_leaves(returned)}
    calls = Counter(name for name, _ in (*made, *taken))
    registered = Counter(id(module) for _, module in ghost.named_modules(remove_duplicate=False))

    def alone(name: str) -> bool:
        module = ghost.get_submodule(name)
        weights_once = all(uses.count(parameter) == 1 for parameter in module.parameters())
        return calls[name] == 1 and registered[id(module)] == 1 and weights_once

    return [
        (convolution, norm)
        for convolution, result in made
        for norm, given in taken
        if given is result and uses.count(result) == 1 and id(result) not in outputs
        if alone(convolution) and alone(norm)
    ]


def _is_simple(module: nn.Module) -> bool:
    """Return whether *module* is an unmodified PyTorch layer, in float32 and evaluation mode."""
    if type(module) not in _CONVOLUTIONS + _NORMS or module.training:
        return False
    if module._forward_hooks or module._forward_pre_hooks:  # such as those of weight_norm
        return False
    statistics = getattr(module, "running_mean", None)
    if type(module) in _NORMS and statistics is None:
        return False
    return all(value.dtype == torch.float32 for value in module.parameters())


def _replace(network: nn.Module, name: str, module: nn.Module) -> None:
    parent, _, last = name.rpartition(".")
    setattr(network.get_submodule(parent), last, module.eval())
