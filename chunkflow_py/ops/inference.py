"""Run a network over patches of a chunk; blend them.

Example: chunkflow load-h5 -f em.h5 inference -m net.py -w net.pt -s 20 256 256 save-h5 -f aff.h5
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import click

from chunkflow_py.pipeline.operator import transform
from chunkflow_py.pipeline.params import NAMES, NUMBERS, ItemNames, floats_option, zyx_option

if TYPE_CHECKING:
    from chunkflow_py.inference.inferencer import Inferencer


# fmt: off
@transform
@click.option("--convnet-model", "-m",
              help="Network: a Python file (which is run as code), a TorchScript, torch.export or "
                   "ONNX file, a BioImage Model Zoo package, or a built-in name such as rsunet.")
@click.option("--convnet-weight-path", "-w", help="Weights: a state_dict file.")
@zyx_option("--input-patch-size", "-s", required=True, minimum=1,
            help="What the network sees at a time, voxels, zyx.")
@zyx_option("--output-patch-size", "-z", minimum=1,
            help="What is kept of it, in the middle.  [default: all]")
@zyx_option("--output-patch-overlap", "-v", minimum=0,
            help="Voxels that neighbouring output patches share, zyx.  [default: 4 64 64; a "
                 "quarter of a patch that is no larger]")
@click.option("--batch-size", "-b", type=click.IntRange(min=1), default=1, show_default=True,
              help="Patches in one forward.")
@click.option("--lower-batch/--no-lower-batch", default=False, show_default=True,
              help="Go on with smaller batches where a GPU has too little memory, with a warning.")
@click.option("--num-input-channels", type=click.IntRange(min=1), default=1, show_default=True,
              help="Channels that the network takes.")
@click.option("--num-output-channels", "-c", type=click.IntRange(min=1), default=3,
              show_default=True, help="Channels that the network gives.")
@click.option("--framework", "-f", type=click.Choice(["universal", "identity", "pytorch"]),
              default="universal", show_default=True, help="What runs the network.")
@click.option("--device", default="auto", show_default=True,
              help="cpu, cuda, cuda:N, or auto: cuda where there is one.")
@click.option("--backend", type=click.Choice(["torch", "openvino", "onnxruntime", "auto"]),
              default="torch", show_default=True,
              help="Library that runs the network; auto: the fastest installed one whose error in "
                   "float32 is below 1e-5.")
@click.option("--dtype", "-d", type=click.Choice(["float32", "bfloat16", "float16"]),
              default="float32", show_default=True,
              help="Precision of the network; its error against float32 is logged.")
@click.option("--compile/--no-compile", default=False, show_default=True,
              help="Compile the network with torch.compile.")
@click.option("--tf32/--no-tf32", default=False, show_default=True,
              help="On a GPU, multiply float32 with 10 bits of mantissa.")
@click.option("--cuda-graphs/--no-cuda-graphs", default=True, show_default=True,
              help="On a GPU, capture the forward once and replay it.")
@click.option("--spatial-dims", type=click.Choice(["3", "2"]), default="3", show_default=True,
              help="2: the network takes single sections.")
@click.option("--output-dtype", type=click.Choice(["float32", "float16", "uint8", "argmax"]),
              default="float32", show_default=True,
              help="Type of the result; uint8 is 255 p, clamped, rounded half to even; argmax is "
                   "the channel with the largest value.")
@click.option("--output-kind", type=NAMES,
              help="What the output means: probability, affinity (channels x, y, z), logit, vector "
                   "(channels x, y, z) or embedding; one for each of --output-names.")
@click.option("--output-names", type=ItemNames("out"),
              help="Chunks to make of a network that returns several outputs: keys of its dict, "
                   "or names for the items of its tuple, such as affinity,myelin.")
@click.option("--output-channels", type=NUMBERS,
              help="Channels of each of --output-names, such as 3,1.")
@click.option("--activation", type=click.Choice(["none", "sigmoid", "softmax"]), default="none",
              show_default=True, help="What to apply to the network's output.")
@click.option("--activate", type=click.Choice(["before", "after"]), default="before",
              show_default=True, help="Apply it to each patch, or after blending.")
@click.option("--normalize", type=click.Choice(["dtype", "none", "zscore", "percentile"]),
              help="Divide integers by the maximum of their type (dtype), or use statistics of the "
                   "whole dataset.  [default: dtype]")
@click.option("--normalize-statistics", metavar="FILE",
              help="Statistics of the whole dataset, JSON; see docs/inference.md.")
@click.option("--normalize-percentiles", type=float, nargs=2, metavar="LOW HIGH",
              default=(1.0, 99.0), show_default=True, help="Percentiles that become 0 and 1.")
@floats_option("--model-voxel-size-nm",
               help="Voxel size the network was trained with; images more than 10 % off are "
                    "refused.")
@click.option("--skip-empty-patches/--no-skip-empty-patches", default=False, show_default=True,
              help="Do not run patches whose input is zero everywhere; their output is zero.")
@click.option("--patch-mask", metavar="URL",
              help="Volume of a coarse mask; patches outside of it are not run, their output is "
                   "zero.")
@click.option("--patch-mask-mip", type=click.IntRange(min=0), default=0, show_default=True,
              help="Resolution level of the mask.")
@click.option("--bump", type=click.Choice(["wu", "zung", "gaussian", "linear", "constant"]),
              default="wu", show_default=True, help="Blending window.")
@click.option("--grid", type=click.Choice(["auto", "anchored", "padded", "chunk"]), default="auto",
              show_default=True,
              help="Place patches by the volume (anchored; padded: the last one reaches into the "
                   "padding) or by the chunk's corner as chunkflow 1.x did (chunk); auto: "
                   "anchored where the chunk's margin suffices.")
@click.option("--pad", type=click.Choice(["reflect", "edge", "zero", "none"]), default="reflect",
              show_default=True, help="What the network sees outside of the volume.")
@zyx_option("--patch-divisor", minimum=1,
            help="Shifts to which the network is equivariant (its poolings), zyx.  [default: what "
                 "the network says]")
@zyx_option("--output-margin", default=(0, 0, 0), show_default=True, minimum=0,
            help="Voxels to compute beyond the task's box, zyx.")
@zyx_option("--output-crop-margin", minimum=0,
            help="Legacy: voxels to drop around what the patches of the chunk cover, zyx.")
@zyx_option("--patch-num", "-n", minimum=1,
            help="Legacy: the number of patches that the chunk must hold, zyx.")
@click.option("--mask-output-chunk/--no-mask-output-chunk", default=False, show_default=True,
              help="Legacy: with --grid chunk, keep all that the patches cover instead of "
                   "dropping the overlap.")
@click.option("--mask-myelin-threshold", "-y", type=float,
              help="Zero the other channels where the last one, myelin, is not below this; the "
                   "last one is dropped.")
@click.option("--augment/--no-augment", default=False, show_default=True,
              help="Mean over 16 flips and transposes of each patch.")
@click.option("--trust-weights", is_flag=True, help="Unpickle weight files that may hold code.")
def command(**options: Any) -> Inferencer:
    """Check sizes and options; the network is loaded when the whole line has been accepted."""
    from chunkflow_py.inference.files import check_network
    from chunkflow_py.inference.inferencer import Inferencer
    from chunkflow_py.inference.options import network_options, settings_from, with_package
    from chunkflow_py.inference.placement import Placement

    said = with_package(options)
    # So that the line knows what is made, also where only the package says it.
    click.get_current_context().params["output_names"] = said["output_names"]
    settings, network = settings_from(said), network_options(said)
    check_network(network)
    own = ("output_margin", "output_crop_margin", "patch_num", "mask_output_chunk", "grid")
    return Inferencer(
        Placement(settings, **{key: options[key] for key in own}),
        network,
        patch_divisor=options["patch_divisor"],
        model_voxel_size_nm=said["model_voxel_size_nm"],
        warn_of_dtype=options["normalize"] is None and "package" not in said,
        statistics=options["normalize_statistics"],
        mask=_mask(options["patch_mask"], options["patch_mask_mip"]),
        origins=_origins(options["patch_mask"], options["patch_mask_mip"]),
    )


def _origins(mask: str | None, mip: int) -> tuple[str, ...]:
    if mask is None:
        return ()
    from chunkflow_py.volume.levels import level_name
    from chunkflow_py.volume.location import Location

    return (level_name(Location.parse(mask), mip),)


def _mask(url: str | None, mip: int) -> Any:
    if url is None:
        return None
    from chunkflow_py.volume import open_volume
    from chunkflow_py.volume.mask import touches_mask

    return partial(touches_mask, open_volume(url, mip=mip))
