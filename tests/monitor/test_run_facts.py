"""Facts of a run: what records say together, and which failures are the same."""

from __future__ import annotations

import random
from collections import Counter

from chunkflow_py.monitor.run_facts import (
    BINS,
    OTHERS,
    REASONS,
    ErrorGroups,
    OverTime,
    StepFacts,
    count_bounded,
)
from chunkflow_py.run.ledger.ledger_record import FailedAttempt, Record
from chunkflow_py.store.store_protocol import Stored

START = 1_700_000_000.0


def record(number, finished, worker="w", state="done", **said):
    """Return the record of a task of 1000 voxels that took 2 s."""
    seconds = {"load": 0.5, "infer": 1.5}
    written = (Stored("file:///a", 100, "x"), Stored("file:///b"))
    box = f"0-10_0-10_{10 * number}-{10 * number + 10}"
    said = {"seconds": seconds, "written": written} | said
    return Record(number, box, state, "5bec", f"a{number}", worker, finished=finished, **said)


def records():
    """Return records of two workers over a hundred seconds."""
    some = [record(n, START + 10 * n, "ab"[n % 2], profile="torch") for n in range(9)]
    some.append(record(9, START + 200, "a", "skipped", reason="dark", written=(), seconds={}))
    some.append(record(10, START + 95, "b", seconds={"infer": 7.0}, missing_blocks=3))
    return some


def test_records_are_summed():
    """Counts, voxels, seconds, objects, workers and reasons of records are those of all of them."""
    found = StepFacts.of(records())
    assert (found.done, found.skipped, found.dead, found.finished) == (10, 1, 0, 11)
    assert found.voxels == 10_000
    assert found.seconds == {"load": 4.5, "infer": 20.5}
    assert found.most_s["infer"] == 7.0
    assert found.objects == {"file": 10}, "blocks left out are no objects"
    assert found.stored == {"file": 1000}
    assert (found.missing_tasks, found.missing_blocks) == (1, 3)
    assert found.slowest[0] == (7.0, "0-10_0-10_100-110")
    assert found.skip_reasons == {"dark": 1}
    assert found.start == START - 2
    assert found.wall_s == 202
    # a: from 2 s before its first record to its last; b: the same
    assert found.machine_s == 202 + (95 - 10 + 2)
    assert sum(found.over_time.bins.values()) == found.voxels


def test_the_order_of_records_makes_no_difference():
    """Pages are read by several threads; what is said of a run does not depend on it."""
    some = records()
    random.Random(0).shuffle(some)
    assert StepFacts.of(some) == StepFacts.of(records())


def test_time_bins_and_reasons_stay_few():
    """A month of tasks with a reason each takes no more memory than an hour."""
    times = OverTime()
    for second in range(0, 30 * 86400, 60):
        times.add(START + second, 1.0)
    assert len(times.bins) <= BINS
    assert times.width_s > 2000
    assert sum(times.bins.values()) == 30 * 1440
    reasons = Counter()
    for number in range(3 * REASONS):
        count_bounded(reasons, f"reason {number}")
    assert len(reasons) == REASONS + 1
    assert reasons[OTHERS] == 2 * REASONS


def failure(number, reason, kind="permanent", when=0.0):
    """Return a failed attempt on a task with a box of its own."""
    box = f"0-8_0-8_{8 * number}-{8 * number + 8}"
    text = reason.format(box=box)
    return FailedAttempt(number, box, f"f{number}", "w", kind, text, when=when, seconds=1.5)


def test_failures_alike_are_one_group():
    """Boxes and numbers do not set reasons apart; kinds do. The latest examples are kept."""
    groups = ErrorGroups(failure(n, "{box}: block 7 of v2 is cut", when=n) for n in range(5))
    groups.update(ErrorGroups([failure(9, "{box}: block 8 of v2 is cut", when=2.5)]))
    groups.add(failure(6, "{box}: block 7 of v2 is cut", "transient"))
    first, second = groups.ranked()
    assert (first.reason, first.kind, first.count) == (
        "(box): block # of v2 is cut",
        "permanent",
        6,
    )
    assert [each.when for each in first.examples] == [4, 3, 2.5]
    assert first.last == 4
    assert (second.kind, second.count) == ("transient", 1)
    assert groups.kinds() == {"permanent": 6, "transient": 1}


def test_groups_stay_few():
    """Failures that all give another reason take bounded memory, and each is still counted."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    reasons = [a + b + c for a in letters for b in letters for c in letters[:4]]
    groups = ErrorGroups(failure(n, reason) for n, reason in enumerate(reasons))
    assert len(groups) == REASONS + 1
    assert groups.ranked()[0].reason == OTHERS
    assert groups.kinds() == {"permanent": len(reasons)}


def test_failed_attempts_are_timed():
    """An attempt of unknown length counts as much as a task that is done takes on average."""
    failures = [failure(1, "no"), FailedAttempt(2, "0-8_0-8_0-8", "f", "w", "worker-lost", "gone")]
    facts = StepFacts.of([record(0, START)], failures)
    assert (facts.failures, facts.failed_s, facts.untimed) == (2, 1.5, 1)
    assert facts.wasted_s == 1.5 + 2.0
