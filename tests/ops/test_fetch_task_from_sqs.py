"""fetch-task-from-sqs, with delete-task-in-queue: lines that are fed by a queue."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import h5py
import numpy as np
import pytest
from click.testing import CliRunner

from chunkflow_py.cli.main import cli
from chunkflow_py.queue.queue_protocol import Counts, open_queue

PLUGIN = """
import time
def execute(chunk, **_):
    time.sleep({seconds})
    if chunk.voxel_offset[2] == {fails}:
        raise ValueError("poison")
"""
BOXES = [f"0-2_0-2_{n}-{n + 2}" for n in range(0, 8, 2)]


@pytest.fixture
def url(tmp_path, monkeypatch):
    """Return the URL of a queue with four tasks, beside a file that they cut."""
    monkeypatch.chdir(tmp_path)
    with h5py.File("raw.h5", "w") as file:
        file["main"] = np.ones((2, 2, 8), np.uint8)
    url = f"sqlite://{tmp_path}/queue.db"
    queue = open_queue(url, create=True)
    queue.send(BOXES)
    queue.close()
    return url


def plugin(seconds=0.0, fails=-1):
    """Write a plugin that sleeps, and fails on one chunk."""
    Path("slow.py").write_text(PLUGIN.format(seconds=seconds, fails=fails))
    return "plugin -f slow.py -i chunk"


def run(url, line="", options="-r 0", before=""):
    """Run a line that reads tasks from the queue; return its result and what is in the queue."""
    args = f"{before} fetch-task-from-sqs -q {url} {options} load-h5 -f raw.h5 {line}".split()
    result = CliRunner().invoke(cli, args)
    queue = open_queue(url)
    counts = queue.counts()
    queue.close()
    return result, counts


def written():
    """Return the names of the files that the line has written."""
    return sorted(path.name for path in Path.cwd().glob("out*"))


EMPTY = Counts(0, 0, 0)


@pytest.mark.parametrize("before", ["--ahead 0", "--ahead 1"])
def test_what_is_done_is_acknowledged(url, before):
    """Every task is done once and gone, without delete-task-in-queue too; the line ends with 0."""
    result, counts = run(url, "save-h5 -f out_", before=before)
    assert result.exit_code == 0, result.output
    assert counts == EMPTY
    assert written() == [f"out_{box}.h5" for box in BOXES]


def test_what_is_skipped_is_acknowledged(url):
    """A task that an operator skips does not come back for ever."""
    result, counts = run(url, "threshold -t 2 skip-all-zero save-h5 -f out_")
    assert result.exit_code == 0, result.output
    assert counts == EMPTY
    assert written() == []


def test_what_fails_is_given_back_and_the_line_goes_on(url):
    """A failure costs one task: it is listed and returned to the queue; the exit code is 1."""
    result, counts = run(url, f"{plugin(fails=2)} save-h5 -f out_")
    assert result.exit_code == 1
    assert counts == Counts(1, 0, 0)
    assert written() == [f"out_{box}.h5" for box in BOXES if box != BOXES[1]]
    assert f"plugin failed on task {BOXES[1]}: ValueError: poison" in result.output
    assert f"1 task failed and returned to the queue: {BOXES[1]}" in result.output


def test_delete_task_in_queue_acknowledges_at_its_place(url):
    """What fails after it has failed, but does not come again."""
    result, counts = run(url, f"delete-task-in-queue {plugin(fails=2)} save-h5 -f out_")
    assert result.exit_code == 1
    assert counts == EMPTY
    assert len(written()) == 3


@pytest.mark.parametrize(("before", "more"), [("", "--keep-task"), ("--dry-run", "")])
def test_kept_tasks_stay_in_the_queue(url, before, more):
    """With --keep-task, and in a dry run, every task is taken once and then given back."""
    result, counts = run(url, "save-h5 -f out_", f"-r 0 {more}", before)
    assert result.exit_code == 0, result.output
    assert counts == Counts(4, 0, 0)
    assert len(written()) == (0 if before else 4)


def test_as_many_as_wanted(url):
    """--num tasks are taken, the others are left to others."""
    result, counts = run(url, "save-h5 -f out_", "-n 3")
    assert result.exit_code == 0, result.output
    assert counts == Counts(1, 0, 0)
    assert len(written()) == 3


def test_a_message_that_is_no_task_is_put_aside(url):
    """Hostile messages end among the dead letters with the reason, and nothing of them is done."""
    queue = open_queue(url)
    hostile = [
        "../../etc",
        "__import__('os').abort()",
        '{"bbox": 1}',
        "0-99999999999999999999_0-1_0-1",
    ]
    queue.send(hostile)
    queue.send(['{"bbox": "0-2_0-1_0-1", "run": "3f9a", "stage": "infer"}'])
    result, counts = run(url, "save-h5 -f out_")
    assert result.exit_code == 0, result.output
    assert counts == Counts(0, 0, 4)
    letters = {letter.body: letter.reason for letter in queue.dead_letters()}
    assert sorted(letters) == sorted(hostile)
    assert all("is not a task" in reason for reason in letters.values())
    assert "moved a message to the dead letters" in result.output
    assert written() == [f"out_{box}.h5" for box in sorted(["0-2_0-1_0-1", *BOXES])]
    queue.close()


def test_leases_outlast_long_tasks(url):
    """A task that takes longer than its lease is done once; so are those that wait behind it."""
    line = f"{plugin(seconds=1.5)} save-h5 -f out_"
    before = "--ahead 1"
    result, counts = run(url, line, "-v 1 -r 0 -n 2", before)
    if "lost" in result.output:  # a second is short for a busy machine
        result, counts = run(url, line, "-v 4 -r 0 -n 2", before)
    assert result.exit_code == 0, result.output
    assert counts == Counts(2, 0, 0)
    assert "2 tasks" in result.output


@pytest.mark.parametrize("count", [1, 4])
def test_a_worker_that_is_interrupted_gives_its_tasks_back(url, count):
    """Ctrl-C while it works on a task, or waits for one, ends it soon and frees what it held."""
    takes_s = 2 if count == 1 else 0.3  # so that some are left, also where this test is slow
    line = f"fetch-task-from-sqs -q {url} load-h5 -f raw.h5 {plugin(takes_s)} save-h5 -f out_"
    command = [sys.executable, "-m", "chunkflow_py", "--ahead", "1", *line.split()]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        end = time.monotonic() + 60
        while len(written()) < count and time.monotonic() < end:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=30)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130, said
    queue = open_queue(url)
    counts = queue.counts()
    queue.close()
    assert counts.leased == 0
    assert counts.waiting >= (count == 1)


def test_an_empty_queue_is_waited_at(url):
    """The line outlives an empty queue for as long as a dead worker's task may need to return."""
    queue = open_queue(url)
    held = queue.receive(4, 3.0)  # by a worker that has died
    assert len(held) == 4
    result, counts = run(url, "save-h5 -f out_", "-r 3 -n 4")
    assert result.exit_code == 0, result.output
    assert counts == EMPTY
    assert len(written()) == 4
    queue.close()


