"""Cut a chunk out of a Neuroglancer precomputed volume.

Example: chunkflow load-precomputed -v file://em -s 0 0 0 -z 64 512 512 save-h5 -f cut.h5

The part is what --chunk-start, --stop and --chunk-size say, else the task's box with its margin,
else the whole volume.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import click

from chunkflow_py.errors import OptionError
from chunkflow_py.params import (
    channels_option,
    expand_margin_option,
    mip_option,
    output_option,
    zyx_option,
)
from chunkflow_py.stages import operator

if TYPE_CHECKING:
    from collections.abc import Callable

    from chunkflow_py.chunk import Chunk
    from chunkflow_py.geometry import Zyx
    from chunkflow_py.volume.loader import VolumeLoader
    from chunkflow_py.volume.protocol import Volume


def blackout(url: str) -> Callable[[Chunk, Volume], Chunk]:
    """Return a check that sets the bad sections of the volume to 0; their list is read once."""
    sections: list[int] | None = None

    def check(chunk: Chunk, _: Volume) -> Chunk:
        from chunkflow_py.volume.precomputed_checks import bad_sections, blacken

        nonlocal sections
        if sections is None:
            sections = bad_sections(url)
        return blacken(chunk, sections)

    return check


def validation(url: str, mip: int, settings: dict[str, Any]) -> Callable[[Chunk, Volume], Chunk]:
    """Return a check that compares each chunk with level *mip* of the same volume."""
    coarse: Volume | None = None

    def check(chunk: Chunk, volume: Volume) -> Chunk:
        from chunkflow_py.volume import open_volume
        from chunkflow_py.volume.precomputed_checks import check_against_mip

        nonlocal coarse
        if coarse is None:
            coarse = open_volume(url, mip, format="precomputed", **settings)
        check_against_mip(chunk, volume, coarse)
        return chunk

    return check


@operator("read")
@click.option("--volume-path", "-v", required=True, help="Volume, such as file://em or gs://b/em.")
@mip_option()
@expand_margin_option("-e")
@zyx_option("--chunk-start", "--start", "-s", help="First voxel of the part to read, global, zyx.")
@zyx_option("--stop", help="End of the part to read, exclusive, global, zyx.")
@zyx_option("--chunk-size", "-z", minimum=1, help="Extent of the part to read, voxels, zyx.")
@channels_option("-c")
@click.option(
    "--fill-missing/--no-fill-missing",
    default=True,
    show_default=True,
    help="Read blocks that are not stored as zeros; or stop at them.",
)
@click.option(
    "--validate-mip",
    type=click.IntRange(min=0),
    help="Compare each chunk with this coarser level, to find blocks that got lost.",
)
@click.option(
    "--blackout-sections/--no-blackout-sections",
    default=False,
    show_default=True,
    help="Set the sections that blackout_section_ids.json of the volume lists to 0.",
)
@click.option(
    "--use-https/--use-credential",
    default=False,
    show_default=True,
    help="Read a public bucket without credentials.",
)
@output_option()
def command(
    volume_path: str,
    mip: int,
    expand_margin_size: Zyx | Literal["auto"],
    chunk_start: Zyx | None,
    stop: Zyx | None,
    chunk_size: Zyx | None,
    channels: tuple[int, ...] | None,
    fill_missing: bool,
    validate_mip: int | None,
    blackout_sections: bool,
    use_https: bool,
    output_name: str,
) -> VolumeLoader:
    """Take the volume and the part of it."""
    from chunkflow_py.volume.cutout import Cutout
    from chunkflow_py.volume.loader import VolumeLoader

    if validate_mip is not None and validate_mip < mip:
        msg = f"--validate-mip {validate_mip} is finer than --mip {mip}; give {mip} or more"
        raise OptionError(msg)
    if validate_mip is not None and channels is not None:
        msg = "--validate-mip compares all channels; leave --channels out"
        raise OptionError(msg)
    spelling = ("--chunk-start", "--stop", "--chunk-size", "--expand-margin-size")
    settings: dict[str, Any] = {"fill_missing": fill_missing, "use_https": use_https}
    checks = []
    if validate_mip is not None:
        checks.append(validation(volume_path, validate_mip, settings))
    if blackout_sections:
        checks.append(blackout(volume_path))
    return VolumeLoader(
        volume_path,
        mip,
        "precomputed",
        Cutout(chunk_start, stop, chunk_size, expand_margin_size, spelling),
        output_name,
        channels,
        opening=settings,
        checks=tuple(checks),
    )
