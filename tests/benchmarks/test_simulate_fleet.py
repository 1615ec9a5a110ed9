"""A small fleet on the real leases and ledger: what must hold after any number of interruptions."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fleet_report import TASKS_OF_AN_OBJECT, cost, lines
from fleet_services import IN_FLIGHT, WRITES_PER_S, Clock, SimulatedS3, SimulatedSqs
from rigs.shared import built_once
from simulate_fleet import Fleet, Simulation

# Interrupted so often that a tenth of the tasks is begun in vain.
SMALL = Fleet(
    tasks=6000, workers=60, task_s=60.0, interruptions=6.0, stalls=0.5, duplicates=0.01,
    transient=0.01,
)  # fmt: skip


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a small fleet did."""

    def simulate(folder: Path) -> None:
        (folder / "found.json").write_text(json.dumps(Simulation(SMALL).run()))

    folder = built_once(tmp_path_factory, "fleet", simulate)
    found: dict[str, Any] = json.loads((folder / "found.json").read_text())
    return found


def test_all_tasks_are_recorded_exactly_once(found: dict[str, Any]) -> None:
    """Each is done, whatever happened to those who worked on it."""
    assert found["interruptions"] > 100
    assert found["killed"] > 10
    assert found["stalls"] > 10
    assert found["duplicates"] > 10
    assert found["failed"] > 10
    assert (found["done"], found["dead"], found["missing"]) == (SMALL.tasks, 0, 0)


@pytest.mark.long
def test_an_interruption_wastes_one_task_at_most(found: dict[str, Any]) -> None:
    """From its begin until its output is written."""
    faults = found["interruptions"] + found["stalls"] + found["duplicates"]
    assert 0 < found["wasted_s"] <= faults * found["longest_s"]


@pytest.mark.long
def test_few_objects_are_left(found: dict[str, Any]) -> None:
    """One for 2048 tasks, after folding; and not many before."""
    assert found["objects"] <= SMALL.tasks / TASKS_OF_AN_OBJECT
    assert found["objects_before_fold"] < SMALL.tasks / 4


def test_nobody_takes_much_longer_than_the_lost_work(found: dict[str, Any]) -> None:
    """No worker waits for what it could have."""
    assert found["makespan_s"] < 2 * found["ideal_s"]


def test_without_faults_nothing_is_wasted() -> None:
    """Then every attempt is the record of its task; the same seed gives the same run."""
    quiet = replace(SMALL, tasks=1000, interruptions=0.0, stalls=0.0, duplicates=0.0, transient=0.0)
    once, again = (Simulation(quiet).run() for _ in range(2))
    assert once["wasted_s"] == 0
    assert once["attempts"] == quiet.tasks
    del once["simulated_in_s"], again["simulated_in_s"]
    assert once == again


def test_tasks_that_exchange_patches_compute_each_about_once() -> None:
    """Although workers are interrupted; the cost and the table include the exchange."""
    tasks = replace(SMALL, tasks=4096, workers=32, interruptions=1.0, exchange=True)
    found = Simulation(tasks).run()
    assert (found["done"], found["missing"]) == (tasks.tasks, 0)
    assert found["interruptions"] > 10
    exchanged = found["exchange"]
    assert 1 <= exchanged["computed"] / exchanged["distinct"] < 1.05
    assert exchanged["without"] / exchanged["distinct"] > 2.2
    assert 0 < exchanged["bytes_read"] <= exchanged["bytes_written"]
    assert 0 < exchanged["peak_bytes"] < exchanged["bytes_written"] / 2
    assert found["makespan_s"] < 0.7 * found["ideal_s"]  # of tasks that compute all their patches
    table = {line.what: line for line in lines([found])}
    assert table["computed patches per distinct patch"].verdict == "met"
    assert "for the exchange $" in table["cost"].measured
    requests = {kind: found["requests"][kind] - n for kind, n in exchanged["requests"].items()}
    requests["PUT"] -= found["volume_writes"]
    requests["GET"] -= found["volume_reads"]
    assert all(0 < requests[kind] < 12 * tasks.tasks for kind in ("PUT", "GET"))


def test_too_many_writes_are_slowed_down() -> None:
    """3,500 a second under a prefix; who asks for more waits."""
    store = SimulatedS3(Clock())
    store.ask("PUT", "volume/", WRITES_PER_S, WRITES_PER_S)
    assert (store.slow_downs, store.elapsed < 1) == (0, True)
    store.ask("PUT", "volume/", 10)
    assert store.slow_downs >= 10
    assert store.elapsed >= 1


def test_too_many_messages_in_flight_are_refused() -> None:
    """120,000; nothing more is received before one of them is done."""
    queue = SimulatedSqs("refused", Clock(), (str(n) for n in range(IN_FLIGHT + 10)))
    held = queue.receive(IN_FLIGHT, 60)
    assert len(held) == IN_FLIGHT
    assert queue.receive(1, 60) == []
    assert queue.over_limit == 1
    queue.acknowledge(held[:1])
    assert len(queue.receive(1, 60)) == 1


def test_the_table_says_what_was_found(found: dict[str, Any]) -> None:
    """Cost is that of machines, volumes, ledger and queue; waste and objects have limits."""
    table = {line.what: line for line in lines([found])}
    assert table["tasks"].verdict == "met"
    assert table["wasted work"].verdict == "met"
    paid = cost(found)
    assert paid["machines"] == pytest.approx(found["worker_s"] / 3600 * SMALL.worker_price)
    assert all(value > 0 for value in paid.values())
    assert "$" in table["cost"].measured
    lost = {line.what: line for line in lines([found | {"missing": 1}])}
    assert lost["tasks"].verdict == "not met"
