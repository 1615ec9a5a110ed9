"""Filters that look at the neighbours of a voxel, so that chunks need a margin.

```
domain  |------------------------------------------|
chunk            |mmm|-----------|mmm|                 m: as far as the filter reaches
result               |-----------|                     what the rest of the line needs
```

A chunk that reaches the face of the domain needs no margin there: what lies beyond is made up by
the filter, as it would be for the whole volume. So filtering chunks is filtering the whole.
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
    """The body of a transform whose result depends on the neighbourhood of each voxel.

    Attributes:
        function: chunk -> chunk of the same box.
        reach: how far it looks, voxels, zyx.
        name: of the command, for messages.
        check: refuses what cannot be filtered; for what the line says of the voxels.
    """

    function: Callable[[Chunk], Chunk]
    reach: Zyx
    name: str
    check: Callable[[Voxels], None] | None = None
    keeps_voxels: bool = field(default=True, init=False, metadata=HOOK)
    _needed: Callable[[BoundingBox, BoundingBox], BoundingBox] | None = field(
        default=None, init=False, repr=False
    )
    _told: bool = field(default=False, init=False, repr=False)

    @hook
    def prepare(self, outline: Any) -> None:
        """Refuse what cannot be filtered, if the line (an `Outline`) knows what it is."""
        if self.check is not None and outline.voxels is not None:
            self.check(outline.voxels)

    @hook
    def required_input(self, box: BoundingBox, domain: BoundingBox) -> BoundingBox:
        """Return *box* with what the filter looks at around it."""
        grown = box.grow(self.reach)
        inside = grown.intersection(domain)
        return grown if inside.is_empty else inside

    @hook
    def negotiate(self, required: Callable[[BoundingBox, BoundingBox], BoundingBox]) -> None:
        """Take what the rest of the line needs for a task's box."""
        self._needed = required

    def __call__(self, chunk: Chunk, bbox: BoundingBox | None = None) -> Chunk:
        """Return the filtered chunk: what the rest of the line needs for *bbox*, or all of it.

        Args:
            chunk: with the margin that the filter needs, if it is part of a larger domain.
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
        if chunk.bbox.contains(part) or self._told:
            return
        self._told = True
        logger.warning(
            "%s looks at %s for the result %s, but the chunk is %s: the result depends on how the "
            "volume is cut into tasks; load it with --expand-margin-size auto, or a margin of %s",
            self.name, part, target, chunk.bbox, self.reach,
        )  # fmt: skip
