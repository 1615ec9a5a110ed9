"""Run a network over overlapping patches of a chunk and blend them.

Example: chunkflow load-h5 -f em.h5 inference -m net.py -w net.pt -s 20 256 256 save-h5 -f aff.h5
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from chunkflow_py.params import zyx_option
from chunkflow_py.stages import transform

if TYPE_CHECKING:
    from chunkflow_py.inference.inferencer import Inferencer


# fmt: off
@transform
@click.option("--convnet-model", "-m",
              help="Network: a Python file (which is run as code), a TorchScript or torch.export "
                   "file, or a built-in name such as rsunet.")
@click.option("--convnet-weight-path", "-w", help="Weights: a state_dict file.")
@zyx_option("--input-patch-size", "-s", required=True, minimum=1,
            help="What the network sees at a time, voxels, zyx.")
@zyx_option("--output-patch-size", "-z", minimum=1,
            help="What is kept of it, in the middle.  [default: all]")
@zyx_option("--output-patch-overlap", "-v", default=(4, 64, 64), show_default=True, minimum=0,
            help="Voxels that neighbouring output patches share, zyx.")
@click.option("--batch-size", "-b", type=click.IntRange(min=1), default=1, show_default=True,
              help="Patches in one forward.")
@click.option("--num-input-channels", type=click.IntRange(min=1), default=1, show_default=True,
              help="Channels that the network takes.")
@click.option("--num-output-channels", "-c", type=click.IntRange(min=1), default=3,
              show_default=True, help="Channels that the network gives.")
@click.option("--framework", "-f", type=click.Choice(["universal", "identity", "pytorch"]),
              default="universal", show_default=True, help="What runs the network.")
@click.option("--device", default="auto", show_default=True,
              help="cpu, cuda, cuda:N, or auto: cuda where there is one.")
@click.option("--dtype", "-d", type=click.Choice(["float32", "float16"]), default="float32",
              show_default=True, help="Precision of the network.")
@click.option("--output-dtype", type=click.Choice(["float32", "float16", "uint8"]),
              default="float32", show_default=True,
              help="Type of the result; uint8 is 255 p, clamped, rounded half to even.")
@click.option("--output-kind", type=click.Choice(["probability", "affinity"]),
              help="What the output means; the first batch is checked to lie in [0, 1]. Affinity "
                   "channels are x, y, z.")
@click.option("--normalize", type=click.Choice(["dtype", "none"]), default="dtype",
              show_default=True, help="Divide integer images by the maximum of their type, or not.")
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
    from chunkflow_py.inference.engine import EngineSettings
    from chunkflow_py.inference.grid import PatchGeometry
    from chunkflow_py.inference.inferencer import Inferencer, check_network

    input_size = options["input_patch_size"]
    output_size = options["output_patch_size"] or input_size
    own = ("num_input_channels", "num_output_channels", "batch_size", "bump", "pad", "normalize",
           "output_dtype", "output_kind", "augment", "mask_myelin_threshold")  # fmt: skip
    settings = EngineSettings(
        PatchGeometry(input_size, output_size, options["output_patch_overlap"]),
        keep_stride=options["grid"] == "padded",
        **{key: options[key] for key in own},
    )
    network = {
        "framework": options["framework"],
        "model": options["convnet_model"],
        "weights": options["convnet_weight_path"],
        **{key: options[key] for key in ("device", "dtype", "trust_weights")},
    }
    check_network(network)
    more = ("output_margin", "output_crop_margin", "patch_num", "mask_output_chunk", "grid",
            "patch_divisor")  # fmt: skip
    return Inferencer(settings, network, **{key: options[key] for key in more})
