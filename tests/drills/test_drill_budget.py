"""Workers of a run with a budget: some are killed, some tasks fail, and all money is counted."""

import time

import pytest

from chunkflow_py.run.spending import spending_of
from drills.invariants import check

pytestmark = [pytest.mark.drill, pytest.mark.slow, pytest.mark.timeout(600)]

WORKERS = 4
TASK_S = 3.0
SLACK_S = 1.0  # of a worker on a busy machine, to notice and to end
BUDGET = 100.0  # each worker costs 1 a second
PRICE = ("--cost-per-hour", 3600, "--lease", 8)


def test_a_fleet_stops_within_one_task_per_worker_of_its_budget(make_drill, expected):
    """Four workers, kills and failures: what they spend together is the budget, nearly."""
    failing = {3: "raise@1", 5: "segfault@1", 8: "raise@2"}
    drill = make_drill((4, 4, 4), {None: f"sleep:{TASK_S}"} | failing)
    drill.submit("--budget", BUDGET)
    kills = drill.churn(
        WORKERS, PRICE, every_s=7, until=lambda: False, only="all", patience_s=4 * TASK_S + 30
    )
    drill.wait(*drill.alive())
    ended = [worker for worker in drill.workers if not worker.is_killed]
    assert kills
    assert {worker.process.returncode for worker in ended} == {75}
    stopped = [worker for worker in ended if "finishing the tasks that have begun" in worker.said()]
    assert stopped
    spent = spending_of(drill.home.store)
    print(  # noqa: T201 what happened
        f"{spent.cost:.1f} spent of {BUDGET:g} by {len(drill.workers)} workers, {kills} killed; "
        f"{len(drill.records())} of {drill.tasks} tasks are recorded"
    )
    assert abs(spent.cost - BUDGET) <= WORKERS * (TASK_S + SLACK_S)
    assert spent.live <= kills
    status = drill.status()
    assert (status["state"], status["budget"]) == ("unfinished", BUDGET)
    assert status["spent"] == spent.cost
    check(drill, expected(drill), complete=False, faults=kills)

    # Who starts now stops at once, and costs nothing.
    late = drill.work(*PRICE)
    assert drill.wait(late) == [75]
    assert spending_of(drill.home.store) == spent

    drill.act({})
    drill.must("budget", drill.url, 10 * BUDGET)
    last = drill.work(*PRICE)
    assert drill.wait(last) == [0]
    drill.workers = [worker for worker in drill.workers if worker.is_killed or worker is last]
    check(drill, expected(drill), faults=kills)
    at_end = drill.status()["spent"]
    assert at_end > spent.cost
    time.sleep(1)
    assert drill.status()["spent"] == at_end, "a finished run costs no more"
