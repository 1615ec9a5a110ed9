"""The queue in a shared folder."""

import os
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from chunkflow_py.errors import QueueError
from chunkflow_py.queue.queue_protocol import open_queue
from chunkflow_py.testing.queue_contract import QueueContract
from chunkflow_py.testing.queue_processes import LONG_S, killed_consumers, killed_producer, received


class TestDirectoryQueue(QueueContract):
    """The contract of every queue."""

    many_messages = 30_000

    @pytest.fixture
    def url(self, tmp_path):
        """Return a folder that does not exist, in one that does not either."""
        return f"file://{tmp_path}/a folder/tasks #1?"


@pytest.fixture
def root(tmp_path):
    """Where the queue is."""
    return tmp_path / "tasks"


@pytest.fixture
def queue(root):
    """A queue."""
    with closing(open_queue(f"file://{root}", create=True)) as queue:
        yield queue


def files(root):
    """Return the files of a queue, relative."""
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def drained(queue):
    """Receive and acknowledge all there is; return the bodies."""
    bodies = []
    while messages := queue.receive(10, LONG_S):
        bodies += [message.body for message in messages]
        assert queue.acknowledge(messages) == []
    return bodies


def test_files_are_few(queue, root):
    """Waiting messages are a file for 500; finished ones leave none but the mark of the queue."""
    queue.send(map(str, range(5000)))
    assert len(files(root)) == 11
    received(queue, 10)
    assert len(files(root)) <= 11 + 500
    other = open_queue(queue.url)
    while messages := other.receive(10, LONG_S):
        assert other.acknowledge(messages) == []
    assert len(files(root)) <= 10 + 11
    assert queue.counts().leased == 10


def test_nothing_is_left(queue, root):
    """When all is acknowledged, no file is there but the mark, and no folder of a pack."""
    queue.send(map(str, range(1200)))
    assert sorted(drained(queue), key=int) == [str(number) for number in range(1200)]
    assert files(root) == ["queue"]
    assert sorted(path.name for path in root.rglob("*")) == [
        "dead",
        "new",
        "open",
        "opening",
        "queue",
    ]


def test_a_killed_producer(queue):
    """What a producer has sent is there though it was killed."""
    said = killed_producer(queue.url, 2000)
    waiting = queue.counts().waiting
    assert waiting >= said
    assert len(received(queue, 10)) == 10


# A pack whose opener was killed waits for less than the tests do.
QUICK = "import chunkflow_py.queue.directory_queue as module; module.OPENING_S = 0.5"


def test_killed_consumers(queue, root, tmp_path):
    """Whenever consumers are killed, every message is had by one that lives."""
    bodies = [str(number) for number in range(5000)]
    queue.send(bodies)
    assert set(killed_consumers(queue, tmp_path / "notes", before=QUICK)) == set(bodies)
    assert queue.counts().waiting == queue.counts().leased == 0
    assert not [name for name in files(root) if name.startswith("open/")]


def once(monkeypatch, name, *, when):
    """Let a call of the system succeed and its reply be lost, once, as network file systems do."""
    real = getattr(os, name)
    lost = []

    def call(source, target):
        real(source, target)
        if when in target and not lost:
            lost.append(target)
            real_error = FileNotFoundError(2, "No such file or directory", source)
            raise real_error

    monkeypatch.setattr(os, name, call)
    return lost


@pytest.mark.parametrize("when", ["/opening/", "/open/", "/todo/"])
def test_lost_replies_to_a_receive(queue, root, monkeypatch, when):
    """A rename that was done, and reported as failed when it was asked for again, counts."""
    queue.send(["a", "b", "c"])
    lost = once(monkeypatch, "rename", when=when)
    messages = received(queue, 3)
    assert len(lost) == 1
    assert sorted(message.body for message in messages) == ["a", "b", "c"]
    assert {message.receives for message in messages} == {1}
    assert queue.acknowledge(messages) == []
    assert files(root) == ["queue"]


