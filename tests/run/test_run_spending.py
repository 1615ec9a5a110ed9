"""The budget of a run: many workers, a simulated clock, and a bound on what they spend together."""

from __future__ import annotations

import heapq
import random
from contextlib import suppress
from itertools import count

import pytest
from rigs.variants import gate_runs
from rigs.workers import wait_for

from chunkflow_py.errors import OptionError, VolumeError
from chunkflow_py.run import spending
from chunkflow_py.run.run_directory import RunDirectory
from chunkflow_py.run.spending import (
    LONGEST_INTERVAL_S,
    SHORTEST_INTERVAL_S,
    SpendingMeter,
    budget_of,
    budget_reached,
    metered,
    set_budget,
    spending_of,
)
from chunkflow_py.store import open_store

PRICES = (0.4, 0.9, 2.4)  # per hour
NUMBERS = count()


@pytest.fixture
def store():
    """An empty store in memory."""
    return open_store(f"mem://spending-{next(NUMBERS)}/a.run")


class Fleet:
    """Simulated workers, each a meter and tasks one after the other.

    Attributes:
        now: seconds of the simulated clock.
        cost: true cost of all workers so far, killed ones included.
        killed_cost: most that reports of killed workers can be too large.
        ended: number of workers that the budget has stopped.
        stops: times at which they stopped.
        reports: number of reports of all workers.
    """

    def __init__(self, store, seed, task_s):
        self.store, self.random, self.task_s = store, random.Random(seed), task_s
        self.now, self.cost, self.killed_cost, self.ended, self.reports = 0.0, 0.0, 0.0, 0, 0
        self._events, self._order, self.stops = [], count(), []
        self.alive = {}

    def at(self, when, act, *args):
        """Call *act* at the time *when*."""
        heapq.heappush(self._events, (when, next(self._order), act, args))

    def run(self):
        """Handle events until nothing is left to do."""
        while self._events:
            self.now, _, act, args = heapq.heappop(self._events)
            act(*args)

    def start(self, price):
        """Start a worker."""
        meter = SpendingMeter(self.store, "a.run", price, lambda: self.now)
        self.alive[meter] = self.now, price
        self._check(meter)
        self._next_task(meter)

    def kill(self, meter):
        """End a worker without its last report."""
        if meter in self.alive:
            since, price = self.alive.pop(meter)
            self.cost += price * (self.now - since) / 3600
            self.killed_cost += price * LONGEST_INTERVAL_S / 3600

    def _check(self, meter):
        if meter in self.alive:
            self.reports += 1
            self.at(self.now + meter.check(), self._check, meter)

    def _next_task(self, meter):
        if meter not in self.alive:
            return
        if meter.reached is None:
            idle_s = self.random.uniform(0, self.task_s)
            self.at(self.now + idle_s + self.random.uniform(0, self.task_s), self._next_task, meter)
            return
        since, price = self.alive.pop(meter)
        self.cost += price * (self.now - since) / 3600
        self.ended += 1
        self.stops.append(self.now)
        meter.close()


@pytest.mark.parametrize("task_s", [4.0, 60.0, 900.0])
@pytest.mark.parametrize("seed", gate_runs(range(3), 0))
def test_a_fleet_spends_its_budget_and_at_most_one_task_a_worker_more(store, seed, task_s):
    """Workers of three prices start, join late and are killed; the sum never leaves the bounds."""
    fleet = Fleet(store, seed, task_s)
    set_budget(store, 60.0)
    for _ in range(60):
        fleet.at(fleet.random.uniform(0, 300), fleet.start, fleet.random.choice(PRICES))
    for _ in range(25):
        fleet.at(fleet.random.uniform(300, 3000), fleet.start, fleet.random.choice(PRICES))
    for when in (500, 1000, 1500, 1600, 1700):
        fleet.at(when, lambda: fleet.kill(fleet.random.choice(list(fleet.alive))))
    fleet.run()
    recorded = spending_of(store)
    assert fleet.ended > 50
    # A task of a worker, with the wait for it: at most twice the length of a task.
    allowed = fleet.ended * max(PRICES) * (2 * task_s + 2 * SHORTEST_INTERVAL_S) / 3600
    assert 60.0 - allowed <= recorded.cost <= 60.0 + allowed
    assert fleet.cost <= recorded.cost + 1e-3 <= fleet.cost + fleet.killed_cost + 2e-3
    assert recorded.reports <= 85, "at most one object a worker"
    assert recorded.live == 5, "killed workers have not said that they ended"
    hours = fleet.now / 3600
    assert fleet.reports < 85 * (hours * 3600 / LONGEST_INTERVAL_S / 0.75 + 40)


def test_workers_stop_together(store, monkeypatch):
    """Within seconds and a task; without the intervals that shrink near the budget, they do not."""
    spreads = []
    for name, share in (("with", spending._SHARE), ("without", 1e9)):
        monkeypatch.setattr(spending, "_SHARE", share)
        fleet = Fleet(open_store(f"{store.url}/{name}"), 0, 4.0)
        set_budget(fleet.store, 10.0)
        for _ in range(60):
            fleet.at(fleet.random.uniform(0, 60), fleet.start, 2.4)
        fleet.run()
        assert fleet.ended == 60
        spreads.append(max(fleet.stops) - min(fleet.stops))
    assert spreads[0] < 2 * 4.0 + 10 * SHORTEST_INTERVAL_S
    assert spreads[1] > 3 * spreads[0]


