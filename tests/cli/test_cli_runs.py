"""Runs by the command line: submit, work, status and their kin, with nothing but the package."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import click
import numpy as np
import pytest
from click.testing import CliRunner
from rigs.command_line import IMAGE, LINE, SAVE, TASKS, say
from rigs.variants import gate_runs

from chunkflow_py import BoundingBox, errors, open_volume
from chunkflow_py.cli.failed import worker_fails_in_order
from chunkflow_py.queue.message_body import body_text
from chunkflow_py.queue.queue_protocol import open_queue
from chunkflow_py.run.run_directory import RunDirectory


def work(line, code=0, **variables):
    """Run a worker in a process of its own; return what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "chunkflow_py", *shlex.split(line)],
        env=os.environ | {"OMP_NUM_THREADS": "1"} | variables,
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A folder with an image; runs and caches stay in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    say(f"--quiet {IMAGE} {SAVE} image.zarr")
    return tmp_path


def voxels(name):
    """Return all voxels of a volume."""
    return open_volume(name).read(BoundingBox.parse("0-16_0-32_0-32")).array


def test_three_commands():
    """Submit, work and status need no other service; the bytes are those of the pipeline."""
    say(f"--quiet {LINE} threshold -t 100 {SAVE} plain.zarr")
    told = say(f"submit {LINE} threshold -t 100 {SAVE} mask.zarr")
    assert "step threshold: 8 tasks" in told
    assert "created mask.zarr" in told
    address = told.split("chunkflow work '")[1].split("'")[0]
    assert "8 waiting" in say(f"status {address}")
    assert "is complete" in work(f"work {address}")
    np.testing.assert_array_equal(voxels("mask.zarr"), voxels("plain.zarr"))
    status = json.loads(say(f"status {address} --json"))
    (stage,) = status["stages"]
    assert (status["state"], stage["done"], stage["left"], stage["failed"]) == ("complete", 8, 0, 0)
    assert status["queue"]["waiting"] == 0
    assert "verified: all" in say(f"verify {address}")
    assert "is complete" in work(f"work {address}"), "again at once"


@pytest.mark.long
def test_verify_and_repair_do_just_what_is_damaged():
    """A block that was changed is named, sent again, and done again; nothing else is."""
    say(f"submit --run r {LINE} threshold -t 100 {SAVE} mask.zarr")
    work("work r")
    before = voxels("mask.zarr")
    home = RunDirectory("r")
    record = next(iter(home.ledger("threshold").records()))
    path = record.written[0].url.removeprefix("file://")
    with open(path, "r+b") as file:  # noqa: PTH123
        file.write(b"damage")
    found = say("verify r", code=1).splitlines()
    assert record.box in found[0]
    assert "1 finding;" in found[-1]
    assert json.loads(say("verify r --json", code=1).splitlines()[0])["box"] == record.box
    assert "sent 1 task again" in say("repair r")
    assert "unfinished" in say("status r")
    work("work r")
    np.testing.assert_array_equal(voxels("mask.zarr"), before)
    say("verify r")
    attempts = {r.number: r.attempt for r in RunDirectory("r").ledger("threshold").records()}
    assert attempts[record.number] != record.attempt
    assert len(attempts) == 8


def test_a_complete_run_leaves_an_empty_queue(folder):
    """A worker that finds the run complete removes duplicate messages, but no others."""
    say(f"submit --run r --queue sqlite://tasks.db {LINE} threshold -t 100 {SAVE} mask.zarr")
    work("work r")
    home = RunDirectory("r")
    (stage,) = home.spec.steps
    again = [body_text(home.plan(stage.name).text(n), stage.hash, stage.name) for n in range(3)]
    with closing(open_queue("sqlite://tasks.db")) as queue:
        queue.send([*again, body_text("0-8_0-16_0-16", "another", "infer"), "rubbish"])
        assert "is complete" in work("work r")
        assert queue.counts().waiting == 2
        assert queue.counts().leased == 0
    assert "sent 0 tasks" in say("repair r")


def forget_file(folder):
    """Remove the SQLite queue as a lost disk does."""
    for path in folder.glob("tasks.db*"):
        path.unlink()


def forget_folder(folder):
    """Remove the queue in a folder."""
    shutil.rmtree(folder / "tasks")


