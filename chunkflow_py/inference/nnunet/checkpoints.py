"""Read the checkpoint of one fold, or weights that `write_model` has stored.

Code in a checkpoint is run only with ``trust_weights=True``.
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from chunkflow_py.errors import ModelError

if TYPE_CHECKING:
    from typing import BinaryIO

logger = logging.getLogger(__name__)

_PREFIXES = ("module.", "_orig_mod.")  # of DistributedDataParallel and torch.compile


@dataclass(frozen=True)
class Checkpoint:
    """The content of the checkpoint that nnU-Net stores for one fold.

    Attributes:
        weights: state dict of the network.
        configuration: name of the configuration, such as ``3d_fullres``.
        trainer: name of the trainer's class.
        mirror_axes: axes of the network along which patches were mirrored in training.
    """

    weights: dict[str, torch.Tensor]
    configuration: str
    trainer: str
    mirror_axes: tuple[int, ...]


def read_checkpoint(stream: BinaryIO, name: str, *, trust_weights: bool = False) -> Checkpoint:
    """Read a checkpoint of nnU-Net, a pickle with weights, settings and the log of the training.

    Unless *trust_weights* is true, only tensors, plain containers and numbers of NumPy (in the log)
    are read, and no code is run.

    Args:
        stream: the content of the checkpoint.
        name: name of the file, for messages.
        trust_weights: unpickle all objects in the file, even those that can run code.

    Raises:
        ModelError: the file is damaged, is not a checkpoint of nnU-Net v2, or contains other
            objects although *trust_weights* is false.
    """
    found = _loaded(stream, name, trust_weights=trust_weights)
    arguments = found.get("init_args") if isinstance(found, Mapping) else None
    if not isinstance(arguments, Mapping) or not isinstance(arguments.get("configuration"), str):
        msg = (
            f"{name} is not a checkpoint of nnU-Net v2, because it contains no init_args with a "
            "configuration; give a folder that nnU-Net v2 has trained"
        )
        raise ModelError(msg)
    mirror = found.get("inference_allowed_mirroring_axes") or ()
    if not isinstance(mirror, list | tuple) or [*mirror] != sorted({*mirror} & {0, 1, 2}):
        msg = (
            f"{name} has the mirroring axes {mirror!r}; mirroring axes must be numbers from 0 to "
            "2, in ascending order"
        )
        raise ModelError(msg)
    return Checkpoint(
        _state(found.get("network_weights"), name),
        str(arguments["configuration"]),
        str(found.get("trainer_name", "nnUNetTrainer")),
        tuple(mirror),
    )


def read_state(stream: BinaryIO, name: str) -> dict[str, torch.Tensor]:
    """Read the weights of a fold from an archive of `write_model` (an imported model).

    Raises:
        ModelError: the file is damaged, or contains objects other than weights.
    """
    return _state(_loaded(stream, name, trust_weights=False), name)


def _loaded(stream: BinaryIO, name: str, *, trust_weights: bool) -> Any:
    if trust_weights:
        logger.warning("--trust-weights: any code in %s is executed", name)
    try:
        with torch.serialization.safe_globals(_numbers()):
            return torch.load(stream, map_location="cpu", weights_only=not trust_weights)
    except pickle.UnpicklingError as error:
        reason = " ".join(str(error).split())
        if "GLOBAL" not in reason and "nsupported" not in reason:
            msg = f"{name} is damaged, or was not written by nnU-Net; copy the file again"
            raise ModelError(msg) from error
        msg = (
            f"{name} contains objects other than weights and numbers, so {name} was not read; if "
            "you trust the author, convert the model once with chunkflow import-model "
            "--trust-weights, which executes any code in the file"
        )
        raise ModelError(msg) from error
    except Exception as error:  # bytes other than a pickle raise anything
        msg = f"{name} is damaged, or was not written by nnU-Net; copy the file again"
        raise ModelError(msg) from error


def _numbers() -> list[Any]:
    # Functions and classes to which a pickle of NumPy numbers refers.
    scalar: Any = np._core.multiarray.scalar  # type: ignore[attr-defined]
    kinds = [type(np.dtype(name)) for name in ("f8", "f4", "i8", "i4", "?")]
    return [
        (scalar, "numpy.core.multiarray.scalar"),  # as NumPy 1 wrote it
        (scalar, "numpy._core.multiarray.scalar"),
        np.dtype,
        *kinds,
    ]


def _state(found: Any, name: str) -> dict[str, torch.Tensor]:
    if (
        not isinstance(found, Mapping)
        or not found
        or not all(isinstance(k, str) and isinstance(v, torch.Tensor) for k, v in found.items())
    ):
        msg = f"{name} contains no weights of a network; give the folder that nnU-Net v2 trained"
        raise ModelError(msg)
    state = dict(found)
    for prefix in _PREFIXES:
        if all(key.startswith(prefix) for key in state):
            state = {key.removeprefix(prefix): value for key, value in state.items()}
    return state
