"""Traces and metrics of a worker, as a receiver of OpenTelemetry gets them."""

from __future__ import annotations

import logging
import os
import shlex
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rigs.command_line import IMAGE, LINE, SAVE, say
from rigs.otlp import otlp_receiver, values

from chunkflow_py.monitor.telemetry_settings import exports, telemetry_is_on
from chunkflow_py.run.run_directory import RunDirectory

# Fails on one task.
PLUGIN = """def execute(chunk):
    if tuple(chunk.voxel_offset) == (0, 16, 16):
        raise ValueError('this one')
    return chunk
"""
WORK = """import sys
from chunkflow_py.cli.main import main
try:
    main()
finally:
    print('imported', *sorted(each for each in sys.modules if each.startswith('opentelemetry')))
"""
OTEL = {name: "" for name in os.environ if name.startswith("OTEL_")}
needs_sdk = pytest.mark.skipif(
    not telemetry_is_on({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}),
    reason="the extra telemetry is not installed",
)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A run of 8 tasks, one of which fails."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    Path("some.py").write_text(PLUGIN)
    say(f"--quiet {IMAGE} {SAVE} image.zarr")
    say(f"--quiet create-chunk --size 16 32 32 --pattern zero {SAVE} out.zarr")
    say(f"submit --run r {LINE} plugin -f some.py -i chunk -o chunk {SAVE} out.zarr")
    return "r"


def work(options: str = "", **environment: str) -> tuple[int, str, str]:
    """Run a worker to its end; return its exit code, and what it printed."""
    words = shlex.split(f"work r --max-failures 1 --worker-name me {options}")
    done = subprocess.run(
        [sys.executable, "-c", WORK, *words],
        env=os.environ | OTEL | {"OMP_NUM_THREADS": "1"} | environment,
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


@needs_sdk
def test_a_receiver_gets_spans_and_metrics(run: str) -> None:
    """A span per attempt with read, compute and write; metrics that agree with the ledger."""
    with otlp_receiver() as received:
        code, _, said = work(
            OTEL_EXPORTER_OTLP_ENDPOINT=received.url,
            OTEL_RESOURCE_ATTRIBUTES="deployment.environment=test",
        )
    assert code == 1, said
    ledger = RunDirectory(run).ledger("plugin")
    records = {each.attempt: each for each in ledger.records() if each.state == "done"}
    (failure,) = ledger.failures()
    tasks = {values(each.attributes)["chunkflow.attempt"]: each
             for each in received.spans if each.name == "task"}  # fmt: skip
    assert tasks.keys() == {*records, failure.attempt}
    for attempt, record in records.items():
        span, attributes = tasks[attempt], values(tasks[attempt].attributes)
        assert attributes["chunkflow.box"] == record.box
        assert attributes["chunkflow.outcome"] == "done"
        assert attributes["chunkflow.step"] == "plugin"
        children = [each for each in received.spans if each.parent_span_id == span.span_id]
        assert {each.trace_id for each in children} == {span.trace_id}
        stages = {each.name: values(each.attributes)["chunkflow.stage"] for each in children}
        assert stages == {"load-zarr": "read", "plugin": "compute", "save-zarr": "write"}
        begins = [each.start_time_unix_nano for each in children]
        assert begins == sorted(begins)
        for each in children:
            assert span.start_time_unix_nano <= each.start_time_unix_nano
            assert each.end_time_unix_nano <= span.end_time_unix_nano
            lasted_s = (each.end_time_unix_nano - each.start_time_unix_nano) / 1e9
            assert lasted_s == pytest.approx(record.seconds[each.name], abs=1e-3)
        assert abs(span.end_time_unix_nano / 1e9 - time.time()) < 600
    failed = tasks[failure.attempt]
    assert failed.status.code == 2
    assert "this one" in failed.status.message
    assert values(failed.attributes)["error.type"] == "error"
    for resource in received.resources:
        assert resource["service.name"] == "chunkflow"
        assert resource["service.instance.id"] == "me"
        assert resource["deployment.environment"] == "test"
        assert resource["chunkflow.run"] == RunDirectory(run).url
    done = [each for each in received.metrics["chunkflow_tasks_total"].sum.data_points
            if values(each.attributes)["outcome"] == "done"]  # fmt: skip
    assert [each.as_double for each in done] == [7]
    assert received.metrics["chunkflow_tasks_total"].sum.is_monotonic
    (processes,) = received.metrics["chunkflow_processes"].gauge.data_points
    assert processes.as_double in (0, 1)
    for point in received.metrics["chunkflow_operator_seconds"].histogram.data_points:
        operator = values(point.attributes)["operator"]
        assert point.count == 7 == sum(point.bucket_counts)
        total = sum(each.seconds[operator] for each in records.values())
        assert point.sum == pytest.approx(total, abs=1e-3)
        assert len(point.bucket_counts) == len(point.explicit_bounds) + 1


@needs_sdk
def test_a_collector_that_does_not_answer_costs_no_task(run: str) -> None:
    """Spans are lost; the run is complete, and the worker ends in time."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{probe.getsockname()[1]}"  # nobody listens there
        began = time.monotonic()
        code, _, said = work(OTEL_EXPORTER_OTLP_ENDPOINT=endpoint)
    assert code == 1, said
    assert time.monotonic() - began < 60
    assert RunDirectory(run).ledger("plugin").counts().done == 7


def test_nothing_is_imported_without_an_endpoint(run: str) -> None:
    """Without the variables of OpenTelemetry, no package of it is imported."""
    code, out, said = work()
    assert code == 1, said
    assert out.splitlines()[-1] == "imported"


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": ""},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTEL_SDK_DISABLED": "True"},
        {"OTEL_SERVICE_NAME": "x"},
    ],
)
def test_telemetry_is_off(environment: dict[str, str], caplog: pytest.LogCaptureFixture) -> None:
    """Only an endpoint turns it on; nothing is said where nobody asked for it."""
    with caplog.at_level(logging.WARNING):
        assert not telemetry_is_on(environment)
    assert not caplog.text


def test_another_protocol_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    """A warning says which protocol there is, and which port; the worker goes on."""
    environment = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4317",
        "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
    }
    with caplog.at_level(logging.WARNING):
        assert not telemetry_is_on(environment)
    assert "OTEL_EXPORTER_OTLP_PROTOCOL is grpc, but only http/protobuf" in caplog.text


def test_missing_packages_are_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Clusters set these variables in all containers: a warning, no error."""
    for package in ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http"):
        monkeypatch.setitem(sys.modules, package, None)
    with caplog.at_level(logging.WARNING):
        assert not telemetry_is_on({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"})
    assert "opentelemetry.sdk and opentelemetry.exporter.otlp.proto.http is not" in caplog.text
    assert "pip install 'chunkflow_py[telemetry]'" in caplog.text


def test_signals_can_be_chosen() -> None:
    """An endpoint for one signal exports only this one; an exporter can be none."""
    only = {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c:4318/v1/traces"}
    assert [exports(each, only) for each in ("traces", "metrics")] == [True, False]
    both = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}
    assert [exports(each, both) for each in ("traces", "metrics")] == [True, True]
    assert not exports("traces", both | {"OTEL_TRACES_EXPORTER": "none"})