@pytest.mark.parametrize(
    ("queue", "forget", "missing"),
    [
        ("--queue sqlite://tasks.db", forget_file, "tasks.db does not exist"),
        ("--queue file://tasks", forget_folder, "tasks does not exist"),
    ],
)
@pytest.mark.long
def test_repair_makes_a_lost_queue_again(folder, queue, forget, missing):
    """When the disk of the queue is gone, `repair` sends what is not recorded, and no more."""
    say(f"submit --run r {queue} {LINE} threshold -t 100 {SAVE} mask.zarr")
    work("work r --max-tasks 3", code=75)
    forget(folder)
    told = work("work r", code=2)
    assert missing in told
    assert "chunkflow repair RUN recreates the queue of a run" in told
    assert "sent 5 tasks again" in say("repair r")
    assert "5 waiting" in say("status r")
    work("work r")
    say("verify r")


@pytest.mark.parametrize("sqs_server", ["moto"], indirect=True)
@pytest.mark.aws
@pytest.mark.long
def test_repair_makes_a_lost_queue_of_sqs_again(sqs_server):
    """The same for a queue of SQS that was deleted, with the queue of its dead letters."""
    name = sqs_server.name
    say(f"submit --run r --queue sqs://{name} {LINE} threshold -t 100 {SAVE} mask.zarr")
    work("work r --max-tasks 3", code=75)
    client = sqs_server.client
    for each in (name, f"{name}-dead"):
        client.delete_queue(QueueUrl=client.get_queue_url(QueueName=each)["QueueUrl"])
    assert "chunkflow repair RUN" in work("work r", code=2)
    assert "sent 5 tasks again" in say("repair r")
    client.get_queue_url(QueueName=f"{name}-dead")
    client.close()
    work("work r")
    say("verify r")


@pytest.mark.long
def test_repair_after_a_damaged_queue(folder):
    """A malformed file is refused with a remedy, and the remedy works."""
    say(f"submit --run r --queue sqlite://tasks.db {LINE} threshold -t 100 {SAVE} mask.zarr")
    (folder / "tasks.db").write_bytes(b"\0" * 8192)
    for line in ("work r", "repair r"):
        told = work(line, code=2 if line == "work r" else 1)
        assert "move tasks.db, tasks.db-wal and tasks.db-shm away: chunkflow repair RUN" in told
    forget_file(folder)
    assert "sent 8 tasks again" in say("repair r")
    work("work r")
    say("verify r")


FILLS = """
import subprocess, sys, threading, time
from pathlib import Path
filler = Path("r/filler")
with filler.open("wb", buffering=0) as file:
    try:
        while file.write(bytes(4096)):
            pass
    except OSError:
        pass
worker = subprocess.Popen(
    [sys.executable, "-c", sys.argv[1], "work", "r"], stderr=subprocess.PIPE, text=True
)
for line in worker.stderr:
    print(line, end="", flush=True)
    if "disk of the queue is full" in line:
        filler.unlink()
        break
print(worker.stderr.read(), worker.wait())
"""

# As `python -m chunkflow_py`, with less patience.
HASTY = """
import sys
from chunkflow_py.run.worker.worker_limits import WorkerSettings
from chunkflow_py.__main__ import main
init = WorkerSettings.__init__
WorkerSettings.__init__ = lambda *a, **k: init(*a, **{"disk_wait_s": 0.2} | k)
main()
"""


