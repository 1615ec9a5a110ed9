"""Divide a pipeline into stages that overlap in time, and limit the tasks in each stage.

In this example, the letters are tasks, and all stages run at the same time:

```
read     f g h   several tasks at once if all operators are thread-safe, else one task
compute  d e     inference starts task e before task d is finished
write    a b     like read; if only one task runs at a time, it runs in the caller's thread
```
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chunkflow_py.pipeline.operator import Operator


@dataclass(frozen=True)
class Stage:
    """Consecutive operators of a pipeline; one thread applies all these operators to a task.

    Attributes:
        operators: the operators.
        at_once: whether the stage processes several tasks at the same time, each in its own thread.
        begins: whether the first operator starts a task before the previous task is finished.
        depth: maximum number of finished tasks that wait for the next stage.
        tasks: maximum number of tasks that are in progress or wait for the next stage.
    """

    operators: Sequence[Operator]
    at_once: bool = False
    begins: bool = False
    depth: int = 0
    tasks: int = 1

    @property
    def name(self) -> str:
        """Name of the stage: ``read``, ``compute`` or ``write``."""
        return self.operators[0].stage


def stages_of(operators: Sequence[Operator], ahead: int) -> list[Stage]:
    """Divide a pipeline into stages.

    Args:
        operators: operators of the pipeline, in order.
        ahead: number of tasks that each stage prefetches; 0 runs everything in one thread.
    """
    groups: list[list[Operator]] = []
    for operator in operators:
        begins = ahead > 0 and operator.start is not None
        if groups and groups[-1][0].stage == operator.stage and not begins:
            groups[-1].append(operator)
        else:  # an operator that starts tasks early is the first of its stage
            groups.append([operator])
    stages = [
        Stage(
            group,
            at_once=ahead > 0 and all(operator.hooks.thread_safe for operator in group),
            begins=ahead > 0 and group[0].start is not None,
            depth=ahead,
        )
        for group in groups
    ]
    if stages and not stages[-1].at_once:
        stages[-1] = replace(stages[-1], depth=0)  # runs in the caller's thread
    for number, (stage, later) in enumerate(pairwise(stages)):
        # a stage that starts tasks early has one task in progress
        if stage.at_once:
            stages[number] = replace(stage, depth=ahead + (not later.begins))
        elif number == len(stages) - 2 and later.at_once:
            stages[number] = replace(stage, depth=0)  # the next stage takes its results at once
            stages[-1] = replace(later, depth=ahead + (not stage.begins))
        else:
            stages[number] = replace(stage, depth=ahead - later.begins)
    return [replace(stage, tasks=_most_tasks(stage, ahead)) for stage in stages]


def _most_tasks(stage: Stage, ahead: int) -> int:
    if stage.at_once:
        return ahead + 1
    # besides waiting tasks, one is in progress if the next is started early
    return max(1, stage.depth + (stage.begins and stage.depth > 0))
