"""cleanup."""

import pytest
from click.testing import CliRunner

from chunkflow_py.cli.main import cli
from chunkflow_py.errors import VolumeError
from chunkflow_py.ops.cleanup import cleanup
from chunkflow_py.store import open_store

FILES = {"a.h5": b"", "b.h5": b"1", "c.tif": b"", "d.tif": b"1", "sub/e.h5": b""}


@pytest.fixture(params=["", "mem://"])
def place(request, tmp_path):
    """Return a folder, or a place in a store, with five files."""
    url = f"{request.param}{tmp_path}"
    store = open_store(url)
    for name, content in FILES.items():
        store.put(name, content)
    return url


@pytest.mark.parametrize(
    ("mode", "suffix", "gone"),
    [
        ("exist", "", "a.h5 b.h5 c.tif d.tif"),
        ("empty", "", "a.h5 c.tif"),
        ("not-empty", "", "b.h5 d.tif"),
        ("empty", ".h5", "a.h5"),
        ("exist", ".png", ""),
    ],
)
def test_what_is_removed(place, mode, suffix, gone):
    """Files of the folder itself that are as the mode says; a dry run only names them."""
    store = open_store(place)
    expected = gone.split()
    assert cleanup(place, mode, suffix, dry_run=True) == (expected, 4 - len(expected))
    assert set(store.list()) == FILES.keys()
    assert cleanup(place, mode, suffix) == (expected, 4 - len(expected))
    assert set(store.list()) == FILES.keys() - set(expected)


def test_links_are_left_alone(tmp_path):
    """Neither a link nor what it leads to is removed, nor the unfinished file of a writer."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in/.tmp-1-a.h5").touch()
    (tmp_path / "kept").touch()
    (tmp_path / "in/link").symlink_to(tmp_path / "kept")
    (tmp_path / "in/folder").symlink_to(tmp_path)
    assert cleanup(str(tmp_path / "in")) == ([], 0)
    assert sorted(p.name for p in (tmp_path / "in").iterdir()) == [".tmp-1-a.h5", "folder", "link"]
    assert (tmp_path / "kept").exists()


def test_in_a_line(tmp_path):
    """It says how many; a dry run lists them; with tasks it is refused, as is no folder."""
    for name in ("a", "b"):
        (tmp_path / name).touch()
    run = CliRunner()
    result = run.invoke(cli, ["--dry-run", "cleanup", "-d", str(tmp_path)])
    assert result.stdout.splitlines()[:2] == ["a", "b"]
    assert "would remove 2 files" in result.stdout
    result = run.invoke(cli, ["cleanup", "-d", str(tmp_path), "-s", "a"])
    assert result.stdout == f"removed 1 files of {tmp_path}; 1 remain\n"
    assert [path.name for path in tmp_path.iterdir()] == ["b"]
    line = ["create-bbox", "-s", "0", "0", "0", "-z", "1", "1", "1", "cleanup"]
    result = run.invoke(cli, [*line, "-d", str(tmp_path)])
    assert (result.exit_code, "in a pipeline of its own" in result.output) == (2, True)
    with pytest.raises(VolumeError, match="no such file"):
        cleanup(str(tmp_path / "none"))
