"""Reports of a worker: a progress view on the terminal, log lines, metrics, and telemetry."""

from __future__ import annotations

import logging
import threading
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from chunkflow_py.cli.gpu_use import GpuWatch
from chunkflow_py.cli.logs import add_json_fields, log_event, writes_json
from chunkflow_py.cli.progress import WorkerProgress
from chunkflow_py.cli.progress_report import ProgressReport, table_lines, task_times
from chunkflow_py.errors import ChunkflowError
from chunkflow_py.monitor.telemetry_settings import telemetry_is_on
from chunkflow_py.pipeline.terminal import echo
from chunkflow_py.run.run_directory import RunDirectory
from chunkflow_py.run.worker.supervisor import WorkerListener
from chunkflow_py.store.store_address import without_secrets

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from chunkflow_py.monitor.telemetry import Telemetry
    from chunkflow_py.monitor.worker_metrics import Metrics
    from chunkflow_py.run.ledger.ledger_record import FailedAttempt, Record
    from chunkflow_py.run.worker.supervisor import WorkerOutcome, WorkerSnapshot
    from chunkflow_py.run.worker.task_receiver import OperatorTime

logger = logging.getLogger(__name__)

SNAPSHOT_S = 0.25
LEDGER_S = 60.0  # between two reads of the ledger, which are made for a terminal only


