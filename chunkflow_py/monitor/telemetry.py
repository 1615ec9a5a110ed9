"""Traces and metrics of a worker, exported by OpenTelemetry over OTLP.

Each attempt is a span named ``task``. It has a child span for each operator that processed the
task; an attribute of the child span is the stage of the operator (read, compute or write). The
metrics have the names, labels and values of `chunkflow_py.monitor.worker_metrics`.

The environment variables of OpenTelemetry configure everything: endpoint, headers, sampler, batch
sizes, intervals. Spans are sent in batches by a thread. If the collector does not answer, spans are
dropped, and the worker is not delayed.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from importlib.metadata import version
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from chunkflow_py.errors import needs_extra
from chunkflow_py.monitor.telemetry_settings import exports
from chunkflow_py.run.ledger.ledger_record import FailedAttempt

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from chunkflow_py.run.ledger.ledger_record import Record
    from chunkflow_py.run.worker.task_receiver import OperatorTime

logger = logging.getLogger(__name__)

CLOSE_S = 5.0  # longest time in which the last spans and metrics are sent when the worker ends
_INTERVAL = "OTEL_METRIC_EXPORT_INTERVAL"  # milliseconds
_INTERVAL_S = 60.0
_NAME = "chunkflow_py"
_NS = 1_000_000_000


class Telemetry:
    """Exports spans and metrics of one worker until `close`.

    Args:
        run: address of the run, which must not contain secrets.
        worker: name of the worker.
        registry: registry of the Prometheus metrics of the worker.

    Raises:
        MissingExtraError: the packages of OpenTelemetry are not installed.
    """

    def __init__(self, run: str, worker: str, registry: Any) -> None:
        """Start the threads that send spans and metrics."""
        resource = _resource(run, worker)
        self._tracer: Any = None
        self._provider: Any = None
        self._metrics: _MetricSender | None = None
        if exports("traces"):
            self._provider = _tracer_provider(resource)
            self._tracer = self._provider.get_tracer(_NAME, version(_NAME))
        if exports("metrics"):
            self._metrics = _MetricSender(resource, registry)

    def attempt_ended(
        self, step: str, ended: Record | FailedAttempt, operators: Sequence[OperatorTime]
    ) -> None:
        """Export the span of an attempt that was recorded, and the spans of its operators.

        Args:
            step: name of the step.
            ended: record of the task, or the failed attempt.
            operators: times of the operators; empty if the process of the attempt has died.
        """
        if self._tracer is None:
            return
        from opentelemetry.trace import Status, StatusCode, set_span_in_context

        is_failure = isinstance(ended, FailedAttempt)
        stop = ended.when if isinstance(ended, FailedAttempt) else ended.finished
        lasted_s = (ended.seconds or 0.0) if isinstance(ended, FailedAttempt) else 0.0
        start = min((each.began for each in operators), default=stop - lasted_s)
        stop = max([stop, *(each.began + each.seconds for each in operators)])
        span = self._tracer.start_span("task", start_time=_ns(start))
        span.set_attributes(_attributes(step, ended))
        if is_failure or (not isinstance(ended, FailedAttempt) and ended.state == "dead"):
            span.set_status(Status(StatusCode.ERROR, ended.reason or ""))
        context = set_span_in_context(span)
        for each in operators:
            child = self._tracer.start_span(each.label, context, start_time=_ns(each.began))
            child.set_attribute("chunkflow.operator", each.label)
            child.set_attribute("chunkflow.stage", each.stage)
            child.end(_ns(each.began + each.seconds))
        span.end(_ns(stop))

    def close(self) -> None:
        """Send the remaining spans and metrics; return after at most `CLOSE_S` seconds."""
        thread = threading.Thread(target=self._close, name="telemetry-close", daemon=True)
        thread.start()
        thread.join(CLOSE_S)
        if thread.is_alive():
            logger.warning(
                "the last telemetry was not sent, because the collector did not answer within %g s",
                CLOSE_S,
            )

    def _close(self) -> None:
        if self._metrics is not None:
            self._metrics.close()
        if self._provider is not None:
            self._provider.shutdown()


def _ns(seconds: float) -> int:
    return int(seconds * _NS)


def _attributes(step: str, ended: Record | FailedAttempt) -> dict[str, str | int]:
    values: dict[str, str | int | None] = {
        "chunkflow.step": step,
        "chunkflow.task": ended.number,
        "chunkflow.box": ended.box,
        "chunkflow.attempt": ended.attempt,
    }
    if isinstance(ended, FailedAttempt):
        values |= {"chunkflow.outcome": "failed", "error.type": ended.cause or ended.kind}
    else:
        values |= {
            "chunkflow.outcome": "given up" if ended.state == "dead" else ended.state,
            "chunkflow.written_bytes": ended.stored_bytes,
            "chunkflow.profile": ended.profile,
        }
    return {name: value for name, value in values.items() if value not in (None, "")}


# --- OpenTelemetry --------------------------------------------------------------------------------


def _resource(run: str, worker: str) -> Any:
    """Return the description of this worker; environment variables take precedence."""
    with needs_extra("telemetry", "OTEL_EXPORTER_OTLP_ENDPOINT"):
        from opentelemetry.sdk.resources import Resource
    own = Resource(
        {
            "service.name": "chunkflow",
            "service.version": version(_NAME),
            "service.instance.id": worker,
            "chunkflow.run": run,
        }
    )
    environment = Resource.create()
    if str(environment.attributes.get("service.name", "")).startswith("unknown_service"):
        return environment.merge(own)
    return own.merge(environment)


def _tracer_provider(resource: Any) -> Any:
    with needs_extra("telemetry", "OTEL_EXPORTER_OTLP_ENDPOINT"):
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider


class _MetricSender:
    """Sends the metrics of a Prometheus registry at regular intervals, in its own thread."""

    def __init__(self, resource: Any, registry: Any) -> None:
        with needs_extra("telemetry", "OTEL_EXPORTER_OTLP_ENDPOINT"):
            from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        self._exporter = OTLPMetricExporter()
        self._resource = resource
        self._registry = registry
        self._start = time.time_ns()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="telemetry", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Send the metrics for the last time."""
        self._closed.set()
        self._thread.join()
        self._exporter.shutdown()

    def _run(self) -> None:
        interval_s = _interval_s()
        is_last = False
        while not is_last:
            is_last = self._closed.wait(interval_s)
            try:
                self._send()
            except Exception as error:  # noqa: BLE001  (telemetry must not end a worker)
                logger.warning("metrics cannot be exported: %s", error)

    def _send(self) -> None:
        from opentelemetry.sdk.metrics.export import MetricsData, ResourceMetrics, ScopeMetrics
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope

        scope = InstrumentationScope(_NAME, version(_NAME))
        metrics = list(_metrics(self._registry.collect(), self._start, time.time_ns()))
        whole = ResourceMetrics(self._resource, [ScopeMetrics(scope, metrics, "")], "")
        self._exporter.export(MetricsData([whole]))


