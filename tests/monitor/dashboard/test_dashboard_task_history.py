"""Speed, workers, errors and cost, from planted records."""

import secrets

import pytest
from contracts.ledger_contract import a_failure, a_record
from rigs.planted import TRACEBACK

from chunkflow_py.monitor.dashboard.run_watch import cost
from chunkflow_py.monitor.dashboard.task_history import TaskHistory
from chunkflow_py.monitor.dashboard.task_states import TaskStates
from chunkflow_py.run.ledger.ledger import Ledger
from chunkflow_py.run.ledger.ledger_record import FailedAttempt, Record
from chunkflow_py.store.memory_store import MemoryStore

np = pytest.importorskip("numpy")


@pytest.fixture(params=["loose", "folded"])
def history(request):
    """Ten tasks in ten minutes by two workers; three attempts failed, a task was given up."""
    store = MemoryStore(secrets.token_hex(8))
    ledger = Ledger(store, "infer", 20, segment_size=4, in_background=False)
    for number in range(10):
        who = "early" if number < 5 else "late"
        state = "dead" if number == 9 else "skipped" if number == 8 else "done"
        said = {"finished": 60.0 * (number + 1), "seconds": {"a": 20.0, "b": 10.0}}
        ledger.record(
            [Record(number, "box", state, "5bec", f"x{number}", who, reason="no", **said)]
        )
    for number, kind in ((1, "transient"), (2, "transient"), (9, "permanent")):
        reason = f"task {number} broke"
        ledger.fail(
            FailedAttempt(
                number, "box", f"f{number}", "early", kind, reason, TRACEBACK, 60.0 * number
            )
        )
    if request.param == "folded":
        ledger.compact()
    states = TaskStates(store, "infer", np.ones(20, bool), 4)
    states.update()
    made = TaskHistory(states)
    made.read(60)
    return made


def test_every_record_is_in_the_plot_once(history):
    """Sums over the bars are the tasks that ended so; each stands at its time."""
    plot = history.throughput(600.0)
    assert [sum(plot[name]) for name in ("done", "skipped", "failed")] == [8, 1, 1]
    assert plot["start"] <= 60 < plot["start"] + plot["width_s"]
    bars = [k for k, count in enumerate(plot["done"]) if count]
    assert [plot["start"] + k * plot["width_s"] for k in bars] == [60 * k for k in range(1, 9)]
    assert sum(history.throughput(1e9)["done"]) == 8, "long over"


def test_workers_have_their_own(history):
    """Tasks, failed attempts, last seen and hours: from the start of the first to the last end."""
    said = history.workers(1e6)
    late, early = said["rows"]
    assert (late["name"], late["tasks"], late["last"], late["active"]) == ("late", 5, 600.0, False)
    assert (early["tasks"], early["failed_attempts"], late["failed_attempts"]) == (5, 3, 0)
    assert early["seconds_a_task"] == 30.0
    assert said["hours"] == pytest.approx(((300 - 30) + (600 - 330)) / 3600)
    assert early["tasks_per_hour"] == pytest.approx(5 / (270 / 3600))
    # A worker that was seen recently is active, and its hours count until now.
    now = history.workers(660.0)
    assert [row["active"] for row in now["rows"]] == [True, True]
    assert now["hours"] == pytest.approx(((660 - 30) + (660 - 330)) / 3600)


def test_a_stage_that_is_over_costs_no_more():
    """When every task has ended, hours end with the last task, however soon it is asked."""
    store = MemoryStore(secrets.token_hex(8))
    ledger = Ledger(store, "infer", 4, segment_size=4, in_background=False)
    ledger.record([a_record(0), a_record(2, state="dead", reason="no")])
    is_task = np.array([True, False, True, True])  # there is no task 1
    states = TaskStates(store, "infer", is_task, 4)
    made = TaskHistory(states)
    hours = {}
    for name in ("going", "over"):
        states.update()
        made.read(60)
        last = float(made.finished.max())
        hours[name] = [made.workers(last + late)["hours"] for late in (10.0, 60.0)]
        ledger.record([a_record(3)])
    assert hours["going"][0] < hours["going"][1]
    assert hours["over"][0] == hours["over"][1]
    assert made.workers(last + 10)["active"] == 0


def test_a_worker_that_died_costs_no_more():
    """After ten minutes of silence, its hours end with its last task, also while tasks are left."""
    store = MemoryStore(secrets.token_hex(8))
    ledger = Ledger(store, "infer", 8, segment_size=4, in_background=False)
    states = TaskStates(store, "infer", np.ones(8, bool), 4)
    made = TaskHistory(states)

    def hours(now):
        states.update()
        made.read(60)
        return made.workers(now)["hours"]

    def end(number, worker, finished):
        record = a_record(number)
        said = {"worker": worker, "finished": finished, "seconds": {"a": 60.0}}
        ledger.record([Record(number, record.box, "done", record.spec, f"x{number}", **said)])

    end(0, "dead", 60.0)
    end(1, "alive", 60.0)
    assert hours(120.0) == pytest.approx(2 * 120 / 3600), "nobody can know yet"
    for number, when in ((2, 700.0), (3, 1400.0)):
        end(number, "alive", when)
        assert hours(when) == pytest.approx((60 + when) / 3600)
    assert hours(1500.0) == pytest.approx((60 + 1500) / 3600)
    for number in range(4, 8):
        end(number, "alive", 1600.0)
    assert hours(1600.0) == hours(1700.0) == pytest.approx((60 + 1600) / 3600)


def test_errors_are_put_together_by_kind_and_words(history):
    """Numbers do not tell them apart; the latest examples keep their tracebacks."""
    said = history.errors()
    first, second = said["groups"]
    assert (first["kind"], first["count"], first["reason"]) == ("transient", 2, "task # broke")
    assert [each["number"] for each in first["examples"]] == [2, 1]
    assert first["examples"][0]["traceback"] == TRACEBACK
    assert (second["kind"], second["count"], second["last"]) == ("permanent", 1, 540.0)
    assert said["failed_tasks"] == [{"number": 9, "reason": "no"}]


def test_cost_is_hours_by_price_and_foretold_by_tasks():
    """Half of the tasks have taken half of the hours; without a price there are hours alone."""
    assert cost(3.0, 10, 20, 0.5) == {
        "hours": 3.0, "hours_foretold": 6.0, "spent": 1.5, "foretold": 3.0,
    }  # fmt: skip
    assert cost(0.0, 0, 20, 0.5)["foretold"] is None
    assert cost(3.0, 10, 20, None)["spent"] is None


def test_reopened_tasks_leave_the_history():
    """What is taken back is neither in the plot nor among the tasks that were given up."""
    store = MemoryStore(secrets.token_hex(8))
    ledger = Ledger(store, "infer", 8, segment_size=4, in_background=False)
    ledger.record([a_record(0), a_record(1, state="dead", reason="no")])
    ledger.fail(a_failure(1, "f"))
    ledger.compact()
    states = TaskStates(store, "infer", np.ones(8, bool), 4)
    made = TaskHistory(states)
    for done, failed, groups in ((1, [1], 1), (1, [], 0)):
        states.update()
        made.read(60)
        plot, errors = made.throughput(2000.0), made.errors()
        assert sum(plot["done"]) == done
        assert [each["number"] for each in errors["failed_tasks"]] == failed
        assert len(errors["groups"]) == groups
        ledger.reopen([1])
