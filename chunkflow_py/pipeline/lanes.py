"""How a line is cut into lanes that overlap, and how many tasks each of them holds.

```
read     a b c ->            thread-safe: all tasks that it is ahead at once, else one by one
compute         d, then e    inference begins on the next one while one is on its way
write                  f g   as reading; the last lane of one by one runs in the caller's thread
```
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from chunkflow_py.pipeline.hooks import ThreadSafe

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chunkflow_py.pipeline.operator import Operator


@dataclass(frozen=True)
class Lane:
    """Neighbouring operators that work on a task in one go.

    Attributes:
        stages: the operators.
        at_once: whether they work on several tasks at the same time.
        begins: whether the first one begins on the next task while one is on its way.
        depth: how many tasks it works ahead of what the next lane asks for.
        tasks: how many may be in it at most, on their way or waiting.
    """

    stages: Sequence[Operator]
    at_once: bool = False
    begins: bool = False
    depth: int = 0
    tasks: int = 1

    @property
    def name(self) -> str:
        """``read``, ``compute`` or ``write``."""
        return self.stages[0].lane


def lanes_of(stages: Sequence[Operator], ahead: int) -> list[Lane]:
    """Cut a line into lanes.

    Args:
        stages: operators of the line, in order.
        ahead: how many tasks each lane may work ahead; 0: all in one thread.
    """
    groups: list[list[Operator]] = []
    for stage in stages:
        begins = ahead > 0 and stage.start is not None
        if groups and groups[-1][0].lane == stage.lane and not begins:
            groups[-1].append(stage)
        else:  # what begins ahead comes first in its lane
            groups.append([stage])
    lanes = [
        Lane(
            group,
            at_once=ahead > 0 and all(_is_thread_safe(stage) for stage in group),
            begins=ahead > 0 and group[0].start is not None,
            depth=ahead,
        )
        for group in groups
    ]
    if lanes and not lanes[-1].at_once:
        lanes[-1] = replace(lanes[-1], depth=0)  # it runs in the caller's thread
    for number, (lane, later) in enumerate(pairwise(lanes)):
        # what begins ahead has one task in hand itself
        if lane.at_once:
            lanes[number] = replace(lane, depth=ahead + (not later.begins))
        elif number == len(lanes) - 2 and later.at_once:
            lanes[number] = replace(lane, depth=0)  # what it makes is taken at once
            lanes[-1] = replace(later, depth=ahead + (not lane.begins))
        else:
            lanes[number] = replace(lane, depth=ahead - later.begins)
    return [replace(lane, tasks=_most_tasks(lane, ahead)) for lane in lanes]


def _most_tasks(lane: Lane, ahead: int) -> int:
    if lane.at_once:
        return ahead + 1
    # beside those that wait, one is on its way where the next is begun meanwhile
    return max(1, lane.depth + (lane.begins and lane.depth > 0))


def _is_thread_safe(stage: Operator) -> bool:
    return isinstance(stage.body, ThreadSafe) and stage.body.thread_safe
