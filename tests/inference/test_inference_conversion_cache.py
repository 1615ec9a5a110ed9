"""Converted networks are kept whole, found again, and never trusted when damaged."""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from chunkflow_py.errors import VolumeError
from chunkflow_py.inference.backends import conversion_cache as cache
from chunkflow_py.inference.backends.conversion_cache import (
    cache_folder,
    cache_key,
    converted,
    drop_oldest,
)

KEY = "0" * 64


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Where entries are."""
    monkeypatch.setenv("CHUNKFLOW_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache" / "converted"


class Maker:
    """Writes two files, and counts how often."""

    def __init__(self, content=b"content"):
        self.content, self.calls = content, 0

    def __call__(self, folder):
        self.calls += 1
        (folder / "network.xml").write_bytes(self.content)
        (folder / "network.bin").write_bytes(self.content * 2)


def get(key, make):
    """Return what is read of an entry."""
    with converted(key, make) as where:
        return (where / "network.xml").read_bytes(), (where / "network.bin").read_bytes()


def test_makes_once_and_finds_again(folder):
    """The second time the files are those of the first, and nothing is left beside them."""
    make = Maker()
    assert get(KEY, make) == get(KEY, make) == (b"content", b"contentcontent")
    assert make.calls == 1
    assert [entry.name for entry in folder.iterdir()] == [KEY]


@pytest.mark.parametrize("damage", ["changed", "cut", "missing", "contents", "empty list"])
def test_makes_damaged_entries_anew(folder, damage):
    """An entry with a flipped bit, a lost end or a lost file is replaced by a good one."""
    make = Maker()
    get(KEY, make)
    file = folder / KEY / "network.bin"
    if damage == "changed":
        file.write_bytes(b"Contentcontent")
    elif damage == "cut":
        os.truncate(file, 3)
    elif damage == "missing":
        file.unlink()
    else:
        text = "{}" if damage == "empty list" else '{"network.bin": '
        (folder / KEY / "contents.json").write_text(text)
    assert get(KEY, make) == (b"content", b"contentcontent")
    assert make.calls == 2
    assert get(KEY, make) == (b"content", b"contentcontent")
    assert make.calls == 2
    assert [entry.name for entry in folder.iterdir()] == [KEY]


def test_eight_at_once_leave_one_entry(folder):
    """Writers that meet all read whole files of one maker, and one entry stays."""
    meet = threading.Barrier(8)

    def start(number):
        make = Maker(bytes([number]))

        def slowly(where):
            meet.wait()
            make(where)

        return get(KEY, slowly)

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(start, range(8)))
    assert found == [(bytes([n]), bytes([n, n])) for n in range(8)]
    assert [entry.name for entry in folder.iterdir()] == [KEY]
    assert get(KEY, Maker(b"other")) in found


def test_a_failed_conversion_leaves_nothing(folder):
    """What the maker raises comes out, and the next start makes the files anew."""

    def fail(where):
        (where / "network.xml").write_bytes(b"half")
        msg = "cannot convert"
        raise ValueError(msg)

    with pytest.raises(ValueError, match="cannot convert"):
        get(KEY, fail)
    assert list(folder.iterdir()) == []


def test_what_cannot_be_read_is_not_kept(folder):
    """Files that their reader refuses are not published, or no start would succeed again."""

    def refuse(path):
        msg = f"bad file {path.name}"
        raise ValueError(msg)

    with pytest.raises(ValueError, match="bad file"), converted(KEY, Maker()) as where:
        refuse(where)
    assert list(folder.iterdir()) == []


def test_without_a_key_nothing_is_kept(folder):
    """A network that nothing identifies is made each time, out of the cache."""
    make = Maker()
    assert get(None, make) == get(None, make)
    assert make.calls == 2
    assert not folder.exists()


def test_a_cache_that_cannot_be_written_is_warned_of_once(tmp_path, monkeypatch, caplog):
    """It goes on without, and the warning names the folder and the variable."""
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("CHUNKFLOW_CACHE_DIR", str(tmp_path / "file"))
    make = Maker()
    assert get(KEY, make) == get(KEY, make) == (b"content", b"contentcontent")
    assert make.calls == 2
    (record,) = caplog.records
    assert str(tmp_path / "file") in record.getMessage()
    assert "CHUNKFLOW_CACHE_DIR" in record.getMessage()


def test_a_full_disk_is_one_sentence():
    """What the system says of writing comes out as an error of this package."""

    def full(where):
        raise OSError(28, os.strerror(28))

    with pytest.raises(VolumeError, match="no space left on device"):
        get(KEY, full)
    with pytest.raises(VolumeError, match="no space left on device"):
        get(None, full)


def test_drops_what_was_not_used_for_longest(folder):
    """Beyond the limit the entries used least recently go; using one keeps it."""
    for number in range(4):
        get(str(number), Maker(b"x" * 1000))
        os.utime(folder / str(number), (1000 + number, 1000 + number))
    get("0", Maker())
    size = sum(file.stat().st_size for file in (folder / "0").iterdir())
    drop_oldest(folder, 2 * size)
    assert sorted(entry.name for entry in folder.iterdir()) == ["0", "3"]


def test_a_new_entry_makes_room(folder, monkeypatch):
    """The limit holds after each conversion."""
    monkeypatch.setattr(cache, "LARGEST_BYTES", 5000)
    for number in range(4):
        get(str(number), Maker(b"x" * 1000))
        os.utime(folder / str(number), (1000 + number, 1000 + number))
    assert [entry.name for entry in folder.iterdir()] == ["3"]


def test_removes_what_killed_processes_left(folder):
    """Half an entry goes after a day; one that is being written stays."""
    old, new = folder / ".tmp-old", folder / ".tmp-new"
    for each in (old, new):
        each.mkdir(parents=True)
        (each / "network.xml").write_text("half")
    long_ago = time.time() - 25 * 3600
    os.utime(old, (long_ago, long_ago))
    get(KEY, Maker())
    assert sorted(entry.name for entry in folder.iterdir()) == [".tmp-new", KEY]


def test_keys_differ_with_everything_that_matters():
    """Digest, shape and versions each change the key; without a digest there is none."""
    keys = {
        cache_key("a", shape=(1, 2), library="x 1"),
        cache_key("b", shape=(1, 2), library="x 1"),
        cache_key("a", shape=(2, 1), library="x 1"),
        cache_key("a", shape=(1, 2), library="x 2"),
    }
    assert len(keys) == 4
    assert cache_key("a", shape=(1, 2), library="x 1") in keys
    assert all(key is not None and len(key) == 64 for key in keys)
    assert cache_key(None, shape=(1, 2)) is None


def test_folder_follows_the_base_directory_specification(monkeypatch):
    """$CHUNKFLOW_CACHE_DIR, else an absolute $XDG_CACHE_HOME, else ~/.cache."""
    monkeypatch.delenv("CHUNKFLOW_CACHE_DIR")
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert cache_folder() == Path("/caches/chunkflow_py/converted")
    for ignored in ("", "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", ignored)
        assert cache_folder() == Path("/home/someone/.cache/chunkflow_py/converted")
    monkeypatch.setenv("CHUNKFLOW_CACHE_DIR", "~/mine")
    assert cache_folder() == Path("/home/someone/mine/converted")
