"""Workers that are killed all the time, and one that lives long.

`CHUNKFLOW_SOAK_TASKS` says how many tasks the soak has: 1,000 unless it is set, 10,000 for a night.
"""

import os
import time
from statistics import median

import pytest

from drills.invariants import check, growth, sample
from drills.rig import LARGEST, make_input

pytestmark = [pytest.mark.drill, pytest.mark.slow, pytest.mark.timeout(1800)]
SLEEP_S = 0.2


def test_soak(make_drill, expected, source, tmp_path):
    """One of eight workers killed every two seconds: nothing leaks, and the others keep working."""
    tasks = int(os.environ.get("CHUNKFLOW_SOAK_TASKS", "1000"))
    grid = (-(-tasks // 100), 10, 10)
    if grid[0] > LARGEST[0]:
        source = make_input(tmp_path / "in.zarr", grid)
    drill = make_drill(grid, {None: f"sleep:{SLEEP_S}"}, folder=tmp_path / "drill", source=source)
    drill.submit()
    options = ("--lease", 8, "--max-failures", 20)
    steady = drill.work(*options)
    samples = []

    def look():
        if not samples or time.monotonic() - samples[-1].when > 1:
            samples.append(sample(steady))
        return False

    kills = drill.churn(
        8, options, every_s=2, until=look, spared=[steady], patience_s=1 + tasks * SLEEP_S
    )
    assert set(drill.wait(*drill.alive(), patience_s=120)) <= {0}
    check(drill, expected(drill), faults=kills, cap=20)
    assert kills
    found = growth(samples)
    assert not found, found
    ratio = busy(drill) * SLEEP_S
    print(  # noqa: T201 what happened
        f"{drill.tasks} tasks, {kills} kills, {len(drill.workers)} workers: a worker that lives "
        f"computes {ratio:.0%} of its time; {samples[len(samples) // 2]} -> {samples[-1]}"
    )
    assert ratio > 0.8


def busy(drill):
    """Return how many tasks a worker computes in a second, between its first and its last."""
    whens = {}
    for call in drill.calls():
        whens.setdefault(call.supervisor, []).append(call.when)
    return median(
        (len(times) - 1) / (times[-1] - times[0]) for times in whens.values() if len(times) > 20
    )
