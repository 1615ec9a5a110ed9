"""The line of a run, as workers make it, which writes down when each task begins and ends."""

from __future__ import annotations

import os
from array import array
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from chunkflow_py.cli.run_pipelines import pipeline_of_step

if TYPE_CHECKING:
    from collections.abc import Iterator

    from chunkflow_py.core.task import Task
    from chunkflow_py.pipeline.pipeline import Pipeline
    from chunkflow_py.run.worker.worker import PipelineSource
    from chunkflow_py.run.worker.worker_process import TaskFeed


def timed_line(folder: str, line: PipelineSource, feed: TaskFeed) -> Pipeline:
    """Return the line; its times go to a file of this process when there are no more tasks.

    Args:
        folder: for the file: begin and end of each task by the monotonic clock, float64.
        line: of a stage with one operator.
        feed: its tasks.
    """
    pipeline = pipeline_of_step(line, feed)
    times = array("d")
    (stage,) = pipeline.operators
    call, run = stage.call, pipeline.run

    def timed(task: Task) -> Task:
        begun = monotonic()
        result = call(task)
        times.extend((begun, monotonic()))
        return result

    def run_and_save() -> Iterator[Task]:
        yield from run()
        Path(folder, str(os.getpid())).write_bytes(times.tobytes())

    stage.call = timed
    whole: Any = pipeline
    whole.run = run_and_save
    return pipeline


def read_times(folder: str) -> list[list[tuple[float, float]]]:
    """Return what `timed_line` has written: for each process begin and end of its tasks."""
    result = []
    for path in sorted(Path(folder).iterdir()):
        times = array("d", path.read_bytes())
        result.append(list(zip(times[::2], times[1::2], strict=True)))
    return result