def test_a_spent_budget_leaves_no_reports(store):
    """Workers that an autoscaler starts again and again add no objects and no costs."""
    set_budget(store, 1.0)
    fleet = Fleet(store, 0, 10.0)
    fleet.start(50.0)
    fleet.run()
    before = spending_of(store)
    for _ in range(5):
        meter = SpendingMeter(store, "a.run", 50.0)
        meter.check()
        assert meter.reached is not None
        assert "chunkflow budget a.run AMOUNT" in meter.reached
        meter.close()
    assert spending_of(store) == before


def test_a_raised_budget_lets_workers_go_on(store):
    """A worker reads the budget with each report; none at all means that there is no limit."""
    now = [0.0]
    set_budget(store, 1.0)
    meter = SpendingMeter(store, "a.run", 3600.0, lambda: now[0])
    meter.check()
    assert meter.reached is None
    now[0] = 5.0
    meter.check()
    assert "have spent 5.00, and its budget is 1.00" in meter.reached
    for amount in (8.0, None):
        set_budget(store, amount)
        meter.check()
        assert meter.reached is None
    set_budget(store, 2.0)
    meter.check()
    assert meter.reached is not None
    meter.close()
    assert spending_of(store)[:3] == (5.0, 0.0, 0)


def test_the_later_of_two_reports_counts(store):
    """A worker that was killed between its report and the removal of the last one counts once."""
    worker = "0123456789ab"
    names = [f"{worker}-00000009-{7_000_000:015}-400000", f"{worker}-00000010-{6_000_000:015}-0"]
    for name in [*names, "notes.txt", f"{worker}-1-2-3", "ffffffffffff-00000001-xxx-1"]:
        store.put(f"spending/{name}", b"")
    assert spending_of(store)[:3] == (6.0, 0.0, 0)


@pytest.mark.parametrize("amount", [0, -1, float("nan"), float("inf"), 1e13, True])
def test_what_is_no_amount_is_no_budget(store, amount):
    """Nothing is stored, and the message names the value."""
    with pytest.raises(OptionError, match=f"budget of {amount} is not possible"):
        set_budget(store, amount)
    assert budget_of(store) is None


@pytest.mark.parametrize(
    "content",
    [b"", b"500", b"[]", b"{}", b'{"budget": "500"}', b'{"budget": NaN}', b'{"budget": -5}',
     b'{"budget": true}', b"\xff", b'{"budget": 1, "budget": 2}', b"[" * 1000],
)  # fmt: skip
def test_a_damaged_budget_is_no_licence_to_spend(store, content):
    """It is an error, not a run without a budget."""
    store.put("budget.json", content)
    with pytest.raises(OptionError, match="is not a budget such as"):
        budget_of(store)
    with pytest.raises(OptionError):
        SpendingMeter(store, "a.run", 1.0).check()
    store.put("budget.json", b" " * 5000)
    with suppress(VolumeError):
        assert budget_of(store) is None
        pytest.fail("it is too long")


def test_a_budget_that_cannot_be_read_ends_no_worker(tmp_path, monkeypatch, caplog):
    """The thread that reports warns, tries again, and makes the last report."""
    monkeypatch.setattr(spending, "LONGEST_INTERVAL_S", 0.05)
    home = RunDirectory(str(tmp_path / "a.run"))
    with metered(home, 3600.0) as meter:
        home.store.put("budget.json", b"much")
        wait_for(lambda: "is not a budget such as" in caplog.text)
        set_budget(home.store, 1e-6)
        wait_for(lambda: meter.reached is not None)
        assert spending_of(home.store).per_hour == 3600.0
    spent = spending_of(home.store)
    assert (spent.per_hour, spent.reports) == (0.0, 1)
    assert 0 < spent.cost < 60
    assert "have spent" in budget_reached(home), "whoever chooses among runs asks this"
    set_budget(home.store, 100.0)
    assert budget_reached(home) is None
    set_budget(home.store, None)
    assert budget_reached(home) is None


@pytest.mark.aws
def test_reports_in_a_bucket(s3):
    """S3 keeps empty objects, lists their names, and each worker has one of them."""
    store = open_store(f"{s3.url}/a.run")
    now = [0.0]
    set_budget(store, 10.0)
    assert budget_of(store) == 10.0
    first, second = (SpendingMeter(store, "a.run", 3600.0, lambda: now[0]) for _ in range(2))
    first.check()
    for when in (1.0, 2.0, 4.0):
        now[0] = when
        second.check()
        first.check()
        spent = spending_of(store)
        assert 2 * when <= spent.cost < 10.0
        assert spent[1:] == (7200.0, 2, 2)
    now[0] = 6.0
    second.check()
    assert second.reached is not None
    first.close()
    second.close()
    assert spending_of(store) == (12.0, 0.0, 0, 2)