def test_an_invented_handle_of_the_same_millisecond(queue, monkeypatch):
    """The lease that an extension would write exists already, but it is that of another handle."""
    now = queue._now()
    monkeypatch.setattr(queue, "_now", lambda: now)
    queue.send(["a"])
    (message,) = queue.receive(1, LONG_S)
    strange = replace(message, handle=f"{message.handle}0")
    assert queue.extend([strange], LONG_S) == [strange]
    assert queue.acknowledge([message]) == []


def test_lost_replies_to_an_extension(queue, monkeypatch):
    """The lease is ours though the reply to its extension was lost."""
    queue.send(["a"])
    messages = received(queue, 1)
    lost = once(monkeypatch, "rename", when="/todo/")
    assert queue.extend(messages, LONG_S) == []
    assert len(lost) == 1
    assert queue.acknowledge(messages) == []


@pytest.mark.parametrize(
    ("has_texts", "made"), [(False, None), (True, None), (True, 0), (True, 3), (True, 7)]
)
def test_a_pack_whose_opener_was_killed(queue, root, has_texts, made):
    """Whoever looks next opens it: each message once, whatever had been done."""
    queue.send(map(str, range(7)))
    (pack,) = (root / "new").iterdir()
    folder = root / "opening" / f"{pack.name}~1000~{'a' * 16}"
    folder.mkdir()
    if has_texts:
        pack.rename(folder / "texts")
    if made is not None:
        (folder / "todo").mkdir()
        for number in range(made):
            (folder / "todo" / f"{number}~0~0~-").touch()
    assert queue.counts().waiting == 7
    assert sorted(drained(queue)) == [str(number) for number in range(7)]
    assert queue.counts().waiting == 0
    # One that never had its pack is cleared away when there is nothing else to do.
    assert queue.receive(1, LONG_S) == []
    assert files(root) == ["queue"]
    assert list((root / "opening").iterdir()) == []


def test_a_pack_that_is_being_opened_is_left_alone(queue, root):
    """Nobody takes it from a living opener; its messages count as waiting."""
    queue.send(["a"])
    (pack,) = (root / "new").iterdir()
    folder = root / "opening" / f"{pack.name}~{int(time.time() + 60) * 1000}~{'a' * 16}"
    folder.mkdir()
    pack.rename(folder / "texts")
    assert queue.receive(1, LONG_S) == []
    assert queue.counts().waiting == 1
    assert folder.is_dir()


def test_a_finished_pack_that_was_not_tidied_up(queue, root):
    """What a killed worker has left of a pack goes when somebody looks."""
    queue.send(["a"])
    (message,) = received(queue, 1)
    (todo,) = (root / "open").glob("*/todo")
    (todo / message.handle.partition("/")[2]).unlink()
    todo.rmdir()
    assert queue.receive(1, LONG_S) == []
    assert files(root) == ["queue"]


@pytest.mark.parametrize("folder", ["new", "opening", "open", "open/*/todo", "dead"])
def test_files_of_nobody(queue, root, folder):
    """Half-written files of a killed process, and other strange ones, do not count."""
    queue.send(["a", "b"])
    first, second = received(queue, 2)
    for place in root.glob(folder):
        (place / ".tmp-0123").touch()
        if folder != "dead":
            (place / ".nfs0000000000000001").touch()
    queue.release([first])
    assert (queue.counts().waiting, queue.counts().leased, queue.counts().dead) == (1, 1, 0)
    assert list(queue.dead_letters()) == []
    assert queue.acknowledge([second]) == []
    assert drained(queue) == [first.body]


@pytest.mark.parametrize("skew_s", [-3600, 3600])
def test_only_the_file_servers_clock_counts(queue, monkeypatch, skew_s):
    """A server an hour ahead or behind, or a machine whose time of day jumps, changes nothing."""
    touch = os.utime

    def touch_there(path):
        touch(path)
        here = Path(path).stat().st_mtime
        touch(path, (here + skew_s, here + skew_s))

    def jump():
        raise AssertionError

    monkeypatch.setattr(os, "utime", touch_there)
    monkeypatch.setattr(time, "time", jump)
    with closing(open_queue(queue.url)) as mine, closing(open_queue(queue.url)) as other:
        mine.send(["a", "b"])
        held = received(mine, 1)
        (short,) = received(mine, 1, 0.3)
        (again,) = received(other, 1)
        assert (again.body, again.receives) == (short.body, 2)
        assert other.receive(1, LONG_S) == []
        assert mine.extend(held, LONG_S) == []