@pytest.mark.long
def test_a_queue_on_a_full_disk_is_waited_for(folder):
    """A worker that starts while the queue's disk is full begins when there is room again."""
    mounted = ["unshare", "--mount", "--map-root-user", "sh", "-c"]
    script = 'mkdir r && mount -t tmpfs -o size=3m tmpfs r && exec "$@"'
    try:
        subprocess.run([*mounted, script, "sh", "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no file system can be mounted: needs unshare and the right to use it")
    finally:
        (folder / "r").rmdir()
    submit = f"submit --run r --queue sqlite://r/tasks.db {LINE} threshold -t 100 {SAVE} mask.zarr"
    steps = f'{sys.executable} -m chunkflow_py {submit} && {sys.executable} -c "$FILLS" "$HASTY"'
    done = subprocess.run(
        [*mounted, f"mkdir r && mount -t tmpfs -o size=3m tmpfs r && {steps}"],
        env=os.environ | {"OMP_NUM_THREADS": "1", "FILLS": FILLS, "HASTY": HASTY},
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert "disk of the queue is full: free some space; trying again in" in done.stdout, done.stderr
    assert "r is complete" in done.stdout
    assert done.stdout.endswith(" 0\n")


def test_a_task_that_fails_is_given_up_and_can_be_retried(folder):
    """Exit 1 and the list; when the cause is mended, retry does just that task."""
    plugin = folder / "fails.py"
    plugin.write_text(
        "import pathlib\n"
        "def execute(chunk):\n"
        "    if tuple(chunk.voxel_offset) == (8, 16, 16) and not pathlib.Path('mended').exists():\n"
        "        raise ValueError('this one')\n"
        "    return chunk\n"
    )
    line = f"{LINE} plugin -f fails.py -i chunk -o chunk"
    say(f"--quiet create-chunk --size 16 32 32 --pattern zero {SAVE} out.zarr")
    told = say(f"submit --run r {line} {SAVE} out.zarr")
    address = told.split("chunkflow work '")[1].split("'")[0]
    assert "--no-code forbids" in work(f"work {address} --no-code", code=2)
    work(f"work {address} --max-failures 9 --max-tasks 8", code=75)
    status = json.loads(say("status r --json"))
    assert not status["failures"]
    (task,) = status["failing"]
    assert task["reason"] is None
    assert "this one" in task["attempts"][0]["traceback"]
    assert f"to be tried again: plugin {task['box']}" in say("status r --failures")
    assert "1 as failed" in work(f"work {address} --max-failures 2", code=1)
    told = say("status r")
    assert "complete but for failures" in told
    assert "failed plugin 8-16_16-32_16-32: " in told
    assert "ValueError: this one" in told
    assert "Traceback" not in told
    told = say("status r --failures")
    assert "attempt 2 of " in told
    assert told.count("Traceback (most recent call last)") >= 2
    assert "in execute" in told
    (task,) = json.loads(say("status r --json"))["failures"]
    assert {each["kind"] for each in task["attempts"]} == {"permanent"}
    assert all("this one" in each["traceback"] for each in task["attempts"])
    assert "failed" in say("verify r", code=1)
    queue = open_queue(RunDirectory("r").spec.queue)
    assert [letter.body for letter in queue.dead_letters()]
    queue.close()
    (folder / "mended").touch()
    assert "sent 1 task again" in say("retry r --failed")
    work(f"work {address}")
    assert "complete" in say("status r")
    np.testing.assert_array_equal(voxels("out.zarr"), voxels("image.zarr"))


def test_stages_follow_each_other_and_a_fork_takes_over_what_is_the_same():
    """The second step reads the first; a fork with another second step redoes only that."""
    first = f"{LINE} threshold -t 100 {SAVE} mask.zarr"
    second = f"{TASKS} load-zarr --store mask.zarr connected-components {SAVE} labels.zarr"
    told = say(f"submit --run r --stage mask {first} then --stage labels {second}")
    assert "step mask: 8 tasks" in told
    assert "step labels: 8 tasks" in told
    work("work r")
    status = json.loads(say("status r --json"))
    assert [stage["closed"] for stage in status["stages"]] == [True, True]
    assert voxels("labels.zarr").max() > 1
    other = second.replace("labels.zarr", "others.zarr")
    told = say(f"submit --run s --fork r --stage mask {first} then --stage labels {other}")
    assert "; reused" in told
    assert "steps to run: labels" in told
    work("work s")
    np.testing.assert_array_equal(voxels("labels.zarr"), voxels("others.zarr"))
    records = RunDirectory("s").ledger("mask").records()
    assert {record.attempt for record in records} == {
        record.attempt for record in RunDirectory("r").ledger("mask").records()
    }


def test_run_on_this_machine_and_again():
    """One command does all; the same again has nothing left to do."""
    line = f"run --on local:2 --run r {LINE} threshold -t 100 {SAVE} mask.zarr"
    assert "is complete" in work(line)
    attempts = {r.number: r.attempt for r in RunDirectory("r").ledger("threshold").records()}
    assert len(attempts) == 8
    assert "is complete" in work(line)
    again = {r.number: r.attempt for r in RunDirectory("r").ledger("threshold").records()}
    assert again == attempts


def test_submitting_again_goes_on():
    """Repeating an interrupted submission is safe; duplicate messages are harmless."""
    line = f"submit --run r {LINE} threshold -t 100 {SAVE} mask.zarr"
    say(line)
    home = RunDirectory("r")
    home.store.delete("stages/threshold/sent")
    told = say(line)
    assert "sent 8 tasks" in told
    assert "already existed" in told
    assert "16 waiting" in say("status r")
    work("work r")
    assert "sent 0 tasks" in say(line)
    status = json.loads(say("status r --json"))
    assert status["stages"][0]["done"] == 8
    assert status["queue"]["waiting"] == 0


@pytest.mark.parametrize(
    ("line", "code", "words"),
    [
        (f"submit {IMAGE}", 2, "create-chunk; begin each step of a run with generate-tasks"),
        ("submit", 2, "is empty"),
        (f"submit {TASKS}", 2, "step 1 has no operator after generate-tasks"),
        (f"submit {LINE} work r", 2, "contains work, which cannot be part of a pipeline"),
        (f"submit --queue memory://x {LINE} threshold {SAVE} m.zarr", 2, "only in the memory"),
        (f"submit {LINE} {SAVE} m.zarr then", 2, "step 2 is empty"),
        (f"{LINE} then", 2, "then must come first"),
        (f"submit {LINE} threshold save-volume -v h5://m.h5", 2, "one process"),
        (f"submit {LINE} threshold save-zarr --store m.zarr --chunk-size 5 16 16", 1, "cut"),
        (f"submit --run s3://b/r {LINE} threshold {SAVE} m.zarr", 1, "b"),
        (f"submit --queue ftp://x {LINE} threshold {SAVE} m.zarr", 1, "scheme 'ftp'"),
        (f"submit {LINE} inference -f identity -s 8 16 16 -v 2 4 4 -c 1 {SAVE} m.zarr", 2,
         "--expand-margin-size auto"),
        (f"submit {LINE} inference -f identity -s 8 16 16 -v 0 0 0 --lower-batch {SAVE} m.zarr",
         2, "--device-class any"),
        (f"submit --no-rehearse {LINE} inference -m rsunet -s 8 16 16 -v 0 0 0 --backend auto "
         f"{SAVE} m.zarr", 2, "name a backend"),
        (f"submit --stage a {LINE} threshold {SAVE} m.zarr then --stage a {LINE} {SAVE} n.zarr",
         2, "two steps are called a"),
        ("work nothing", 2, "nothing; correct the URL, or create the run"),
        ("work r#sha256=xyz", 2, "64 digits"),
        ("work r --max-cost 3", 2, "--cost-per-hour"),
        ("work r --gpus x", 2, "--gpus x names no GPUs; write --gpus all"),
        ("status nothing", 2, "nothing; correct the URL, or create the run"),
        ("retry r", 2, "--failed"),
        (f"run --on slurm:4 {LINE} threshold {SAVE} m.zarr", 2, "local:N"),
    ],
)  # fmt: skip
def test_wrong_lines_say_what_to_change(line, code, words, monkeypatch):
    """Each is one sentence, and neither a run nor a volume is left behind."""
    for name in ("AWS_PROFILE", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    told = say(line, code)
    assert words in told
    assert "Traceback" not in told
    left = {"image.zarr"} | ({"m.zarr"} if "then" in line else set())
    assert set(os.listdir()) <= left | {"cache"}  # noqa: PTH208


def test_a_refused_submission_leaves_nothing(folder):
    """A queue that is not there, another run, a fork of nothing: all before a volume is made.

    What a first stage writes stays if the second is wrong, and is named; the mended line takes it.
    """
    line = f"{LINE} threshold {SAVE} mask.zarr"
    for queue in ("sqlite://none.sqlite", "file://none"):
        told = say(f"submit --no-create-queue --queue {queue} {line}", code=1)
        assert "does not exist" in told
    say(f"submit --fork none {line}", code=2)
    assert {path.name for path in folder.iterdir()} == {"image.zarr"}
    say(f"submit {line}")
    say(f"submit --run mask.zarr.run {LINE} threshold -t 9 {SAVE} other.zarr", code=2)
    assert not (folder / "other.zarr").exists()
    wrong = f"{TASKS} load-zarr --store a.zarr save-zarr --chunk-size 5 16 16 --store b.zarr"
    told = say(f"submit --run r {LINE} threshold {SAVE} a.zarr then {wrong}", code=1)
    assert "outputs of earlier steps were created and are kept: " in told
    assert "a.zarr; correct the pipeline" in told
    assert not (folder / "r").exists()


def test_all_outputs_that_tasks_would_cut_are_named():
    """Not the first one alone: all can be mended at once."""
    outputs = "".join(f" save-zarr --store {name}.zarr --chunk-size 5 16 16" for name in "ab")
    told = say(f"submit --run r {LINE} threshold{outputs}", code=1)
    assert "a.zarr" in told
    assert "b.zarr" in told
    assert set(os.listdir()) == {"image.zarr"}  # noqa: PTH208


def test_another_line_at_the_same_place_is_refused():
    """The pipeline of a run does not change under its workers."""
    say(f"submit --run r {LINE} threshold -t 100 {SAVE} mask.zarr")
    told = say(f"submit --run r {LINE} threshold -t 90 {SAVE} mask.zarr", code=2)
    assert "threshold --threshold is 90, not 100" in told


def test_tasks_that_would_go_elsewhere_are_refused():
    """A run sends its tasks by itself: an own queue or file of the source is no part of it."""
    for option, place in (("--queue-name", "sqlite://q.sqlite"), ("--file-path", "boxes.npy")):
        line = f"{TASKS} {option} {place} load-zarr --store image.zarr threshold {SAVE} a.zarr"
        said = say(f"submit --run r {line}", code=2)
        assert f"leave {option} out and name the queue with submit --queue" in said
        assert not Path("r").exists()


@pytest.mark.parametrize(
    "subcommand", ["submit", "run --on local:1", "work", "repair", "retry --failed"]
)
def test_what_acts_on_a_run_takes_no_dry_run(subcommand):
    """It would be done all the same, and others would see it."""
    line = f"{LINE} threshold {SAVE} a.zarr"
    rest = f"--run r {line}" if subcommand.startswith(("submit", "run")) else "r"
    assert "--dry-run cannot be combined with" in say(f"--dry-run {subcommand} {rest}", code=2)
    assert not Path("r").exists()
    assert not Path("a.zarr").exists()


def test_an_address_of_another_run_is_refused():
    """The digest pins the spec."""
    say(f"submit --run r {LINE} threshold -t 100 {SAVE} mask.zarr")
    assert "not the spec that was submitted" in work(f"work r#sha256={'0' * 64}", code=2)


@pytest.mark.parametrize("word", ["--backend auto", "--backend=auto"])
@pytest.mark.long
def test_the_backend_is_decided_once(word):
    """Workers use the backend that was chosen at submission."""
    network = f"inference -m rsunet -s 8 16 16 -v 0 0 0 {word}"
    say(f"submit --run r {LINE} {network} {SAVE} map.zarr")
    (stage,) = RunDirectory("r").spec.steps
    options = dict(stage.options)["inference"]
    assert options["backend"] in ("torch", "openvino", "onnxruntime")
    assert word not in " ".join(stage.arguments)
    assert word.replace("auto", options["backend"]) in " ".join(stage.arguments)


@pytest.mark.long
def test_limits_hold_over_all_stages():
    """--max-tasks is the worker's: three tasks of a run whose stages have two each."""
    tasks = "generate-tasks --roi-size 8 32 16 --chunk-size 8 16 16 load-zarr --store"
    first = f"{tasks} image.zarr threshold -t 100 {SAVE} mask.zarr"
    second = f"{tasks} mask.zarr connected-components {SAVE} labels.zarr"
    say(f"submit --run r --stage mask {first} then --stage labels {second}")
    work("work r --max-tasks 3", code=75)
    stages = json.loads(say("status r --json"))["stages"]
    assert sum(stage["done"] for stage in stages) == 3
    work("work r")


@pytest.mark.long
def test_a_worker_that_waits_at_the_end_leaves_when_idle():
    """--no-until-complete keeps a worker at a complete run, until --idle-exit."""
    say(f"submit --run r {LINE} threshold -t 100 {SAVE} mask.zarr")
    assert "is complete" in work("work r --no-until-complete --idle-exit 2")
    assert "is complete" in work("work r --no-until-complete --idle-exit 2"), "nothing to do"


def test_no_error_looks_like_a_complete_run(folder, monkeypatch):
    """Exit 1: complete except for failed tasks; 2: the worker could not start."""
    say(f"submit --run r --queue sqlite://tasks.sqlite {LINE} threshold {SAVE} mask.zarr")
    (folder / "tasks.sqlite").unlink()
    assert "tasks.sqlite" in work("work r", code=2)
    assert "unknown scheme" in work("work foo://r", code=2)


@pytest.mark.long
def test_worker_processes_that_cannot_begin_end_the_worker_with_70(folder):
    """An unexpected error has an exit code of its own: another machine may succeed."""
    (folder / "dies.py").write_text(
        "import os, signal\n"
        "if os.environ.get('DIES'):\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "def execute(chunk):\n"
        "    return chunk\n"
    )
    say(f"--quiet create-chunk --size 16 32 32 --pattern zero {SAVE} mask.zarr")
    say(f"submit --run r {LINE} plugin -f dies.py -i chunk -o chunk {SAVE} mask.zarr")
    assert "has failed to start 3 times in a row" in work("work r", code=70, DIES="1")
    work("work r")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.QueueError("queue does not exist"), 2),
        (errors.VolumeNotFoundError("no such run"), 2),
        (errors.MissingExtraError("boto3 is not installed"), 2),
        (errors.QueueUnreachableError("no answer"), 75),
        (errors.VolumeUnreachableError("no answer"), 75),
        (errors.ChunkflowError("child 0 has failed to start 3 times in a row"), 70),
        (KeyError("a bug"), 70),
        (RuntimeError("CUDA error: an illegal memory access"), 70),
        (MemoryError(), 70),
        (OSError(5, "Input/output error"), 70),
    ],
)
def test_exit_codes_of_a_worker(error, code):
    """An error never makes a worker exit with 1, which means a complete run."""

    @click.command()
    @click.option("--debug/--no-debug")
    def act(debug):
        with worker_fails_in_order():
            raise error

    result = CliRunner().invoke(cli_of(act), ["act"])
    assert result.exit_code == code, result.output


