"""The audit trail of a run: who submitted it, and what has made each block."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from rigs.command_line import IMAGE, LINE, SAVE, say
from rigs.planted import planted_run, record
from rigs.workers import wait_for

from chunkflow_py.core.geometry import BoxGrid, Zyx
from chunkflow_py.run.run_directory import RunDirectory
from chunkflow_py.run.worker_records import WorkerRecords
from chunkflow_py.tasks.task_plan import GridPlan

SLOW = """import time
def execute(chunk):
    time.sleep(0.3)
    return chunk
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A run of 8 tasks that no worker has begun."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    Path("slow.py").write_text(SLOW)
    say(f"--quiet {IMAGE} {SAVE} image.zarr")
    say(f"--quiet create-chunk --size 16 32 32 --pattern zero {SAVE} out.zarr")
    say(f"submit --run r {LINE} plugin -f slow.py -i chunk -o chunk {SAVE} out.zarr")
    return "r"


def work(options: str, **environment: str) -> subprocess.Popen[str]:
    """Start a worker as a process of its own, with such a machine."""
    return subprocess.Popen(
        [sys.executable, "-m", "chunkflow_py", "work", "r", *shlex.split(options)],
        env=os.environ | {"OMP_NUM_THREADS": "1"} | environment,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def test_the_records_tell_what_made_each_block(run: str) -> None:
    """From JSON alone: each stored block, the image and the zone that made it."""
    with work("--max-tasks 3", CHUNKFLOW_IMAGE="image@sha256:1", CHUNKFLOW_ZONE="a") as first:
        assert first.wait(60) == 75
    with work("", CHUNKFLOW_IMAGE="image@sha256:2", CHUNKFLOW_INSTANCE_TYPE="g5.xlarge") as second:
        assert second.wait(60) == 0
    origins = [json.loads(line) for line in say(f"provenance {run} --json").splitlines()]
    made = {url: origin for origin in origins for url in origin["written"]}
    blocks = {f"file://{path}" for path in Path("out.zarr").resolve().glob("0/c/*/*/*")}
    assert made.keys() == blocks
    assert len(blocks) == 8
    images = [origin["image"] for origin in origins]
    assert sorted(images) == ["image@sha256:1"] * 3 + ["image@sha256:2"] * 5
    for origin in origins:
        is_first = origin["image"] == "image@sha256:1"
        assert origin["zone"] == ("a" if is_first else "")
        assert origin["instance_type"] == ("" if is_first else "g5.xlarge")
        assert origin["version"] == RunDirectory(run).spec.version
    assert len({origin["worker_id"] for origin in origins}) == 2
    text = say(f"provenance {run}")
    assert "plugin: 3 tasks by chunkflow_py" in text
    assert f"chunkflow_py {RunDirectory(run).spec.version}: " in text
    at = say(f"provenance {run} --at 8 17 31")
    assert "8-16_16-32_16-32: done by worker" in at
    assert at.count("done by worker") == 1
    assert "no task whose box contains (16, 0, 0)" in say(f"provenance {run} --at 16 0 0")
    status = say(f"status {run}")
    assert "workers: 2 started, 1 stopped (complete), 1 stopped (limit)" in status
    say(f"report {run} --output report.html --faces 0")
    page = Path("report.html").read_text()
    assert "image@sha256:1" in page
    assert "g5.xlarge" in page
    # A run that takes the step over finds the workers of the run that made it.
    again = f"{LINE} plugin -f slow.py -i chunk -o chunk {SAVE} out.zarr"
    say(f"submit --run f --fork r {again} then {LINE} threshold --threshold 1 {SAVE} mask.zarr")
    assert say("provenance f --json").splitlines() == [json.dumps(each) for each in origins]


def test_why_a_worker_stopped_is_shown(run: str) -> None:
    """SIGTERM in a pod is an eviction; SIGINT comes from a person; kill -9 leaves no notice."""
    records = WorkerRecords(RunDirectory(run).store)
    stops = [
        (signal.SIGTERM, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}),
        (signal.SIGINT, {}),
        (signal.SIGKILL, {}),
    ]
    for started, (number, environment) in enumerate(stops, 1):
        with work("", **environment) as process:
            wait_for(lambda started=started: records.counts().started == started)
            process.send_signal(number)
            assert process.wait(60) in (75, -signal.SIGINT, -signal.SIGKILL)
    workers = json.loads(say(f"status {run} --json"))["workers"]
    assert workers == {"started": 3, "stopped": {"evicted": 1, "killed": 1}}
    assert "workers: 3 started, 1 stopped (evicted), 1 stopped (killed), 1 at work or lost" in say(
        f"status {run}"
    )


def test_who_submitted_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: str
) -> None:
    """User, host, time, version and command line; a repeated submission does not change it."""
    first = RunDirectory(run).submission
    assert first is not None
    assert first.user
    assert first.host
    assert first.version == RunDirectory(run).spec.version
    monkeypatch.setattr(sys, "argv", ["chunkflow", "submit", "--run", "https://me:geheim@host/r"])
    say(f"submit --run r {LINE} plugin -f slow.py -i chunk -o chunk {SAVE} out.zarr")
    assert RunDirectory(run).submission == first
    say(f"submit --run s {LINE} threshold --threshold 100 {SAVE} mask.zarr")
    again = RunDirectory("s").submission
    assert again is not None
    assert again.command == "chunkflow submit --run https://host/r"
    (tmp_path / "r" / "submitted.json").write_text("{")
    assert RunDirectory(run).submission is None
    assert '"submission": null' in say(f"status {run} --json")


def test_another_version_is_noticed(run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A warning at the start names both versions; --same-version refuses to start."""
    own = RunDirectory(run).spec.version
    monkeypatch.setattr("chunkflow_py.run.submit.version", lambda _: "9.9.9")
    say(f"submit --run other {LINE} threshold --threshold 100 {SAVE} mask.zarr")
    refused = say("work other --same-version", 2)
    assert "chunkflow_py 9.9.9" in refused
    assert f"this worker has version {own}" in refused
    assert not Path("other/workers").exists()
    said = say("work other")
    assert said.count("was submitted by chunkflow_py 9.9.9, but this worker has") == 1
    assert "was submitted by" not in say("work r --same-version")


def test_runs_of_earlier_versions_have_no_origins(tmp_path: Path) -> None:
    """Their records lead to no worker; nothing fails."""
    plan = GridPlan(BoxGrid(Zyx(0, 0, 0), Zyx(8, 8, 8), Zyx(8, 8, 8), Zyx(1, 1, 2)))
    home = planted_run(f"{tmp_path}/old", {"infer": plan})
    (tmp_path / "old" / "submitted.json").unlink()
    home.ledger("infer").record([record(plan, 0)])
    assert "infer: 1 tasks by a worker without a record" in say(f"provenance {home.url}")
    origin = json.loads(say(f"provenance {home.url} --json"))
    assert (origin["worker"], origin["version"], origin["worker_id"]) == ("machine-1", None, None)
    assert "workers" not in say(f"status {home.url}")