@pytest.mark.parametrize("sqs_server", ["ministack"], indirect=True)
@pytest.mark.aws
def test_the_line_of_todays_users(sqs_queue, tmp_path, monkeypatch):
    """Tasks go to SQS by generate-tasks and come from it by the bare name of the queue."""
    monkeypatch.chdir(tmp_path)
    with h5py.File("raw.h5", "w") as file:
        file["main"] = np.ones((2, 2, 8), np.uint8)
    make = f"generate-tasks -z 2 2 8 -c 2 2 2 -q {sqs_queue.name}"
    assert CliRunner().invoke(cli, make.split()).exit_code == 0
    line = f"fetch-task-from-sqs -q {sqs_queue.name} -v 60 -r 0 load-h5 -f raw.h5 save-h5 -f out_"
    result = CliRunner().invoke(cli, [*line.split(), "delete-task-in-queue"])
    assert result.exit_code == 0, result.output
    assert written() == [f"out_{box}.h5" for box in BOXES]
    assert sqs_queue.counts() == EMPTY


def test_a_missing_queue_is_one_sentence(tmp_path):
    """A queue that is not there is told before any operator is set up."""
    line = f"fetch-task-from-sqs -q sqlite://{tmp_path}/none.db create-chunk"
    result = CliRunner().invoke(cli, line.split())
    assert result.exit_code == 1
    assert "none.db" in result.output
    assert not list(tmp_path.iterdir())
