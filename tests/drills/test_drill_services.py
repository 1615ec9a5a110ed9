"""Services around a run that warn, refuse or lie: metadata servers, credentials, clocks, inputs."""

import re
import signal
import socket
import time
from contextlib import closing

import pytest
from rigs.metadata import metadata_server
from rigs.s3 import SECRET
from rigs.variants import gate_runs

from drills.clouds import asked, in_cloud
from drills.invariants import check
from drills.rig import STAGE

pytestmark = pytest.mark.drill
SLOW = pytest.mark.slow
ON_MINISTACK = pytest.mark.parametrize("s3", ["ministack"], indirect=True)


# --- notices -----------------------------------------------------------------------------------


@pytest.fixture
def metadata():
    """Metadata servers of both clouds."""
    with metadata_server() as server:
        yield server


def noticed_by(host):
    """Return variables that let workers ask metadata servers."""
    return {
        "AWS_EC2_METADATA_DISABLED": "false",
        "AWS_EC2_METADATA_SERVICE_ENDPOINT": f"http://{host}",
        "NO_GCE_CHECK": "false",
        "GCE_METADATA_HOST": host,
    }


NOTICES = [
    {"action": {"action": "terminate", "time": "2026-09-18T08:22:00Z"}},
    {"rebalance": {"noticeTime": "2026-10-27T08:22:00Z"}},
    {"preempted": True},
]


@pytest.mark.parametrize(
    "notice", [NOTICES[0], *(pytest.param(n, marks=SLOW) for n in NOTICES[1:])]
)
@pytest.mark.long
def test_a_notice_drains(make_drill, expected, metadata, notice):
    """What is begun is finished, the rest is given back at once, and another worker goes on."""
    drill = make_drill((2, 4, 4), {None: "sleep:0.4"}, variables=noticed_by(metadata.host))
    drill.submit()
    drill.work()
    drill.until(drill.calls, "the first task")
    metadata.notices.update(notice)
    assert drill.wait() == [75]
    counts = drill.counts()
    assert (counts.waiting, counts.leased) == (drill.tasks - len(drill.records()), 0)
    assert counts.waiting
    check(drill, expected(drill), complete=False)
    metadata.notices.clear()
    drill.workers[0].was_asked = True
    drill.act({})
    drill.work()
    drill.wait()
    check(drill, expected(drill))
    assert drill.computed() == dict.fromkeys(range(drill.tasks), 1)


@pytest.mark.parametrize("server", gate_runs(["slow", "absent"]))
def test_metadata_servers_that_do_not_answer(make_drill, expected, metadata, server):
    """Absent or slow ones delay neither work nor its end."""
    metadata.delay_s = 60.0
    with closing(socket.socket()) as nobody:
        nobody.bind(("127.0.0.1", 0))
        host = f"127.0.0.1:{nobody.getsockname()[1]}" if server == "absent" else metadata.host
        drill = make_drill(variables=noticed_by(host))
        drill.submit()
        worker = drill.work()
        drill.until(lambda: len(drill.records()) == drill.tasks, "the last task")
        ended = time.monotonic()
        assert drill.wait() == [0]
        assert time.monotonic() - ended < 20
    check(drill, expected(drill))
    assert "Traceback" not in worker.said()


@pytest.mark.slow
@pytest.mark.aws
@ON_MINISTACK
def test_what_a_receive_in_flight_brings_is_released(make_drill, s3, expected):
    """Messages whose receipt is under way when a worker is asked to stop are there for others."""
    drill = in_cloud(make_drill, s3)
    drill.submit()
    with s3.faults({"type": "late", "s": 3.0, "target": "ReceiveMessage"}) as faults:
        worker = drill.work("--lease", 60)
        (receipt,) = drill.until(lambda: asked(faults.log(), "ReceiveMessage")[:1], "a receipt")
        drill.until(lambda: drill.counts().leased, "what it brings")
        worker.ask(signal.SIGTERM)
        drill.wait()
        assert time.monotonic() - receipt["at"] < 3 + 2 + 10  # of a busy machine
    assert worker.process.returncode == 75
    assert (drill.counts().waiting, drill.counts().leased) == (drill.tasks, 0)
    assert not drill.calls()
    drill.work()
    drill.wait()
    check(drill, expected(drill))


# --- credentials -------------------------------------------------------------------------------

REFUSALS = {
    "queue": {
        "target": "AmazonSQS",
        "body": '{"__type": "ExpiredTokenException", "message": "The security token is expired"}',
    },
    "store": {
        "path": "^/rig-",
        "body": "<Error><Code>ExpiredToken</Code><Message>It has expired.</Message></Error>",
    },
}


def refuse(*what, **more):
    """Return rules by which the queue or the store refuses credentials."""
    return [{"type": "status", "code": 403} | REFUSALS[each] | more for each in what]


