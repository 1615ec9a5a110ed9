"""Who is asked to stop where no stage listens: at the start, between stages, while submitting."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import pytest
from rigs.command_line import IMAGE, LINE, SAVE, TASKS, say
from rigs.variants import gate_runs

from chunkflow_py.core.interrupts import STOP
from chunkflow_py.queue.queue_protocol import open_queue
from chunkflow_py.run.run_directory import RunDirectory
from chunkflow_py.run.worker import worker as worker_module

SIGNALS = pytest.mark.parametrize("number", gate_runs(STOP, signal.SIGTERM))


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A folder with an image."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    say(f"--quiet {IMAGE} {SAVE} image.zarr")
    return tmp_path


@pytest.fixture
def started():
    """Return a function that starts a command line and returns its process."""
    started = []

    def start(*words):
        started.append(
            subprocess.Popen(
                [sys.executable, "-m", "chunkflow_py", *words],
                env=os.environ | {"OMP_NUM_THREADS": "1"},
                stderr=subprocess.PIPE,
                text=True,
            )
        )
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def worker(started):
    """A function that starts `work` on the run ``r``, and returns its process."""
    return partial(started, "work", "r")


def wait_for(is_so):
    """Wait until something is so."""
    deadline = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def listens(process):
    """Tell whether a process would answer SIGUSR1, which Python does not by itself."""
    said = Path(f"/proc/{process.pid}/status").read_text()
    caught = int(said.partition("SigCgt:")[2].split()[0], 16)
    return bool(caught >> (signal.SIGUSR1 - 1) & 1)


def stopped(process, number):
    """Send a signal; return the exit code and the output."""
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    return process.returncode, said


@SIGNALS
def test_a_worker_that_begins_says_that_work_is_left(number, worker):
    """A worker whose run answers slowly still exits with 75 and gives the reason."""
    say(f"submit --run r {LINE} threshold {SAVE} mask.zarr")
    os.unlink("r/spec.json")  # noqa: PTH108
    os.mkfifo("r/spec.json")  # whoever reads it waits for who writes
    process = worker()
    wait_for(lambda: listens(process))
    code, said = stopped(process, number)
    assert code == 75, said
    assert f"stopped: got {signal.Signals(number).name}" in said


@SIGNALS
@pytest.mark.long
def test_a_worker_between_two_stages_says_that_work_is_left(number, worker):
    """A worker that waits for the second step stops without leased messages."""
    second = f"{TASKS} load-zarr --store mask.zarr connected-components {SAVE} labels.zarr"
    say(f"submit --run r --stage mask {LINE} threshold {SAVE} mask.zarr then --stage two {second}")
    home = RunDirectory("r")
    claim = json.dumps({"since": time.time(), "process": 0}).encode()
    home.store.put_if_absent("stages/two/sending", claim)
    process = worker()
    wait_for(lambda: home.is_closed("mask"))
    code, said = stopped(process, number)
    assert code == 75, said
    queue = open_queue(home.spec.queue)
    assert queue.counts().leased == 0
    queue.close()
    assert home.store.get("stages/two/sending") == claim
    home.store.delete("stages/two/sending")
    assert worker().wait(60) == 0


def test_tasks_that_a_dead_worker_did_not_send_are_sent_by_another(monkeypatch):
    """Whatever its clock says, who is not heard of is dead, and who is heard of is not."""
    second = f"{TASKS} load-zarr --store mask.zarr threshold {SAVE} twice.zarr"
    say(f"submit --run r --stage mask {LINE} threshold {SAVE} mask.zarr then --stage two {second}")
    home = RunDirectory("r")
    queue = open_queue(home.spec.queue)
    monkeypatch.setattr(worker_module, "CLAIM_CHECK_S", 0.05)
    monkeypatch.setattr(worker_module, "CLAIM_EXPIRES_S", 1.5)
    home.store.put("stages/two/sending", json.dumps({"since": time.time() + 9999}).encode())
    began = time.monotonic()
    monkeypatch.setattr(worker_module, "CLAIM_RENEWAL_S", 0.1)
    with worker_module._renewed(home, "stages/two/sending"):
        other = threading.Thread(target=worker_module._open_stage, args=(home, queue, "two"))
        other.start()
        time.sleep(2.5)
        assert not home.is_sent("two"), "somebody is about to"
    other.join(30)
    assert home.is_sent("two")
    assert time.monotonic() - began < 30
    queue.close()


@pytest.mark.parametrize(("subcommand", "code"), [("submit", 143), ("run --on local:1", 75)])
def test_a_submission_that_is_stopped_while_it_sends_goes_on(folder, started, subcommand, code):
    """The message says that the run exists; run exits with 75, submit as by SIGTERM."""
    many = "generate-tasks --roi-size 8000 8192 8192 --chunk-size 8 16 16"
    process = started(*f"{subcommand} --run r {many} create-chunk skip-all-zero".split())
    wait_for((folder / "r/queue.sqlite").exists)
    wait_for((folder / "r/spec.json").exists)
    found, said = stopped(process, signal.SIGTERM)
    assert found == code, said
    assert "/r was created, but not all of its tasks were sent; submit the same pipeline" in said
    assert not RunDirectory("r").is_sent("skip-all-zero")


def test_a_submission_that_is_stopped_before_leaves_no_run(folder, started):
    """The unfinished run directory is removed, and the message lists what was created."""
    (folder / "slow.py").write_text(
        "import pathlib, time\npathlib.Path('loads').touch()\ntime.sleep(60)\n"
        "def execute(chunk):\n    return chunk\n"
    )
    line = f"submit --run r {LINE} threshold {SAVE} mask.zarr then "
    line += f"{LINE} plugin -f slow.py -i chunk -o chunk {SAVE} out.zarr"
    process = started(*line.split())
    wait_for((folder / "loads").exists)
    assert (folder / "r").is_dir()
    code, said = stopped(process, signal.SIGTERM)
    assert code == 143, said
    assert "the run was not created, but these outputs were created: mask.zarr; submit" in said
    assert not (folder / "r").exists()


@pytest.mark.parametrize("place", ["local:1", "dask://localhost:1"])
def test_a_run_that_cannot_be_made_is_not_complete(folder, place):
    """Its code is that of a worker that cannot go on: 1 would say that it has failures only."""
    (folder / "image.zarr/zarr.json").write_text("{")
    said = say(f"run --on {place} --run r {LINE} threshold {SAVE} mask.zarr", code=2)
    assert "zarr.json is damaged" in said
    assert not (folder / "r").exists()


@pytest.mark.long
def test_a_run_that_is_deleted_is_nothing_to_try_again(folder, worker):
    """The worker names the deleted file; a new submission refuses its later records."""
    (folder / "slow.py").write_text(
        "import pathlib, time\n"
        "def execute(chunk):\n"
        "    pathlib.Path('begun').touch()\n"
        "    time.sleep(0.5)\n"
        "    return chunk\n"
    )
    say(f"--quiet create-chunk --size 16 32 32 --pattern zero {SAVE} out.zarr")
    line = f"{LINE} plugin -f slow.py -i chunk -o chunk {SAVE} out.zarr"
    line = f"submit --run r --queue sqlite://tasks.sqlite {line}"
    say(line)
    process = worker("--lease", "1", "--idle-exit", "3")
    wait_for((folder / "begun").exists)
    shutil.rmtree(folder / "r")
    _, said = process.communicate(timeout=60)
    assert process.returncode == 2, said
    assert "was deleted while workers used it: spec.json is missing" in said
    assert "records of a deleted run" in say(line, code=2)
    shutil.rmtree(folder / "r")
    assert "--clear-output" in say(line, code=2)
    say(line.replace("submit", "submit --clear-output", 1))
