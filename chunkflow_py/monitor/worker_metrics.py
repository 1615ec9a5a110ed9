"""Prometheus metrics of a worker, and the server that exposes them.

docs/progress.md lists the names and meanings of the metrics. The server answers in the Prometheus
text format 0.0.4, or in OpenMetrics if the client accepts this format. The module prometheus_client
is imported only if metrics are enabled.
"""

from __future__ import annotations

import math
from contextlib import contextmanager
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, get_args

from chunkflow_py.core.geometry import Region
from chunkflow_py.errors import OptionError, needs_extra
from chunkflow_py.monitor.worker_health import WorkerHealth
from chunkflow_py.run.ledger.ledger_record import CAUSES, REFUSED_PARTS, FailureKind
from chunkflow_py.store.network_reach import asks_loopback, is_loopback

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from chunkflow_py.run.ledger.ledger_record import FailedAttempt, Record
    from chunkflow_py.run.worker.supervisor import WorkerSnapshot
    from chunkflow_py.run.worker.worker_pool import ProcessSnapshot

# Upper bounds for the seconds of one operator on one task: from a crop to an hour of inference.
BUCKETS = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000, 3000)


class Metrics:
    """The Prometheus metrics of one worker; other threads may read the metrics at any time.

    Args:
        run: address of the run, which must not contain secrets.
        worker: name of the worker.

    Raises:
        MissingExtraError: prometheus_client is not installed.
    """

    def __init__(self, run: str, worker: str) -> None:
        """Create all metrics, with the value zero."""
        with needs_extra("metrics", "--metrics-port"):
            import prometheus_client as prometheus
        disable: Any = prometheus.disable_created_metrics  # unused time series
        disable()
        self.registry = prometheus.CollectorRegistry()
        self.health = WorkerHealth()
        kept: dict[str, Any] = {"registry": self.registry, "namespace": "chunkflow"}
        counter, gauge, histogram = prometheus.Counter, prometheus.Gauge, prometheus.Histogram
        self._info = prometheus.Info("worker", "Run, name and version of the worker.", **kept)
        self._worker = worker
        self.run_started(run)
        stage = ["stage"]
        self._planned = gauge("stage_tasks", "Number of tasks of the step.", stage, **kept)
        self._tasks = counter(
            "tasks", "Number of tasks that this worker has recorded.", ["stage", "outcome"], **kept
        )
        self._failures = counter(
            "failures", "Number of failed attempts of this worker.", ["stage", "kind"], **kept
        )
        self._causes = counter(
            "failure_causes",
            "Number of failed attempts of this worker, by cause.",
            ["stage", "cause"],
            **kept,
        )
        self._seconds = histogram(
            "operator_seconds",
            "Seconds that an operator took for a recorded task.",
            ["stage", "operator"],
            buckets=BUCKETS,
            **kept,
        )
        self._voxels = counter(
            "voxels", "Number of voxels in the boxes of recorded tasks.", stage, **kept
        )
        self._written = counter(
            "written_bytes", "Number of bytes that recorded tasks have stored.", stage, **kept
        )
        self._read = counter(
            "read_bytes",
            "Number of stored bytes that loaders have read; some loaders do not count them.",
            stage,
            **kept,
        )
        self._patches = counter(
            "patches",
            "Number of patches that networks have computed, or found in the exchange of the run.",
            ["stage", "source"],
            **kept,
        )
        self._refused = counter(
            "parts_refused",
            "Number of stored parts of patches that could not be used.",
            ["stage", "reason"],
            **kept,
        )
        self._exchanged = counter(
            "exchange_bytes",
            "Number of bytes that were written to or read from the exchange of patches.",
            ["stage", "direction"],
            **kept,
        )
        self._network = counter(
            "network_seconds",
            "Seconds during which networks ran, added up over processes.",
            stage,
            **kept,
        )
        self._ready = counter(
            "process_seconds",
            "Seconds during which processes could take tasks, added up over processes.",
            stage,
            **kept,
        )
        self._leases = gauge("leases_held", "Number of leases that the worker holds.", **kept)
        self._renewed = counter(
            "leases_renewed", "Number of times that the worker has renewed a lease.", **kept
        )
        self._lost = counter("leases_lost", "Number of leases that the worker has lost.", **kept)
        self._visible = gauge(
            "queue_visible",
            "Number of waiting messages at the last query of the queue; NaN before the first "
            "query.",
            **kept,
        )
        self._in_flight = gauge(
            "queue_in_flight",
            "Number of messages that any worker had leased at the last query of the queue.",
            **kept,
        )
        for each in (self._visible, self._in_flight):
            each.set(math.nan)
        self._processes = gauge("processes", "Number of processes that can take tasks.", **kept)
        process = ["process"]
        self._memory = gauge(
            "process_memory_bytes", "Host memory that a process uses, bytes.", process, **kept
        )
        self._begun = gauge(
            "process_tasks",
            "Number of tasks that a process has begun and not ended.",
            process,
            **kept,
        )
        gpu = ["gpu"]
        self._busy = gauge(
            "gpu_busy_ratio", "Share of the time during which a kernel ran on the GPU.", gpu, **kept
        )
        self._gpu_memory = gauge(
            "gpu_memory_bytes", "Memory of the GPU in use, bytes.", gpu, **kept
        )
        self._stage = ""
        self._counted: dict[int, tuple[float, float, float]] = {}  # process id -> its last totals
        self._leases_of_stage = (0, 0)  # renewed, lost

    # --- events of the worker ----------------------------------------------------------------

    def run_started(self, run: str) -> None:
        """Set the address of the run that the worker works on."""
        values = {"run": run, "worker": self._worker, "version": version("chunkflow_py")}
        self._info.info(values)

    def stage_started(self, stage: str, tasks: int) -> None:
        """Start to count for the step *stage*, which has *tasks* tasks."""
        self._stage = stage
        self._planned.labels(stage).set(tasks)
        for outcome in ("done", "skipped", "given up"):
            self._tasks.labels(stage, outcome)
        for kind in get_args(FailureKind):
            self._failures.labels(stage, kind)
        for cause in CAUSES:
            self._causes.labels(stage, cause)
        for each, names in self._patch_counters():
            for name in names:
                each.labels(stage, name)
        for each in (self._voxels, self._written, self._read, self._network, self._ready):
            each.labels(stage)
        self._leases_of_stage = (0, 0)

    def task_ended(self, record: Record) -> None:
        """Count a task that has ended, after its *record* was written to the ledger."""
        outcome = "given up" if record.state == "dead" else record.state
        self._tasks.labels(self._stage, outcome).inc()
        if record.state == "dead":
            return
        for operator, seconds in record.seconds.items():
            self._seconds.labels(self._stage, operator).observe(seconds)
        self._voxels.labels(self._stage).inc(Region.parse(record.box).bbox.size.product())
        self._written.labels(self._stage).inc(record.stored_bytes)
        for counter, names in self._patch_counters():
            for label, name in names.items():
                counter.labels(self._stage, label).inc(record.patches.get(name, 0))

    def _patch_counters(self) -> Iterator[tuple[Any, dict[str, str]]]:
        # Each counter has its labels, and for each label the name of the count in a record.
        yield self._patches, {"computed": "computed", "found": "found"}
        yield self._refused, {name: name for name in REFUSED_PARTS}
        yield self._exchanged, {"read": "read_bytes", "written": "written_bytes"}

    def task_failed(self, failure: FailedAttempt) -> None:
        """Count a failed attempt."""
        self._failures.labels(self._stage, failure.kind).inc()
        if failure.cause is not None:
            self._causes.labels(self._stage, failure.cause).inc()

    def update(self, snapshot: WorkerSnapshot) -> None:
        """Update the metrics of leases, queue and processes from a snapshot of the worker."""
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
        """Set the metrics of GPUs.

        Args:
            found: for each GPU: its number, the share of time in which it is busy (``None`` if
                unknown), and its used memory in bytes.
        """
        for number, busy, used in found:
            self._busy.labels(number).set(math.nan if busy is None else busy)
            self._gpu_memory.labels(number).set(used)

    def _count(self, process: ProcessSnapshot) -> None:
        # Counters grow by the difference to the previous snapshot of the process.
        now = (process.read_bytes, process.network_seconds or 0.0, process.seconds or 0.0)
        before = self._counted.get(process.pid, (0.0, 0.0, 0.0))
        self._counted[process.pid] = now
        counters = (self._read, self._network, self._ready)
        for counter, new, old in zip(counters, now, before, strict=True):
            counter.labels(self._stage).inc(max(0.0, new - old))

    # --- the server --------------------------------------------------------------------------

    @contextmanager
    def served(self, port: int, address: str = "127.0.0.1") -> Iterator[str]:
        """Serve the metrics while the context is open, and yield the URL of the metrics.

        The server also answers ``/health``; see `worker_health`.

        On a loopback address, the server answers only requests to loopback host names, as a
        protection against DNS rebinding.

        Args:
            port: port to listen on; 0 selects a free port.
            address: address to listen on; with 127.0.0.1, only this machine can connect.

        Raises:
            OptionError: the server cannot listen on the port; the message names port and address.
        """
        from prometheus_client import start_http_server

        try:
            server, thread = start_http_server(port, address, self.registry)
        except OSError as error:
            msg = (
                f"cannot listen on --metrics-port {port} of {address}: {error}; give another port, "
                "or --metrics-port 0 to use any free port"
            )
            raise OptionError(msg) from error
        page = self.health.served_with(server.get_app())
        server.set_app(_private(page) if is_loopback(address) else page)
        try:
            host = f"[{address}]" if ":" in address else address
            yield f"http://{host}:{server.server_port}/metrics"
        finally:
            server.shutdown()
            server.server_close()
            thread.join()


def _private(page: Any) -> Any:
    """Return a WSGI application that calls the application *page* only for loopback host names."""

    def answer(environ: dict[str, Any], start: Any) -> Any:
        if asks_loopback(environ.get("HTTP_HOST", "")):
            return page(environ, start)
        start("403 Forbidden", [("Content-Type", "text/plain")])
        return [b"this server does not answer to this host name; use 127.0.0.1 or localhost\n"]

    return answer
