"""What a person, a program and Prometheus see of a worker."""

from __future__ import annotations

import logging
import sys
import threading
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from chunkflow_py.cli.gpu_use import GpuWatch
from chunkflow_py.cli.logs import say_in_all, says_json, tell
from chunkflow_py.cli.report import shows_view, table_lines, task_words
from chunkflow_py.cli.screen import Screen
from chunkflow_py.cli.work_state import WorkState
from chunkflow_py.cli.work_view import work_rows
from chunkflow_py.errors import ChunkflowError
from chunkflow_py.pipeline.terminal import echo
from chunkflow_py.run.home import RunHome
from chunkflow_py.run.worker.settings import Listener
from chunkflow_py.store.address import without_secrets

if TYPE_CHECKING:
    from collections.abc import Callable

    from chunkflow_py.monitor.metrics import Metrics
    from chunkflow_py.run.ledger.record import Failure, Record
    from chunkflow_py.run.worker.looks import WorkerLook
    from chunkflow_py.run.worker.settings import Outcome

logger = logging.getLogger(__name__)

LOOK_S = 0.25
COUNT_S = 60.0  # between two questions to the ledger, which only a terminal is worth


class WorkReport(Listener):
    """Shows what a worker does, on a terminal in one view, else by a line a task.

    Args:
        home: of the run.
        options: ``verbose`` and ``progress`` of the command line; ``worker_name``,
            ``metrics_port`` and ``metrics_address`` of the subcommand.

    Attributes:
        state: of the stage that it is at.
    """

    def __init__(self, home: RunHome, options: dict[str, Any]) -> None:
        """Show nothing yet."""
        progress, self._verbose = options["progress"], options["verbose"]
        self._shows_progress = self._verbose if progress is None else progress
        self._home, self._worker = home, options["worker_name"]
        self._port, self._address = options["metrics_port"], options["metrics_address"]
        self.state = WorkState()
        self._gpu = GpuWatch()
        self._metrics: Metrics | None = None
        self._look_at = 0.0
        self._all = ExitStack()  # of the whole run
        self._shown = ExitStack()  # of a stage

    def __enter__(self) -> WorkReport:
        """Serve metrics, if they were asked for.

        Raises:
            OptionError: they cannot be.
            MissingExtraError: what makes them is not installed.
        """
        run = without_secrets(self._home.url)
        say_in_all(run=run, worker=self._worker)
        if self._port is not None:
            from chunkflow_py.monitor.metrics import Metrics

            self._metrics = Metrics(run, self._worker)
            url = self._all.enter_context(self._metrics.served(self._port, self._address))
            tell(logger, logging.INFO, "metrics_served", f"metrics are at {url}", url=url)
        if self._metrics is not None or shows_view(self._shows_progress):
            self._all.enter_context(self._gpu)
        return self

    def __exit__(self, *_: object) -> None:
        """Leave nothing of the view, and serve no more."""
        self._shown.close()
        self._all.close()

    # --- what it is told -------------------------------------------------------------------------

    def stage_started(self, stage: str, tasks: int) -> None:
        """Begin a view."""
        self.state = state = WorkState(stage, tasks)
        say_in_all(stage=stage)
        tell(logger, logging.INFO, "stage_started", tasks=tasks)
        if self._metrics is not None:
            self._metrics.stage_started(stage, tasks)
        if shows_view(self._shows_progress):
            counting = _Counting(self._home.address, state)
            self._shown.callback(counting.stop)
            counting.start()
            self._shown.enter_context(Screen(sys.stderr, lambda: work_rows(state, self._gpu)))

    def child_ready(self, number: int, profile: dict[str, str] | None) -> None:
        """Say so."""
        tell(logger, logging.INFO, "process_ready", process=number, profile=profile)

    def task_ended(self, record: Record) -> None:
        """Count the task, and say so."""
        voxels = self.state.task_ended(record)
        if self._metrics is not None:
            self._metrics.task_ended(record)
        if record.state == "dead":  # which was told when it was given up
            return
        words = ""
        if self._shows_progress and not shows_view(is_wanted=True):
            how = f"skipped: {record.reason}"
            how = how if record.state == "skipped" else task_words(record.seconds, voxels)
            words = f"{record.box}: {how}"
        tell(
            logger,
            logging.INFO,
            "task_finished",
            words,
            task=record.box,
            outcome=record.state,
            reason=record.reason,
            seconds=sum(record.seconds.values()),
            operators=record.seconds,
            voxels=voxels,
            written_bytes=record.stored_bytes,
            attempt=record.attempt,
        )

    def task_failed(self, failure: Failure) -> None:
        """Count it."""
        self.state.failures += 1
        if self._metrics is not None:
            self._metrics.task_failed(failure)

    def may_look(self, look: Callable[[], WorkerLook], *, is_last: bool) -> None:
        """Look, if it is time."""
        now = time.monotonic()
        if now < self._look_at and not is_last:
            return
        self._look_at = now + LOOK_S
        self.state.look = look()
        if self._metrics is not None:
            self._metrics.looked(self.state.look)
            self._metrics.gpus((use.number, use.busy, use.used_bytes) for use in self._gpu.now)

    def stage_ended(self, outcome: Outcome) -> None:
        """Leave nothing of the view, and print the table."""
        self._shown.close()
        state = self.state
        tell(
            logger,
            logging.INFO,
            "stage_finished",
            state=outcome.state,
            done=state.done,
            skipped=state.skipped,
            given_up=state.given_up,
            failures=state.failures,
            tasks=state.tasks,
            seconds=state.elapsed_s,
            operators=state.seconds,
            voxels=state.voxels,
            written_bytes=state.written_bytes,
            outside_network=state.outside_network(),
        )
        if self._verbose and state.seconds and not says_json():
            echo(self.table(), err=True)

    def table(self) -> str:
        """Return where the time of the stage went here: seconds of all processes together."""
        state = self.state
        rows = dict(state.seconds)
        if (outside := state.outside_network()) is not None:
            rows["outside network"] = outside * state.elapsed_s
        counts = (state.ended, state.skipped, state.voxels)
        return "\n".join(table_lines(rows, state.elapsed_s, *counts))


def tell_end(code: int, words: str) -> None:
    """Say how a worker ended: a result if all is well."""
    if code == 0:
        echo(words)
    elif says_json():
        tell(logger, logging.ERROR, "work_stopped", words, code=code)
    else:
        echo(words, err=True)


class _Counting(threading.Thread):
    """Asks the ledger now and then how many tasks all workers have recorded."""

    def __init__(self, address: str, state: WorkState) -> None:
        super().__init__(name="counting", daemon=True)
        self._address, self._state = address, state
        self._ended = threading.Event()

    def run(self) -> None:
        """Ask until it is stopped; what cannot be asked now is asked later."""
        while not self._ended.is_set():
            try:
                ledger = RunHome.parse(self._address).ledger(self._state.stage)
                self._state.recorded(ledger.ended())
            except ChunkflowError as error:
                logger.debug("the ledger cannot be asked for now: %s", error)
            self._ended.wait(COUNT_S)

    def stop(self) -> None:
        """Ask no more."""
        self._ended.set()
