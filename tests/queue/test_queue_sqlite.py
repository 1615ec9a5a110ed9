"""The queue in a SQLite file."""

import itertools
import sqlite3
import subprocess
import sys
import time
from contextlib import closing

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from chunkflow_py.errors import QueueError, QueueUnreachableError
from chunkflow_py.queue import sqlite_queue
from chunkflow_py.queue.queue_protocol import open_queue
from chunkflow_py.queue.sqlite_queue import SqliteQueue
from chunkflow_py.run.worker.failure_policy import fault_of
from chunkflow_py.testing.queue_contract import QueueContract
from chunkflow_py.testing.queue_model import QueueModel
from chunkflow_py.testing.queue_processes import LONG_S, killed_consumers, killed_producer, received


class TestSqliteQueue(QueueContract):
    """The contract of every queue."""

    @pytest.fixture
    def url(self, tmp_path):
        """Return a file that does not exist, in a folder that does not either."""
        return f"sqlite://{tmp_path}/a folder/tasks #1?.db"


@pytest.fixture
def queue(tmp_path):
    """A queue, and its file: tasks.db."""
    with closing(open_queue(f"sqlite://{tmp_path}/tasks.db", create=True)) as queue:
        yield queue


def test_it_does_what_the_model_does(tmp_path):
    """No order of calls, and no time between them, makes a difference to a simple model."""
    numbers = itertools.count()

    def make(clock):
        return SqliteQueue(f"{tmp_path}/{next(numbers)}.db", create=True, clock=clock)

    run_state_machine_as_test(
        lambda: QueueModel(make), settings=settings(max_examples=40, stateful_step_count=30)
    )
    assert next(numbers) >= 40, "each sequence of calls has had a queue of its own"


def test_a_killed_producer(queue, tmp_path):
    """What a producer has sent is there though it was killed, and its last batch whole or not."""
    said = killed_producer(queue.url, 500)
    waiting = queue.counts().waiting
    assert waiting - said in {0, 500, 1000}
    with closing(sqlite3.connect(tmp_path / "tasks.db")) as file:
        assert file.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert file.execute("SELECT count(*) FROM waiting").fetchone() == (waiting,)


def test_killed_consumers(queue, tmp_path):
    """Whenever consumers are killed, every message is had by one that lives."""
    bodies = [str(number) for number in range(5000)]
    queue.send(bodies)
    assert set(killed_consumers(queue, tmp_path / "notes")) == set(bodies)
    assert queue.counts().waiting == queue.counts().leased == 0


def test_the_wall_clock_is_not_asked(queue, monkeypatch):
    """Leases begin and end rightly whatever the time of day does."""

    def jump():
        raise AssertionError

    monkeypatch.setattr(time, "time", jump)
    queue.send(["a"])
    assert received(queue, 1, 0.2)[0].receives == 1
    assert received(queue, 1)[0].receives == 2
    assert queue.receive(1, LONG_S) == []


def test_leases_end_when_the_machine_starts(queue, tmp_path):
    """After a start of the machine nobody waits for leases and delays of before."""
    queue.send(["a", "b"])
    held, late = received(queue, 2)
    queue.release([late], LONG_S)
    queue.close()
    with closing(sqlite3.connect(tmp_path / "tasks.db")) as file, file:
        assert file.execute("UPDATE machine SET boot = 'of before'").rowcount == 1
    with closing(open_queue(queue.url)) as again:
        assert again.counts().waiting == 2
        assert sorted(message.receives for message in received(again, 2)) == [2, 2]
    with closing(open_queue(queue.url)) as again:  # this start is known now
        assert again.counts().leased == 2


FORK = """
import os, sys
from chunkflow_py.queue.queue_protocol import open_queue
queue = open_queue(sys.argv[1])
mine, yours = queue.receive(5, 60), queue.receive(5, 60)
closed, close = os.pipe()
if not os.fork():
    os.read(closed, 1)
    assert queue.acknowledge(yours) == []
    os._exit(0)
assert queue.acknowledge(mine) == []
queue.close()
os.write(close, b"x")
assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
assert queue.counts().waiting == 10, queue.counts()
assert queue.counts().leased == 0, queue.counts()
"""


def test_a_fork_with_an_open_queue(queue):
    """Parent and child go on with a queue that was open before the fork, and disturb nobody."""
    queue.send(map(str, range(20)))
    queue.close()
    subprocess.run([sys.executable, "-c", FORK, queue.url], check=True, timeout=60)
    assert queue.counts().waiting == 10


