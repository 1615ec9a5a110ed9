"""Filters that read the neighbours of a voxel, so that chunks need a margin.

```
domain  |------------------------------------------|
chunk            |mmm|-----------|mmm|                 m: reach of the filter
result               |-----------|                     needed by later operators
```

The domain is the box of the whole volume. A chunk needs no margin where it ends at an end of the
domain. There, the filter extrapolates, with the same result as for the whole volume. Therefore, the
filtered chunks together are equal to the filtered volume.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from chunkflow_py.core.operator_base import HOOK, OperatorBase, hook

if TYPE_CHECKING:
    from collections.abc import Callable

    from chunkflow_py.core.chunk import Chunk, Voxels
    from chunkflow_py.core.geometry import BoundingBox, Zyx

logger = logging.getLogger(__name__)


@dataclass
class HaloFilter(OperatorBase):
    """A transform whose result depends on the neighbourhood of each voxel.

    Attributes:
        function: function that filters a chunk; the result has the same box.
        reach: extent of the neighbourhood on each side, voxels, zyx.
        name: name of the command, for messages.
        check: function that raises an error for a dtype or kind (such as ``image``) that cannot be
            filtered.
    """

    function: Callable[[Chunk], Chunk]
    reach: Zyx
    name: str
    check: Callable[[Voxels], None] | None = None
    keeps_voxels: bool = field(default=True, init=False, metadata=HOOK)
    is_local: bool = field(default=True, init=False, metadata=HOOK)
    _needed: Callable[[BoundingBox, BoundingBox], BoundingBox] | None = field(
        default=None, init=False, repr=False
    )
    _has_warned: bool = field(default=False, init=False, repr=False)

    @hook
    def prepare(self, outline: Any) -> None:
        """Refuse an input whose dtype or kind of voxels cannot be filtered.

        Args:
            outline: what is known before the first task, a `chunkflow_py.core.outline.Outline`. If
                dtype and kind of the input are unknown, the input is not refused.
        """
        if self.check is not None and outline.voxels is not None:
            self.check(outline.voxels)

    @hook
    def required_input(self, box: BoundingBox, domain: BoundingBox) -> BoundingBox:
        """Return *box* enlarged by the reach of the filter, without the part outside *domain*.

        If the enlarged box is entirely outside *domain*, the whole enlarged box is returned.
        """
        grown = box.grow(self.reach)
        inside = grown.intersection(domain)
        return grown if inside.is_empty else inside

    @hook
    def negotiate(self, required: Callable[[BoundingBox, BoundingBox], BoundingBox]) -> None:
        """Store *required*, which maps a task's box to the box that later operators need."""
        self._needed = required

    def __call__(self, chunk: Chunk, bbox: BoundingBox | None = None) -> Chunk:
        """Return the filtered chunk, cropped to the box that later operators need.

        If that box is not known, nothing is cropped.

        Args:
            chunk: input, with the margin that the filter reads (none at an end of the domain).
            bbox: the task's box.
        """
        target = chunk.bbox
        if target.is_empty:
            return self.function(chunk)
        if bbox is not None and self._needed is not None:
            asked = self._needed(bbox, chunk.domain).intersection(target)
            target = target if asked.is_empty else asked
        part = self.required_input(target, chunk.domain)
        self._check(chunk, part, target)
        return self.function(chunk.cut(part.intersection(chunk.bbox))).cut(target)

    def _check(self, chunk: Chunk, part: BoundingBox, target: BoundingBox) -> None:
        if chunk.bbox.contains(part) or self._has_warned:
            return
        self._has_warned = True
        logger.warning(
            "%s needs the input %s for the result %s, but the chunk covers only %s, so the result "
            "depends on how the volume is divided into tasks; load the chunk with "
            "--expand-margin-size auto, or with a margin of %s voxels",
            self.name, part, target, chunk.bbox, self.reach,
        )  # fmt: skip
