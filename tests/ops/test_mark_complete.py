"""mark-complete."""

import pytest
from click.testing import CliRunner

from chunkflow_py.cli.main import cli
from chunkflow_py.store import open_store

TASKS = ["generate-tasks", "-c", "1", "1", "1", "-s", "0", "0", "0", "-z", "1", "1", "3"]


def run(*words):
    """Run a line over three tasks."""
    return CliRunner().invoke(cli, [str(word) for word in words])


@pytest.mark.parametrize("ahead", ["0", "2"])
def test_a_mark_says_that_all_before_it_is_stored(tmp_path, ahead):
    """Tasks that fail or are skipped have no mark; those with one have their file, whole."""
    (tmp_path / "skip-0-1_0-1_0-1").touch()
    (tmp_path / "out-0-1_0-1_2-3.h5").mkdir()  # so that it cannot be written
    result = run(
        "--ahead", ahead, *TASKS, "skip-task-by-file", "-p", tmp_path / "skip-",
        "create-chunk", "-s", 1, 1, 1, "save-h5", "-f", tmp_path / "out-",
        "mark-complete", "-p", f"{tmp_path}/done/", "-s", ".ok",
    )  # fmt: skip
    assert result.exit_code == 1
    assert [path.name for path in (tmp_path / "done").iterdir()] == ["0-1_0-1_1-2.ok"]
    assert (tmp_path / "out-0-1_0-1_1-2.h5").stat().st_size > 0


def test_a_mark_in_a_store_keeps_what_is_there(tmp_path):
    """The prefix may be a URL; a file of that name keeps its content; a dry run leaves none."""
    url = f"mem://{tmp_path}"
    store = open_store(url)
    store.put("0-1_0-1_1-2", b"kept")
    line = [*TASKS, "mark-complete", "-p", f"{url}/"]
    assert run("--dry-run", *line).exit_code == 0
    assert list(store.list()) == ["0-1_0-1_1-2"]
    assert run(*line).exit_code == 0
    assert {key: store.get(key) for key in store.list()} == {
        "0-1_0-1_0-1": b"", "0-1_0-1_1-2": b"kept", "0-1_0-1_2-3": b"",
    }  # fmt: skip


def test_a_line_without_boxes_is_refused(tmp_path):
    """There is nothing to name the file after; a place where another one writes is refused."""
    result = run("create-chunk", "mark-complete", "-p", tmp_path / "x")
    assert (result.exit_code, "no task has a box" in result.output) == (2, True)
    result = run(*TASKS, "create-chunk", "save-h5", "-f", tmp_path / "a", "mark-complete", "-p",
                 tmp_path / "a", "-s", ".h5")  # fmt: skip
    assert (result.exit_code, "save-h5 and mark-complete both write" in result.output) == (2, True)


@pytest.mark.aws
def test_marks_in_a_bucket(s3):
    """Marks on S3 steer the next run, and cleanup takes them away."""
    mark = ["mark-complete", "-p", f"{s3.url}/done-"]
    skip = ["skip-task-by-file", "-p", f"{s3.url}/done-"]
    result = run(*TASKS, *skip, "-m", "missing", "-a", 1, *mark)
    assert result.exit_code == 0, result.output
    assert not list(open_store(s3.url).list())
    result = run(*TASKS, *skip, *mark)
    assert result.exit_code == 0, result.output
    assert sorted(open_store(s3.url).list()) == [f"done-0-1_0-1_{x}-{x + 1}" for x in range(3)]
    result = run(*TASKS, *skip, *mark, "-s", "-twice")
    assert result.exit_code == 0, result.output
    result = run("cleanup", "-d", s3.url, "-m", "empty")
    assert f"removed 3 files of {s3.url}; 0 remain" in result.output
