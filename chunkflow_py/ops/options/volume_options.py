"""Options of commands that read volumes; `loader_from` makes an operator from their values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from chunkflow_py.errors import OptionError
from chunkflow_py.pipeline.params import (
    Decorator,
    channels_option,
    expand_margin_option,
    floats_option,
    mip_option,
    output_option,
    zyx_option,
)
from chunkflow_py.pipeline.terminal import option_headings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from chunkflow_py.core.chunk import Kind
    from chunkflow_py.volume.loader import VolumeLoader
    from chunkflow_py.volume.protocol import VolumeOptions
    from chunkflow_py.volume.read_checks import Check

TIME = click.IntRange(min=0)


def together(*options: Decorator) -> Decorator:
    """Return a decorator that declares all *options*, in the order in which the help lists them."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


def volume_path_option(help: str) -> Decorator:
    """Declare the required option ``--volume-path/-v``."""
    return click.option("--volume-path", "-v", required=True, help=help)


def voxel_size_option(*short: str, instead_of: str) -> Decorator:
    """Declare ``--voxel-size``.

    Args:
        short: short spellings of the option.
        instead_of: words that say, in the help, which voxel size the option replaces, such as ``the
            volume's``.
    """
    return floats_option(
        "--voxel-size",
        *short,
        help="Edge lengths of a voxel, zyx, in nm or as 0.5um, instead of "
        f"{instead_of} voxel size.",
    )


def layer_type_option(
    *more: str, short: str = "-l", default: str | None = "as in the file"
) -> Decorator:
    """Declare ``--layer-type``, the meaning of the voxels.

    Args:
        more: further spellings of the option.
        short: short spelling of the option.
        default: description of the default in the help text.
    """
    text = "Meaning of the voxels."
    return click.option(
        "--layer-type",
        *more,
        short,
        type=click.Choice(["image", "segmentation"]),
        help=text if default is None else f"{text}  [default: {default}]",
    )


def region_options() -> Decorator:
    """Declare ``--chunk-start``, ``--chunk-stop`` and ``--chunk-size``, the part to read."""
    return together(
        zyx_option("--chunk-start", "-s", help="Global position of the first voxel to read, zyx."),
        zyx_option("--chunk-stop", help="Global position after the last voxel to read, zyx."),
        zyx_option(
            "--chunk-size", "-z", minimum=1, help="Extent of the part to read, voxels, zyx."
        ),
    )


def downsampling_mode_option() -> Decorator:
    """Declare ``--mode``: how several voxels are combined into one coarser voxel."""
    return click.option(
        "--mode",
        type=click.Choice(["auto", "mean", "mode"]),
        default="auto",
        show_default=True,
        help="Value of a coarser voxel: the mean, or the most frequent value (mode); auto: mode "
        "for labels, else mean. If it is not known whether integers are labels, integers of 32 "
        "bits or more count as labels.",
    )


def sparse_option() -> Decorator:
    """Declare ``--sparse/--dense``: whether 0 is ignored when several labels are combined."""
    return click.option(
        "--sparse/--dense",
        default=False,
        show_default=True,
        help="For labels: make a coarser voxel 0 only if all voxels that it combines are 0, or "
        "count 0 like other labels.",
    )


def access_options() -> Decorator:
    """Declare the options for cloud access, ``--use-https`` and ``--requester-pays``."""
    return together(
        click.option(
            "--use-https/--use-credential",
            default=False,
            show_default=True,
            help="Read a public bucket without credentials, or use credentials.",
        ),
        requester_pays_option(),
    )


def requester_pays_option() -> Decorator:
    """Declare ``--requester-pays/--owner-pays``."""
    return click.option(
        "--requester-pays/--owner-pays",
        default=False,
        show_default=True,
        help="Bill requests to your account, which some S3 and GCS buckets require.",
    )


def fill_missing_option(
    help: str = "Read missing blocks as zeros, or stop with an error.",
) -> Decorator:
    """Declare ``--fill-missing/--no-fill-missing`` of a command that reads volumes."""
    return click.option(
        "--fill-missing/--no-fill-missing", default=True, show_default=True, help=help
    )