def _interval_s() -> float:
    text = os.environ.get(_INTERVAL, "")
    try:
        milliseconds = float(text)
    except ValueError:
        milliseconds = 0.0
    if 0 < milliseconds < math.inf:
        return milliseconds / 1000
    if text:
        logger.warning(
            "%s is %r, which is not a number of milliseconds greater than 0; metrics are sent "
            "every %g s",
            _INTERVAL,
            text,
            _INTERVAL_S,
        )
    return _INTERVAL_S


def _metrics(families: Iterable[Any], start: int, now: int) -> Iterator[Any]:
    """Convert metric families of Prometheus to metrics of OpenTelemetry.

    Args:
        families: metric families of a Prometheus registry.
        start: time at which the worker started, nanoseconds since 1970.
        now: time of the values, nanoseconds since 1970.
    """
    from opentelemetry.sdk.metrics.export import (
        AggregationTemporality,
        Gauge,
        Histogram,
        Metric,
        NumberDataPoint,
        Sum,
    )

    cumulative = AggregationTemporality.CUMULATIVE
    for family in families:
        if family.type == "histogram":
            points = _histogram_points(family.samples, start, now)
            if points:
                data = Histogram(points, cumulative)
                yield Metric(family.name, family.documentation, "", data)
            continue
        numbers = [
            NumberDataPoint(dict(each.labels), start, now, each.value)
            for each in family.samples
            if not math.isnan(each.value)
        ]
        if numbers:
            is_counter = family.type == "counter"
            values = Sum(numbers, cumulative, is_monotonic=True) if is_counter else Gauge(numbers)
            yield Metric(family.samples[0].name, family.documentation, "", values)


def _histogram_points(samples: Iterable[Any], start: int, now: int) -> list[Any]:
    """Return the points of a histogram, one for each set of labels."""
    from opentelemetry.sdk.metrics.export import HistogramDataPoint

    series: dict[tuple[tuple[str, str], ...], dict[str, Any]] = {}
    for each in samples:
        labels = {name: value for name, value in each.labels.items() if name != "le"}
        values = series.setdefault(tuple(sorted(labels.items())), {"buckets": []})
        if each.name.endswith("_bucket"):
            values["buckets"].append((float(each.labels["le"]), int(each.value)))
        else:
            values[each.name.rpartition("_")[2]] = each.value
    points = []
    for labels_of, values in series.items():
        bounds = [bound for bound, _ in values["buckets"] if bound < math.inf]
        below = [0, *(count for _, count in values["buckets"])]  # Prometheus counts cumulatively
        counts = [high - low for low, high in pairwise(below)]
        count, total = int(values["count"]), float(values["sum"])
        # Prometheus knows no extremes; OTLP leaves them out if they are not numbers.
        extremes: Any = None
        point = HistogramDataPoint(
            dict(labels_of), start, now, count, total, counts, bounds, extremes, extremes
        )
        points.append(point)
    return points
