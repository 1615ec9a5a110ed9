"""Options that describe a network, which ``inference`` and ``tune`` share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from chunkflow_py.ops.options.volume_options import together
from chunkflow_py.pipeline.params import zyx_option

if TYPE_CHECKING:
    from collections.abc import Mapping

    from chunkflow_py.pipeline.params import Decorator


def network_options() -> Decorator:
    """Declare the options for the network, its weights and channels, and the device."""
    return together(
        click.option(
            "--convnet-model",
            "-m",
            help="Network: a Python file (which is run as code), a TorchScript, torch.export or "
            "ONNX file, a BioImage Model Zoo package, a MONAI bundle, a model of nnU-Net, or a "
            "built-in name such as rsunet. A file may be given as an address: "
            "hf://owner/name@commit/file, https://… or s3://….",
        ),
        click.option(
            "--convnet-weight-path",
            "-w",
            help="Weights of the network: path or address of a file with a state_dict.",
        ),
        click.option(
            "--framework",
            "-f",
            type=click.Choice(["universal", "identity", "pytorch", "nnunet"]),
            default="universal",
            show_default=True,
            help="Kind of model: pytorch; universal (a Python file that defines PatchInferencer; "
            "other models are treated as pytorch); nnunet (a model of nnU-Net v2); identity (no "
            "network, for tests).",
        ),
        click.option(
            "--num-input-channels",
            type=click.IntRange(min=1),
            default=1,
            show_default=True,
            help="Number of input channels of the network.",
        ),
        click.option(
            "--num-output-channels",
            "-c",
            type=click.IntRange(min=1),
            default=3,
            show_default=True,
            help="Number of output channels of the network.",
        ),
        click.option(
            "--spatial-dims",
            type=click.Choice(["3", "2"]),
            default="3",
            show_default=True,
            help="Number of spatial dimensions of the network; 2: the network takes single slices.",
        ),
        click.option(
            "--trust-weights",
            is_flag=True,
            help="Load weight files that are pickles; such files may run code.",
        ),
        click.option(
            "--device",
            default="auto",
            show_default=True,
            help="Device that runs the network: cpu, cuda, cuda:N, or auto (cuda if available).",
        ),
    )


def fetched_networks(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Download the model and weights of a network, if their options contain addresses.

    Args:
        options: value of each option, keyed by its Python name.

    Returns:
        A copy of *options* with paths of the downloaded files instead of addresses; and a
        dictionary from each address to the path of the downloaded file.

    Raises:
        ChunkflowError: an address is not valid, or its file cannot be fetched.
    """
    completed, fetched = dict(options), dict[str, str]()
    for name in ("convnet_model", "convnet_weight_path"):
        value = options[name]
        if isinstance(value, str) and "://" in value:
            from chunkflow_py.store.fetched_files import fetch

            fetched[value] = completed[name] = str(fetch(value).path)
    return completed, fetched


def patch_size_options(*, default: str) -> Decorator:
    """Declare the sizes and the overlap of the patches that the network processes.

    Args:
        default: text in brackets at the end of the help of --input-patch-size. The text says which
            patch size is used if the option is not given.
    """
    return together(
        zyx_option(
            "--input-patch-size",
            "-s",
            minimum=1,
            help=f"Size of the input patch of the network, voxels, zyx.  [{default}]",
        ),
        zyx_option(
            "--output-patch-size",
            "-z",
            minimum=1,
            help="Size of the central part of the network's output to keep, voxels, zyx.  "
            "[default: the input patch]",
        ),
        zyx_option(
            "--output-patch-overlap",
            "-v",
            minimum=0,
            help="Voxels that neighbouring output patches share along each axis, zyx.  [default: 4 "
            "64 64, but at most a quarter of the patch]",
        ),
    )
