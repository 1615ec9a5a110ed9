"""Contact sheets: PNG images whose rows show the three middle planes of a chunk.

```
 chunk: image, uint8, 0-64_0-512_0-512, voxels of 40 x 8 x 8 nm, grey from 0 to 255
 +-----------+   +-----------+   +----+
 | xy        |   | xz, z     |   | zy |      all three at one scale, voxels in their true
 | at z = 32 |   | downwards |   |    |      proportions
 |  1 um ==  |   +-----------+   |    |
 +-----------+                   +----+
```
"""

from __future__ import annotations

import io
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from chunkflow_py.errors import ChunkError, needs_extra
from chunkflow_py.ops.viewing.colours import (
    check_labels,
    colours_of_channels,
    colours_of_labels,
    grey,
    kind_of,
    overlaid,
    ranges_and_rule,
    shown_as,
    single_channel,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from chunkflow_py.core.chunk import Chunk

GAP = 12  # margin around a plane, pixels
LINE = 16  # height of a line of text, pixels
TEXT = 12  # size of the text, pixels
GROUND, INK, FAINT = (24, 24, 24), (235, 235, 235), (150, 150, 150)


@dataclass(frozen=True)
class Plane:
    """One plane of a chunk.

    Attributes:
        name: axes and position of the plane, such as ``xy, z = 32``.
        image: uint8 array of shape (rows, columns, 3) with red, green and blue.
        size_nm: height and width of a pixel, nanometres.
        labels: whether colours stand for labels; the image must then not be averaged.
    """

    name: str
    image: NDArray[np.uint8]
    size_nm: tuple[float, float]
    labels: bool

    @property
    def extent_nm(self) -> tuple[float, float]:
        """Height and width of the plane, nm."""
        rows, columns = self.image.shape[:2]
        return rows * self.size_nm[0], columns * self.size_nm[1]


def contact_sheet(
    chunks: Mapping[str, Chunk],
    width: int = 256,
    contrast: tuple[float, float] | None = None,
    overlay: Chunk | None = None,
    time: int | None = None,
) -> bytes:
    """Return a PNG image with one row per chunk: the three middle planes of the chunk.

    Equal chunks give equal bytes.

    Segmentations are shown in colours, affinities x, y, z in red, green and blue, and other chunks
    in grey or with one colour per channel (see `chunkflow_py.ops.viewing.colours`).

    Args:
        chunks: chunks (z, y, x) or (c, z, y, x), by the title of the row.
        width: length at which the longest edge of each chunk is drawn, pixels.
        contrast: percentiles of a chunk to show as black and as white (default: the range that
            `range_and_rule` chooses).
        overlay: labels to draw, half transparent, over the chunks that are not segmentations.
        time: time index of the chunks, for the titles.

    Raises:
        ChunkError: a chunk has no voxels, is a segmentation that cannot be shown, or does not have
            the box of *overlay*.
        MissingExtraError: Pillow is not installed.
    """
    with needs_extra("image", "preview"):
        from PIL import Image, ImageDraw, ImageFont

    if overlay is not None:
        check_labels(overlay)
    rows = [_row(name, chunk, contrast, overlay, time) for name, chunk in chunks.items()]
    font = ImageFont.load_default(TEXT)
    laid, right, top = [], 0, GAP
    for title, planes in rows:
        scale = width / max(extent for plane in planes for extent in plane.extent_nm)
        left, bottom = GAP, 0
        for plane in planes:
            tall, wide = (max(1, round(extent * scale)) for extent in plane.extent_nm)
            needed = max(wide, math.ceil(font.getlength(plane.name)))
            laid.append((plane, (left, top + LINE), (wide, tall), scale))
            left, bottom = left + needed + GAP, max(bottom, tall)
        right = max(right, left, GAP * 2 + math.ceil(font.getlength(title)))
        top += bottom + 3 * LINE + GAP + 4
    sheet = Image.new("RGB", (right, top), GROUND)
    draw = ImageDraw.Draw(sheet)
    for number, (plane, (x, y), size, scale) in enumerate(laid):
        if number % 3 == 0:
            draw.text((GAP, y - LINE), rows[number // 3][0], INK, font)
        # Labels and single voxels stay sharp when enlarged; shrunk images are averaged.
        picture = Image.fromarray(plane.image)
        shrunk = size[0] < picture.width and not plane.labels
        how = Image.Resampling.BOX if shrunk else Image.Resampling.NEAREST
        sheet.paste(picture.resize(size, how), (x, y))
        draw.text((x, y + size[1] + 2), plane.name, FAINT, font)
        bar_nm = round_length(size[0] / scale / 2)
        below = y + size[1] + LINE + 6
        draw.rectangle((x, below, x + max(1, round(bar_nm * scale)) - 1, below + 2), INK)
        end = x + round(bar_nm * scale) + 5
        draw.text((end, below - TEXT // 2), format_length(bar_nm), INK, font)
    buffer = io.BytesIO()
    sheet.save(buffer, "PNG")
    return buffer.getvalue()


def _row(
    name: str,
    chunk: Chunk,
    contrast: tuple[float, float] | None,
    overlay: Chunk | None,
    time: int | None,
) -> tuple[str, list[Plane]]:
    if chunk.array.size == 0:
        msg = f"chunk {name!r} cannot be shown, because its box {chunk.bbox} has no voxels"
        raise ChunkError(msg)
    kind = kind_of(chunk)
    if kind == "segmentation":
        check_labels(chunk)
        overlay = None
    if overlay is not None and overlay.bbox != chunk.bbox:
        msg = (
            f"the labels have box {overlay.bbox} and cannot be drawn over chunk {name!r}, which "
            f"has box {chunk.bbox}; crop the labels or the chunk"
        )
        raise ChunkError(msg)
    array = single_channel(chunk.array)
    limits, rule = ranges_and_rule(array, kind, contrast)
    middle, offset = chunk.size // 2, chunk.voxel_offset
    planes = []
    for axis, axes in enumerate(("xy", "xz", "zy")):
        cut = _plane(array, axis, middle[axis])
        sizes = [size for k, size in enumerate(chunk.voxel_size_nm) if k != axis]
        sizes = sizes[::-1] if axes == "zy" else sizes
        if kind == "segmentation":
            image = colours_of_labels(cut)
        elif cut.ndim == 3:
            image = colours_of_channels(cut, limits)
        else:
            image = np.repeat(grey(cut, limits[0])[..., None], 3, axis=-1)
        if overlay is not None:
            image = overlaid(image, _plane(single_channel(overlay.array), axis, middle[axis]))
        where = f"{axes}, {'zyx'[axis]} = {middle[axis] + offset[axis]}"
        pixel, labels = (sizes[0], sizes[1]), kind == "segmentation"
        planes.append(Plane(where, np.ascontiguousarray(image), pixel, labels))
    title = _title(name, chunk, kind, limits, rule)
    return title if time is None else f"{title}, time {time}", planes


def _plane(array: NDArray[Any], axis: int, position: int) -> NDArray[Any]:
    # The plane across x is transposed, so that its rows are y, as in the plane xy on the left.
    cut: NDArray[Any] = array.take(position, axis=array.ndim - 3 + axis)
    return cut.swapaxes(-1, -2) if axis == 2 else cut


def _title(
    name: str, chunk: Chunk, kind: str, limits: Sequence[tuple[float, float]], rule: str
) -> str:
    channels = f" x {chunk.channels} channels" if chunk.channels > 1 else ""
    size = " x ".join(f"{v:g}" for v in chunk.voxel_size_nm)
    shown = "one colour per label"
    if kind != "segmentation":
        shown = shown_as(limits) + (f" ({rule})" if rule else "")
    parts = (f"{kind}", f"{chunk.dtype}{channels}", f"{chunk.bbox}", f"voxels {size} nm", shown)
    return f"{name}: {', '.join(parts)}"


def round_length(length: float) -> float:
    """Return the largest number that is 1, 2 or 5 times a power of ten and at most *length*."""
    power = 10.0 ** math.floor(math.log10(length))
    return max(step * power for step in (1, 2, 5) if step * power <= length * (1 + 1e-9))


def format_length(nanometres: float) -> str:
    """Return a length in mm, um or nm, such as ``2 um``."""
    for unit, factor in (("mm", 1e6), ("um", 1e3)):
        if nanometres >= factor:
            return f"{nanometres / factor:g} {unit}"
    return f"{nanometres:g} nm"