def reading_options() -> Decorator:
    """Declare the options that all volume loaders share; `loader_from` reads their values."""
    return together(
        option_headings(
            {
                "Part to read": (
                    "chunk_start",
                    "chunk_stop",
                    "chunk_size",
                    "expand_margin_size",
                    "channels",
                    "time",
                ),
                "Missing or damaged data": (
                    "fill_missing",
                    "validate_mip",
                    "blackout_sections",
                ),
                "Cloud access": ("use_https", "requester_pays"),
            }
        ),
        mip_option(),
        region_options(),
        expand_margin_option("-e"),
        channels_option("-c"),
        click.option(
            "--time", type=TIME, help="Time index to read.  [default: time index of the task]"
        ),
        fill_missing_option(),
        click.option(
            "--validate-mip",
            type=click.IntRange(min=0),
            help="Coarser level of the volume to compare each chunk with, to find lost blocks.",
        ),
        click.option(
            "--blackout-sections/--no-blackout-sections",
            default=False,
            show_default=True,
            help="Set to 0 the slices that blackout_section_ids.json of the volume lists.",
        ),
        access_options(),
        output_option(),
    )


def loader_from(
    url: str,
    options: Mapping[str, Any],
    *,
    format: str | None = None,
    voxel_size_nm: tuple[float, float, float] | None = None,
    kind: Kind | None = None,
) -> VolumeLoader:
    """Return the operator that loads a volume with the given *options*.

    Args:
        url: address of the volume.
        options: values of the options that `reading_options` declares, by parameter name.
        format: format of the volume, if the address does not name the format.
        voxel_size_nm: voxel size, nanometres, zyx (default: the voxel size of the volume).
        kind: kind of the voxels, such as ``image`` (default: the kind that the volume stores).

    Raises:
        OptionError: two options contradict each other.
    """
    from chunkflow_py.volume.cutout import Cutout
    from chunkflow_py.volume.loader import VolumeLoader
    from chunkflow_py.volume.protocol import VolumeOptions
    from chunkflow_py.volume.read_checks import Blackout, Validation
    from chunkflow_py.volume.volume_source import StoredVolume

    coarse, mip = options["validate_mip"], options["mip"]
    if coarse is not None and coarse < mip:
        msg = (
            f"--validate-mip {coarse} is finer than --mip {mip}; give --validate-mip {mip} or more"
        )
        raise OptionError(msg)
    if coarse is not None and options["channels"] is not None:
        msg = "--validate-mip compares all channels; leave either --channels or --validate-mip out"
        raise OptionError(msg)
    opening = VolumeOptions(fill_missing=options["fill_missing"], access=access_from(options))
    checks: list[Check] = []
    if coarse is not None:
        checks.append(Validation(url, coarse, format, opening, options["time"]))
    if options["blackout_sections"]:
        checks.append(Blackout(url, opening.access))
    spelling = ("--chunk-start", "--chunk-stop", "--chunk-size", "--expand-margin-size")
    start, stop, size = options["chunk_start"], options["chunk_stop"], options["chunk_size"]
    return VolumeLoader(
        StoredVolume(url, mip, format, opening),
        Cutout(start, stop, size, options["expand_margin_size"], spelling),
        options["output_name"],
        options["channels"],
        voxel_size_nm=voxel_size_nm,
        kind=kind,
        time=options["time"],
        checks=tuple(checks),
    )


def access_from(options: Mapping[str, Any]) -> Any:
    """Return the store settings (`Access`) for the values of the `access_options`."""
    from chunkflow_py.store.store_protocol import Access

    return Access(options.get("use_https", False), options["requester_pays"])


def opening_from(options: Mapping[str, Any]) -> VolumeOptions:
    """Return `VolumeOptions` with the values of the `access_options` and defaults for the rest."""
    from chunkflow_py.volume.protocol import VolumeOptions

    return VolumeOptions(access=access_from(options))
