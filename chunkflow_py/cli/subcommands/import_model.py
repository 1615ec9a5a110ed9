r"""Pack a model of nnU-Net into one zip archive.

Checkpoints of nnU-Net are pickles, which can run code. import-model reads the checkpoints once,
without running code (unless --trust-weights is given). It writes plans, labels and the weights of
each fold into the archive, and prints the properties of the model. A run stores the archive, and
workers read the archive without running code.

Example: chunkflow import-model nnUNetTrainer__nnUNetPlans__3d_fullres --output model.zip
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import click

from chunkflow_py.cli.subcommands import subcommand
from chunkflow_py.errors import check_extra
from chunkflow_py.pipeline.params import NAMES
from chunkflow_py.pipeline.terminal import echo

if TYPE_CHECKING:
    from collections.abc import Callable

    from chunkflow_py.inference.nnunet import TrainedModel

logger = logging.getLogger(__name__)


@subcommand
@click.argument("model")
@click.option("--output", "-o", required=True, metavar="FILE", help="Zip archive to write.")
@click.option(
    "--folds", type=NAMES, help="Folds to include, such as 0,1,2,3,4.  [default: all folds]"
)
@click.option(
    "--checkpoint",
    type=click.Choice(["final", "best", "latest"]),
    default="final",
    show_default=True,
    help="Checkpoint to use for each fold.",
)
@click.option(
    "--trust-weights",
    is_flag=True,
    help="Load checkpoints that contain more than weights and numbers; such files may run code.",
)
def command(
    model: str, output: str, folds: tuple[str, ...] | None, checkpoint: Any, trust_weights: bool
) -> Callable[[], None]:
    """Check that nnU-Net's network library is installed; return the function that converts."""
    check_extra("nnunet", "import-model", "dynamic_network_architectures")

    def act() -> None:
        from chunkflow_py.inference.nnunet import read_model, write_model

        found = read_model(model, folds, checkpoint=checkpoint, trust_weights=trust_weights)
        write_model(found, output)
        echo(_description(found, output))

    return act


def _description(model: TrainedModel, output: str) -> str:
    plan = model.plan
    size = (
        "any unit"
        if plan.voxel_size_nm is None
        else " ".join("any" if value is None else f"{value:g}" for value in plan.voxel_size_nm)
    )
    kind = "regions" if plan.region_labels else "labels"
    needs = ", with --normalize-statistics" if plan.normalization.needs_statistics else ""
    rows = {
        "network": f"{plan.architecture}, {plan.configuration}, {plan.spatial_dims}D",
        "folds": ", ".join(model.folds),
        "input channels": ", ".join(plan.channels),
        "output channels": f"{plan.output_channels} {kind}",
        "patch (zyx)": " ".join(map(str, plan.patch_size)),
        "voxel size (zyx, nm)": size,
        "normalisation": ", ".join(plan.normalization.schemes) + needs,
        "mirror axes": ", ".join(map(str, model.mirror_axes)) or "none",
    }
    width = max(map(len, rows))
    lines = [f"{name:{width}}  {value}" for name, value in rows.items()]
    return "\n".join([f"wrote {output}", *lines])
