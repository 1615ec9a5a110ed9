"""The pipeline of a run, as workers make it, which writes down what its network and exchange do."""

from __future__ import annotations

import json
import os
from pathlib import Path
from time import perf_counter, thread_time
from typing import TYPE_CHECKING, Any

from measure import memory_bytes

from chunkflow_py.cli.run_pipelines import pipeline_of_step
from chunkflow_py.inference import patch_exchange
from chunkflow_py.inference.inferencer import Inferencer

if TYPE_CHECKING:
    from collections.abc import Callable

    from chunkflow_py.core.task import Task
    from chunkflow_py.pipeline.operator import Operator
    from chunkflow_py.pipeline.pipeline import Pipeline
    from chunkflow_py.run.worker.worker import PipelineSource
    from chunkflow_py.run.worker.worker_process import TaskFeed

# What is timed of the exchange: what for, owner and name of the function.
TIMED = (
    ("digests of inputs", patch_exchange.TaskExchange, "key"),
    ("look-ups", patch_exchange.TaskExchange, "find"),
    ("copies", patch_exchange.TaskExchange, "keep"),
    ("reading", patch_exchange.PatchExchange, "read"),
    ("packing", patch_exchange, "packed"),
)


def watched_line(folder: str, line: PipelineSource, feed: TaskFeed) -> Pipeline:
    """Return the pipeline; what it has done goes to a file of this process at its end.

    Args:
        folder: for the file, JSON: ``begun`` and ``ended``, seconds of the monotonic clock, of the
            first and the last operator; ``forward_s``, ``patches``, ``found`` (patches of other
            tasks); ``exchange_s``: for each part of `TIMED`, seconds of wall time and of processor
            time; ``exchanged_bytes``: of the objects that were ``written`` and ``read``;
            ``peak_bytes``.
        line: of a step with one network.
        feed: its tasks.
    """
    report: dict[str, Any] = {"exchange_s": {what: [0.0, 0.0] for what, _, _ in TIMED}}
    for what, owner, name in TIMED:
        _watch(owner, name, report["exchange_s"][what])
    report["exchanged_bytes"] = exchanged = {"written": 0, "read": 0}
    _count_bytes(exchanged)
    pipeline = pipeline_of_step(line, feed)
    for operator in pipeline.operators:
        _note_times(operator, report)
    leave = Inferencer.__exit__

    def left(inferencer: Inferencer, *error: object) -> None:
        engine = inferencer.engine
        if engine is not None:
            report.update(
                forward_s=engine.forward_seconds,
                patches=engine.patches_run,
                found=engine.patches_found,
                peak_bytes=memory_bytes("VmHWM"),
            )
            Path(folder, f"{os.getpid()}.json").write_text(json.dumps(report))
        leave(inferencer, *error)

    patched: Any = Inferencer
    patched.__exit__ = left
    return pipeline


def _watch(owner: Any, name: str, seconds: list[float]) -> None:
    """Add wall time and processor time of each call of a function to *seconds*."""
    call: Callable[..., Any] = getattr(owner, name)

    def timed(*arguments: Any, **options: Any) -> Any:
        start, cpu = perf_counter(), thread_time()
        try:
            return call(*arguments, **options)
        finally:
            seconds[0] += perf_counter() - start
            seconds[1] += thread_time() - cpu

    setattr(owner, name, timed)


def _count_bytes(exchanged: dict[str, int]) -> None:
    """Add the sizes of the objects that are packed to be written, and of those that are read."""
    module: Any = patch_exchange
    pack, unpack = module.packed, module.PackedParts.__init__

    def packed(*arguments: Any) -> bytes:
        content: bytes = pack(*arguments)
        exchanged["written"] += len(content)
        return content

    def unpacked(self: Any, content: bytes, *arguments: Any) -> None:
        exchanged["read"] += len(content)
        unpack(self, content, *arguments)

    module.packed, module.PackedParts.__init__ = packed, unpacked


def _note_times(operator: Operator, report: dict[str, Any]) -> None:
    """Note when the operator has first begun, and when it has last ended."""
    call = operator.call

    def timed(task: Task) -> Task:
        report.setdefault("begun", perf_counter())
        result = call(task)
        report["ended"] = perf_counter()
        return result

    operator.call = timed