def test_a_server_whose_clock_was_set_back(queue, root, monkeypatch):
    """What was leased, released or opened by a clock a day ahead is to be had when it is right."""
    touch = os.utime

    def touch_tomorrow(path):
        touch(path)
        here = Path(path).stat().st_mtime
        touch(path, (here + 86400, here + 86400))

    queue.send(["a", "b"])
    with monkeypatch.context() as patched, closing(open_queue(queue.url)) as wrong:
        patched.setattr(os, "utime", touch_tomorrow)
        messages = received(wrong, 2)
        wrong.extend(messages[:1], LONG_S)
        wrong.release(messages[1:], LONG_S)
    queue.send(["c"])
    (pack,) = (root / "new").iterdir()
    folder = root / "opening" / f"{pack.name}~{int(time.time() + 86400) * 1000}~{'a' * 16}"
    folder.mkdir()
    pack.rename(folder / "texts")
    assert (queue.counts().waiting, queue.counts().leased) == (3, 0)
    assert sorted(drained(queue)) == ["a", "b", "c"]


def test_leases_of_an_earlier_version(queue, root):
    """Names of messages that do not say when their lease began are understood."""
    queue.send(["a"])
    (message,) = received(queue, 1)
    (todo,) = (root / "open").glob("*/todo")
    name = message.handle.partition("/")[2]
    (todo / name).rename(todo / name.rpartition("~")[0])
    assert queue.counts().leased == 1
    (todo / name.rpartition("~")[0]).rename(todo / f"0~1~1000~{'a' * 16}")
    assert [again.receives for again in received(queue, 1)] == [2]


def test_a_queue_without_its_mark(queue, root):
    """A producer makes a queue whose mark was lost anew, with the messages that it holds."""
    queue.send(["a"])
    (root / "queue").unlink()
    with closing(open_queue(queue.url, create=True)) as again:
        assert drained(again) == ["a"]


def test_other_things_are_left_alone(tmp_path):
    """A folder that holds something else is not made a queue."""
    (tmp_path / "image.zarr").mkdir()
    with pytest.raises(QueueError, match="contains 'image.zarr'; use a new folder"):
        open_queue(f"file://{tmp_path}", create=True)
    assert [path.name for path in tmp_path.iterdir()] == ["image.zarr"]


def test_a_worker_leaves_nothing_where_no_queue_is(tmp_path):
    """Looking for a queue does not make a folder."""
    with pytest.raises(QueueError, match=r"tasks does not exist; generate-tasks"):
        open_queue(f"file://{tmp_path}/tasks")
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_no_queue(tmp_path):
    """A path through a file is refused with the reason."""
    (tmp_path / "file").touch()
    with pytest.raises(QueueError, match="a part of the path is a file"):
        open_queue(f"file://{tmp_path}/file/tasks", create=True)


def test_a_damaged_pack(queue, root):
    """A file of messages that cannot be read is named, with what to do."""
    queue.send(["a"])
    (pack,) = (root / "new").iterdir()
    pack.write_bytes(pack.read_bytes()[:3])
    with pytest.raises(
        QueueError, match="texts is not a valid file of queue messages.*send its tasks again"
    ):
        queue.receive(1, LONG_S)


def test_a_queue_that_was_removed(queue, root):
    """Calls of a queue whose folder is gone say so."""
    queue.send(["a"])
    root.rename(root.with_name("elsewhere"))
    with pytest.raises(QueueError, match=r"tasks.*no such file"):
        queue.receive(1, LONG_S)


def test_a_path_of_here(tmp_path, monkeypatch):
    """A relative path is of the current folder, and the queue knows the whole one."""
    monkeypatch.chdir(tmp_path)
    assert open_queue("file://a/tasks", create=True).url == f"file://{tmp_path}/a/tasks"