def make_table(path):
    """Make a file that is somebody else's."""
    with closing(sqlite3.connect(path)) as file:
        file.execute("CREATE TABLE x (y)")


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda path: path.write_text("tasks\n" * 200), "not a database"),
        (lambda path: path.mkdir(), "unable to open"),
        (make_table, "not a queue; choose another"),
    ],
)
def test_what_is_no_queue_is_left_alone(tmp_path, make, reason):
    """A file or folder of somebody else is refused, also by a producer, and not changed."""
    path = tmp_path / "tasks.db"
    make(path)
    before = None if path.is_dir() else path.read_bytes()
    for create in (True, False):
        with pytest.raises(QueueError, match=reason):
            open_queue(f"sqlite://{path}", create=create)
    assert before is None or path.read_bytes() == before


def test_a_worker_leaves_nothing_where_no_queue_is(tmp_path):
    """Looking for a queue does not make a file."""
    with pytest.raises(QueueError, match=r"tasks.db does not exist; generate-tasks"):
        open_queue(f"sqlite://{tmp_path}/tasks.db")
    assert list(tmp_path.iterdir()) == []


def test_text_that_cannot_be_stored(queue):
    """Half of a character is refused with the number of messages that were sent before."""
    with pytest.raises(QueueError, match="surrogates not allowed; 0 messages were sent before"):
        queue.send(["a", "\ud800"])
    assert queue.counts().waiting == 0


def test_a_path_of_here(tmp_path, monkeypatch):
    """A relative path is of the current folder, and the queue knows the whole one."""
    monkeypatch.chdir(tmp_path)
    with closing(open_queue("sqlite://a/tasks.db", create=True)) as queue:
        assert queue.url == f"sqlite://{tmp_path}/a/tasks.db"


MOUNTS = r"""
22 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw
23 22 0:21 / /proc rw - proc proc rw
40 22 0:50 / /home rw,relatime - nfs4 server:/home rw,vers=4.2
41 40 254:2 / /home/me/my\040disk rw master:2 propagate_from:3 - xfs /dev/vdb rw
42 22 0:51 / /scratch rw - lustre 10.0.0.1@tcp:/scratch rw
43 42 0:52 / /scratch rw - tmpfs tmpfs rw
44 22 0:53 /sub /mnt/gpfs rw - gpfs gpfs0 rw
45 22 0:54 / /mnt/share rw - cifs //server/share rw
46 22 0:55 / /mnt/ssh rw - fuse.sshfs host: rw
a line that is none
"""


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/tmp/x", "ext4"),
        ("/home", "nfs4"),
        ("/home/me/x", "nfs4"),
        ("/home/me/my disk/x", "xfs"),
        ("/homework", "ext4"),
        ("/scratch/x", "tmpfs"),
        ("/mnt/gpfs/x", "gpfs"),
        ("/mnt/share/x", "cifs"),
        ("/mnt/ssh/x", "fuse.sshfs"),
    ],
)
def test_file_systems(tmp_path, path, expected):
    """The mount nearest to a path, and the last one there, says what file system it is on."""
    assert sqlite_queue.file_system(type(tmp_path)(path), MOUNTS) == expected


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "lustre", "gpfs", "cifs", "beegfs", "fuse.sshfs"])
def test_shared_file_systems_are_refused(tmp_path, monkeypatch, kind):
    """Where machines share files, the queue that can be shared is named, and no file is made."""
    table = tmp_path / "mountinfo"
    table.write_text(f"1 0 0:1 / / rw - ext4 disk rw\n2 1 0:2 / {tmp_path} rw - {kind} far rw\n")
    monkeypatch.setattr(sqlite_queue, "MOUNTS", table)
    remedy = f"use the folder file://{tmp_path}/tasks instead"
    with pytest.raises(QueueError, match=rf"on a {kind} file.*{remedy}"):
        open_queue(f"sqlite://{tmp_path}/tasks.db", create=True)
    assert list(tmp_path.iterdir()) == [table]


def test_this_file_system_is_known(tmp_path):
    """The table of the machine that runs the tests can be read."""
    assert (
        sqlite_queue.file_system(tmp_path.resolve(), sqlite_queue.MOUNTS.read_text()) != "unknown"
    )


@pytest.mark.parametrize("ahead_s", [-1e9, -100.0, 30.0, 100.0, 1e9])
def test_no_lease_outlasts_its_length_by_any_clock(tmp_path, ahead_s):
    """Whatever the clock of who leased or released said, a reader waits for no longer than that."""
    now = [1e6]
    path = f"{tmp_path}/tasks.db"
    with (
        closing(SqliteQueue(path, create=True, clock=lambda: now[0])) as reader,
        closing(SqliteQueue(path, clock=lambda: now[0] + ahead_s)) as other,
    ):
        reader.send(["leased", "extended", "released"])
        messages = other.receive(3, 10)
        other.extend(messages[1:], 20)
        other.release(messages[2:], 20)
        if ahead_s > 1:
            assert reader.counts().leased == 0
            assert reader.leased(10) == []
        now[0] += 20
        assert reader.counts().waiting == 3
        assert {message.receives for message in reader.receive(3, 10)} == {2}
        assert reader.counts().leased == 3