@SLOW
@pytest.mark.aws
@ON_MINISTACK
@pytest.mark.parametrize("what", ["queue", "store"])
def test_credentials_that_expire(make_drill, s3, expected, what):
    """Half a minute of refusals in the middle of a run is waited out, and no task is blamed."""
    drill = in_cloud(make_drill, s3, (2, 4, 4), {None: "sleep:0.3"})
    drill.submit()
    workers = [drill.work("--lease", 20) for _ in range(2)]
    drill.until(lambda: len(drill.calls()) >= 4, "the first tasks")
    with s3.faults(*refuse(what)) as faults:
        time.sleep(30)
        refused = len(faults.log())
    assert refused
    assert drill.wait() == [0, 0]
    check(drill, expected(drill), faults=2)
    assert not [f for f in drill.home.ledger(STAGE).failures() if f.kind == "permanent"]
    assert not any(SECRET in worker.said() for worker in workers)


@SLOW
@pytest.mark.aws
@ON_MINISTACK
@pytest.mark.parametrize("what", ["queue", "store"])
def test_credentials_that_never_come_back(make_drill, s3, expected, what):
    """The worker stops with a sentence that says what to do; what it had is left to others."""
    drill = in_cloud(make_drill, s3, (2, 4, 4), {None: "sleep:0.3"})
    drill.submit()
    worker = drill.work("--lease", 20)
    drill.until(lambda: len(drill.calls()) >= 4, "the first tasks")
    with s3.faults(*refuse(what)):
        drill.wait(patience_s=150)
    said = worker.said()
    assert worker.process.returncode in (2, 75), said
    assert "credentials" in said.splitlines()[-1]
    assert re.search(r"\b403\b|ExpiredToken", said)
    assert "Traceback" not in said
    assert SECRET not in said
    assert {record.state for record in drill.records().values()} == {"done"}
    drill.act({})
    drill.work("--lease", 20)
    assert drill.wait()[1:] == [0]
    drill.workers.pop(0)  # its exit code is not one of those that end well
    check(drill, expected(drill), faults=1)


@pytest.mark.aws
@ON_MINISTACK
@pytest.mark.parametrize("what", ["queue", "store"])
@pytest.mark.long
def test_credentials_that_are_wrong_from_the_start(make_drill, s3, what):
    """Submit and work say so at once, in one sentence without a secret."""
    drill = in_cloud(make_drill, s3)
    drill.submit()
    with s3.faults(*refuse(what)):
        for words in (
            ("submit", "--run", f"{drill.url}2", "-q", "new", "--no-rehearse", *drill.source_words),
            ("work", drill.address),
        ):
            start = time.monotonic()
            line = drill.line_words(drill.output) if words[0] == "submit" else ()
            done = drill.call(*words, *line)
            assert done.returncode in (1, 2)
            assert time.monotonic() - start < 30
            assert "credentials" in done.stderr
            assert "Traceback" not in done.stderr
            assert SECRET not in done.stdout + done.stderr
    s3.faults.set()
    assert not drill.records()


# --- clocks ------------------------------------------------------------------------------------

CLOCK = '''
import os, time
real = time.time
shift = os.environ["DRILL_CLOCK"]
began = time.monotonic()
def skewed():
    """The time of a clock that is wrong, or that somebody sets forth and back all the time."""
    if shift != "jumps":
        return real() + float(shift)
    return real() + (3600 if int(time.monotonic() - began) % 2 else -3600)
time.time = skewed
'''


@pytest.fixture
def skewed(tmp_path):
    """Return variables by which the wall clock of Python is wrong."""
    folder = tmp_path / "clock"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(CLOCK)
    return lambda shift: {"PYTHONPATH": str(folder), "DRILL_CLOCK": shift}


def work_by_wrong_clocks(drill, skewed, expected):
    """Work with three workers whose clocks disagree, on tasks longer than a third of a lease.

    What is leased to one must not come to another: each task is done once.
    """
    drill.submit()
    for shift in ("3600", "-3600", "jumps"):
        drill.variables = drill.variables | skewed(shift)
        drill.work("--lease", 4)
    assert drill.wait() == [0, 0, 0]
    check(drill, expected(drill))
    assert drill.computed() == dict.fromkeys(range(drill.tasks), 1)


@SLOW
@pytest.mark.parametrize("queue", ["sqlite", "file"])
def test_clocks_that_are_wrong(make_drill, expected, skewed, queue, tmp_path):
    """Leases end neither early nor late for wall clocks that differ by hours, or jump."""
    url = f"file://{tmp_path}/queue" if queue == "file" else None
    drill = make_drill((1, 2, 3), {None: "sleep:3"}, queue=url)
    work_by_wrong_clocks(drill, skewed, expected)


@SLOW
@pytest.mark.aws
@ON_MINISTACK
def test_clocks_that_are_wrong_on_sqs(make_drill, s3, expected, skewed):
    """The same where the service counts the time."""
    drill = in_cloud(make_drill, s3, (1, 2, 3), {None: "sleep:3"})
    work_by_wrong_clocks(drill, skewed, expected)
