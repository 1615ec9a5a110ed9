"""Tests of chunkflow_py.store.folder_store."""

import errno
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from chunkflow_py.errors import VolumeError
from chunkflow_py.store import folder_store, open_store
from chunkflow_py.store.folder_store import FolderStore
from chunkflow_py.store.local_files import sync
from chunkflow_py.store.store_protocol import together
from chunkflow_py.testing.store_contract import StoreContract

CLAIM = """
import sys, time
from chunkflow_py.store import open_store
store = open_store(sys.argv[1])
time.sleep(max(0, float(sys.argv[2]) - time.time()))
print([store.put_if_absent(f"claim{i}", sys.argv[3].encode()) for i in range(10)].count(True))
"""

UPDATE = """
import sys
from chunkflow_py.store import open_store
for _ in range(10):
    open_store(sys.argv[1]).update("n", lambda old: b"%d" % (int(old or 0) + 1))
"""

# Stops itself within `change`, after it has claimed, or before it moves the new content.
STOP = """
import os, signal, sys
from pathlib import Path
from chunkflow_py.store import folder_store, open_store
is_first = True
def stop(place):
    global is_first
    if is_first and place == sys.argv[2]:
        is_first = False
        os.kill(os.getpid(), signal.SIGSTOP)
def stopping(place, function):
    def called(*arguments):
        stop(place)
        return function(*arguments)
    return called
folder_store._content = stopping("claim", folder_store._content)
folder_store._moved = lambda *a, move=folder_store._moved, **k: (stop("move"), move(*a, **k))[1]
def change(old):
    stop("change")
    return (old or b"") + b"s"
open_store(sys.argv[1]).update("key", change)
print("updated", flush=True)
"""

NOTE = """
import sys
from itertools import count
from chunkflow_py.store import folder_store, open_store
folder_store.TURN_S = 0.05
store = open_store(sys.argv[1])
for number in count():
    note = f"{sys.argv[2]}.{number} "
    store.update("key", lambda old: (old or b"") + note.encode())
    print(note, flush=True)
"""

HOLD = """
import sys, time
from chunkflow_py.store import open_store
def change(old):
    print("held", flush=True)
    time.sleep(60)
open_store(sys.argv[1]).update("key", change)
"""

WRITE_UNDER_A_LIMIT = """
import resource, sys
from chunkflow_py.store import open_store
store = open_store(sys.argv[1])
store.put("key", b"old")
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
def update(key, data):
    store.update(key, lambda old: data)
for write in (store.put, store.put_if_absent, update):
    for key in ("key", "new"):
        try:
            print(write(key, b"x" * 5000))
        except Exception as error:
            print(type(error).__name__, error)
"""


def python(code, *arguments):
    """Start a program."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def files(folder):
    """Return the names of all files below *folder*, whatever they are."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


class TestFolder(StoreContract):
    @pytest.fixture
    def url(self, tmp_path):
        return f"file://{tmp_path}/volume"


@pytest.fixture
def store(tmp_path):
    """A store in a folder that does not exist yet."""
    return open_store(str(tmp_path / "volume"))


