"""Prometheus metrics of a worker: counters and their server.

Names and meanings: docs/progress.md. The response has text format 0.0.4, or OpenMetrics if
the client accepts it. prometheus_client makes it, and is imported only if metrics are enabled.
"""

from __future__ import annotations

import math
from contextlib import contextmanager
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, get_args

from chunkflow_py.core.geometry import Region
from chunkflow_py.errors import OptionError, needs_extra
from chunkflow_py.run.ledger.ledger_record import FailureKind
from chunkflow_py.store.network_reach import asks_loopback, is_loopback

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from chunkflow_py.run.ledger.ledger_record import FailedAttempt, Record
    from chunkflow_py.run.worker.supervisor import WorkerSnapshot
    from chunkflow_py.run.worker.worker_pool import ProcessSnapshot

# Seconds of one operator on one task: from a crop to an hour of inference.
BUCKETS = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000, 3000)


class Metrics:
    """The counters of one worker; safe to read from other threads.

    Args:
        run: address of the run, without secrets.
        worker: its name.

    Raises:
        MissingExtraError: prometheus_client is not installed.
    """

    def __init__(self, run: str, worker: str) -> None:
        """Create the metrics at zero."""
        with needs_extra("metrics", "--metrics-port"):
            import prometheus_client as prometheus
        disable: Any = prometheus.disable_created_metrics  # series that nobody would read
        disable()
        self.registry = prometheus.CollectorRegistry()
        kept: dict[str, Any] = {"registry": self.registry, "namespace": "chunkflow"}
        counter, gauge, histogram = prometheus.Counter, prometheus.Gauge, prometheus.Histogram
        info = prometheus.Info("worker", "Who this is.", **kept)
        info.info({"run": run, "worker": worker, "version": version("chunkflow_py")})
        stage = ["stage"]
        self._planned = gauge("stage_tasks", "Tasks of the stage in all.", stage, **kept)
        self._tasks = counter(
            "tasks", "Tasks that this worker has recorded.", ["stage", "outcome"], **kept
        )
        self._failures = counter("failures", "Attempts that failed.", ["stage", "kind"], **kept)
        self._seconds = histogram(
            "operator_seconds",
            "Seconds of one operator on one task.",
            ["stage", "operator"],
            buckets=BUCKETS,
            **kept,
        )
        self._voxels = counter("voxels", "Voxels of the boxes of recorded tasks.", stage, **kept)
        self._written = counter(
            "written_bytes", "Bytes that recorded tasks have stored.", stage, **kept
        )
        self._read = counter(
            "read_bytes", "Bytes that loaders have fetched, as stored.", stage, **kept
        )
        self._network = counter(
            "network_seconds", "Seconds in which the networks of all processes ran.", stage, **kept
        )
        self._ready = counter(
            "process_seconds", "Seconds in which processes could take tasks.", stage, **kept
        )
        self._leases = gauge("leases_held", "Leases of messages that it keeps.", **kept)
        self._renewed = counter("leases_renewed", "Renewals of leases.", **kept)
        self._lost = counter("leases_lost", "Leases that were lost.", **kept)
        self._visible = gauge(
            "queue_visible",
            "Messages that wait, when the queue was last asked; NaN before.",
            **kept,
        )
        self._in_flight = gauge(
            "queue_in_flight", "Messages leased by anybody, when it was last asked.", **kept
        )
        for each in (self._visible, self._in_flight):
            each.set(math.nan)
        self._processes = gauge("processes", "Processes that can take tasks.", **kept)
        process = ["process"]
        self._memory = gauge("process_memory_bytes", "Host memory of a process.", process, **kept)
        self._begun = gauge("process_tasks", "Tasks that a process has begun.", process, **kept)
        gpu = ["gpu"]
        self._busy = gauge("gpu_busy_ratio", "Share of time in which a kernel ran.", gpu, **kept)
        self._gpu_memory = gauge("gpu_memory_bytes", "Memory of the GPU in use.", gpu, **kept)
        self._stage = ""
        self._counted: dict[int, tuple[float, float, float]] = {}  # process id -> its last totals
        self._leases_of_stage = (0, 0)  # renewed, lost

    # --- events of the worker ----------------------------------------------------------------

    def stage_started(self, stage: str, tasks: int) -> None:
        """Start counting for a step of *tasks* tasks."""
        self._stage = stage
        self._planned.labels(stage).set(tasks)
        for outcome in ("done", "skipped", "given up"):
            self._tasks.labels(stage, outcome)
        for kind in get_args(FailureKind):
            self._failures.labels(stage, kind)
        for each in (self._voxels, self._written, self._read, self._network, self._ready):
            each.labels(stage)
        self._leases_of_stage = (0, 0)

    def task_ended(self, record: Record) -> None:
        """Count a task that is recorded."""
        outcome = "given up" if record.state == "dead" else record.state
        self._tasks.labels(self._stage, outcome).inc()
        if record.state == "dead":
            return
        for operator, seconds in record.seconds.items():
            self._seconds.labels(self._stage, operator).observe(seconds)
        self._voxels.labels(self._stage).inc(Region.parse(record.box).bbox.size.product())
        self._written.labels(self._stage).inc(record.stored_bytes)

    def task_failed(self, failure: FailedAttempt) -> None:
        """Count an attempt that failed."""
        self._failures.labels(self._stage, failure.kind).inc()

    def update(self, snapshot: WorkerSnapshot) -> None:
        """Update the metrics by a snapshot of the worker."""
        renewed, lost = self._leases_of_stage
        self._leases_of_stage = snapshot.renewed, snapshot.lost
        self._renewed.inc(snapshot.renewed - renewed)
        self._lost.inc(snapshot.lost - lost)
        self._leases.set(snapshot.leases)
        if snapshot.queued is not None:
            self._visible.set(snapshot.queued.waiting)
            self._in_flight.set(snapshot.queued.leased)
        self._processes.set(sum(process.seconds is not None for process in snapshot.processes))
        for process in snapshot.processes:
            self._memory.labels(process.number).set(process.memory_bytes)
            self._begun.labels(process.number).set(len(process.tasks))
            self._count(process)

    def gpus(self, found: Iterable[tuple[str, float | None, int]]) -> None:
        """Set the GPU gauges: number, share of busy time, bytes in use."""
        for number, busy, used in found:
            self._busy.labels(number).set(math.nan if busy is None else busy)
            self._gpu_memory.labels(number).set(used)

    def _count(self, process: ProcessSnapshot) -> None:
        """Add the progress of a process since the last snapshot; a new process starts at zero."""
        now = (process.read_bytes, process.network_seconds or 0.0, process.seconds or 0.0)
        before = self._counted.get(process.pid, (0.0, 0.0, 0.0))
        self._counted[process.pid] = now
        counters = (self._read, self._network, self._ready)
        for counter, new, old in zip(counters, now, before, strict=True):
            counter.labels(self._stage).inc(max(0.0, new - old))

    # --- the server --------------------------------------------------------------------------

    @contextmanager
    def served(self, port: int, address: str = "127.0.0.1") -> Iterator[str]:
        """Serve the metrics inside of the context, and yield their URL.

        On loopback, only requests to loopback host names are answered (DNS rebinding).

        Args:
            port: to listen on; 0: one that is free.
            address: to listen on; the default can be reached from this machine alone.

        Raises:
            OptionError: the port cannot be listened on; the message names port and address.
        """
        from prometheus_client import start_http_server

        try:
            server, thread = start_http_server(port, address, self.registry)
        except OSError as error:
            msg = (
                f"--metrics-port {port} at {address} cannot be listened on: {error}; choose "
                "another port, or 0 for one that is free"
            )
            raise OptionError(msg) from error
        if is_loopback(address):
            server.set_app(_private(server.get_app()))
        try:
            host = f"[{address}]" if ":" in address else address
            yield f"http://{host}:{server.server_port}/metrics"
        finally:
            server.shutdown()
            server.server_close()
            thread.join()


def _private(page: Any) -> Any:
    """Return a WSGI application that shows *page* only to requests to a loopback host name."""

    def answer(environ: dict[str, Any], start: Any) -> Any:
        if asks_loopback(environ.get("HTTP_HOST", "")):
            return page(environ, start)
        start("403 Forbidden", [("Content-Type", "text/plain")])
        return [b"ask by 127.0.0.1 or localhost\n"]

    return answer
