"""Metrics of a worker: during a real run, as Prometheus reads them."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import time
from contextlib import closing
from importlib.metadata import version
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families
from rigs.command_line import IMAGE, LINE, SAVE, say
from rigs.event_schema import events_of, metric_names
from rigs.workers import wait_for

from chunkflow_py.errors import MissingExtraError, OptionError
from chunkflow_py.monitor.worker_health import WorkerHealth
from chunkflow_py.monitor.worker_metrics import Metrics
from chunkflow_py.queue.queue_protocol import Counts
from chunkflow_py.run.ledger.ledger_record import Record
from chunkflow_py.run.run_directory import RunDirectory
from chunkflow_py.run.worker.supervisor import WorkerSnapshot
from chunkflow_py.run.worker.worker_pool import ProcessSnapshot

# Fails on one task, and waits for a file on the last.
PLUGIN = """import pathlib, time
def execute(chunk):
    if tuple(chunk.voxel_offset) == (0, 16, 16):
        raise ValueError('this one')
    while tuple(chunk.voxel_offset) == (8, 16, 16) and not pathlib.Path('go').exists():
        time.sleep(0.05)
    return chunk
"""
# A worker whose supervisor says at its end what it has imported.
WORK = """import sys
from chunkflow_py.cli.main import main
try:
    main()
finally:
    print('imported', *sorted({'numpy', 'torch', 'prometheus_client'} & set(sys.modules)))
"""


def page(url):
    """Return what Prometheus reads: (name, labels) -> value, and the types of the metrics."""
    with urlopen(url, timeout=10) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        text = answer.read().decode()
    families = list(text_string_to_metric_families(text))
    samples = {
        (each.name, frozenset(each.labels.items())): each.value
        for family in families
        for each in family.samples
    }
    return samples, {family.name: family.type for family in families}


def test_metrics_during_a_run_agree_with_the_ledger(tmp_path, monkeypatch):
    """Tasks, failures, voxels, bytes and seconds are those of the records, in mid-run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "some.py").write_text(PLUGIN)
    say(f"--quiet {IMAGE} {SAVE} image.zarr")
    say(f"--quiet create-chunk --size 16 32 32 --pattern zero {SAVE} out.zarr")
    say(f"submit --run r {LINE} plugin -f some.py -i chunk -o chunk {SAVE} out.zarr")
    options = "--metrics-port 0 --max-failures 1 --worker-name me --processes 1"
    with Path("log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", WORK, *shlex.split(f"--log-json work r {options}")],
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE, stderr=log, text=True,
        )  # fmt: skip
    stage = {"stage": "plugin"}
    try:
        wait_for(lambda: "metrics_served" in Path("log").read_text())
        first = json.loads(Path("log").read_text().splitlines()[0])
        wait_for(lambda: RunDirectory("r").ledger("plugin").ended() == 7)
        ledger = RunDirectory("r").ledger("plugin")
        records = [record for record in ledger.records() if record.state == "done"]
        wait_for(lambda: _value(first["url"], "tasks_total", **stage, outcome="done") == 6)
        time.sleep(0.6)  # what is looked at now and then
        samples, types = page(first["url"])
    finally:
        (tmp_path / "go").touch()
        out, _ = process.communicate(timeout=60)

    def value(name, **labels):
        return samples[f"chunkflow_{name}", frozenset(labels.items())]

    assert (
        value(
            "worker_info", worker="me", run=RunDirectory("r").url, version=version("chunkflow_py")
        )
        == 1
    )
    assert value("stage_tasks", **stage) == 8
    counts = [value("tasks_total", **stage, outcome=o) for o in ("done", "skipped", "given up")]
    assert counts == [6, 0, 1]
    assert value("failures_total", **stage, kind="permanent") == 1
    assert value("failure_causes_total", **stage, cause="error") == 1
    assert value("failure_causes_total", **stage, cause="hang") == 0
    assert value("voxels_total", **stage) == 6 * 8 * 16 * 16
    assert value("written_bytes_total", **stage) == sum(each.stored_bytes for each in records) > 0
    assert value("read_bytes_total", **stage) > 0
    for operator in ("load-zarr", "plugin", "save-zarr"):
        labels = {**stage, "operator": operator}
        assert value("operator_seconds_count", **labels) == 6
        recorded = sum(each.seconds[operator] for each in records)
        assert value("operator_seconds_sum", **labels) == pytest.approx(recorded, abs=1e-4)
    assert value("processes") == 1
    assert value("process_tasks", process="0") == 1
    assert value("process_memory_bytes", process="0") > 1e6
    assert value("leases_held") == 1
    assert value("leases_lost_total") == 0
    assert types["chunkflow_operator_seconds"] == "histogram"
    seen = {re.sub("_(bucket|sum|count)$", "", name) for name, _ in samples}
    # there is no GPU here, or it is nobody's
    assert {name for name in metric_names() if "gpu" not in name} <= seen <= set(metric_names())

    assert process.returncode == 1, "one task was given up"
    assert out.splitlines()[-1] == "imported prometheus_client"
    events = events_of(Path("log").read_text())
    ended = [each for each in events if each["event"] == "task_finished"]
    assert sorted(each["outcome"] for each in ended) == ["done"] * 7 + ["given up"]
    (failed,) = [each for each in events if each["event"] == "task_failed"]
    assert (failed["kind"], failed["worker"], failed["stage"]) == ("permanent", "me", "plugin")
    assert "this one" in failed["error"]
    (finished,) = [each for each in events if each["event"] == "stage_finished"]
    assert (finished["done"], finished["given_up"], finished["failures"]) == (7, 1, 1)
    assert [each["event"] for each in events[-2:]] == ["work_stopped", "exit"]


