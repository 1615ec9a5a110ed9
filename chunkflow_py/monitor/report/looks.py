"""How input and output look: slices of both, and whether seams show between tasks."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

from chunkflow_py.monitor.report.charts import number
from chunkflow_py.monitor.report.markup import Html, table, tag
from chunkflow_py.monitor.report.seams import REACH, WINDOW

if TYPE_CHECKING:
    from collections.abc import Iterator

    from chunkflow_py.monitor.report.measured import RunReport
    from chunkflow_py.monitor.report.planes import Plane, Planes
    from chunkflow_py.monitor.report.seams import Seam

SIDE = 300  # pixels of the longest side of all planes of a volume

_FORMULA = (
    f"Measured on slabs of {2 * REACH + 2} voxels across faces between two tasks that are done, "
    f"at most {WINDOW} x {WINDOW} voxels wide, at a sample of faces along each axis. "
    "Across: the mean absolute difference of the two neighbouring voxels on both sides of a face "
    "(labels: the share of such pairs whose labels differ). Inside: the same of the pairs beside "
    f"it, up to {REACH} voxels from the face, along the same axis. Seam measure: the sum of the "
    "former over faces, divided by that of the latter. 1: faces of tasks cannot be told from the "
    "inside; 2: a step across them is twice as large. The range holds the measure for 95 % of "
    "samples of these faces drawn with replacement (bootstrap)."
)


def slice_parts(report: RunReport) -> Iterator[Html]:
    """Yield the planes of all volumes."""
    shown = False
    for stage in report.stages:
        for planes in stage.planes:
            shown = True
            yield from _planes(stage.stage.name, planes)
    if not shown:
        yield tag("p", "The line names no volume that could be shown.")


def _planes(stage: str, shown: Planes) -> Iterator[Html]:
    place = shown.place
    yield tag("h4", f"{place.role.capitalize()} of stage {stage}: {place.address}")
    if shown.problem:
        yield tag("p", f"It cannot be shown: {shown.problem}")
        return
    scale = SIDE / max(extent for plane in shown.planes for extent in plane.extent_nm)
    yield tag("div", *(_figure(plane, scale) for plane in shown.planes), class_="planes")
    yield tag("p", shown.words, class_="note")


def _figure(plane: Plane, scale: float) -> Html:
    height, width = (max(1, round(extent * scale)) for extent in plane.extent_nm)
    source = f"data:image/png;base64,{base64.b64encode(plane.png).decode()}"
    caption = f"{plane.axes}, {plane.where}"
    image = tag("img", src=Html(source), width=width, height=height, alt=caption)
    return tag("figure", image, tag("figcaption", caption))


def seam_parts(report: RunReport) -> Iterator[Html]:
    """Yield the seam measures of all outputs."""
    measured = [(stage.stage.name, seams) for stage in report.stages for seams in stage.seams]
    if not measured:
        words = "Not measured: no task is done, there is no output to read, or --faces is 0."
        yield tag("p", words)
        return
    head = ["axis", "seam measure", "95 % range", "faces", "across", "inside"]
    for name, seams in measured:
        what = "labels" if seams.labels else "image or map"
        yield tag("h4", f"Output of stage {name}: {seams.place.address} ({what})")
        if seams.problem:
            yield tag("p", f"Not measured: {seams.problem}.")
        yield table(head, (_seam_row(each) for each in seams.axes), "numbers")
    yield tag("p", _FORMULA, class_="note")


def _seam_row(seam: Seam) -> list[str]:
    ratio = "all of one value" if seam.ratio is None else number(seam.ratio)
    spread = "-"
    if seam.low is not None and seam.high is not None:
        spread = f"{number(seam.low)} to {number(seam.high)}"
    return [seam.axis, ratio, spread, f"{seam.faces}", number(seam.across), number(seam.inside)]
