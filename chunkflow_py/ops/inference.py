r"""Run a network over overlapping patches of a chunk.

Example: chunkflow load-h5 --file-name em.h5 \
  inference --convnet-model net.py --convnet-weight-path net.pt --input-patch-size 20 256 256 \
  save-h5 --file-name aff.h5
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import click

from chunkflow_py.ops.options.network_options import network_options, patch_size_options
from chunkflow_py.pipeline.operator import transform
from chunkflow_py.pipeline.params import NAMES, NUMBERS, ItemNames, floats_option, zyx_option
from chunkflow_py.pipeline.terminal import option_headings

if TYPE_CHECKING:
    from chunkflow_py.inference.inferencer import Inferencer


@transform
@option_headings(
    {
        "Patches": (
            "input_patch_size", "output_patch_size", "output_patch_overlap", "grid", "pad",
            "patch_divisor", "output_margin", "skip_empty_patches", "patch_mask",
            "patch_mask_mip",
        ),
        "Input": (
            "num_input_channels", "normalize", "normalize_statistics", "normalize_percentiles",
            "model_voxel_size_nm", "image_orientation", "skip_transforms",
        ),
        "Output": (
            "num_output_channels", "output_dtype", "output_kind", "output_names",
            "output_channels", "activation", "activate", "patch_precision", "bump",
        ),
        "Speed and memory": (
            "batch_size", "lower_batch", "device", "backend", "dtype", "compile", "tf32",
            "cuda_graphs",
        ),
        "Legacy": ("output_crop_margin", "patch_num", "mask_output_chunk"),
    }
)  # fmt: skip
@network_options()
@patch_size_options(default="required, except for MONAI bundles")
@click.option(
    "--batch-size",
    "-b",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Number of patches per forward pass.",
)
@click.option(
    "--lower-batch/--no-lower-batch",
    default=False,
    show_default=True,
    help="If a GPU runs out of memory, continue with smaller batches and log a warning.",
)
@click.option(
    "--backend",
    type=click.Choice(["torch", "openvino", "onnxruntime", "auto"]),
    default="torch",
    show_default=True,
    help="Library that runs the network; auto: the fastest installed library whose float32 "
    "output differs from the output of PyTorch by at most 1e-5.",
)
@click.option(
    "--dtype",
    "-d",
    type=click.Choice(["float32", "bfloat16", "float16"]),
    default="float32",
    show_default=True,
    help="Precision of the network; the difference from float32 is measured and logged.",
)
@click.option(
    "--compile/--no-compile",
    default=False,
    show_default=True,
    help="Compile the network with torch.compile.",
)
@click.option(
    "--tf32/--no-tf32",
    default=False,
    show_default=True,
    help="On a GPU, multiply float32 numbers as TF32, with a mantissa of 10 bits.",
)
@click.option(
    "--cuda-graphs/--no-cuda-graphs",
    default=True,
    show_default=True,
    help="On a GPU, capture the forward pass as a CUDA graph and replay it.",
)
@click.option(
    "--output-dtype",
    type=click.Choice(["float32", "float16", "uint8", "argmax"]),
    default="float32",
    show_default=True,
    help="Type of the result. uint8: 255 times the value, clamped and rounded half to even; "
    "argmax: the number of the channel with the largest value, as uint8.",
)
@click.option(
    "--output-kind",
    type=NAMES,
    help="Meaning of the output: probability, affinity (channels x, y, z), logit, vector "
    "(channels x, y, z) or embedding; one for each of --output-names.",
)
@click.option(
    "--output-names",
    type=ItemNames("out"),
    help="Names of the outputs of a network with several outputs, such as affinity,myelin. If the "
    "network returns a dict, the names are its keys. Each output becomes a chunk.",
)
@click.option(
    "--output-channels",
    type=NUMBERS,
    help="Number of channels of each of --output-names, such as 3,1.",
)
@click.option(
    "--activation",
    type=click.Choice(["none", "sigmoid", "softmax"]),
    default="none",
    show_default=True,
    help="Activation to apply to the output of the network.",
)
@click.option(
    "--activate",
    type=click.Choice(["before", "after"]),
    default="before",
    show_default=True,
    help="Apply the activation to each patch before blending, or to the blended result.",
)
@click.option(
    "--patch-precision",
    type=click.Choice(["float32", "float16"]),
    default="float32",
    show_default=True,
    help="Precision of the output of each patch before blending; float16 halves the bytes of the "
    "patches that tasks exchange.",
)
@click.option(
    "--normalize",
    type=click.Choice(["dtype", "none", "zscore", "percentile"]),
    help="Divide integers by the maximum of their type (dtype), do nothing (none), or use "
    "statistics of the whole dataset (zscore, percentile).  [default: dtype]",
)
@click.option(
    "--normalize-statistics",
    metavar="FILE",
    help="JSON file with statistics of the whole dataset; see docs/inference.md.",
)
@click.option(
    "--normalize-percentiles",
    type=float,
    nargs=2,
    metavar="LOW HIGH",
    default=(1.0, 99.0),
    show_default=True,
    help="Percentiles that --normalize percentile maps to 0 and 1.",
)
@floats_option(
    "--model-voxel-size-nm",
    help="Voxel size that the network was trained with, nanometres, zyx; stop with an error if "
    "the voxel size of the image differs by more than 10 %.",
)
@click.option(
    "--image-orientation",
    metavar="CODE",
    help="Directions of the x, y and z axes of the image, such as RAS, for a MONAI bundle with the "
    "transform Orientation.",
)
@click.option(
    "--skip-transforms",
    type=NAMES,
    help="Transforms of a MONAI bundle to leave out, such as CropForegroundd,AsDiscreted.",
)
@click.option(
    "--skip-empty-patches/--no-skip-empty-patches",
    default=False,
    show_default=True,
    help="Do not run the network on patches whose input is all zero; their output is zero.",
)
@click.option(
    "--patch-mask",
    metavar="URL",
    help="URL of a coarse mask; patches outside of the mask are skipped, and their output is zero.",
)
@click.option(
    "--patch-mask-mip",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Resolution level of --patch-mask.",
)
@click.option(
    "--bump",
    type=click.Choice(["wu", "zung", "gaussian", "gaussian-monai", "linear", "constant"]),
    default="wu",
    show_default=True,
    help="Blending window (importance map in MONAI); gaussian-monai: the window of "
    "MONAI, up to rounding.",
)
@click.option(
    "--grid",
    type=click.Choice(["auto", "anchored", "padded", "chunk"]),
    default="auto",
    show_default=True,
    help="Origin of the patch grid. anchored: corner of the volume; padded: corner of the volume, "
    "and the last patch may reach into the padding; chunk: corner of each chunk, as in chunkflow "
    "1.x; auto: anchored if the chunk's margin suffices, else chunk with a warning.",
)
@click.option(
    "--pad",
    type=click.Choice(["reflect", "edge", "zero", "none"]),
    default="reflect",
    show_default=True,
    help="How to fill the parts of patches that lie outside of the volume.",
)
@zyx_option(
    "--patch-divisor",
    minimum=1,
    help="Shift under which the network is equivariant, voxels, zyx: the product of its pooling "
    "factors.  [default: the divisor that the network declares]",
)
@zyx_option(
    "--output-margin",
    default=(0, 0, 0),
    show_default=True,
    minimum=0,
    help="Voxels to compute beyond the task's box on each side, zyx.",
)
@zyx_option(
    "--output-crop-margin",
    minimum=0,
    help="Legacy: voxels to crop on each side of the region that the patches of the chunk cover, "
    "zyx.",
)
@zyx_option(
    "--patch-num",
    "-n",
    minimum=1,
    help="Legacy: number of patches that the chunk must contain along each axis, zyx.",
)
@click.option(
    "--mask-output-chunk/--no-mask-output-chunk",
    default=False,
    show_default=True,
    help="Legacy: with --grid chunk, keep the whole region that the patches cover, instead of "
    "cropping the overlap at its borders.",
)
@click.option(
    "--mask-myelin-threshold",
    "-y",
    type=float,
    help="Set all channels to zero where the last channel (myelin) is not below this value, then "
    "drop the last channel.",
)
@click.option(
    "--augment/--no-augment",
    default=False,
    show_default=True,
    help="Run the network on 16 flips and transposes of each patch, and average the outputs.",
)
def command(**options: Any) -> Inferencer:
    """Check the options, and return the operator, which loads the network when it starts."""
    from chunkflow_py.inference.command_options import (
        backend_arguments,
        engine_settings,
        with_package,
    )
    from chunkflow_py.inference.inferencer import Inferencer
    from chunkflow_py.inference.monai_bundle import with_bundle
    from chunkflow_py.inference.network_source import check_network
    from chunkflow_py.inference.placement import Placement

    context = click.get_current_context()
    completed = with_bundle(options, _chosen(context))
    if completed["input_patch_size"] is None:
        size = next(each for each in context.command.params if each.name == "input_patch_size")
        raise click.MissingParameter(ctx=context, param=size)
    completed = with_package(completed)
    # The pipeline reads the names of the outputs here, also those that only the package knows.
    context.params["output_names"] = completed["output_names"]
    settings, network = engine_settings(completed), backend_arguments(completed)
    check_network(network)
    own = ("output_margin", "output_crop_margin", "patch_num", "mask_output_chunk", "grid")
    return Inferencer(
        Placement(settings, **{key: options[key] for key in own}),
        network,
        patch_divisor=options["patch_divisor"],
        model_voxel_size_nm=completed["model_voxel_size_nm"],
        warn_of_dtype=options["normalize"] is None and "package" not in completed,
        statistics=options["normalize_statistics"],
        mask=_mask(options["patch_mask"], options["patch_mask_mip"]),
        origins=_origins(options["patch_mask"], options["patch_mask_mip"]),
    )


def _chosen(context: click.Context) -> set[str]:
    """Return the names of the options that the user gave."""
    default = click.core.ParameterSource.DEFAULT
    return {name for name in context.params if context.get_parameter_source(name) is not default}


def _origins(mask: str | None, mip: int) -> tuple[str, ...]:
    if mask is None:
        return ()
    from chunkflow_py.volume.location import Location, level_name

    return (level_name(Location.parse(mask), mip),)


def _mask(url: str | None, mip: int) -> Any:
    if url is None:
        return None
    from chunkflow_py.volume import open_volume
    from chunkflow_py.volume.mask import touches_mask

    return partial(touches_mask, open_volume(url, mip=mip))
