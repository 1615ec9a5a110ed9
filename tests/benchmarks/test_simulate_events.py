"""A small pool on the real leases and ledgers: what must hold whatever happens to its runs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from fleet_report import event_lines
from page import written_between
from simulate_events import (
    PAGE,
    ZONES,
    Budget,
    Pool,
    Shortage,
    Submit,
    Upgrade,
    documented,
    scenario,
)
from simulate_fleet import Fleet

FLEET = Fleet(tasks=3600, workers=18, interruptions=0.5, duplicates=0.01, transient=0.01)
OF_ZONE = FLEET.workers // len(ZONES)


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    """What a small pool did while everything happened."""
    return Pool(FLEET, scenario(FLEET)).simulate()


def run_of(found: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the results of a run."""
    (result,) = (run for run in found["runs"] if run["run"] == name)
    return result


@pytest.mark.parametrize(("name", "tasks"), [("survey", 2700), ("urgent", 900)])
def test_all_tasks_of_each_run_are_recorded_once(
    found: dict[str, Any], name: str, tasks: int
) -> None:
    """Each is done, although machines end, and change between the runs."""
    run = run_of(found, name)
    assert run["interruptions"] > 0
    assert (run["done"], run["dead"], run["missing"]) == (tasks, 0, 0)


def test_priority_is_strict(found: dict[str, Any]) -> None:
    """All machines leave the survey, after the tasks that they have begun, and come back."""
    urgent, survey = run_of(found, "urgent"), run_of(found, "survey")
    assert 0 < urgent["before"] < survey["done"]
    assert 0 < urgent["after"] - urgent["before"] <= 2 * FLEET.workers
    assert urgent["after"] < survey["done"]


def test_without_priority_the_first_run_comes_first() -> None:
    """Of two runs with the same priority, the second one gets what the first one leaves."""
    small = replace(FLEET, interruptions=0.0, stalls=0.0)
    runs = [Submit(0.0, "first", 720), Submit(0.1, "second", 360)]
    first, second = Pool(small, runs).simulate()["runs"]
    assert first["submitted_h"] * 3600 + first["makespan_s"] < second["makespan_s"]
    assert second["before"] == 0  # there is no run of lower priority


def test_machines_stop_at_the_budget(found: dict[str, Any]) -> None:
    """They finish the tasks that they have begun, and continue when the budget is raised."""
    (stop,) = run_of(found, "survey")["stops"]
    task_s = run_of(found, "survey")["longest_s"] + found["look_s"]
    more = stop["workers"] * task_s / 3600 * FLEET.worker_price
    assert stop["budget"] <= stop["cost"] <= stop["budget"] + more
    assert stop["waited_h"] > 0
    assert run_of(found, "urgent")["stops"] == []


def test_a_large_budget_stops_nothing() -> None:
    """A run that costs less than its budget does not stop."""
    events = [Submit(0.0, "survey", 360), Budget(0.0, "survey", 1000.0)]
    (run,) = Pool(FLEET, events).simulate()["runs"]
    assert (run["done"], run["stops"]) == (360, [])


def test_a_zone_without_capacity_gets_no_machines(found: dict[str, Any]) -> None:
    """Its lost machines are missing until the end of the shortage; others are replaced at once."""
    assert OF_ZONE // 2 <= found["most_missing"] <= OF_ZONE
    shortage = next(event for event in found["events"] if event["event"] == "Shortage")
    assert found["missing_h"] >= OF_ZONE // 2 * shortage["hours"] * 0.9
    calm = Pool(FLEET, [Submit(0.0, "survey", 720)]).simulate()
    assert calm["most_missing"] == 0


def test_a_shortage_takes_its_share() -> None:
    """All machines of the zone can be taken at once; the other zones do all tasks."""
    quiet = replace(FLEET, interruptions=0.0, stalls=0.0)
    events = [Submit(0.0, "survey", 720), Shortage(0.2, "a", 10.0, taken=1.0)]
    found = Pool(quiet, events).simulate()
    (run,) = found["runs"]
    assert run["interruptions"] == found["most_missing"] == OF_ZONE
    assert run["done"] == 720


def test_an_upgrade_replaces_all_machines(found: dict[str, Any]) -> None:
    """At the end, no machine has the old image; each was replaced in a wave."""
    assert found["old"] == 0
    assert FLEET.workers / 2 < found["replaced"] <= FLEET.workers
    quiet = replace(FLEET, interruptions=0.0, stalls=0.0)
    events = [Submit(0.0, "survey", 1440), Upgrade(0.2, share=1 / 3, every_s=300.0)]
    waves = Pool(quiet, events).simulate()
    assert waves["replaced"] == FLEET.workers
    assert waves["upgraded_h"] - 0.2 == pytest.approx(3 * 300 / 3600)
    assert waves["runs"][0]["wasted_s"] <= FLEET.workers * waves["runs"][0]["longest_s"]


def test_the_table_says_what_was_found(found: dict[str, Any]) -> None:
    """A run that is not complete, a budget that is exceeded or an old image is not met."""
    table = event_lines(found)
    assert {line.verdict for line in table} == {"met", ""}
    survey = run_of(found, "survey")
    stop = survey["stops"][0]
    for wrong in (
        found | {"old": 1},
        found | {"runs": [survey | {"missing": 1}]},
        found | {"runs": [survey | {"stops": [stop | {"cost": 2 * stop["budget"]}]}]},
        found | {"runs": [run_of(found, "urgent") | {"after": survey["done"]}]},
    ):
        assert [line.verdict for line in event_lines(wrong)].count("not met") == 1


def test_the_page_shows_what_is_recorded() -> None:
    """Nobody has edited the table of the page."""
    assert written_between(PAGE) == documented(), "run: python benchmarks/simulate_events.py"
