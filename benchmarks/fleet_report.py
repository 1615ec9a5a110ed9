"""What the recorded simulations of `simulate_fleet.py` mean: lines for the documentation."""

from __future__ import annotations

from typing import Any

from table import Line, at_most

HOUR = 3600.0
TASKS_OF_AN_OBJECT = 1000
KINDS = ("PUT", "GET", "LIST", "DELETE")


def lines(found: list[dict[str, Any]]) -> list[Line]:
    """Return every line of the table, a section for each simulation."""
    return [line for each in found for line in _lines(each)]


def cost(found: dict[str, Any]) -> dict[str, float]:
    """Return dollars by what they are paid for; removals are free, a listing costs as a put."""
    fleet, requests = found["fleet"], found["requests"]
    puts, gets = found["volume_writes"], found["volume_reads"]
    ledger_puts = requests.get("PUT", 0) - puts + requests.get("LIST", 0)
    ledger_gets = requests.get("GET", 0) - gets
    million = 1e6
    return {
        "machines": found["worker_s"] / HOUR * fleet["worker_price"],
        "requests for volumes": (puts * fleet["put_price"] + gets * fleet["get_price"]) / million,
        "for the ledger": (ledger_puts * fleet["put_price"] + ledger_gets * fleet["get_price"])
        / million,
        "for the queue": found["sqs_requests"] * fleet["sqs_price"] / million,
    }


def _lines(found: dict[str, Any]) -> list[Line]:
    fleet = found["fleet"]
    tasks, workers = fleet["tasks"], fleet["workers"]
    section = f"{tasks:,} tasks of {fleet['task_s']:.0f} s, {workers:,} workers"
    faults = sum(found.get(name, 0) for name in ("interruptions", "stalls", "duplicates"))
    makespan, ideal = found["makespan_s"], found["ideal_s"]
    own = {
        kind: found["requests"].get(kind, 0)
        - {"PUT": found["volume_writes"], "GET": found["volume_reads"]}.get(kind, 0)
        for kind in KINDS
    }
    asked = ", ".join(f"{own[kind] / tasks:.2f} {kind}" for kind in KINDS)
    paid = cost(found)
    dollars = ", ".join(f"{name} ${value:,.2f}" for name, value in paid.items())
    wasted = found["wasted_s"]
    window = faults * found["longest_s"]
    limits = (
        f"{found['slow_downs']:,} SlowDown of S3, {found['over_limit']:,} OverLimit of SQS, "
        f"{found['conflicts']:,} conflicts of updates; {found['in_flight']:,} in flight at most"
    )
    what_happened = (
        f"{found.get('interruptions', 0):,} interruptions ({found.get('killed', 0):,} without "
        f"notice), {found.get('stalls', 0):,} stalls, {found.get('duplicates', 0):,} duplicates, "
        f"{found.get('failed', 0):,} failed attempts"
    )
    return [
        Line(section, "makespan", f"{makespan / HOUR:.1f} h, {makespan / ideal:.3f} of the ideal"),
        Line(section, "what happened", what_happened),
        Line(
            section,
            "recorded",
            f"{found['done']:,} done, {found['dead']:,} given up, {found['missing']:,} missing",
            "",
            None,
            "met" if found["done"] + found["dead"] == tasks and not found["missing"] else "not met",
        ),
        at_most(
            section, "wasted work", wasted / HOUR, window / HOUR, "h",
            f", {wasted / (tasks * fleet['task_s']):.3%} of all",
        ),
        at_most(
            section, "objects of the ledger", found["objects"], tasks / TASKS_OF_AN_OBJECT, "",
            f" ({found['objects_before_fold']:,} before the last fold)",
        ),
        Line(section, "requests of the ledger for a task", asked),
        Line(section, "requests of the queue for a task", f"{found['sqs_requests'] / tasks:.2f}"),
        Line(section, "limits met", limits),
        Line(section, "cost", f"${sum(paid.values()):,.0f}: {dollars}"),
    ]  # fmt: skip
