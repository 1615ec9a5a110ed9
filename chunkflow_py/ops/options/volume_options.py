"""Options that commands on volumes share, and the loader that they describe."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from chunkflow_py.errors import OptionError
from chunkflow_py.pipeline.params import (
    Decorator,
    channels_option,
    expand_margin_option,
    mip_option,
    output_option,
    zyx_option,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from chunkflow_py.core.chunk import Kind
    from chunkflow_py.volume.loader import VolumeLoader
    from chunkflow_py.volume.protocol import VolumeOptions
    from chunkflow_py.volume.read_checks import Check

TIME = click.IntRange(min=0)


def together(*options: Decorator) -> Decorator:
    """Return a decorator that declares *options*, the first one first in the help."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


def volume_path_option(help: str) -> Decorator:
    """Declare ``--volume-path/-v``, which is required."""
    return click.option("--volume-path", "-v", required=True, help=help)


def access_options() -> Decorator:
    """Declare how to call on a cloud: ``--use-https/--use-credential``, ``--requester-pays``."""
    return together(
        click.option(
            "--use-https/--use-credential",
            default=False,
            show_default=True,
            help="Take a public bucket without credentials.",
        ),
        requester_pays_option(),
    )


def requester_pays_option() -> Decorator:
    """Declare ``--requester-pays``."""
    return click.option(
        "--requester-pays/--owner-pays",
        default=False,
        show_default=True,
        help="Have the requests billed to you, as some buckets of S3 and GCS ask for.",
    )


def reading_options() -> Decorator:
    """Declare what every loader of volumes takes; `loader_from` reads it."""
    return together(
        mip_option(),
        zyx_option("--chunk-start", "-s", help="First voxel to read, global, zyx."),
        zyx_option("--chunk-stop", help="End of what to read, exclusive, global, zyx."),
        zyx_option("--chunk-size", "-z", minimum=1, help="Extent of what to read, voxels, zyx."),
        expand_margin_option("-e"),
        channels_option("-c"),
        click.option("--time", type=TIME, help="Time index to read.  [default: the task's]"),
        click.option(
            "--fill-missing/--no-fill-missing",
            default=True,
            show_default=True,
            help="Read blocks that are not stored as zeros; or stop at them.",
        ),
        click.option(
            "--validate-mip",
            type=click.IntRange(min=0),
            help="Compare each chunk with this coarser level, to find blocks that got lost.",
        ),
        click.option(
            "--blackout-sections/--no-blackout-sections",
            default=False,
            show_default=True,
            help="Set the sections that blackout_section_ids.json of the volume lists to 0.",
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
    """Return the loader that `reading_options` describe.

    Args:
        url: of the volume.
        options: by their names.
        format: of the volume, where the address does not say it.
        voxel_size_nm: instead of the volume's.
        kind: what the voxels mean, instead of what the volume says.

    Raises:
        OptionError: two options contradict each other.
    """
    from chunkflow_py.volume.cutout import Cutout
    from chunkflow_py.volume.loader import StoredVolume, VolumeLoader
    from chunkflow_py.volume.protocol import VolumeOptions
    from chunkflow_py.volume.read_checks import Blackout, Validation

    coarse, mip = options["validate_mip"], options["mip"]
    if coarse is not None and coarse < mip:
        msg = f"--validate-mip {coarse} is finer than --mip {mip}; give {mip} or more"
        raise OptionError(msg)
    if coarse is not None and options["channels"] is not None:
        msg = "--validate-mip compares all channels; leave --channels out"
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
    """Return the `Access` that `access_options` describe."""
    from chunkflow_py.store.store_protocol import Access

    return Access(options.get("use_https", False), options["requester_pays"])


def opening_from(options: Mapping[str, Any]) -> VolumeOptions:
    """Return how to use a volume of which only `access_options` were asked."""
    from chunkflow_py.volume.protocol import VolumeOptions

    return VolumeOptions(access=access_from(options))
