"""Options that describe a network: shared by ``inference`` and ``tune``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from chunkflow_py.ops.options.volume_options import together
from chunkflow_py.pipeline.params import zyx_option

if TYPE_CHECKING:
    from chunkflow_py.pipeline.params import Decorator


def network_options() -> Decorator:
    """Declare the network, its weights and channels, and the device that runs it."""
    return together(
        click.option(
            "--convnet-model",
            "-m",
            help="Network: a Python file (which is run as code), a TorchScript, torch.export or "
            "ONNX file, a BioImage Model Zoo package, or a built-in name such as rsunet.",
        ),
        click.option("--convnet-weight-path", "-w", help="Weights: a state_dict file."),
        click.option(
            "--framework",
            "-f",
            type=click.Choice(["universal", "identity", "pytorch"]),
            default="universal",
            show_default=True,
            help="Kind of model: identity (none), pytorch, or universal (PatchInferencer or "
            "pytorch).",
        ),
        click.option(
            "--num-input-channels",
            type=click.IntRange(min=1),
            default=1,
            show_default=True,
            help="Input channels of the network.",
        ),
        click.option(
            "--num-output-channels",
            "-c",
            type=click.IntRange(min=1),
            default=3,
            show_default=True,
            help="Output channels of the network.",
        ),
        click.option(
            "--spatial-dims",
            type=click.Choice(["3", "2"]),
            default="3",
            show_default=True,
            help="Dimensions of the network; 2: it runs on single sections.",
        ),
        click.option(
            "--trust-weights", is_flag=True, help="Unpickle weight files that may contain code."
        ),
        click.option(
            "--device",
            default="auto",
            show_default=True,
            help="cpu, cuda, cuda:N, or auto: cuda if available.",
        ),
    )


def patch_size_options(*, required: bool) -> Decorator:
    """Declare the sizes of the network's patches.

    Args:
        required: whether the input patch must be given; if not, several sizes are tried.
    """
    default = "" if required else "  [default: try several, if the network allows it]"
    return together(
        zyx_option(
            "--input-patch-size",
            "-s",
            required=required,
            minimum=1,
            help=f"Input patch of the network, voxels, zyx.{default}",
        ),
        zyx_option(
            "--output-patch-size",
            "-z",
            minimum=1,
            help="Central part of the output to keep, voxels, zyx.  [default: the input patch]",
        ),
        zyx_option(
            "--output-patch-overlap",
            "-v",
            minimum=0,
            help="Voxels that neighbouring output patches share, zyx.  [default: 4 64 64, or "
            "a quarter of a smaller patch]",
        ),
    )