def cli_of(command):
    """Return a group that has the option which errors look at, and one command."""

    @click.group()
    @click.option("--debug/--no-debug")
    def group(debug):
        pass

    group.add_command(command)
    return group


@pytest.mark.long
def test_a_queue_that_was_lost_is_filled_again(folder):
    """Submitting again sends the tasks without a record to an empty queue."""
    line = f"submit --run r --queue sqlite://tasks.sqlite {LINE} threshold -t 100 {SAVE} mask.zarr"
    say(line)
    work("work r --max-tasks 2", code=75)
    for path in folder.glob("tasks.sqlite*"):
        path.unlink()
    assert "sent 6 tasks" in say(line)
    assert "sent 0 tasks" in say(line)
    work("work r")


def test_a_line_that_saves_nothing_is_warned_of():
    """It may be meant: a plugin may save something."""
    assert "saves no output" in say(f"submit --run r {LINE} threshold")


def test_two_runs_on_one_queue_are_refused_unless_that_is_meant():
    """The message names the run of the tasks, which stay in the queue."""
    queue = "--queue sqlite://tasks.sqlite"
    say(f"submit --run s {queue} {LINE} threshold {SAVE} mask.zarr")
    other = f"{queue} {LINE} threshold -t 9 {SAVE} other.zarr"
    told = say(f"submit --run t {other}", code=2)
    (stage,) = json.loads(say("status s --json"))["stages"]
    assert "already has 8 tasks of step threshold of another run" in told
    assert stage["hash"] in told
    assert "its own --queue" in told
    assert not RunDirectory("t").exists()
    assert "8 waiting, 0 in flight" in say("status s")
    say(f"submit --run t --shared-queue {other}")
    assert "16 waiting" in say("status t")
    say(f"submit --run t {other}")  # an existing run


