"""Seconds of a whole line, from those of some of its tasks, or from what is told."""

import json
from types import SimpleNamespace

import pytest

from chunkflow_py.core.geometry import BoundingBox, BoxGrid, Zyx
from chunkflow_py.errors import OptionError
from chunkflow_py.planning.duration_estimate import (
    Fleet,
    mean_work,
    measured_duration,
    speed_duration,
    stated_duration,
)
from chunkflow_py.planning.pilot import Observation
from chunkflow_py.planning.task_amounts import Patches

LANES = {"load": "read", "infer": "compute", "save": "write"}
SECONDS = {"load": 1.0, "infer": 4.0, "save": 2.0}
BOX = "0-1_0-1_0-2"  # two units of work


def seen(times, ready=3.0, ahead=1, start=0):
    """Return what a process would have told that ended tasks at these times."""
    found = Observation()
    event = {"parts": {}, "unknown": [], "devices": [], "device_bytes": 0, "ahead": ahead}
    found.add({"event": "ready", "at": ready, **event})
    for at in times:
        task = {"task": BOX, "seconds": SECONDS, "written": 8, "objects": 1, "peak": 5}
        found.add({"event": "task", "at": at, "network_s": 1, "traffic": {}, **task})
    return found


def work(box):
    """Return the work of a task: its voxels."""
    return 2.0 if box is None else float(box.voxels)


def duration(observations, tasks=100, mean=2.0, fleet=None):
    """Return what is made of observations."""
    return measured_duration(observations, tasks, mean, work, fleet or Fleet(), LANES)


def test_tasks_follow_each_other_at_the_pace_that_was_measured():
    """Start, the first task, and for each further one what lay between those that were seen."""
    took = duration([seen([10, 14, 18, 22, 26])])
    assert took.seconds == pytest.approx(10 + 99 * 4)
    assert (took.start_s, took.task_s) == (3, pytest.approx(4))
    assert took.how.startswith("measured: 5 of 100 tasks")


def test_tasks_of_less_work_take_less():
    """The pace is that of the work, which tasks at the faces of a volume have less of."""
    took = duration([seen([10, 14, 18, 22, 26])], mean=1.0)
    assert took.seconds == pytest.approx(10 + (100 * 1 - 2) * 2)


def test_a_run_that_was_rehearsed_whole_takes_what_that_took():
    """Nothing is extrapolated where all tasks were done."""
    assert duration([seen([10, 14, 18, 22, 26])], tasks=5).seconds == pytest.approx(26)


@pytest.mark.parametrize(("ahead", "task_s"), [(1, 4), (0, 7)])
def test_two_tasks_tell_their_slowest_lane(ahead, task_s):
    """Of too few tasks to measure a distance, lanes that overlap take what the slowest takes."""
    took = duration([seen([10, 11], ahead=ahead)])
    assert took.task_s == pytest.approx(task_s)


def test_machines_and_processes_share_the_tasks():
    """Processes are as fast as they were side by side; who has most tasks ends last."""
    side_by_side = [seen([11, 17, 23, 29, 35]), seen([11, 17, 23, 29, 35])]
    took = duration(side_by_side, fleet=Fleet(machines=10, processes=2))
    assert took.seconds == pytest.approx(11 + 4 * 6)
    took = duration(side_by_side, tasks=101, fleet=Fleet(machines=10, processes=2))
    assert took.seconds == pytest.approx(11 + 5 * 6)


def test_a_part_of_a_task_is_better_than_nothing():
    """A first task that is not done in time is told by how much of it was; that is said."""
    found = seen([])
    for at, share in ((5, 0.0), (7, 0.1), (15, 0.5)):
        found.add({"event": "progress", "at": at, "operator": "infer", "share": share})
    took = duration([found])
    assert took.task_s == pytest.approx(20)
    assert took.seconds == pytest.approx(3 + 2 + 100 * 20)
    assert "the time for writing is not included" in took.how


def test_nothing_is_made_up():
    """A rehearsal that never began tells no time."""
    assert duration([Observation()]) is None
    assert duration([seen([])]) is None


def test_what_is_told_is_taken():
    """Seconds of a task are shared out as they are."""
    assert stated_duration(10, 60.0, Fleet(2, 2), "told").seconds == 3 * 60


def test_the_mean_of_a_grid_is_exact():
    """Tasks that a face cuts off count with what is left of them."""
    region = BoundingBox.from_size((0, 0, 0), (4, 4, 5))
    grid = BoxGrid.covering(region, Zyx(4, 4, 2), respect_stop=True)
    assert mean_work(grid, [(lambda box: box.size, 2.0)]) == pytest.approx(2 * 80 / 3)
    assert mean_work(None, []) == 1


# --- speeds ---------------------------------------------------------------------------------------

ASKED = {
    "input_patch_size": Zyx(8, 16, 16),
    "batch_size": 4,
    "backend": "torch",
    "dtype": "float32",
    "compile": False,
    "tf32": False,
}


def speeds(tmp_path, **changes):
    """Return a file as tune writes it."""
    file = tmp_path / "tune.json"
    row = {**ASKED, "input_patch_size": [8, 16, 16], "seconds": 2.0, **changes}
    file.write_text(json.dumps({"measurements": [{**row, "seconds": None}, row]}))
    return file


def by_speed(file, patches=True):
    """Return how long a line with a network takes."""
    network = Patches("inference", 400, 200, Zyx(1, 2, 2), 2048, 2.0, 4, lambda box: box.size)
    operator = SimpleNamespace(name="inference", options=ASKED)
    return speed_duration(file, [operator], [network] if patches else [], 10, Fleet(2))


def test_speeds_of_tune_tell_the_time(tmp_path):
    """Forwards of all tasks take what tune has measured for one."""
    took = by_speed(speeds(tmp_path))
    assert took.task_s == pytest.approx(400 / 4 * 2 / 10)
    assert took.seconds == pytest.approx(5 * 20)
    assert "tune.json" in took.how


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"dtype": "bfloat16"},
            "has no measurement of inference with .*dtype float32.*dtype bfloat16",
        ),
        ({"seconds": None}, "has no measurement of inference"),
        ({"seconds": "much"}, "is not the output of chunkflow tune --json"),
    ],
)
def test_speeds_of_another_network_are_refused(tmp_path, changes, message):
    """What was measured must be what will run; both are named."""
    with pytest.raises(OptionError, match=message):
        by_speed(speeds(tmp_path, **changes))


def test_speeds_need_a_network(tmp_path):
    """A line without one is told to leave them out."""
    with pytest.raises(OptionError, match="has no inference operator; leave --speeds out"):
        by_speed(speeds(tmp_path), patches=False)
