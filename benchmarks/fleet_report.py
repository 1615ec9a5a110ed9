"""Tables of the recorded simulations of fleets, for the documentation."""

from __future__ import annotations

from typing import Any

from table import Line, at_most

HOUR = 3600.0
MONTH_HOURS = 730.0
STORAGE_PRICE = 0.023  # dollars for a gigabyte in S3, a month
TASKS_OF_AN_OBJECT = 1000
COMPUTED_LIMIT = 1.1
KINDS = ("PUT", "GET", "LIST", "DELETE")


def lines(found: list[dict[str, Any]]) -> list[Line]:
    """Return all lines of the table, one section for each simulation."""
    return [line for each in found for line in _lines(each)]


def cost(found: dict[str, Any]) -> dict[str, float]:
    """Return dollars by purpose; deletions are free, and a listing costs as much as a write."""
    fleet, requests = found["fleet"], found["requests"]
    puts, gets = found["volume_writes"], found["volume_reads"]
    exchange = found.get("exchange", {"requests": {}})["requests"]
    exchange_puts = exchange.get("PUT", 0) + exchange.get("LIST", 0)
    exchange_gets = exchange.get("GET", 0)
    ledger_puts = requests.get("PUT", 0) - puts + requests.get("LIST", 0) - exchange_puts
    ledger_gets = requests.get("GET", 0) - gets - exchange_gets
    million = 1e6
    dollars = {
        "machines": found["worker_s"] / HOUR * fleet["worker_price"],
        "requests for volumes": (puts * fleet["put_price"] + gets * fleet["get_price"]) / million,
        "for the ledger": (ledger_puts * fleet["put_price"] + ledger_gets * fleet["get_price"])
        / million,
        "for the queue": found["sqs_requests"] * fleet["sqs_price"] / million,
    }
    if exchange:
        dollars["for the exchange"] = (
            exchange_puts * fleet["put_price"] + exchange_gets * fleet["get_price"]
        ) / million
        hours = found["makespan_s"] / HOUR
        gigabytes = found["exchange"]["peak_bytes"] / 1e9
        dollars["to store parts"] = gigabytes * hours * STORAGE_PRICE / MONTH_HOURS
    return dollars


def _many(count: int, name: str) -> str:
    return f"{count:,} {name}{'' if count == 1 else 's'}"


def _lines(found: dict[str, Any]) -> list[Line]:
    fleet = found["fleet"]
    tasks, workers = fleet["tasks"], fleet["workers"]
    section = f"{tasks:,} tasks of {fleet['task_s']:.0f} s, {workers:,} workers"
    if exchanged := found.get("exchange"):
        section += ", with the exchange of patches"
    faults = sum(found.get(name, 0) for name in ("interruptions", "stalls", "duplicates"))
    makespan, ideal = found["makespan_s"], found["ideal_s"]
    own = {
        kind: found["requests"].get(kind, 0)
        - {"PUT": found["volume_writes"], "GET": found["volume_reads"]}.get(kind, 0)
        - (exchanged["requests"].get(kind, 0) if exchanged else 0)
        for kind in KINDS
    }
    per_task = ", ".join(f"{own[kind] / tasks:.2f} {kind}" for kind in KINDS)
    dollars = cost(found)
    costs = ", ".join(f"{name} ${value:,.2f}" for name, value in dollars.items())
    wasted = found["wasted_s"]
    window = faults * found["longest_s"]
    throttling = (
        f"{found['slow_downs']:,} times SlowDown from S3, {found['over_limit']:,} times OverLimit "
        "from SQS; "
        f"{_many(found['conflicts'], 'update')} of the ledger repeated after a conflict; at most "
        f"{_many(found['in_flight'], 'message')} in flight"
    )
    what_happened = (
        f"{_many(found.get('interruptions', 0), 'interruption')} ({found.get('killed', 0):,} "
        f"without notice), {_many(found.get('stalls', 0), 'stall')}, "
        f"{_many(found.get('duplicates', 0), 'duplicate')}, "
        f"{_many(found.get('failed', 0), 'failed attempt')}"
    )
    return [
        Line(
            section, "makespan", f"{makespan / HOUR:.1f} h, {makespan / ideal:.3f} times the ideal"
        ),
        Line(section, "faults", what_happened),
        Line(
            section,
            "tasks",
            f"{found['done']:,} done, {found['dead']:,} failed for good, "
            f"{found['missing']:,} without a record",
            "",
            None,
            "met" if found["done"] + found["dead"] == tasks and not found["missing"] else "not met",
        ),
        at_most(
            section, "wasted work", wasted / HOUR, window / HOUR, "h",
            f", {wasted / (tasks * fleet['task_s']):.3%} of the work",
        ),
        at_most(
            section, "objects of the ledger", found["objects"], tasks / TASKS_OF_AN_OBJECT, "",
            f" ({found['objects_before_fold']:,} before the last compaction)",
        ),
        Line(section, "requests to the ledger per task", per_task),
        Line(section, "requests to the queue per task", f"{found['sqs_requests'] / tasks:.2f}"),
        Line(section, "rejected requests and conflicts", throttling),
        *(_exchange(section, tasks, exchanged) if exchanged else ()),
        Line(section, "cost", f"${sum(dollars.values()):,.0f}: {costs}"),
    ]  # fmt: skip


