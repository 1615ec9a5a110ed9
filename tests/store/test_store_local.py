"""Tests of chunkflow_py.store.local_files."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from chunkflow_py.errors import VolumeError, VolumeNotFoundError
from chunkflow_py.store.local_files import absolute, of_each_file, os_errors, replacing, write_whole


def names(folder):
    """Return the names of all files below *folder*."""
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def test_write_whole(tmp_path):
    """The content arrives, missing folders are made, and no temporary file stays."""
    path = tmp_path / "a" / "b" / "block"
    write_whole(path, b"old")
    write_whole(path, b"newer", fsync=False)
    assert path.read_bytes() == b"newer"
    assert names(tmp_path) == ["block"]


def test_on_the_disk_before_and_after_the_rename(tmp_path, monkeypatch):
    """The content is on the disk before it takes the final name, and the name after that."""
    events = []
    fsync, replace = os.fsync, Path.replace

    def watched_fsync(handle):
        fsync(handle)
        events.append(os.fstat(handle).st_ino)

    def watched_replace(path, target):
        events.append("rename")
        return replace(path, target)

    monkeypatch.setattr(os, "fsync", watched_fsync)
    monkeypatch.setattr(Path, "replace", watched_replace)
    write_whole(tmp_path / "block", b"content")
    file, folder = (tmp_path / "block").stat().st_ino, tmp_path.stat().st_ino
    assert events == [file, "rename", folder]


def test_permissions_follow_the_umask(tmp_path):
    """A file is as readable to others as any other new file."""
    write_whole(tmp_path / "ours", b"")
    (tmp_path / "theirs").touch()
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "theirs").stat().st_mode


def test_replacing_keeps_the_extension(tmp_path):
    """The temporary name lies in the same folder and ends like the final one."""
    with replacing(tmp_path / "out.h5") as temporary:
        assert temporary.parent == tmp_path
        assert temporary.suffix == ".h5"
        assert not temporary.exists()
        temporary.write_bytes(b"x")
    assert names(tmp_path) == ["out.h5"]


def test_long_names(tmp_path):
    """A name of the greatest legal length can be written."""
    name = "n" * 251 + ".png"
    write_whole(tmp_path / name, b"x")
    assert names(tmp_path) == [name]


@pytest.mark.parametrize("error", [ValueError("wrong"), KeyboardInterrupt()])
def test_replacing_fails_cleanly(tmp_path, error):
    """Whatever ends the block early, the old file stays and the temporary one goes."""
    path = tmp_path / "out.h5"
    path.write_bytes(b"old")

    def save():
        with replacing(path) as temporary:
            temporary.write_bytes(b"half")
            raise error

    with pytest.raises(type(error)):
        save()
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["out.h5"]


def test_replacing_when_nothing_was_written(tmp_path):
    """A block that writes nothing is an error, not an empty file."""
    path = tmp_path / "out.h5"
    with pytest.raises(VolumeError, match=r"cannot write .*out\.h5"), replacing(path):
        pass
    assert names(tmp_path) == []


def test_folder_of_that_name(tmp_path):
    """A folder where the file should go is one sentence with the path and what to do."""
    (tmp_path / "out").mkdir()
    with pytest.raises(VolumeError, match=r"cannot write .*out: is a directory; a folder has"):
        write_whole(tmp_path / "out", b"x")
    assert names(tmp_path) == []


def test_file_in_the_path(tmp_path):
    """A file where a folder should be is one sentence with the path and what to do."""
    (tmp_path / "out").touch()
    with pytest.raises(VolumeError, match=r"make folder .*out: .*; a part of the path is a file"):
        write_whole(tmp_path / "out" / "block", b"x")


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (FileNotFoundError(2, "No such"), VolumeNotFoundError, "cannot read x: no such; check"),
        (PermissionError(13, "No"), VolumeError, "cannot read x: no; change the permissions"),
        (OSError("broken"), VolumeError, "cannot read x: broken"),
        (VolumeError("said already"), VolumeError, "said already"),
    ],
)
def test_os_errors(error, kind, text):
    """Own errors pass; a missing file has its own error; an error without errno keeps its text."""
    with pytest.raises(kind) as caught, os_errors("read", "x"):
        raise error
    assert str(caught.value).startswith(text)


def test_no_space(tmp_path):
    """A file above the size limit gives a clear message, and leaves the old content only."""
    path = tmp_path / "block"
    path.write_bytes(b"old")
    code = (
        "import resource, sys\n"
        "from chunkflow_py.store.local_files import write_whole\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "try:\n    write_whole(sys.argv[1], b'x' * 100_000)\n"
        "except Exception as error:\n    print(type(error).__name__, error)\n"
    )
    run = [sys.executable, "-c", code, path]
    done = subprocess.run(run, check=False, capture_output=True, text=True)
    assert done.stdout.startswith(f"VolumeError cannot write {path}: file too large; ")
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["block"]


@pytest.mark.parametrize("seconds", [0.0, 0.002])
def test_small_files_are_worked_on_by_threads_where_that_waits(seconds: float) -> None:
    """Results are in order; quick calls stay in this thread, slow ones do not."""

    def work(number: int) -> tuple[int, str]:
        time.sleep(seconds)
        return number, threading.current_thread().name

    found = of_each_file(work, range(40), 4, "files")
    assert [number for number, _ in found] == list(range(40))
    assert any(name.startswith("files") for _, name in found) == (seconds > 0)
    assert of_each_file(work, range(3), 4, "files")[2][0] == 2
    assert of_each_file(work, [], 4, "files") == []


def test_a_path_is_spelled_in_one_way(tmp_path, monkeypatch):
    """A ``..`` after a link is resolved as by the system; other links are kept."""
    (tmp_path / "far" / "deep").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "far" / "deep")
    monkeypatch.chdir(tmp_path)
    top = str(tmp_path)
    assert absolute("./em/") == absolute("far/../em") == f"{top}/em"
    assert absolute("link/em") == f"{top}/link/em"
    assert absolute("link/../em") == f"{top}/far/em"
