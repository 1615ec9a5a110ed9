"""Queues of Amazon SQS that deliver twice, out of order, or in part; producers that die."""

import subprocess
import time
from collections import Counter

import psutil
import pytest

from drills.clouds import DELETION, LEDGER, RENEWAL, asked, bodies_of, in_cloud
from drills.invariants import check
from drills.rig import PROGRAM, environment

pytestmark = [
    pytest.mark.drill,
    pytest.mark.aws,
    pytest.mark.parametrize("s3", ["ministack"], indirect=True),
]
SLOW = pytest.mark.slow


@pytest.fixture
def drill(make_drill, s3):
    """A drill of eight tasks, not submitted yet."""
    return in_cloud(make_drill, s3)


# --- what is delivered -------------------------------------------------------------------------


@pytest.mark.long
def test_delivered_up_to_five_times_at_once(make_drill, s3, expected):
    """Copies that several workers have at the same time are one record, and leave the queue."""
    drill = in_cloud(make_drill, s3, acts={None: "sleep:0.1"})
    drill.submit()
    bodies = [drill.body(number) for number in range(drill.tasks)]
    drill.send([body for body in bodies for _ in range(drill.random.randrange(5))])
    for _ in range(3):
        drill.work("--lease", 20)
    assert set(drill.wait()) == {0}
    # What is done twice at the same time is bounded by the number of workers.
    check(drill, expected(drill), faults=2 * drill.tasks)
    assert max(drill.computed().values()) <= 3


@pytest.mark.long
def test_a_duplicate_of_a_finished_task_costs_one_look_up(drill, s3, expected):
    """It is not computed again, and of the ledger one object is asked for, whatever it says."""
    drill.submit()
    first = drill.work("--max-tasks", drill.tasks - 1)
    assert drill.wait() == [75]
    first.was_asked = True  # by the option
    done = sorted(drill.records())
    assert len(done) == drill.tasks - 1
    before = drill.computed()
    copies = [drill.body(number) for number in done for _ in range(4)]
    drill.send(copies)
    s3.faults.set()
    drill.work()
    drill.wait()
    log = s3.faults.log()
    check(drill, expected(drill))
    assert all(drill.computed()[number] == before[number] for number in done)
    # A worker leaves when all is recorded; copies that nobody has received by then may stay.
    assert drill.counts().leased == 0
    # Who counts the tasks lists what is loose, then reads all of it once.
    counted = len(asked(log, path="prefix=[^&]*loose", method="GET"))
    receipts = sum(each.get("status") == 200 for each in asked(log, "ReceiveMessage"))
    for number in done:
        looked = asked(log, path=rf"{LEDGER}/loose/0/0\.{number}\.0\.record", method="GET")
        assert len(looked) <= 4 + counted
    headers = [e for e in asked(log, path=f"{LEDGER}/pages/0$", method="GET") if _is_range(e)]
    assert len(headers) <= receipts + counted + 2  # and what is recorded last
    assert len(asked(log, DELETION)) <= receipts + 2


def _is_range(request):
    return any(name.lower() == "range" for name in request["headers"])


@pytest.mark.parametrize(
    "order", ["random", pytest.param("reversed", marks=SLOW), pytest.param("delayed", marks=SLOW)]
)
@pytest.mark.long
def test_in_any_order(drill, expected, order):
    """The order in which tasks are delivered does not show in the output."""
    drill.submit()
    bodies = bodies_of(drill.queue_url)
    assert len(bodies) == drill.tasks
    if order == "random":
        drill.random.shuffle(bodies)
    later = bodies[::2] if order == "delayed" else []
    drill.send([body for body in reversed(bodies) if body not in later])
    drill.work()
    if later:
        drill.until(lambda: len(drill.records()) == len(bodies) - len(later), "the first half")
        time.sleep(1)  # the worker is idle, and does not leave
        drill.send(later)
    assert drill.wait() == [0]
    check(drill, expected(drill))
    assert drill.computed() == dict.fromkeys(range(drill.tasks), 1)


# --- how much is asked ---------------------------------------------------------------------------


@pytest.mark.long
def test_what_a_run_asks_for(drill, s3, expected):
    """To submit, to look and to begin costs a few requests, and a task a handful."""

    def asked_by(act):
        s3.faults.set()
        act()
        return s3.faults.log()

    drill.create_output()
    drill.create_output = lambda: None
    # Among them the metadata of the output, which the run keeps, and whether it holds anything.
    assert len(asked_by(drill.submit)) < 56
    log = asked_by(lambda: drill.work() and drill.wait())
    # Five of them ask the two queues, two the budget, and one each the exchange and the workers.
    assert len(asked_by(drill.status)) < 18
    looks = len(asked(log, path="prefix=[^&]*loose"))  # whether it is complete
    assert len(asked(log, path="/rig-")) < 20 + 5 * looks + 12 * drill.tasks
    per_task = Counter((e["method"], e["path"]) for e in asked(log, path=rf"{LEDGER}/loose/0/"))
    # Whether it is done, when all are counted in the end, and when they are folded.
    assert max(count for (method, _), count in per_task.items() if method == "GET") <= 4
    assert max(count for (method, _), count in per_task.items() if method != "GET") == 1
    check(drill, expected(drill))


