r"""Run a network over overlapping patches of a chunk.

Example: chunkflow load-h5 --file-name em.h5 \
  inference --convnet-model net.py --convnet-weight-path net.pt --input-patch-size 20 256 256 \
  save-h5 --file-name aff.h5
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import click

from chunkflow_py.errors import OptionError
from chunkflow_py.ops.options.network_options import (
    fetched_networks,
    network_options,
    patch_size_options,
)
from chunkflow_py.pipeline.operator import Surrounded, transform
from chunkflow_py.pipeline.params import (
    FLOATS,
    NAMES,
    NUMBERS,
    ItemNames,
    floats_option,
    zyx_option,
)
from chunkflow_py.pipeline.terminal import option_headings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from chunkflow_py.inference.engine_settings import EngineSettings
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
            "normalize_mean", "normalize_std", "normalize_mask", "model_voxel_size_nm", "resample",
            "image_orientation", "skip_transforms",
        ),
        "nnU-Net": ("folds", "mirror"),
        "Output": (
            "num_output_channels", "output_dtype", "output_kind", "output_names",
            "output_channels", "affinity_order", "affinity_at", "activation", "activate",
            "patch_precision", "bump",
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
    "--folds",
    type=NAMES,
    help="Folds of an nnU-Net model to average, such as 0,1,2,3,4.  [default: all]",
)
@click.option(
    "--mirror/--no-mirror",
    default=True,
    show_default=True,
    help="Average the outputs of an nnU-Net model over mirror images of each patch, along the "
    "axes that were mirrored in training.",
)
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
    help="Number of channels of each output in --output-names, such as 3,1.",
)
@click.option(
    "--affinity-order",
    type=click.Choice(["xyz", "zyx"]),
    default="xyz",
    show_default=True,
    help="Order of the affinity channels of the network; they are stored as x, y, z.",
)
@click.option(
    "--affinity-at",
    type=click.Choice(["target", "source"]),
    default="target",
    show_default=True,
    help="The network's value at a voxel is the affinity to its neighbour with the lower "
    "coordinate (target) or with the higher coordinate (source). Affinities are stored as target.",
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
@click.option(
    "--normalize-mean",
    type=FLOATS,
    metavar="NUMBERS",
    help="Mean of each channel, in units of the stored voxels, such as 131.2,97. Together, "
    "--normalize-mean and --normalize-std select --normalize zscore. Use them instead of "
    "--normalize-statistics.",
)
@click.option(
    "--normalize-std",
    type=FLOATS,
    metavar="NUMBERS",
    help="Standard deviation of each channel, in units of the stored voxels.",
)
@click.option(
    "--normalize-mask",
    metavar="NAME",
    help="Name of a mask, for nnU-Net models that normalise only inside a mask.",
)
@floats_option(
    "--model-voxel-size-nm",
    help="Voxel size that the network was trained with, nanometres, zyx; stop with an error if "
    "the voxel size of the image differs by more than 10 %.",
)
@click.option(
    "--resample",
    type=click.Choice(["linear", "cubic"]),
    help="Resample the image to --model-voxel-size-nm, and the output of the network back to the "
    "voxels of the image, with this interpolation.",
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
    type=click.Choice(["wu", "zung", "gaussian", "gaussian-monai", "linear", "constant", "nnunet"]),
    default="wu",
    show_default=True,
    help="Blending window (importance map in MONAI); gaussian-monai: the window of "
    "MONAI, up to rounding.",
)
@click.option(
    "--grid",
    type=click.Choice(["auto", "anchored", "padded", "spread", "chunk"]),
    default="auto",
    show_default=True,
    help="Origin of the patch grid. anchored: corner of the volume; padded: corner of the volume, "
    "and the last patch may reach into the padding; spread: patches are spread evenly over the "
    "volume, as in nnU-Net; chunk: corner of each chunk, as in chunkflow 1.x; auto: anchored if "
    "the chunk's margin suffices, else chunk with a warning.",
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
def command(**options: Any) -> Inferencer | Surrounded:
    """Check the options, and return an operator that loads the network when the pipeline starts."""
    from chunkflow_py.inference.command_options import (
        backend_arguments,
        engine_settings,
        with_package,
    )
    from chunkflow_py.inference.monai_bundle import with_bundle
    from chunkflow_py.inference.network_source import check_network

    context = click.get_current_context()
    given = _given(context)
    local, fetched = fetched_networks(options)
    completed = with_bundle(local, given)
    if completed["input_patch_size"] is None and completed["framework"] != "nnunet":
        size = next(each for each in context.command.params if each.name == "input_patch_size")
        raise click.MissingParameter(ctx=context, param=size)
    completed = dict(with_package(completed, given), fetched_files=fetched)
    # The pipeline reads the names of the outputs here, also those that only the package knows.
    context.params["output_names"] = completed["output_names"]
    settings, network = engine_settings(completed), backend_arguments(completed)
    check_network(network)
    is_part = completed.get("foreground") is not None or bool(completed.get("masked"))
    if options["resample"] is not None or is_part or _is_resampled(completed, settings):
        return _resampled(completed, settings, network)
    return _inferencer(completed, settings, network)


def _inferencer(
    options: Mapping[str, Any], settings: EngineSettings, network: dict[str, Any]
) -> Inferencer:
    from chunkflow_py.inference.inferencer import Inferencer
    from chunkflow_py.inference.placement import Placement

    own = ("output_margin", "output_crop_margin", "patch_num", "mask_output_chunk", "grid")
    return Inferencer(
        Placement(settings, **{key: options[key] for key in own}),
        network,
        patch_divisor=options["patch_divisor"],
        model_voxel_size_nm=options["model_voxel_size_nm"],
        warn_of_dtype=_is_dtype_implied(options),
        statistics=options["normalize_statistics"],
        fetched_files=options["fetched_files"],
        mask=_mask(options["patch_mask"], options["patch_mask_mip"]),
        origins=_origins(options["patch_mask"], options["patch_mask_mip"]),
    )


def _resampled(
    options: Mapping[str, Any], settings: EngineSettings, network: dict[str, Any]
) -> Surrounded:
    """Return an operator that resamples the chunk, runs the network, and resamples the outputs."""
    from chunkflow_py.pipeline.resampled_network import (
        by_voxel_size,
        resampling_around,
        settings_at_network_size,
    )

    size_nm, rule = options["model_voxel_size_nm"], options.get("resampling")
    method, foreground = options["resample"], options.get("foreground")
    if size_nm is None and method is not None:
        msg = (
            "--resample needs the voxel size that the network was trained with; give "
            "--model-voxel-size-nm, in nanometres, zyx"
        )
        raise OptionError(msg)
    reason = "--resample"
    remedy = "leave --resample out and put the operator resample before and after inference"
    masked = options.get("masked") or ()
    if masked and method is None:
        reason, remedy = "--normalize-mask", "use a model that needs no mask"
    if foreground is not None and method is None:
        reason = f"the foreground in {options['normalize_statistics']}"
        remedy = "remove 'foreground' from the file, so that the network processes the whole image"
    for option in _not_resampled(options, settings):
        msg = f"{option} cannot be combined with {reason}; leave {option} out, or {remedy}"
        raise OptionError(msg)
    if (foreground is not None or masked) and rule is None:
        rule = by_voxel_size(size_nm if method is not None else None, method or "linear")
    params = click.get_current_context().params
    source, outputs = params["input_name"], params["output_names"] or (params["output_name"],)
    resampled = f"{source} at the voxel size of the network"
    params["input_name"] = resampled
    names = (source, resampled, tuple(outputs))
    # The chunk has this voxel size, up to the rounding of the number of voxels.
    is_kept = rule is not None and method is None and options.get("resampling") is None
    inner = dict(options, model_voxel_size_nm=size_nm if is_kept else None)
    return Surrounded(
        _inferencer(
            inner,
            settings_at_network_size(
                settings, activates_first=options.get("activates_first", False)
            ),
            network,
        ),
        partial(
            resampling_around,
            settings,
            size_nm,
            method or "linear",
            names,
            warn_of_dtype=_is_dtype_implied(options),
            rule=rule,
            processed=foreground,
            mask=(options["normalize_mask"], masked) if masked else None,
            normalizes_last=options.get("normalizes_last", False),
            activates_first=options.get("activates_first", False),
        ),
    )


def _is_resampled(options: Mapping[str, Any], settings: EngineSettings) -> bool:
    # A model can define how images of another voxel size are resampled (``resampling``). If an
    # option does not work with this resampling, images of another voxel size are refused.
    is_kept = settings.skip_empty or settings.mask_myelin_threshold is not None
    return options.get("resampling") is not None and not (
        is_kept or _not_resampled(options, settings)
    )


def _not_resampled(options: Mapping[str, Any], settings: EngineSettings) -> list[str]:
    is_after = settings.activate == "after"
    given = {
        "--grid chunk": options["grid"] == "chunk",
        "--output-margin": any(options["output_margin"]),
        "--output-crop-margin": options["output_crop_margin"] is not None,
        "--patch-num": options["patch_num"] is not None,
        "--mask-output-chunk": options["mask_output_chunk"],
        "--activate after with --patch-mask": is_after and options["patch_mask"] is not None,
    }
    return [option for option, is_given in given.items() if is_given]


def _is_dtype_implied(options: Mapping[str, Any]) -> bool:
    # Without these options and a package, integers are divided by the maximum of their type.
    chosen = ("normalize", "normalize_mean", "normalize_std")
    return "package" not in options and all(options[name] is None for name in chosen)


def _given(context: click.Context) -> frozenset[str]:
    """Return the names of the options that the user gave."""
    default = click.core.ParameterSource.DEFAULT
    return frozenset(
        name for name in context.params if context.get_parameter_source(name) is not default
    )


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