class WorkerReport(ProgressReport, WorkerListener):
    """Report the progress of a worker, and serve its metrics.

    Args:
        run_directory: run directory whose tasks the worker executes; ``None`` if the worker serves
            several runs and has not started the first of them.
        options: values of the global options ``verbose`` and ``progress``, and of the subcommand's
            options ``worker_name``, ``metrics_port`` and ``metrics_address``.

    Attributes:
        progress: counts and speeds of the current step.
    """

    def __init__(self, run_directory: RunDirectory | None, options: dict[str, Any]) -> None:
        is_verbose, progress = options["verbose"], options["progress"]
        super().__init__(
            show_progress=is_verbose if progress is None else progress, show_table=is_verbose
        )
        self._run_directory, self._worker = run_directory, options["worker_name"]
        self._port, self._address = options["metrics_port"], options["metrics_address"]
        self.progress = WorkerProgress()
        self._gpu = GpuWatch()
        self._metrics: Metrics | None = None
        self._telemetry: Telemetry | None = None
        self._next_snapshot = 0.0
        self._run = ExitStack()  # open for the whole run; self._shown for a step

    def __enter__(self) -> WorkerReport:
        """Start the metrics server if a port is given, and telemetry if OTEL_… variables are set.

        Raises:
            OptionError: the port cannot be used, for example because another program uses it.
            MissingExtraError: prometheus_client is not installed.
        """
        run = "" if self._run_directory is None else without_secrets(self._run_directory.url)
        add_json_fields(run=run, worker=self._worker)
        exports = telemetry_is_on()
        if self._port is not None or exports:
            from chunkflow_py.monitor.worker_metrics import Metrics

            self._metrics = Metrics(run, self._worker)
        if exports and self._metrics is not None:
            from chunkflow_py.monitor.telemetry import Telemetry

            self._telemetry = Telemetry(run, self._worker, self._metrics.registry)
            self._run.callback(self._telemetry.close)
        if self._port is not None and self._metrics is not None:
            url = self._run.enter_context(self._metrics.served(self._port, self._address))
            log_event(logger, logging.INFO, "metrics_served", f"metrics are at {url}", url=url)
        if self._metrics is not None or self.shows_view:
            self._run.enter_context(self._gpu)
        return self

    def __exit__(self, *_: object) -> None:
        """Erase the progress view, and stop the metrics server."""
        self._shown.close()
        self._run.close()

    def run_started(self, run_directory: RunDirectory) -> None:
        """Name the run in log lines and metrics."""
        self._run_directory = run_directory
        add_json_fields(run=run_directory.shown)
        if self._metrics is not None:
            self._metrics.run_started(run_directory.shown)

    def stage_started(self, stage: str, tasks: int) -> None:
        """Show the progress view of a step that begins."""
        self.progress = WorkerProgress(stage, tasks)
        add_json_fields(stage=stage)
        log_event(logger, logging.INFO, "stage_started", tasks=tasks)
        if self._metrics is not None:
            self._metrics.stage_started(stage, tasks)
        if self.shows_view and self._run_directory is not None:
            reader = _LedgerReader(self._run_directory.address, self.progress)
            self._shown.callback(reader.stop)
            reader.start()
            self._show(self.progress, self._gpu)

    def process_ready(self, number: int, profile: dict[str, str] | None) -> None:
        """Log that a worker process is ready, with its backend, device, threads and precision."""
        log_event(logger, logging.INFO, "process_ready", process=number, profile=profile)

    def task_ended(self, record: Record) -> None:
        """Count a task whose outcome was recorded, and log the outcome."""
        voxels = self.progress.task_ended(record)
        if self._metrics is not None:
            self._metrics.task_ended(record)
        if record.state == "dead":  # logged when it was given up
            return
        text = ""
        if self.shows_tasks:
            is_skipped = record.state == "skipped"
            how = f"skipped: {record.reason}" if is_skipped else task_times(record.seconds, voxels)
            text = f"{record.box}: {how}"
        log_event(
            logger,
            logging.INFO,
            "task_finished",
            text,
            task=record.box,
            outcome=record.state,
            reason=record.reason,
            seconds=sum(record.seconds.values()),
            operators=record.seconds,
            voxels=voxels,
            written_bytes=record.stored_bytes,
            attempt=record.attempt,
        )

    def task_failed(self, failure: FailedAttempt) -> None:
        """Count a failed attempt of a task."""
        self.progress.failures += 1
        if self._metrics is not None:
            self._metrics.task_failed(failure)

    def attempt_ended(
        self, ended: Record | FailedAttempt, operators: Sequence[OperatorTime]
    ) -> None:
        """Export the times of the attempt as an OpenTelemetry span, if telemetry is on."""
        if self._telemetry is not None:
            self._telemetry.attempt_ended(self.progress.step, ended, operators)

    def may_observe(self, snapshot: Callable[[], WorkerSnapshot], *, is_last: bool) -> None:
        """Update view and metrics with a new snapshot of the worker, at most every `SNAPSHOT_S` s.

        If *is_last* is true, the worker ends. The view and the metrics are then updated even if
        the previous snapshot is recent.
        """
        if self._metrics is not None:
            self._metrics.health.tick()
        now = time.monotonic()
        if now < self._next_snapshot and not is_last:
            return
        self._next_snapshot = now + SNAPSHOT_S
        self.progress.snapshot = snapshot()
        if self._metrics is not None:
            self._metrics.update(self.progress.snapshot)
            self._metrics.gpus((use.number, use.busy, use.used_bytes) for use in self._gpu.now)

    def stage_ended(self, outcome: WorkerOutcome) -> None:
        """Erase the progress view, and print the table of times of the step."""
        if self._metrics is not None:
            self._metrics.health.rest()
        progress = self.progress
        self._report_end(
            "stage_finished",
            progress,
            shows_table=self.show_table and bool(progress.seconds),
            state=outcome.state,
            given_up=progress.failed,
            failures=progress.failures,
            written_bytes=progress.written_bytes,
            outside_network=progress.outside_network(),
        )

    def table(self) -> str:
        """Return a table of the seconds of each operator, summed over all worker processes."""
        progress = self.progress
        rows = dict(progress.seconds)
        if (outside := progress.outside_network()) is not None:
            rows["outside network"] = outside * progress.elapsed_s
        return "\n".join(table_lines(rows, progress))


def report_exit(code: int, text: str) -> None:
    """Print *text*, the reason why a worker ended, to stdout if *code* is 0, else to stderr."""
    if code == 0:
        echo(text)
    elif writes_json():
        log_event(logger, logging.ERROR, "work_stopped", text, code=code)
    else:
        echo(text, err=True)


class _LedgerReader(threading.Thread):
    """Thread that reads the number of recorded tasks of all workers from the ledger."""

    def __init__(self, address: str, progress: WorkerProgress) -> None:
        super().__init__(name="ledger-reader", daemon=True)
        self._address, self._progress = address, progress
        self._ended = threading.Event()

    def run(self) -> None:
        """Read the ledger every `LEDGER_S` s until `stop` is called, even after failed reads."""
        while not self._ended.is_set():
            try:
                ledger = RunDirectory.parse(self._address).ledger(self._progress.step)
                self._progress.recorded(ledger.ended())
            except ChunkflowError as error:
                logger.debug("the ledger could not be read and will be read again: %s", error)
            self._ended.wait(LEDGER_S)

    def stop(self) -> None:
        """Ask the thread to stop, without waiting for its end."""
        self._ended.set()