@pytest.mark.long
def test_a_stage_that_was_taken_over_is_mended_where_it_was_done(folder):
    """Repair of a fork does not change the ledger of the original run."""
    line = f"--stage mask {LINE} threshold -t 100 {SAVE} mask.zarr"
    say(f"submit --run r {line}")
    work("work r")
    second = f"{TASKS} load-zarr --store mask.zarr connected-components {SAVE} labels.zarr"
    say(f"submit --run s --fork r {line} then --stage labels {second}")
    block = next(each for each in (folder / "mask.zarr" / "0" / "c").rglob("*") if each.is_file())
    block.unlink()
    assert "missing or damaged objects or tasks; run chunkflow repair" in say("repair s", code=2)
    assert len(list(RunDirectory("r").ledger("mask").records())) == 8
    say("repair r")
    work("work r")
    assert "mask" not in say("verify s", code=1)


def test_a_relative_path_is_another_one_in_another_folder(folder, monkeypatch):
    """The same words, typed in two folders, are two runs: they read and write other volumes."""
    line = f"{LINE} threshold -t 100 {SAVE} mask.zarr"
    address = f"--run {folder}/r --queue sqlite://{folder}/tasks.sqlite"
    say(f"submit {address} {line}")
    work("work r")
    other = folder / "other"
    other.mkdir()
    monkeypatch.chdir(other)
    say(f"--quiet {IMAGE} {SAVE} image.zarr")
    told = say(f"submit {address} {line}", code=2)
    assert "other/image.zarr" in told
    say(f"submit --run s --fork {folder}/r {line}")
    assert not RunDirectory("s").spec.reused
    monkeypatch.chdir(folder)
    say(f"submit --run t --fork r {line}")
    assert list(RunDirectory("t").spec.reused) == ["threshold"]


