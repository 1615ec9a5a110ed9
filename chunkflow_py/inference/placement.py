"""Choose the patches of a chunk, and the box of the output that is computed from the chunk."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from chunkflow_py.core.geometry import BoundingBox, BoxGrid, Zyx
from chunkflow_py.core.outline import ScaledBoxes
from chunkflow_py.errors import GeometryError, OptionError
from chunkflow_py.inference.patch_grid import PatchGrid

if TYPE_CHECKING:
    from collections.abc import Callable

    from chunkflow_py.core.chunk import Chunk
    from chunkflow_py.inference.engine_settings import EngineSettings

logger = logging.getLogger(__name__)

GridMode = Literal["auto", "anchored", "padded", "spread", "chunk"]


@dataclass
class Placement:
    """Chooses the patches and the output box of a chunk.

    ```
    domain    |----------------------------------------|    patches are placed here (anchored)
    chunk           |------------------|                    must contain the required input
    result              |---------|                         the task's box
    ```

    Attributes:
        settings: engine settings.
        grid: kind of the patch grid. ``anchored`` starts at the corner of the domain (the whole
            volume). ``padded`` is like ``anchored``, but lets the last patch reach into the
            padding. ``spread`` spreads the patches evenly over the domain, as nnU-Net does.
            ``chunk`` starts at the corner of each chunk, as in chunkflow 1.x. ``auto`` is
            ``anchored`` if the chunk contains the required input, else ``chunk`` with a warning.
        output_margin: number of voxels around the task's box, zyx, that are also computed.
        output_crop_margin: number of voxels to drop on each side of the box that the patches cover,
            zyx (an option of chunkflow 1.x).
        patch_num: number of patches that the chunk must contain, zyx (an option of chunkflow 1.x).
        mask_output_chunk: with ``--grid chunk``, keep the whole box that the patches cover. If
            false, the overlap is dropped on each side of this box (an option of chunkflow 1.x).
        outline: what is known before the first task, such as the boxes of all tasks. If the margin
            of a task is too small, the error message suggests a margin that suffices for all tasks
            in the outline.
        needed: function that receives a box and the domain, and returns the box that later
            operators need; ``None`` if unknown.
        reported: keys of the warnings that have been logged.
    """

    settings: EngineSettings
    grid: GridMode = "auto"
    output_margin: Zyx = Zyx(0, 0, 0)
    output_crop_margin: Zyx | None = None
    patch_num: Zyx | None = None
    mask_output_chunk: bool = False
    outline: Any = field(default=None, init=False, repr=False)
    needed: Callable[[BoundingBox, BoundingBox], BoundingBox] | None = field(
        default=None, init=False, repr=False
    )
    reported: set[str] = field(default_factory=set, init=False, repr=False)

    def __post_init__(self) -> None:
        """Check that the options are compatible.

        Raises:
            OptionError: ``--grid padded`` is combined with ``--pad none``.
        """
        if self.settings.keep_stride and self.settings.pad == "none":
            msg = (
                "--grid padded lets the last patch reach into the padding, but --pad none means "
                "no padding; use --grid anchored, or --pad reflect"
            )
            raise OptionError(msg)

    def required_input(self, box: BoundingBox, domain: BoundingBox) -> BoundingBox:
        """Return the box of the input that is needed to compute the output for a task's box.

        The result is empty if no patch contains a voxel of the task's box.

        Args:
            box: box of the task, global voxels.
            domain: bounds of the volume.
        """
        if self.grid == "chunk":
            return box.grow(self._legacy_margin).intersection(domain)
        patches = self.patches(domain)
        if box.grow(self.output_margin).intersection(patches.cover).is_empty:
            return BoundingBox(domain.start, domain.start)
        return patches.required_input(self._wanted(box, domain))

    @property
    def _legacy_margin(self) -> Zyx:
        return self.settings.geometry.margin + self._legacy_crop

    @property
    def _legacy_crop(self) -> Zyx:
        if self.output_crop_margin is not None:
            return self.output_crop_margin
        overlap = self.settings.geometry.output_patch_overlap
        return Zyx(0, 0, 0) if self.mask_output_chunk else overlap

    def patches(self, domain: BoundingBox) -> PatchGrid:
        """Return the grid of the patches that cover the volume; *domain* is the volume's bounds."""
        return self.settings.grid(domain)

    def target(self, bbox: BoundingBox, domain: BoundingBox) -> BoundingBox:
        """Return the box to compute for a task: the voxels that the task and later operators need.

        Args:
            bbox: box of the task, global voxels.
            domain: bounds of the volume.

        Raises:
            GeometryError: the task does not intersect the box that the patches cover.
        """
        asked = bbox.hull(self.needed(bbox, domain)) if self.needed else bbox
        return self._wanted(asked, domain)

    def _wanted(self, box: BoundingBox, domain: BoundingBox) -> BoundingBox:
        # Grown by the output margin, but not beyond the box that the patches cover.
        cover = self.patches(domain).cover
        wanted = box.grow(self.output_margin).intersection(cover)
        if wanted.is_empty:
            msg = (
                f"task {box} does not intersect {cover}, the box that the patches cover; give only "
                f"tasks that intersect {cover}"
            )
            raise GeometryError(msg)
        return wanted

    def largest_task(self) -> tuple[Zyx, Zyx] | None:
        """Return the sizes (voxels, zyx) of the largest input chunk and of its output chunk.

        The result is ``None`` if the boxes of the tasks are unknown.
        """
        outline = self.outline
        if outline is None or outline.domain is None or (outline.has_tasks and not outline.boxes):
            return None
        boxes = [outline.domain]
        if outline.has_tasks:
            # Tasks of a grid have one size; one in the middle has margins on both sides.
            boxes = [
                outline.boxes[min(k, len(outline.boxes) - 1)] for k in (0, len(outline.boxes) // 2)
            ]
            if not isinstance(outline.boxes, BoxGrid | ScaledBoxes):
                boxes = [max(outline.boxes, key=lambda box: box.voxels)]
        pairs = []
        for box in boxes:
            inside = box.intersection(outline.domain)
            if not inside.is_empty:
                wanted = self._wanted(inside, outline.domain)
                pairs.append((self.required_input(inside, outline.domain).size, wanted.size))
        return max(pairs, key=lambda pair: pair[0].product(), default=None)

    def plan(self, chunk: Chunk, bbox: BoundingBox | None) -> tuple[PatchGrid, BoundingBox]:
        """Return the patch grid and the output box for one chunk.

        Args:
            chunk: input chunk.
            bbox: box of the task; ``None`` if the chunk belongs to no task.

        Raises:
            GeometryError: the chunk does not contain the required input, and *grid* is not
                ``auto``; or the task does not intersect the box that the patches cover.
            OptionError: the number of patches of the chunk is not *patch_num*.
        """
        if self.grid == "chunk":
            return self._legacy_plan(chunk, None, self._legacy_crop)
        if bbox is None:
            bbox = self._taskless_box(chunk)
        grid = self.patches(chunk.domain)
        # As much as later operators need, which may be more than the task's box.
        asked = bbox.hull(self.needed(bbox, chunk.domain)) if self.needed else bbox
        wanted = self._wanted(asked, chunk.domain)
        need = grid.required_input(wanted)
        if chunk.bbox.contains(need):
            if wanted == chunk.domain and not self._has_patch_num(grid, wanted):
                legacy = PatchGrid(self.settings.geometry, chunk.bbox, "none")
                if self.grid != "auto" or not self._has_patch_num(legacy, legacy.cover):
                    self._check_patch_num(grid, wanted)
                self.warn_once(
                    "patch_num",
                    f"--patch-num {self.patch_num} does not cover the whole chunk: patches start "
                    "at the chunk's corner, as with --grid chunk; to cover the whole chunk with "
                    f"{grid.count(wanted)} patches (zyx), leave --patch-num out",
                )
                return self._legacy_plan(chunk, None, self._legacy_crop)
            return grid, wanted
        if self.grid != "auto":
            msg = f"--grid {self.grid}: {self._advice(grid, chunk, bbox, asked)}"
            raise GeometryError(msg)
        if "legacy" not in self.reported:
            self.warn_once(
                "legacy",
                f"the patch grid starts at the chunk's corner, so the result depends on how the "
                f"volume is divided into tasks: {self._advice(grid, chunk, bbox, asked)}",
            )
        # The result is the task's box; --output-crop-margin would only drop voxels around it.
        return self._legacy_plan(chunk, wanted, None)

    def _advice(self, grid: PatchGrid, chunk: Chunk, bbox: BoundingBox, asked: BoundingBox) -> str:
        # The end of a message: what the chunk lacks, and a margin that suffices.
        wanted = self._wanted(asked, chunk.domain)
        more = (bbox.start - asked.start).high(asked.stop - bbox.stop) + self.output_margin
        known = self.outline is not None and self.outline.has_tasks
        # A margin that suits only this task would fail at the next one.
        margin = grid.sufficient_margin(self.outline.boxes if known else [bbox], more)
        return (
            f"chunk {chunk.bbox} does not contain {grid.required_input(wanted)}, the input needed "
            f"for the output {wanted}; load the chunk with --expand-margin-size auto, or with "
            f"--expand-margin-size {' '.join(map(str, margin))} (zyx, voxels)"
        )

    def _taskless_box(self, chunk: Chunk) -> BoundingBox:
        crop = self.output_crop_margin
        if crop is None:
            return chunk.domain
        if any(a <= 2 * b for a, b in zip(chunk.domain.size, crop, strict=True)):
            msg = (
                f"--output-crop-margin {crop} removes all voxels of {chunk.domain} (zyx, voxels); "
                "lower --output-crop-margin, or load a larger chunk"
            )
            raise GeometryError(msg)
        return chunk.domain.grow(-crop)

    def _legacy_plan(
        self, chunk: Chunk, bbox: BoundingBox | None, crop: Zyx | None
    ) -> tuple[PatchGrid, BoundingBox]:
        # The grid starts at the chunk's corner, as in chunkflow 1.x.
        geometry = self.settings.geometry
        need = geometry.input_patch_size
        if any(a < b for a, b in zip(chunk.size, need, strict=True)):
            # Too small without padding: there is one patch along the short axes.
            grid = PatchGrid(geometry, chunk.bbox, self._padding)
        else:
            grid = PatchGrid(geometry, chunk.bbox, "none")
        self._check_patch_num(grid, grid.cover)
        target = grid.cover
        if crop is not None:
            if any(a <= 2 * b for a, b in zip(target.size, crop, strict=True)):
                msg = (
                    f"--output-crop-margin {crop} removes all voxels of {target}, the box that "
                    f"the patches of chunk {chunk.bbox} cover (zyx, voxels); lower "
                    "--output-crop-margin, or load a larger chunk"
                )
                raise GeometryError(msg)
            target = target.grow(-crop)
        elif bbox is not None and not target.intersection(bbox).is_empty:
            target = target.intersection(bbox)
        return grid, target

    @property
    def _padding(self) -> Any:
        return "reflect" if self.settings.pad == "none" else self.settings.pad

    def _has_patch_num(self, grid: PatchGrid, box: BoundingBox) -> bool:
        return self.patch_num is None or (not box.is_empty and grid.count(box) == self.patch_num)

    def _check_patch_num(self, grid: PatchGrid, box: BoundingBox) -> None:
        if self.patch_num is None or self._has_patch_num(grid, box):
            return
        geometry = self.settings.geometry
        size = geometry.stride * (self.patch_num - 1) + geometry.input_patch_size
        if grid.pad != "none":
            size = size - geometry.margin * 2
        msg = (
            f"--patch-num is {self.patch_num}, but chunk {grid.domain} has {grid.count(box)} "
            f"patches (zyx); leave --patch-num out, or load a chunk of {size} (zyx, voxels)"
        )
        raise OptionError(msg)

    def warn_once(self, key: str, text: str) -> None:
        """Log *text* as a warning, once for each *key*."""
        if key not in self.reported:
            self.reported.add(key)
            logger.warning(text)
