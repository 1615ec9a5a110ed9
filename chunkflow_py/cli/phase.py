"""Run a pipeline for a subcommand such as convert: show progress, and list the failed tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from chunkflow_py.core.processors import usable_cores
from chunkflow_py.errors import ChunkflowError
from chunkflow_py.pipeline.terminal import echo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from chunkflow_py.cli.progress_report import PipelineReport
    from chunkflow_py.core.task import Task
    from chunkflow_py.pipeline.pipeline import Pipeline
    from chunkflow_py.run.worker.worker_pool import ProcessSnapshot

_MOST_SHOWN = 20  # failures to print


def run_phase(
    make: Callable[..., Pipeline],
    description: str,
    *,
    processes: int = 1,
    at_end: Callable[[int, int, int], None] | None = None,
) -> None:
    """Run a pipeline on all its tasks, even if some of the tasks fail.

    Args:
        make: function that returns the pipeline. Its parameters are ``ahead``, ``listener`` and
            ``dry_run``. If *processes* is greater than 1, the function must be picklable.
        description: what the pipeline does, for messages, such as ``converting em``.
        processes: number of processes that run the tasks; 1 means that this process runs the tasks.
        at_end: function to call at the end; its arguments are the numbers of done tasks, skipped
            tasks and all tasks. A dry run does not call the function.

    Raises:
        ChunkflowError: tasks failed; the errors of the first 20 are printed on stderr.
    """
    from chunkflow_py.cli.progress_report import PipelineReport

    options: dict[str, Any] = click.get_current_context().find_root().params
    verbose, progress = options["verbose"], options["progress"]
    report = PipelineReport(
        show_progress=False if progress is None and not verbose else progress, show_table=verbose
    )
    pipeline = make(ahead=options["ahead"], listener=report, dry_run=options["dry_run"])
    failed = 0
    try:
        for task in _failures(pipeline, make, processes, report):
            failed += 1
            if failed <= _MOST_SHOWN:
                echo(f"Error: {task.outcome}", err=True)
            elif failed == _MOST_SHOWN + 1:
                echo(f"Error: more tasks failed; only the first {_MOST_SHOWN} are listed", err=True)
    finally:
        progress = report.progress
        if at_end is not None and progress.total is not None and not pipeline.dry_run:
            at_end(progress.done, progress.skipped, progress.total)
    if failed:
        msg = (
            f"{description}: {failed} of {report.total} tasks failed, and the others are done; fix "
            "the cause and run the same command again"
        )
        raise ChunkflowError(msg)


def _failures(
    pipeline: Pipeline, make: Callable[..., Pipeline], processes: int, report: PipelineReport
) -> Iterator[Task]:
    if processes == 1 or pipeline.dry_run:
        from chunkflow_py.run.whole_volume import run_all

        return run_all(pipeline)
    from chunkflow_py.run.phase_processes import run_in_processes

    def seen(snapshots: Sequence[ProcessSnapshot]) -> None:
        report.progress.processes = snapshots

    ahead = click.get_current_context().find_root().params["ahead"]
    threads = threads_of(None, processes)
    return run_in_processes(make, pipeline, processes, ahead=ahead, threads=threads, seen=seen)


def threads_of(parallel: int | None, processes: int) -> int | None:
    """Return the number of threads that each process may use; ``None`` means one per core.

    Args:
        parallel: value of the option ``--parallel``. If the option is not given (``None``), several
            processes divide the cores equally, and a single process uses all cores.
        processes: number of processes.
    """
    if parallel is not None or processes == 1:
        return parallel
    return max(1, usable_cores() // processes)