def _value(url, name, **labels):
    samples, _ = page(url)
    return samples.get((f"chunkflow_{name}", frozenset(labels.items())))


def test_processes_and_stages_add_up():
    """A process that took the place of a dead one begins at zero; so do the leases of a stage."""
    metrics = Metrics("r", "w")

    def child(number, pid, read, network):
        return ProcessSnapshot(number, pid, None, 2 * network, network, read, 1000, ())

    def value(name, **labels):
        return metrics.registry.get_sample_value(f"chunkflow_{name}", labels)

    metrics.stage_started("a", 10)
    metrics.update(WorkerSnapshot((child(0, 1, 100, 1.0), child(1, 2, 50, 2.0)), 3, 5, 1, None))
    metrics.update(
        WorkerSnapshot((child(0, 1, 110, 1.5), child(1, 3, 20, 0.5)), 4, 6, 1, Counts(7, 2))
    )
    assert value("read_bytes_total", stage="a") == 180
    assert value("network_seconds_total", stage="a") == 4.0
    assert value("process_seconds_total", stage="a") == 8.0
    assert (value("leases_renewed_total"), value("leases_lost_total")) == (6, 1)
    assert (value("queue_visible"), value("queue_in_flight")) == (7, 2)
    metrics.stage_started("b", 5)
    metrics.update(WorkerSnapshot((child(0, 4, 5, 0.25),), 0, 2, 0, None))
    assert value("read_bytes_total", stage="a") == 180
    assert value("read_bytes_total", stage="b") == 5
    assert (value("leases_renewed_total"), value("leases_lost_total")) == (8, 1)
    metrics.gpus([("0", 0.88, 12_000), ("1", None, 5)])
    assert value("gpu_busy_ratio", gpu="0") == 0.88
    assert value("gpu_memory_bytes", gpu="1") == 5


def test_metrics_are_for_this_machine_unless_told():
    """The page is there while it is served, at the address that was asked for."""
    metrics = Metrics("r", "w")
    with metrics.served(0) as url:
        assert url.startswith("http://127.0.0.1:")
        assert page(url)[0]
        port = int(url.rsplit(":", 1)[1].split("/")[0])
        with (
            pytest.raises(OptionError, match=rf"--metrics-port {port} of 127.0.0.1: "),
            metrics.served(port),
        ):
            pass
    with pytest.raises(OSError, match="refused"), closing(urlopen(url, timeout=5)):
        pass


def test_metrics_are_not_for_pages_of_other_sites():
    """On loopback only names of loopback are answered, as a page's own name would resolve here."""
    with Metrics("r", "w").served(0) as url:
        for host in (
            "evil.example",
            "evil.example:80",
            "10.0.0.1",
            "localhost.evil.example",
            "[::",
        ):
            with pytest.raises(HTTPError, match="403"):
                urlopen(Request(url, headers={"Host": host}), timeout=10).close()
        for host in ("localhost:9000", "127.0.0.1", "[::1]:80"):
            with urlopen(Request(url, headers={"Host": host}), timeout=10) as answer:
                assert b"chunkflow_worker_info" in answer.read()


def test_what_is_missing_is_named(monkeypatch):
    """With the line that installs it."""
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'chunkflow_py\[metrics\]'"):
        Metrics("r", "w")


def test_dask_has_metrics_of_its_own():
    """The option is of processes that are supervised here."""
    told = say("run --on dask://host:8786 --metrics-port 0 create-chunk", code=2)
    assert "--metrics-port serves metrics of local processes only" in told


def test_patches_and_their_exchange():
    """What records say about patches is counted; all names exist from the start."""
    metrics = Metrics("r", "w")

    def value(name, **labels):
        return metrics.registry.get_sample_value(f"chunkflow_{name}_total", {"stage": "a"} | labels)

    metrics.stage_started("a", 10)
    assert value("patches", source="found") == value("parts_refused", reason="misplaced") == 0
    patches = {"computed": 7, "found": 5, "damaged": 1, "read_bytes": 30, "written_bytes": 40}
    for number in range(2):
        box = f"0-8_0-8_{8 * number}-{8 * number + 8}"
        metrics.task_ended(Record(number, box, "done", "s", "a", "w", patches=patches))
    assert (value("patches", source="computed"), value("patches", source="found")) == (14, 10)
    assert value("parts_refused", reason="damaged") == 2
    directions = ("read", "written")
    assert [value("exchange_bytes", direction=each) for each in directions] == [60, 80]


def test_health_says_whether_the_supervisor_responds():
    """200 between steps and while it ticks, 503 when it has not ticked for two minutes."""
    now = 1000.0
    metrics = Metrics("run", "worker")
    metrics.health = WorkerHealth(lambda: now)

    def ask(host="127.0.0.1"):
        request = Request(url.replace("/metrics", "/health"), headers={"Host": host})
        try:
            with urlopen(request, timeout=10) as answer:
                return answer.status, answer.read().decode()
        except HTTPError as error:
            return error.code, error.read().decode()

    with metrics.served(0) as url:
        assert ask() == (200, "between steps\n")
        metrics.health.tick()
        now += 119
        assert ask() == (200, "working\n")
        now += 2
        assert ask() == (503, "stalled: no response for 121 s\n")
        metrics.health.tick()
        assert ask() == (200, "working\n")
        metrics.health.rest()
        now += 1000
        assert ask()[0] == 200
        assert ask("evil.example")[0] == 403
        assert page(url)