def test_a_machine_without_the_folder_writes_nowhere_else(folder, monkeypatch):
    """Relative paths would lead to another folder there, and be recorded: the worker refuses."""
    (there := folder / "there").mkdir()
    monkeypatch.chdir(there)
    say(f"--quiet {IMAGE} {SAVE} image.zarr")
    say(f"submit --run {folder}/r {LINE} threshold {SAVE} mask.zarr")
    monkeypatch.chdir(folder)
    there.rename(folder / "elsewhere")
    said = say("work r", code=2)
    assert f"uses {there}/image.zarr" in said
    assert f"this machine has no folder {there}" in said
    assert not Path("mask.zarr").exists()


@pytest.mark.long
def test_an_output_that_is_gone_is_not_made_by_workers(folder):
    """Workers do not recreate a lost output, such as on an unmounted disk; submit does."""
    line = f"submit --run r {LINE} threshold {SAVE} {folder}/shared/mask.zarr"
    say(line)
    (folder / "shared").rename(folder / "unmounted")
    said = say("work r", code=2)
    assert f"{folder}/shared/mask.zarr, which does not exist on this machine" in said
    assert not (folder / "shared").exists()
    say(line)
    work("work r")
    say("verify r")


def test_one_place_is_the_same_however_it_is_spelled(folder):
    """Other spellings of paths give the same run; another format does not."""
    address = f"--run {folder}/r --queue sqlite://tasks.sqlite"
    say(f"submit {address} {LINE} threshold {SAVE} zarr://mask.zarr")
    (folder / "deep").mkdir()
    (folder / "link").symlink_to(folder / "deep")
    other = LINE.replace("image.zarr", f"{folder}/deep/../image.zarr/")
    mask = f"zarr://file://{folder}/link/../mask.zarr/"
    address = "--run ./deep/../r/ --queue sqlite://deep/../tasks.sqlite"
    told = say(f"submit {address} {other} threshold {SAVE} {mask}")
    assert "sent 0 tasks" in told
    assert "the run already existed" in told
    say(f"submit {address} {other} threshold {SAVE} zarr2://mask.zarr", code=2)
    say(f"submit {address} {other} threshold {SAVE} zarr://masks.zarr", code=2)