def test_addresses(tmp_path, monkeypatch):
    """An absolute path, a file:// URL and a relative path name the same store."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "volume").mkdir()
    for address in (f"file://{tmp_path}/volume", f"{tmp_path}/volume/", "volume", "file://volume"):
        assert open_store(address).url == f"file://{tmp_path}/volume"


def test_nothing_is_made_by_reading(store, tmp_path):
    """Reading and listing make no folder."""
    assert store.get("a/b") is None
    assert list(store.list()) == []
    store.delete("a/b")
    assert list(tmp_path.iterdir()) == []


def test_no_litter(store, tmp_path):
    """Writes leave the objects and nothing else."""
    store.put("a", b"1")
    store.put_if_absent("a", b"2")
    store.put_if_absent("b", b"2")
    store.update("b", lambda old: b"3")
    store.update("c", lambda old: b"3")
    assert files(tmp_path / "volume") == ["a", "b", "c"]


def test_left_behind(store, tmp_path):
    """A file left by a killed writer is not an object."""
    store.put("a/b", b"1")
    (tmp_path / "volume" / "a" / ".tmp-1f2e3d4c-b").write_bytes(b"half")
    assert list(store.list()) == ["a/b"]


@pytest.mark.parametrize("write", ["put", "put_if_absent", "update"])
def test_on_the_disk(store, tmp_path, monkeypatch, write):
    """The content is on the disk before it has its name, and the name when the write returns."""
    store.put("other", b"")
    folder = (tmp_path / "volume").stat().st_ino
    events = []
    fsync, rename, link = os.fsync, os.replace, Path.hardlink_to

    def watched_fsync(handle):
        fsync(handle)
        events.append("folder" if os.fstat(handle).st_ino == folder else "file")

    def named(function):
        def watched(*arguments):
            events.append("name")
            return function(*arguments)

        return watched

    monkeypatch.setattr(os, "fsync", watched_fsync)
    monkeypatch.setattr(os, "replace", named(rename))
    monkeypatch.setattr(Path, "hardlink_to", named(link))
    if write == "update":
        store.update("key", lambda old: b"content")
    else:
        getattr(store, write)("key", b"content")
    assert events == ["file", "name", "folder"]


def test_removal_is_on_the_disk(store, tmp_path, monkeypatch):
    """A removed object does not come back after a power cut."""
    store.put("key", b"x")
    synced = []
    fsync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda handle: synced.append(os.fstat(handle).st_ino))
    store.delete("key")
    monkeypatch.setattr(os, "fsync", fsync)
    assert synced == [(tmp_path / "volume").stat().st_ino]


def test_one_winner_of_16_processes(tmp_path):
    """If 16 processes write ten keys at once, one wins each key."""
    start = time.time() + 2
    racers = [python(CLAIM, tmp_path, start, number) for number in range(16)]
    assert sum(int(racer.communicate()[0]) for racer in racers) == 10


def test_updates_of_processes(tmp_path):
    """No update of four processes is lost."""
    for each in [python(UPDATE, tmp_path) for _ in range(4)]:
        each.communicate()
    assert (tmp_path / "n").read_bytes() == b"40"
    assert files(tmp_path) == ["n"]


def test_dead_holder(tmp_path):
    """An update goes on when the process that was updating is killed."""
    holder = python(HOLD, tmp_path)
    assert holder.stdout.readline() == "held\n"
    holder.send_signal(signal.SIGKILL)
    holder.communicate()
    start = time.monotonic()
    assert open_store(str(tmp_path)).update("key", lambda old: b"mine") == b"mine"
    assert time.monotonic() - start < 10
    assert files(tmp_path) == ["key"]


def test_without_hard_links(store, tmp_path, monkeypatch):
    """Where a file system has no hard links, there is still one winner, and updates work."""

    def refused(path, target):
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(Path, "hardlink_to", refused)
    assert store.put_if_absent("key", b"first") is True
    assert store.put_if_absent("key", b"second") is False
    assert store.update("new", lambda old: b"made") == b"made"
    assert store.get("key") == b"first"
    assert files(tmp_path / "volume") == ["key", "new"]


def test_lost_reply_of_a_link(store, monkeypatch):
    """A link that a network file system reports as a conflict is checked."""
    link = Path.hardlink_to

    def made_but_denied(path, target):
        link(path, target)
        raise FileExistsError(errno.EEXIST, "File exists")

    monkeypatch.setattr(Path, "hardlink_to", made_but_denied)
    assert store.put_if_absent("key", b"mine") is True
    assert store.get("key") == b"mine"


def test_disk_full(tmp_path):
    """A file above the size limit gives a clear message, and leaves the old content only."""
    output = python(WRITE_UNDER_A_LIMIT, tmp_path).communicate()[0].splitlines()
    refused = f"VolumeError cannot write {tmp_path}/{{}}: file too large; raise the limit"
    for line, key in zip(output, ["key", "new", None, "new", "key", "new"], strict=True):
        assert line == "False" if key is None else line.startswith(refused.format(key))
    assert (tmp_path / "key").read_bytes() == b"old"
    assert files(tmp_path) == ["key"]


def test_reads_in_pieces(store, monkeypatch):
    """A file that the system returns in parts, as above 2 GiB, is read completely."""
    store.put("key", b"0123456789")
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda handle, length, at: pread(handle, min(length, 3), at))
    assert store.get("key") == b"0123456789"
    assert store.get_range("key", 1, 9) == b"12345678"


def test_not_allowed(tmp_path):
    """A file without read permission is an error, not a missing object."""
    (tmp_path / "key").mkdir()
    (tmp_path / "key" / "self").symlink_to("self")
    with pytest.raises(VolumeError, match=r"cannot read .*key/self: too many levels"):
        open_store(str(tmp_path)).get("key/self")


def test_together(tmp_path, monkeypatch):
    """Writes of one block are on the disk when it ends: every folder that changed, once."""
    synced = []

    def noted(folder):
        synced.append(str(folder))
        return sync(folder)

    store = FolderStore(str(tmp_path))
    store.put("a/0", b"0")
    store.put("b/0", b"0")
    monkeypatch.setattr("chunkflow_py.store.folder_store.sync", noted)
    with together(store) as several:
        for number in range(5):
            several.put(f"a/{number}", b"x")
        several.delete("b/0")
        assert store.get("a/3") == b"x"
        assert synced == []
    assert synced == [f"{tmp_path}/a", f"{tmp_path}/b"]
    assert store.get("b/0") is None


def test_one_content_under_many_keys(tmp_path):
    """Several keys get the same content, unless they exist, and can be changed independently."""
    store = open_store(str(tmp_path))
    store.put("a/2", b"taken")
    assert store.put_each_if_absent(["a/1", "a/2", "b/3"], b"same") == [True, False, True]
    assert store.put_each_if_absent(["b/3", "b/4"], b"other") == [False, True]
    store.put("a/1", b"new")
    assert store.update("b/3", lambda old: old + b" and more") == b"same and more"
    assert {key: store.get(key) for key in store.list()} == {
        "a/1": b"new",
        "a/2": b"taken",
        "b/3": b"same and more",
        "b/4": b"other",
    }
    assert not list(tmp_path.rglob(".tmp-*"))


def stopped(process):
    """Wait until a process has been stopped."""
    deadline = time.monotonic() + 20
    while Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.mark.parametrize("old", [b"old", None])
@pytest.mark.parametrize("place", ["change", "claim", "move"])
def test_update_of_a_stopped_process(tmp_path, monkeypatch, place, old):
    """Updates continue while a process is suspended at any point of its own; none is lost."""
    monkeypatch.setattr(folder_store, "TURN_S", 0.2)
    store = open_store(str(tmp_path))
    if old is not None:
        store.put("key", old)
    with python(STOP, tmp_path, place) as holder:
        stopped(holder)
        start = time.monotonic()
        assert store.update("key", lambda old: (old or b"") + b"+") == (old or b"") + b"+"
        assert store.update("key", lambda old: old + b"+") == (old or b"") + b"++"
        assert time.monotonic() - start < 3
        holder.send_signal(signal.SIGCONT)
        assert holder.stdout.read() == "updated\n"
    assert store.get("key") == (old or b"") + b"++s"
    assert store.update("key", lambda old: old + b"+") == (old or b"") + b"++s+"
    assert files(tmp_path) == ["key"]
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("old", [b"old", None])
def test_a_stopped_process_whose_file_is_replaced(tmp_path, old):
    """A removed file is not mistaken for a new file with the same inode number."""
    store = open_store(str(tmp_path))
    if old is not None:
        store.put("key", old)
    with python(STOP, tmp_path, "move") as holder:
        stopped(holder)
        (claim,) = tmp_path.glob(".tmp-claim-*/.tmp-*")
        number = claim.stat().st_ino
        claim.unlink()
        others = [tmp_path / f"other-{each}" for each in range(200)]
        for each in others:
            each.write_bytes(b"other")
        again = [each for each in others if each.stat().st_ino == number]
        (again or others)[0].replace(tmp_path / "key")
        holder.send_signal(signal.SIGCONT)
        assert holder.stdout.read() == "updated\n"
    assert store.get("key") == b"others"


@pytest.mark.slow
def test_updates_while_processes_are_stopped_and_killed(tmp_path, monkeypatch):
    """Every update that was reported is kept, in any order of stops and kills."""
    chance = random.Random(5)
    processes = [python(NOTE, tmp_path, number) for number in range(6)]
    killed = processes[:2]
    deadline = time.monotonic() + 6
    while time.monotonic() < deadline:
        each = chance.choice(processes)
        each.send_signal(signal.SIGSTOP)
        time.sleep(chance.uniform(0, 0.05))
        if each in killed and chance.random() < 0.05:
            each.kill()
        each.send_signal(signal.SIGCONT)
    reported = []
    for each in processes:
        each.send_signal(signal.SIGCONT)
        if each not in killed:
            each.terminate()
    for each in killed:
        each.kill()
    for each in processes:
        reported += each.communicate(timeout=30)[0].split()
    kept = open_store(str(tmp_path)).get("key").decode().split()
    assert len(kept) == len(set(kept))
    assert set(reported) <= set(kept)
    assert len(set(kept) - set(reported)) <= len(processes)  # under way when they ended
    assert len(reported) > 20


def test_without_locks(store, monkeypatch):
    """Updates work on a file system without locks."""

    def refused(handle, how):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(folder_store.fcntl, "flock", refused)
    assert store.update("key", lambda old: b"made") == b"made"
    assert store.update("key", lambda old: old + b"!") == b"made!"


def test_folder_in_place_of_an_object(tmp_path):
    """An update of a folder is refused, and is not retried forever."""
    (tmp_path / "key").mkdir()
    with pytest.raises(VolumeError, match="key: is a directory; a folder has this name"):
        open_store(str(tmp_path)).update("key", lambda old: b"new")
