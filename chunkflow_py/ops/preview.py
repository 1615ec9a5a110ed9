"""Save a PNG sheet of chunks, each in three planes.

Example: chunkflow load-h5 --file-name raw.h5 preview --inputs chunk --output-path preview.png

preview works on machines without a screen. The three planes go through the middle of a chunk. Each
plane is drawn in true proportions, with its position and a scale bar. Segmentations are shown in
colours, and affinities x, y, z in red, green and blue. Other chunks are shown in grey or, if there
are several channels, with one colour per channel. --overlay draws labels over the chunks.

A path without .png is a prefix: with `--output-path sheets/a_`, the task 0-64_0-256_0-256 writes
sheets/a_0-64_0-256_0-256.png.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import click

from chunkflow_py.core.operator_base import OperatorBase, hook, hook_value
from chunkflow_py.errors import OptionError, check_extra
from chunkflow_py.pipeline.operator import operator
from chunkflow_py.pipeline.params import ItemName, ItemNames

if TYPE_CHECKING:
    from chunkflow_py.core.chunk import Chunk
    from chunkflow_py.core.outline import Outline
    from chunkflow_py.core.task import Output, Task
    from chunkflow_py.store.task_files import ItemSaver

SECTION = "view"


def preview(
    chunks: dict[str, Chunk],
    width: int = 256,
    contrast: tuple[float, float] | None = None,
    overlay: Chunk | None = None,
    time: int | None = None,
) -> bytes:
    """Return a contact sheet of *chunks*: a PNG image with three planes of each chunk.

    Equal chunks give equal bytes.

    Args:
        chunks: chunks (z, y, x) or (c, z, y, x) by name, of any real dtype.
        width: length at which the longest edge of each chunk is drawn, pixels.
        contrast: percentiles of each channel to show as black and as white. The default is 1 and
            99.5. For uint8 chunks, and for probability and affinity maps, the default is the whole
            range.
        overlay: labels to draw, half transparent, over the chunks that are not segmentations.
        time: time index of the chunks, for the titles.

    Raises:
        ChunkError: a chunk is empty or does not have the box of *overlay*, or a segmentation has
            several channels or negative labels.
        MissingExtraError: Pillow is not installed.
    """
    from chunkflow_py.ops.viewing.sheet import contact_sheet

    return contact_sheet(chunks, width, contrast, overlay, time)


@dataclass
class PreviewSaver(OperatorBase):
    """Writes a contact sheet of the chunks of every task.

    Attributes:
        inputs: names of the chunks to show.
        saver: object that writes the PNG files.
        width: length at which the longest edge of each chunk is drawn, pixels.
        contrast: percentiles to show as black and as white (default: see `preview`).
        overlay: name of the labels to draw over the chunks, or ``None``.
    """

    inputs: tuple[str, ...]
    saver: ItemSaver
    width: int = 256
    contrast: tuple[float, float] | None = None
    overlay: str | None = None
    any_voxel_size: ClassVar[bool] = hook_value(True)

    @property
    @hook
    def destination(self) -> str:
        """PNG file, or prefix of the PNG files, to write the sheets to."""
        return self.saver.destination

    @hook
    def stores(self) -> tuple[Output, ...]:
        """Return the output file, or one output file per task."""
        return self.saver.stores()

    @hook
    def prepare(self, outline: Outline) -> None:
        """Check that no two tasks write the same file."""
        self.saver.prepare(outline)

    def __call__(self, task: Task) -> Task:
        """Write the contact sheet of the task.

        Raises:
            ChunkError: a chunk cannot be shown.
            VolumeError: the file cannot be written, or another task has written it.
        """
        from chunkflow_py.core.geometry import Region

        chunks = {name: task.chunk(name) for name in self.inputs}
        box = next(iter(chunks.values())).bbox
        labels = None if self.overlay is None else task.chunk(self.overlay)
        time = None if task.region is None else task.region.time
        sheet = preview(chunks, self.width, self.contrast, labels, time)
        self.saver.save(task, sheet, Region(box))
        return task


@operator("write")
@click.option(
    "--inputs",
    "--input-names",
    "-i",
    type=ItemNames("in"),
    default="chunk",
    show_default=True,
    help="Names of the chunks to show, separated by commas.",
)
@click.option(
    "--output-path",
    "-o",
    default="preview.png",
    show_default=True,
    help="Path or URL of a PNG file, or prefix for one file per task.",
)
@click.option(
    "--width",
    "-w",
    type=click.IntRange(16, 4096),
    default=256,
    show_default=True,
    help="Length at which the longest edge of each chunk is drawn, pixels.",
)
@click.option(
    "--overlay",
    type=ItemName("in"),
    help="Name of labels to draw, half transparent, over the other chunks.",
)
@click.option(
    "--contrast",
    nargs=2,
    type=click.FloatRange(0, 100),
    metavar="LOW HIGH",
    help="Percentiles of each channel to show as black and white.  [default: 1 99.5; the whole "
    "range for uint8 chunks and for probability and affinity maps]",
)
def command(
    inputs: tuple[str, ...],
    output_path: str,
    width: int,
    overlay: str | None,
    contrast: tuple[float, float] | None,
) -> PreviewSaver:
    """Check the contrast, and return the operator."""
    from chunkflow_py.store.task_files import ItemSaver, TaskFiles

    if contrast is not None and contrast[0] >= contrast[1]:
        msg = (
            f"--contrast {contrast[0]:g} {contrast[1]:g} leaves no percentile between black and "
            "white; give the smaller percentile first, such as --contrast 1 99.5"
        )
        raise OptionError(msg)
    check_extra("image", "preview", "PIL")
    files = TaskFiles(output_path, ".png", (".png",), "--output-path")
    saver = ItemSaver(files, inputs[0], bytes, bytes)
    return PreviewSaver(inputs, saver, width, contrast, overlay)
