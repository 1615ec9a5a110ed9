"""Tests of chunkflow_py.run.verify."""

import pytest

from chunkflow_py.core.geometry import BoxGrid, Zyx
from chunkflow_py.errors import VolumeError
from chunkflow_py.queue.queue_protocol import open_queue
from chunkflow_py.run import repair as repair_module
from chunkflow_py.run import verify as verify_module
from chunkflow_py.run.ledger.ledger import Ledger
from chunkflow_py.run.ledger.ledger_record import Record
from chunkflow_py.run.repair import repair_tasks, retry_failed
from chunkflow_py.run.verify import verify
from chunkflow_py.store import open_store
from chunkflow_py.store.store_protocol import Stored
from chunkflow_py.tasks.task_plan import GridPlan

SIZE = Zyx(8, 8, 8)
PLAN = GridPlan(BoxGrid(Zyx(0, 0, 0), SIZE, SIZE, Zyx(2, 3, 5)))


class Run:
    """A step of 30 tasks, each of which stores two blocks and omits one."""

    def __init__(self, url):
        self.volume = open_store(f"{url}/volume")
        self.ledger = Ledger(open_store(f"{url}/run"), "infer", PLAN.span, segment_size=8)
        self.queue = open_queue(f"memory://{url}", create=True)

    def content(self, number, block, attempt=""):
        return f"{number}/{block} {attempt}".encode() * 10

    def store(self, number, attempt=""):
        """Execute a task; return the stored objects."""
        written = []
        for block in "01":
            data = self.content(number, block, attempt)
            self.volume.put(f"c/{number}/{block}", data)
            written.append(Stored.of(f"{self.volume.url}/c/{number}/{block}", data))
        return (*written, Stored(f"{self.volume.url}/c/{number}/empty"))

    def record_of(self, number, written, attempt="", **said):
        said = {"state": "done", "spec": "5bec", "worker": "w", "attempt": attempt} | said
        return Record(number, PLAN.text(number), written=written, **said)

    def do(self, numbers, attempt=""):
        records = [self.record_of(n, self.store(n, attempt), attempt) for n in numbers]
        return self.ledger.record(records)

    def damages(self, **options):
        return [
            (damage.number, damage.kind, damage.url and damage.url.rpartition("/")[2])
            for damage in verify(self.ledger, PLAN, **options)
        ]

    def sent(self):
        """Receive and return the messages that were sent."""
        messages = self.queue.receive(1000, 60)
        self.queue.acknowledge(messages)
        return [message.body for message in messages]


@pytest.fixture(params=["folder", "memory"])
def run(request, tmp_path):
    """A run whose tasks are all done."""
    run = Run(str(tmp_path) if request.param == "folder" else f"mem://{tmp_path}")
    run.do(PLAN)
    return run


def test_all_is_well(run):
    """A complete, undamaged run has no problems, before and after compaction."""
    assert run.damages() == []
    run.ledger.compact()
    assert run.damages(parallel=1) == []


def test_exactly_what_is_wrong(run):
    """Missing, changed, truncated, longer and unexpected objects are listed, no others."""
    run.ledger.compact()
    volume = run.volume
    volume.delete("c/3/0")
    volume.put("c/9/1", run.content(9, 1).replace(b"9", b"8"))
    volume.put("c/12/0", run.content(12, 0)[:-1])
    volume.put("c/12/1", run.content(12, 1) + b"x")
    volume.put("c/20/empty", b"not empty")
    volume.put("c/21/2", b"of nobody")
    assert run.damages() == [
        (3, "missing", "0"),
        (9, "damaged", "1"),
        (12, "damaged", "0"),
        (12, "damaged", "1"),
        (20, "unexpected", "empty"),
    ]
    said = [str(damage) for damage in verify(run.ledger, PLAN)]
    assert said[0] == (
        f"{PLAN.text(3)}: {volume.url}/c/3/0 is missing "
        f"({len(run.content(3, 0))} bytes were recorded)"
    )
    assert "begins with" in said[1]
    assert said[2].endswith("(50 bytes were recorded, but the object has 49)")
    assert said[3].endswith("(50 bytes were recorded, but the object has 51)")
    assert said[4].endswith("(nothing was recorded, but the object has 9 bytes)")
    damage = next(verify(run.ledger, PLAN))
    assert damage.to_json("infer") == {
        "stage": "infer",
        "number": 3,
        "box": PLAN.text(3),
        "kind": "missing",
        "reason": f"{len(run.content(3, 0))} bytes were recorded",
        "url": f"{volume.url}/c/3/0",
    }


def test_not_done(run):
    """Tasks without a record and failed tasks are listed; skipped tasks are not."""
    run.ledger.reopen([4, 7, 8])
    run.ledger.record(
        [
            run.record_of(7, (), state="dead", reason="it is broken"),
            run.record_of(8, (), state="skipped", reason="all zero"),
        ]
    )
    assert run.damages() == [(7, "failed", None), (4, "not recorded", None)]
    said = [str(damage) for damage in verify(run.ledger, PLAN)]
    assert said == [
        f"{PLAN.text(7)}: failed (it is broken)",
        f"{PLAN.text(4)}: not recorded",
    ]


def test_large_objects(run, monkeypatch):
    """Objects are read in pieces; one that has grown is not read to its end."""
    monkeypatch.setattr(verify_module, "PIECE_BYTES", 7)
    assert run.damages() == []
    run.volume.put("c/3/0", run.content(3, 0)[:-1] + b"!")
    run.volume.put("c/4/0", run.content(4, 0) + b"!")
    assert run.damages() == [(3, "damaged", "0"), (4, "damaged", "0")]