LEASE_AND_DIE = """
import os, signal, sys
from chunkflow_py.queue.queue_protocol import open_queue
queue = open_queue(sys.argv[1])
assert len(queue.receive(1, float(sys.argv[2]))) == 1
assert queue.receive(9, 60) == [], "the lease of another is over"
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("boottime", ["100000", "-100"])
def test_a_worker_in_a_time_namespace(queue, boottime):
    """Leases last as long as they should between processes whose clocks are shifted."""
    shifted = ["unshare", "--time", "--boottime", boottime]
    try:
        subprocess.run([*shifted, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no time namespace can be made: needs unshare and the right to use it")
    queue.send(["mine", "theirs"])
    assert len(queue.receive(1, LONG_S)) == 1
    start = time.monotonic()
    subprocess.run([*shifted, sys.executable, "-c", LEASE_AND_DIE, queue.url, "3"], check=False)
    assert queue.counts().leased == 2
    (message,) = received(queue, 1)
    assert (message.body, message.receives) == ("theirs", 2)
    assert 3 <= time.monotonic() - start < 20


def test_a_file_of_an_earlier_version(tmp_path):
    """A queue that was made before leases said when they began goes on."""
    path = tmp_path / "tasks.db"
    with closing(open_queue(f"sqlite://{path}", create=True)) as queue:
        queue.send(["a", "b"])
        (held,) = queue.receive(1, LONG_S)
        with closing(sqlite3.connect(path)) as file, file:
            file.execute("DROP INDEX taken_since")
            file.execute("ALTER TABLE taken DROP COLUMN since")
        with closing(open_queue(queue.url)) as later:
            assert [message.body for message in later.receive(9, LONG_S)] == ["b"]
            assert later.counts().leased == 2
        assert queue.acknowledge([held]) == []


def test_a_stopped_process_with_the_file_locked(queue, tmp_path, monkeypatch):
    """It is waited for, as the failure may pass; the error says what to do."""
    monkeypatch.setattr(sqlite_queue, "LOCK_TIMEOUT_S", 0.2)
    queue.send(["a"])
    with closing(sqlite3.connect(tmp_path / "tasks.db", isolation_level=None)) as stopped:
        stopped.execute("BEGIN IMMEDIATE")
        with closing(open_queue(queue.url)) as other:
            with pytest.raises(
                QueueUnreachableError, match=r"continue it \(kill -CONT\)"
            ) as caught:
                other.receive(1, LONG_S)
            assert not fault_of(caught.value).is_final
            stopped.execute("ROLLBACK")
            assert len(other.receive(1, LONG_S)) == 1


@pytest.mark.parametrize("at", [0, 5000])
def test_a_damaged_file_names_the_remedy(queue, tmp_path, at):
    """A file that SQLite cannot read any more is refused; the error says how to get a new queue."""
    queue.send(f"message {number} {'x' * 100}" for number in range(1000))
    queue.close()
    path = tmp_path / "tasks.db"
    content = bytearray(path.read_bytes())
    content[at : at + 8000] = bytes(8000)
    path.write_bytes(content)
    with pytest.raises(QueueError, match="move tasks.db, .* away: chunkflow repair RUN then"):
        drain(queue.url)


def drain(url):
    """Receive and acknowledge all there is."""
    with closing(open_queue(url)) as queue:
        while messages := queue.receive(100, LONG_S):
            queue.acknowledge(messages)


FULL = """
import sys
from pathlib import Path
from chunkflow_py.queue.queue_protocol import open_queue
from chunkflow_py.run.worker.failure_policy import fault_of
folder = Path(sys.argv[1])
url = f"sqlite://{folder}/tasks.db"
queue = open_queue(url, create=True)
queue.send(["a"])
queue.close()
with (folder / "filler").open("wb", buffering=0) as filler:
    try:
        while filler.write(bytes(4096)):
            pass
    except OSError:
        pass
try:
    open_queue(url).receive(1, 60)
except Exception as error:
    print(type(error).__name__, fault_of(error).shortage, error)
(folder / "filler").unlink()
print(open_queue(url).receive(1, 60)[0].body)
"""


def test_a_full_disk(tmp_path):
    """A queue that cannot be opened on a full disk says so, as what may pass."""
    mounted = ["unshare", "--mount", "--map-root-user", "sh", "-c"]
    script = 'mount -t tmpfs -o size=200k tmpfs "$1" && shift && exec "$@"'
    command = [*mounted, script, "sh", tmp_path]
    try:
        subprocess.run([*command, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no file system can be mounted: needs unshare and the right to use it")
    done = subprocess.run(
        [*command, sys.executable, "-c", FULL, tmp_path], capture_output=True, text=True, check=True
    )
    first, second = done.stdout.splitlines()
    assert first.startswith(f"QueueError disk queue sqlite://{tmp_path}/tasks.db cannot be ")
    assert first.endswith("the disk of the queue is full: free some space")
    assert second == "a"