def _exchange(section: str, tasks: int, exchanged: dict[str, Any]) -> list[Line]:
    distinct, requests = exchanged["distinct"], exchanged["requests"]
    per_task = ", ".join(f"{requests.get(kind, 0) / tasks:.2f} {kind}" for kind in KINDS)
    return [
        at_most(
            section,
            "computed patches per distinct patch",
            exchanged["computed"] / distinct,
            COMPUTED_LIMIT,
            "",
            f", and {exchanged['without'] / distinct:.2f} without the exchange; "
            f"interrupted attempts computed {exchanged['killed'] / distinct:.3%} more",
        ),
        Line(
            section,
            "bytes of the exchange per task",
            f"{exchanged['bytes_written'] / tasks / 1e6:.0f} MB written, "
            f"{exchanged['bytes_read'] / tasks / 1e6:.0f} MB read",
        ),
        Line(section, "requests of the exchange per task", per_task),
        Line(
            section,
            "stored parts of patches",
            f"at most {exchanged['peak_bytes'] / 1e12:.2f} TB at the same time",
        ),
    ]


def event_lines(found: dict[str, Any]) -> list[Line]:
    """Return the table of a pool that works on several runs (`simulate_events.py`)."""
    runs, machines = found["runs"], found["machines"]
    tasks = sum(run["fleet"]["tasks"] for run in runs)
    section = f"{tasks:,} tasks of {len(runs)} runs, {machines:,} machines in 3 zones"
    result = [line for run in runs for line in _run_lines(section, run, machines, found["look_s"])]
    describe = {"Shortage": _shortage, "Upgrade": _upgrade}
    result += [
        describe[event["event"]](section, event, found)
        for event in found["events"]
        if event["event"] in describe
    ]
    faults = found["replaced"] + sum(
        run.get(name, 0) for run in runs for name in ("interruptions", "stalls", "duplicates")
    )
    wasted = sum(run["wasted_s"] for run in runs)
    longest_s = max(run["longest_s"] for run in runs)
    work_s = sum(run["fleet"]["tasks"] * run["fleet"]["task_s"] for run in runs)
    dollars = sum(sum(cost(run).values()) for run in runs)
    return [
        *result,
        at_most(
            section, "wasted work", wasted / HOUR, faults * longest_s / HOUR, "h",
            f", {wasted / work_s:.3%} of the work",
        ),
        Line(section, "cost", f"${dollars:,.0f}"),
    ]  # fmt: skip


def _shortage(section: str, event: dict[str, Any], found: dict[str, Any]) -> Line:
    text = (
        f"after {event['at_h']:.1f} h, zone {event['zone']} loses {event['taken']:.0%} of its "
        f"machines and gets none for {event['hours']:.1f} h: up to {found['most_missing']:,} "
        f"machines missing, {found['missing_h']:,.0f} machine hours"
    )
    return Line(section, "zone without capacity", text)


def _upgrade(section: str, event: dict[str, Any], found: dict[str, Any]) -> Line:
    hours = found["upgraded_h"] - event["at_h"]
    text = (
        f"after {event['at_h']:.1f} h, {event['share']:.0%} of the machines every "
        f"{event['every_s'] / 60:.0f} min: {found['replaced']:,} replaced within {hours:.1f} h, "
        f"{found['old']:,} with the old image at the end"
    )
    verdict = "met" if found["replaced"] and not found["old"] else "not met"
    return Line(section, "new image during the runs", text, "", None, verdict)


def _run_lines(section: str, run: dict[str, Any], machines: int, look_s: float) -> list[Line]:
    """Return what happened to one run of a pool."""
    fleet, name = run["fleet"], f"run `{run['run']}`, priority {run['priority']}"
    tasks, hours = fleet["tasks"], run["makespan_s"] / HOUR
    is_complete = run["done"] + run["dead"] == tasks and not run["missing"]
    text = (
        f"submitted after {run['submitted_h']:.1f} h, complete {hours:.1f} h later; "
        f"{run['done']:,} tasks done, {run['dead']:,} failed for good, {run['missing']:,} without "
        "a record"
    )
    result = [Line(section, name, text, "", None, "met" if is_complete else "not met")]
    if run["priority"]:
        ideal_h = tasks * fleet["task_s"] / machines / HOUR
        ratio = f"{hours / ideal_h:.2f} times as long as if all machines worked only for this run"
        result += [
            Line(section, f"{name}: time", ratio),
            at_most(
                section,
                f"{name}: tasks that other runs finished while this run had waiting tasks "
                "(limit: 2 per machine)",
                run["after"] - run["before"],
                2 * machines,
                "",
            ),
        ]
    for stop in run["stops"]:
        task_s = run["longest_s"] + look_s
        limit = stop["budget"] + stop["workers"] * task_s / HOUR * fleet["worker_price"]
        result.append(
            Line(
                section,
                f"{name}: budget of ${stop['budget']:,.0f}",
                f"${stop['cost']:,.2f} when all machines had ended; budget raised "
                f"{stop['waited_h']:.1f} h later",
                f"at most ${limit:,.2f} (one task per machine)",
                stop["cost"] / limit,
                "met" if stop["cost"] <= limit else "not met",
            )
        )
    return result
