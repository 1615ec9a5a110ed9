"""The order in which the tasks of a run are sent: chosen, stored, and the same when repeated."""

from __future__ import annotations

import re
from contextlib import closing
from pathlib import Path

import pytest
from rigs.command_line import say

from chunkflow_py.queue.message_body import parse_body
from chunkflow_py.queue.queue_protocol import open_queue
from chunkflow_py.run.run_directory import RunDirectory
from chunkflow_py.run.sending_order import tasks_in_order
from chunkflow_py.run.submit import send_step
from chunkflow_py.tasks.checkerboard import checkerboard

NETWORK = "inference --framework identity --num-output-channels 1 --input-patch-size 6 10 10"
SHARED = f"{NETWORK} --output-patch-overlap 2 3 3"
TASKS = "generate-tasks --volume-path zarr://em.zarr --chunk-size 6 20 20"
LOAD = "load-volume --volume-path zarr://em.zarr --expand-margin-size auto"
SAVE = "save-volume --volume-path zarr://out.zarr --block-size 6 20 20"
BOX_FILE = Path("boxes.csv")


@pytest.fixture(autouse=True)
def em(tmp_path, monkeypatch):
    """Make an image of 4 x 4 x 4 tasks."""
    monkeypatch.chdir(tmp_path)
    say(
        "create-volume --volume-path zarr://em.zarr --volume-size 24 80 80 --block-size 6 20 20 "
        "--data-type uint8 --voxel-size 8 8 8"
    )


def submit(options="", order="", run="r", network=SHARED):
    """Submit a run, without loading its network; return what was logged."""
    return say(f"submit --run {run} {options} {TASKS} {order} {LOAD} {network} {SAVE}")


def received(run="r", step="inference"):
    """Receive all tasks of the queue of a run, and return their numbers in the same order."""
    plan, numbers = RunDirectory(run).plan(step), []
    with closing(open_queue(f"sqlite://{Path.cwd()}/{run}/queue.sqlite")) as queue:
        while messages := queue.receive(10, lease_s=60):
            numbers += [plan.number(parse_body(message.body).region) for message in messages]
            queue.acknowledge(messages)
    return numbers


def colours(plan, workers=64):
    """Return the numbers in checkerboard order; they differ from the raster order."""
    order = list(checkerboard(plan, workers))
    assert order != list(plan)
    return order


def test_numbers_plan_and_hash_are_those_of_raster():
    """Another order changes the order of the messages, but no number, plan or hash."""
    steps, orders = [], []
    cases = [
        ("", "--order raster"),
        ("", "--order checkerboard"),
        ("--exchange on --workers 3", ""),
    ]
    for number, (options, order) in enumerate(cases):
        run = f"r{number}"
        submit(f"--no-rehearse {options}", order, run)
        directory = RunDirectory(run)
        steps.append(directory.spec.steps[0])
        orders.append(received(run))
        assert orders[-1] == list(tasks_in_order(directory, "inference"))
        plan = directory.plan("inference")
    assert len({step.hash for step in steps}) == 1
    assert len({(str(step.plan), step.plan_sha256) for step in steps}) == 1
    assert orders == [list(plan), colours(plan), colours(plan, 3)]


@pytest.mark.parametrize(
    ("options", "order", "network", "expected", "logged"),
    [
        ("--exchange off", "", SHARED, "raster", ""),
        ("--exchange on", "", SHARED, "checkerboard", "checkerboard order, for 64 worker"),
        ("--exchange on --workers 1", "", SHARED, "raster", "raster order, because one worker"),
        ("--exchange on", "--order raster", SHARED, "raster", ""),
        ("--exchange on --device-class any", "", SHARED, "raster", ""),
        ("--exchange on", "", f"{NETWORK} --output-patch-overlap 0 0 0", "raster", ""),
        ("--exchange on", "", SHARED.replace(" 6 10 10", " 8 10 10"), "raster", ""),
        ("--exchange on", "", f"{SHARED} --grid chunk", "raster", ""),
        ("--exchange on", "", "inverse --name inference", "raster", ""),
        ("--exchange off", "--order checkerboard", "inverse --name inference", "checkerboard", ""),
    ],
)
def test_runs_that_exchange_patches_are_sent_in_colours(options, order, network, expected, logged):
    """Unless the user chose an order, there is one worker, or no patch is exchanged."""
    log = submit(f"{options} --no-rehearse --stage inference", order, network=network)
    plan = RunDirectory("r").plan("inference")
    assert received() == (colours(plan) if expected == "checkerboard" else list(plan))
    assert logged in log
    assert ("tasks are sent in" in log) == bool(logged)


def test_boxes_without_a_grid_are_sent_in_their_order():
    """The log names a box that is not in the grid."""
    BOX_FILE.write_text("0-6_0-20_0-20\n6-12_0-20_0-20\n15-24_0-20_0-20\n")
    tasks = f"generate-tasks --bbox-file {BOX_FILE} --order checkerboard"
    log = say(f"submit --no-rehearse --run r {tasks} {LOAD} save-h5 --file-name made_")
    assert "sent in raster order, not in checkerboard order: the boxes are not cells" in log
    assert "box 6-12_0-20_0-20 begins inside a cell of the grid that starts at (0, 0, 0)" in log
    assert "has cells of size (9, 20, 20)" in log
    assert received(step="save-h5") == [0, 1, 2]


def test_a_repeated_submission_sends_only_what_is_missing_in_the_same_order():
    """Some tasks are recorded, and the queue is lost."""
    submit("--exchange on --workers 2")
    say("work r --processes 1 --threads 1 --max-tasks 9", code=75)
    for path in Path("r").glob("queue.sqlite*"):
        path.unlink()
    log = submit("--exchange on --workers 2")
    plan, ledger = RunDirectory("r").plan("inference"), RunDirectory("r").ledger("inference")
    expected = [number for number in colours(plan, 2) if number in set(ledger.missing(plan))]
    assert len(expected) == int(re.search(r"sent (\d+) tasks", log)[1]) == 55
    assert received() == expected


def test_workers_find_the_order_of_a_later_step_in_the_run_directory():
    """Workers send the tasks of later steps; an order that cannot be read is ignored."""
    again = SAVE.replace("out", "again")
    second = f"then --stage second {TASKS} --order checkerboard {LOAD} inverse {again}"
    say(f"submit --no-rehearse --run r {TASKS} {LOAD} inverse --name first {SAVE} {second}")
    run = RunDirectory("r")
    with closing(open_queue(f"sqlite://{Path.cwd()}/r/queue.sqlite")) as queue:
        queue.acknowledge(queue.receive(64, lease_s=60))
        assert send_step(run, queue, "second") == 64
    assert received(step="second") == colours(run.plan("second"))
    path = Path("r/stages/second/order.json")
    for content in ("", "[]", '{"order": "checkerboard"}', '{"order": "spiral"}'):
        path.write_text(content)
        assert list(tasks_in_order(run, "second")) == list(run.plan("second"))
    path.unlink()
    assert list(tasks_in_order(run, "second")) == list(run.plan("second"))