# --- leases ------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("code", [503, pytest.param(400, marks=SLOW)])
def test_a_heartbeat_that_is_refused(drill, s3, expected, code):
    """Work ends with its lease, nothing of it is acknowledged, and others do the task."""
    lease_s = 3
    drill.act({0: "sleep:60@1"})
    drill.submit()
    bodies_of(drill.queue_url)
    drill.send([drill.body(0)])
    body = '{"__type": "com.amazonaws.sqs#MessageNotInflight", "message": "refused"}'
    rule = {"type": "status", "code": code, "target": RENEWAL, "body": body}
    with s3.faults(rule) as faults:
        worker = drill.work("--lease", lease_s)
        (call,) = drill.until(drill.calls, "the task")
        (child,) = worker.children()
        received = max(
            e["at"] for e in asked(faults.log(), "ReceiveMessage") if e["at"] < call.when
        )
        assert not asked(faults.log(), DELETION)
        # This worker must not be the one that receives it again: it would go on with that lease.
        faults.set(rule, {"type": "status", "code": 503, "target": "ReceiveMessage"})
        drill.until(lambda: not _lives(child), "the end of the work", 4 * lease_s)
        ended = time.monotonic()
        assert not asked(faults.log(), DELETION)
    # The lease began when it was received, or after that.
    assert ended - received < lease_s + 1
    drill.send([drill.body(number) for number in range(1, drill.tasks)])
    assert drill.wait() == [0]
    check(drill, expected(drill), faults=1)
    assert "lease" in worker.said()


def _lives(process):
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


# --- producers ---------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_batch_that_is_sent_in_part(make_drill, s3, expected):
    """What the service refuses of a batch is sent again: planned is what is queued, once each."""
    drill = in_cloud(make_drill, s3, (4, 4, 4))
    with s3.faults({"type": "refuse", "share": 0.5, "p": 0.8, "target": "SendMessage"}) as faults:
        said = drill.submit()
        assert sum(each.get("refused", 0) for each in faults.log()) > 5
    assert "sent 64 tasks" in said
    assert drill.counts().waiting == 64
    drill.work()
    assert drill.wait() == [0]
    check(drill, expected(drill))


class Producer:
    """`chunkflow submit` of a drill, in the background."""

    def __init__(self, drill):
        self.drill = drill
        submit = ("submit", "--run", drill.url, "--queue", drill.queue_url, "--stage", "drill")
        words = [*submit, "--no-rehearse", *drill.source_words, *drill.line_words(drill.output)]
        self.process = subprocess.Popen(
            [*PROGRAM, *map(str, words)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment(**drill.variables),
            cwd=drill.folder,
            text=True,
        )

    def end(self):
        """Wait for a good end."""
        said, _ = self.process.communicate(timeout=60)
        assert self.process.returncode == 0, said
        self.drill.address = said.rpartition("'")[0].rpartition("'")[2]
        return said


@SLOW
def test_a_producer_that_is_killed_and_run_again(make_drill, s3, expected):
    """All is queued, what was sent before a second time; the copies are harmless."""
    drill = in_cloud(make_drill, s3, (4, 8, 4))
    drill.create_output()
    with s3.faults({"type": "late", "s": 1.0, "target": "SendMessage"}) as faults:
        first = Producer(drill)
        drill.until(lambda: len(asked(faults.log(), "SendMessage")) >= 3, "the first batches")
        first.process.kill()
        first.process.communicate()
    sent = drill.counts().waiting
    assert sent
    assert not drill.home.is_sent("drill")
    assert f"sent {drill.tasks} tasks" in drill.submit()
    assert drill.counts().waiting >= drill.tasks + sent
    drill.work()
    assert drill.wait() == [0]
    check(drill, expected(drill))
    assert drill.computed() == dict.fromkeys(range(drill.tasks), 1)


@SLOW
def test_two_producers_at_once(make_drill, s3, expected):
    """Both end well with the same address; every task is there, twice at most."""
    drill = in_cloud(make_drill, s3, (4, 4, 4))
    drill.create_output()
    producers = [Producer(drill) for _ in range(2)]
    addresses = {producer.end() and drill.address for producer in producers}
    assert len(addresses) == 1
    bodies = Counter(bodies_of(drill.queue_url))
    assert set(bodies) == {drill.body(number) for number in range(drill.tasks)}
    assert max(bodies.values()) <= 2
    drill.send(bodies.elements())
    drill.work()
    assert drill.wait() == [0]
    check(drill, expected(drill))