@pytest.mark.parametrize(
    "code",
    gate_runs(
        [
            "plugin -f trap.py -i chunk -o chunk",
            "inference -m trap.py -s 8 16 16 -v 0 0 0 -c 1 --framework pytorch",
            "agglomerate --scoring-function One<Two>",
        ],
        "plugin -f trap.py -i chunk -o chunk",
    ),
)
def test_no_code_does_not_believe_the_spec(folder, code):
    """With --no-code a spec that hides its code is refused; the code does not run."""
    (folder / "trap.py").write_text("import pathlib\npathlib.Path('sprung').touch()\n")
    line = "generate-tasks --roi-size 8 16 16 --chunk-size 8 16 16 create-chunk --size 8 16 16"
    say(f"--quiet create-chunk --size 8 16 16 --pattern zero {SAVE} out.zarr")
    say(f"submit --run r {line} threshold --threshold 100 {SAVE} out.zarr")
    spec = json.loads((folder / "r" / "spec.json").read_text())
    words = spec["stages"][0]["words"]
    at = words.index("threshold")
    words[at : at + 3] = code.split()
    content = json.dumps(spec, sort_keys=True, separators=(",", ":")).encode() + b"\n"
    (folder / "r" / "spec.json").write_bytes(content)
    (folder / "r" / "spec.sha256").write_text(hashlib.sha256(content).hexdigest())
    assert "--no-code refuses this pipeline" in work("work r --no-code", code=2)
    assert not (folder / "sprung").exists()
