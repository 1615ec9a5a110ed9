"""Small files that belong to tasks: their names, in folders and in stores."""

from __future__ import annotations

from pathlib import Path

import pytest

from chunkflow_py.core.geometry import Region
from chunkflow_py.core.task import Task
from chunkflow_py.errors import GeometryError, OptionError, VolumeError, VolumeNotFoundError
from chunkflow_py.store.task_files import ItemSaver, TaskFiles, grown

REGION = Region.parse("t3_0-1_0-2_0-3")
TYPES = (".h5", ".json")


@pytest.fixture(params=["folder", "file", "mem"])
def place(request, tmp_path) -> str:
    """Return the address of an empty place: a path or a URL."""
    scheme = {"folder": "", "file": "file://", "mem": "mem://"}[request.param]
    return f"{scheme}{tmp_path}"


def test_a_file_is_written_read_and_measured(place) -> None:
    """Prefix, box and suffix form the name in any store; a record is returned."""
    files = TaskFiles(f"{place}/new/pre-", ".x")
    assert files.size(REGION) is None
    with pytest.raises(VolumeNotFoundError, match=r"pre-t3_0-1_0-2_0-3\.x does not exist; check"):
        files.read(REGION)
    stored = files.write(REGION, b"123")
    assert (files.read(REGION), files.size(REGION), stored.size) == (b"123", 3, 3)
    assert stored.url.endswith("/new/pre-t3_0-1_0-2_0-3.x")
    assert files.touch(REGION).size == 3, "what it holds is kept"
    assert files.touch(Region.parse("0-1_0-2_0-3")).size == 0
    assert files.size(Region.parse("0-1_0-2_0-3")) == 0


def test_a_suffix_may_hold_folders(place) -> None:
    """A marker may be in a folder of the task; a folder exists if it is not empty."""
    TaskFiles(f"{place}/", "/done").touch(REGION)
    assert TaskFiles(f"{place}/", "/done").size(REGION) == 0
    assert TaskFiles(f"{place}/", "/").size(REGION) == 1
    assert TaskFiles(f"{place}/x", "/").size(REGION) is None


def test_which_names_are_whole(tmp_path, monkeypatch) -> None:
    """A name with an extension is one file for all tasks; an existing folder needs no slash."""
    monkeypatch.chdir(tmp_path)
    Path("there").mkdir()
    names = ["syns.JSON", "syns", "there", "there/", "there/x", "s3://b/p"]
    found = [TaskFiles(name, ".h5", TYPES).url(REGION) for name in names]
    box = "t3_0-1_0-2_0-3.h5"
    assert found == [
        "syns.JSON", f"syns{box}", f"there/{box}", f"there/{box}", f"there/x{box}", f"s3://b/p{box}"
    ]  # fmt: skip
    assert TaskFiles("syns.h5", ".h5", TYPES).url(None) == "syns.h5"
    assert TaskFiles("there", "").url(REGION) == "theret3_0-1_0-2_0-3"
    TaskFiles("plain", "").touch(REGION)
    assert Path("plaint3_0-1_0-2_0-3").is_file()
    assert TaskFiles("syns.h5", "", TYPES).place == f"{tmp_path}/syns.h5"
    assert TaskFiles("file://a", ".x").place == f"{tmp_path}/aBOX.x"
    assert TaskFiles("s3://b/a", ".x").place == "s3://b/aBOX.x"


def test_what_cannot_be_named_is_refused() -> None:
    """A bucket needs a path, a prefix needs a box, and a box must not become negative."""
    with pytest.raises(
        OptionError,
        match=r"--prefix s3://b is only a bucket, without a path inside it; write s3://b/",
    ):
        TaskFiles("s3://b")
    with pytest.raises(
        GeometryError, match="names each file after the box of the task, but this task has no box"
    ):
        TaskFiles("pre-").url(None)
    assert str(grown(REGION, 2)) == "t3_-2-3_-2-4_-2-5"
    assert grown(None, 2) is None
    with pytest.raises(GeometryError, match="lies before its start"):
        grown(REGION, -1)


def test_items_are_saved(tmp_path) -> None:
    """Files are recorded, None gives an empty file, and one file is written by one task."""
    saver = ItemSaver(TaskFiles(f"{tmp_path}/", ".txt"), "a", str.encode, str)
    task = saver(Task(REGION, {"a": "text"}))
    assert [Path(stored.url).name for stored in task.written] == ["t3_0-1_0-2_0-3.txt"]
    assert (tmp_path / "t3_0-1_0-2_0-3.txt").read_text() == "text"
    saver(Task(REGION, {"a": None}))
    assert (tmp_path / "t3_0-1_0-2_0-3.txt").read_bytes() == b""
    saver = ItemSaver(TaskFiles(f"{tmp_path}/all.h5", "", TYPES), "a", str.encode, str)
    saver(Task(REGION, {"a": "first"}))
    saver(Task(REGION, {"a": "again"}))
    with pytest.raises(VolumeError, match=r"would replace .*all\.h5, which task t3.* has written"):
        saver(Task(None, {"a": "b"}))
    assert (tmp_path / "all.h5").read_text() == "again"
