"""Built-in networks; the file ``NAME.py`` of this folder defines the network NAME.

The name of a network may be followed by a variant: ``rsunet``, ``rsunet-isotropic``. The file of a
network defines

- ``VARIANTS``: a dict from the name of each variant to its settings (the name ``""`` is the
  default variant);
- ``create(variant, num_input_channels, num_output_channels, state, config)``: returns the network.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chunkflow_py.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from chunkflow_py.inference.models.rsunet import RSUNet as RSUNet


def names() -> list[str]:
    """Return the names of the built-in networks, without variants; import no network."""
    return sorted(path.stem for path in Path(__file__).parent.glob("[!_]*.py"))


def is_built_in(model: str) -> bool:
    """Return whether *model* is the name of a built-in network, with or without a variant."""
    return model.partition("-")[0] in names() and not Path(model).suffix


def create_model(
    name: str,
    num_input_channels: int,
    num_output_channels: int,
    *,
    state: Mapping[str, torch.Tensor] | None = None,
    config: Mapping[str, Any] | None = None,
) -> torch.nn.Module:
    """Return a built-in network with random weights; *state* decides the sizes of its layers.

    The random weights are always the same.

    Args:
        name: name of the network, such as ``rsunet`` or ``rsunet-isotropic``.
        num_input_channels: number of channels of the input.
        num_output_channels: number of channels of the output.
        state: weights whose shapes decide the sizes of the layers (default: the usual sizes). The
            weights themselves are not loaded.
        config: constructor arguments that the weight file contains. An argument in *config*
            overrides the argument that is inferred from *state*.

    Raises:
        OptionError: the network or variant does not exist.
        ModelError: *state* or *config* does not belong to a network of this name.
    """
    stem, _, variant = name.partition("-")
    if stem not in names():
        msg = f"built-in network {name!r} does not exist; available: {', '.join(names())}"
        raise OptionError(msg)
    module = import_module(f"chunkflow_py.inference.models.{stem}")
    if variant not in module.VARIANTS:
        known = [f"{stem}-{key}" if key else stem for key in module.VARIANTS]
        msg = f"built-in network {name!r} does not exist; available: {', '.join(known)}"
        raise OptionError(msg)
    network: torch.nn.Module = module.create(
        variant, num_input_channels, num_output_channels, state, config or {}
    )
    return network


def __getattr__(name: str) -> object:
    """Import the class of a network when it is first used."""
    if name != "RSUNet":
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    return import_module("chunkflow_py.inference.models.rsunet").RSUNet