def test_read_once(run):
    """An object that several tasks name is read once; each store is opened once."""
    written = run.store(0)
    run.ledger.reopen(range(10))
    run.ledger.record([run.record_of(number, written) for number in range(10)])
    opened, reads = [], []

    def counting(url):
        opened.append(url)
        store = open_store(url)
        original = store.get_range

        def get_range(key, start, stop):
            reads.append(key)
            return original(key, start, stop)

        store.get_range = get_range
        return store

    assert list(verify(run.ledger, PLAN, counting)) == []
    assert len(opened) == 1
    assert len(reads) == len(set(reads)) == 2 * 21


def test_written_twice(run):
    """Of an object that a task wrote twice, the last record counts."""
    old = Stored.of(f"{run.volume.url}/c/3/0", b"before")
    run.ledger.reopen([3])
    run.ledger.record([run.record_of(3, (old, *run.store(3)))])
    assert run.damages() == []


@pytest.mark.aws
@pytest.mark.parametrize("s3", ["ministack"], indirect=True)
def test_buckets(s3):
    """Buckets are verified too; one that cannot be read is an error, not damage."""
    run = Run(s3.url)
    run.do(range(8))
    run.volume.delete("c/3/0")
    run.volume.put("c/5/empty", b"x")
    plan = GridPlan(PLAN.grid, indexes=range(8))
    found = [(damage.number, damage.kind) for damage in verify(run.ledger, plan)]
    assert found == [(3, "missing"), (5, "unexpected")]
    denied = "<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
    with (
        s3.faults({"type": "status", "code": 403, "body": denied, "path": ".*/c/.*"}),
        pytest.raises(VolumeError, match="403"),
    ):
        list(verify(run.ledger, plan))


def test_repair(run):
    """Repair sends each missing or damaged task once; afterwards there is no problem."""
    run.volume.delete("c/3/0")
    run.volume.delete("c/3/1")
    run.volume.put("c/9/1", b"x")
    run.ledger.reopen([12, 14])
    run.ledger.record([run.record_of(14, (), state="dead", reason="it is broken")])
    found = list(verify(run.ledger, PLAN))
    assert repair_tasks(run.ledger, PLAN, run.queue, found, PLAN.text) == 3
    sent = run.sent()
    assert sorted(sent) == sorted(map(PLAN.text, (3, 9, 12)))
    assert run.damages() == [
        (14, "failed", None),
        (3, "not recorded", None),
        (9, "not recorded", None),
        (12, "not recorded", None),
    ]
    assert run.do([3, 9, 12]) == [True] * 3
    assert run.damages() == [(14, "failed", None)]
    assert repair_tasks(run.ledger, PLAN, run.queue, verify(run.ledger, PLAN), PLAN.text) == 0
    assert run.sent() == []


class BrokenQueueError(Exception):
    """Ends the submitter in the middle of a repair."""


def test_repair_dies(run):
    """A repair that ends before it has sent all tasks is completed by the next one."""
    run.volume.delete("c/3/0")

    def body(number):
        raise BrokenQueueError

    with pytest.raises(BrokenQueueError):
        repair_tasks(run.ledger, PLAN, run.queue, verify(run.ledger, PLAN), body)
    assert run.damages() == [(3, "not recorded", None)]
    assert repair_tasks(run.ledger, PLAN, run.queue, verify(run.ledger, PLAN), PLAN.text) == 1
    assert run.sent() == [PLAN.text(3)]


def test_retry_failed(run, monkeypatch):
    """Failed tasks, and no others, are sent again, however many there are."""
    monkeypatch.setattr(repair_module, "BATCH", 4)
    dead = range(3, 14)
    run.ledger.reopen(dead)
    run.ledger.record([run.record_of(n, (), state="dead", reason="broken") for n in dead])
    assert retry_failed(run.ledger, PLAN, run.queue, PLAN.text) == len(dead)
    assert sorted(run.sent()) == sorted(map(PLAN.text, dead))
    assert run.ledger.counts().dead == 0
    assert retry_failed(run.ledger, PLAN, run.queue, PLAN.text) == 0


def test_mixed_devices(run):
    """If attempts store different bytes, the objects of one whole attempt are valid."""
    # A second attempt overwrites all blocks of task 3, and one block of task 4.
    loser = run.record_of(3, run.store(3, "gpu"), "gpu")
    part = run.record_of(4, run.store(4, "gpu"), "gpu")
    run.volume.put("c/4/0", run.content(4, "0"))
    # A third dies in the middle of task 5; a fourth loses task 6, which is then damaged.
    run.volume.put("c/5/0", b"half done")
    other = run.record_of(6, run.store(6, "gpu"), "gpu")
    run.volume.put("c/6/1", b"neither")
    for record in (loser, part, other):
        run.ledger.begin(record.number, "gpu", "cuda")
        assert run.ledger.record([record]) == [False]
        run.ledger.finish(record)
    run.ledger.begin(5, "died", "cuda")
    for _ in range(2):
        assert run.damages(mixed=True) == [
            (4, "mixture", None),
            (5, "damaged", "0"),
            (6, "damaged", "0"),
            (6, "damaged", "1"),
        ]
        run.ledger.compact()
    assert (3, "damaged", "0") in run.damages()
    repair_tasks(run.ledger, PLAN, run.queue, verify(run.ledger, PLAN, mixed=True), PLAN.text)
    assert run.do([4, 5, 6], "again") == [True] * 3
    assert run.damages(mixed=True) == []
