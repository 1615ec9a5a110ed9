"""The order in which the tasks of a step are sent to workers.

Neighbouring tasks share patches (`chunkflow_py.inference.patch_exchange`). If one task has already
computed a shared patch, its neighbour uses the result. How often this happens depends on the order:

* In raster order, tasks are sent in the order of the plan.
* In checkerboard order, tasks that are sent at about the same time are not neighbours
  (`chunkflow_py.tasks.checkerboard`).

The numbers of the tasks, the plan and the hashes of the steps do not depend on the order. A queue
may deliver tasks in any order. The order is stored in the run directory, because workers send the
tasks of later steps:

```
<run>/stages/<step>/order.json     exists if tasks are sent in checkerboard order
```
"""

from __future__ import annotations

import json
import logging
from contextlib import suppress
from typing import TYPE_CHECKING

from chunkflow_py.core import strict_json
from chunkflow_py.core.outline import BoxIndex
from chunkflow_py.errors import ChunkflowError, GeometryError
from chunkflow_py.inference.shared_patches import too_small
from chunkflow_py.tasks.checkerboard import CHECKERBOARD, checkerboard, obstacle

if TYPE_CHECKING:
    from collections.abc import Iterable

    from chunkflow_py.pipeline.operator import Operator
    from chunkflow_py.run.run_directory import RunDirectory
    from chunkflow_py.run.step_pipeline import StepPipeline

logger = logging.getLogger(__name__)

_LONGEST = 4096  # bytes of a stored order
_MOST_WORKERS = 10**9


def set_sending_order(run: RunDirectory, step: StepPipeline, exchange: str, workers: int) -> None:
    """Choose the order in which the tasks of a step are sent, store it, and log it.

    The option ``generate-tasks --order`` sets the order. Without this option, tasks that exchange
    patches are sent in checkerboard order if *workers* is above 1. In raster order, several workers
    would compute the same patch at the same time, and could need up to twice the network time.

    A single worker computes each patch once in any order, and receives tasks in raster order. In
    raster order, the cache of the worker already contains about 40 % of the blocks that a task
    reads. In checkerboard order, the worker must read these blocks again. With several workers, the
    cache matters less than the number of computed patches, because a worker reads blocks while the
    network runs.

    Args:
        run: run directory, which contains the spec.
        step: checked pipeline of the step.
        exchange: mode of the exchange of patches (`ExchangeSettings.mode`); ``off`` if tasks
            exchange no patches.
        workers: number of worker processes that are expected to work at the same time.
    """
    key, order = _key(step.name), step.source.options.get("order")
    if order is None and _exchanges_patches(step, exchange):
        if workers > 1:
            order = CHECKERBOARD
            logger.info(
                "step %s: tasks are sent in checkerboard order, for %d worker processes "
                "(--workers), so that each shared patch is computed once",
                step.name,
                workers,
            )
        else:
            logger.info(
                "step %s: tasks are sent in raster order, because one worker process computes each "
                "shared patch once in any order",
                step.name,
            )
    if order == CHECKERBOARD and (reason := obstacle(step.plan)):
        order = None
        logger.info(
            "step %s: tasks are sent in raster order, not in checkerboard order: %s",
            step.name,
            reason,
        )
    if order == CHECKERBOARD:
        content = json.dumps({"order": CHECKERBOARD, "workers": workers})
        run.store.put(key, content.encode())
    else:
        run.store.delete(key)


def tasks_in_order(run: RunDirectory, step: str) -> Iterable[int]:
    """Return the numbers of all tasks of a step in the order in which they are sent.

    If the stored order cannot be read, the order of the plan is used.
    """
    plan = run.plan(step)
    with suppress(ChunkflowError, ValueError, KeyError, TypeError):
        content = run.store.get(_key(step), _LONGEST)
        stored = {"order": ""} if content is None else strict_json.loads(content)
        if stored["order"] == CHECKERBOARD and type(stored["workers"]) is int:
            return checkerboard(plan, min(max(1, stored["workers"]), _MOST_WORKERS))
    return plan


def _key(step: str) -> str:
    return f"stages/{step}/order.json"


def _exchanges_patches(step: StepPipeline, exchange: str) -> bool:
    if exchange == "off" or step.device_class == "any":
        return False
    return any(map(_shares_patches, step.operators))


def _shares_patches(operator: Operator) -> bool:
    """Return whether an operator runs a network on patches that belong to several tasks.

    Tasks that are smaller than a patch along an axis do not exchange patches.
    """
    placement = operator.hooks.placement
    if placement is None or not operator.hooks.is_local or placement.outline is None:
        return False
    boxes = placement.outline.boxes
    domain = placement.outline.domain or placement.outline.region
    if not boxes or domain is None:
        return False
    box = boxes[len(boxes) // 2]
    patch = placement.settings.geometry.output_patch_size
    if too_small(boxes, patch):
        return False
    try:
        hull = placement.patches(domain).hull(placement.target(box, domain))
    except GeometryError:  # the task computes nothing
        return False
    return any(other != box for _, other in BoxIndex(boxes).touching(hull))
