"""One file for all tasks, or one a task."""

import pytest
from click.testing import CliRunner

from chunkflow_py.cli.main import cli
from chunkflow_py.core.geometry import BoundingBox, Region
from chunkflow_py.errors import OptionError, VolumeError
from chunkflow_py.volume.files.file_name import FileName, local_path

BOX = BoundingBox((0, 0, 0), (1, 2, 3))
H5 = (".h5", ".hdf5")


def test_a_name_with_an_extension_is_the_file():
    """The box of a task is not added to a name that has an extension of the format."""
    assert FileName("a/out.H5", H5).path(Region(BOX)).as_posix() == "a/out.H5"
    assert FileName("out.hdf5", H5).path(None).name == "out.hdf5"
    assert FileName("file:///a/out.h5", H5).fixed_path.as_posix() == "/a/out.h5"


def test_a_name_without_an_extension_is_a_prefix():
    """The region of a task, time included, comes between the prefix and the extension."""
    assert FileName("a/", H5).path(Region(BOX)).as_posix() == "a/0-1_0-2_0-3.h5"
    assert FileName("out_", H5).path(Region(BOX, 7)).name == "out_t7_0-1_0-2_0-3.h5"
    assert FileName("", H5).path(BOX).name == "0-1_0-2_0-3.h5"


def test_a_file_that_exists_is_read_under_its_own_name(tmp_path):
    """Only when reading, an existing file without an extension is no prefix."""
    path = tmp_path / "raw.mat"
    path.touch()
    assert FileName(str(path), H5, reads=True).path(Region(BOX)) == path
    assert FileName(str(path), H5).is_prefix


def test_a_prefix_needs_a_box():
    """A prefix without a task is told what to write instead."""
    with pytest.raises(VolumeError, match=r"out_ has no extension \.h5.*use out_\.h5"):
        FileName("out_", H5).path(None)


def test_another_machine_is_refused():
    """A URL of an object store is no file name."""
    with pytest.raises(OptionError, match=r"s3://b/a\.h5 is not on this machine"):
        FileName("s3://b/a.h5", H5)


def test_several_tasks_need_a_prefix():
    """One name for several tasks is refused with the prefix that works."""
    with pytest.raises(OptionError, match=r"of the 2 tasks.*--file-name out_, .* writes out_0-64"):
        FileName("out.h5", H5).check_written_once(2)
    FileName("out_", H5).check_written_once(2)
    FileName("out.h5", H5).check_written_once(1)
    FileName("out.h5", H5).check_written_once(0)


def test_an_impossible_place_is_refused(tmp_path):
    """A folder of that name, or a file in the place of a folder, is told before any work."""
    (tmp_path / "taken.h5").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(VolumeError, match="a folder of this name exists"):
        FileName(str(tmp_path / "taken.h5"), H5).check_writable()
    for name in ("file/out.h5", "file/new/prefix_"):
        with pytest.raises(VolumeError, match="file is a file, not a folder"):
            FileName(str(tmp_path / name), H5).check_writable()
    FileName(str(tmp_path / "new/folder/out.h5"), H5).check_writable()


def test_local_path():
    """file:// is dropped, and a place on another machine is refused with the option's name."""
    assert local_path("file:///data/out", "--path") == "/data/out"
    assert local_path("out/", "--path") == "out/"
    with pytest.raises(OptionError, match="--path gs://b/out is not on this machine"):
        local_path("gs://b/out", "--path")


@pytest.mark.parametrize(
    "words", ["load-png -p gs://b/out", "evaluate-segmentation -g chunk -j gs://b/out"]
)
def test_paths_that_are_of_this_machine_are_no_urls(words, tmp_path, monkeypatch):
    """An operator that reads or writes here only takes no URL for the name of a folder."""
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(cli, ["create-chunk", *words.split()])
    assert result.exit_code == 2
    assert "gs://b/out is not on this machine" in result.stderr
    assert not list(tmp_path.iterdir())
