"""fetch-task-from-file: the boxes of one job of an array."""

import numpy as np
import pytest
from click.testing import CliRunner

from chunkflow_py.cli.main import cli
from chunkflow_py.ops.fetch_task_from_file import command


@pytest.fixture
def path(tmp_path):
    """Write a file of five boxes as generate-tasks does."""
    path = tmp_path / "tasks.npy"
    result = CliRunner().invoke(cli, f"generate-tasks -c 1 2 2 -z 1 2 10 -f {path}".split())
    assert result.exit_code == 0, result.output
    return path


BOXES = [f"0-1_0-2_{n}-{n + 2}" for n in range(0, 10, 2)]


def tasks(line):
    """Return the tasks of a fetch-task-from-file with these options, as strings."""
    body = command.main(line.split(), standalone_mode=False).body
    found = [str(task) for task in body]
    assert len(body) == len(found)
    return found


def test_jobs_share_the_boxes(path):
    """Each job has its part, in order, and the last one what is left."""
    assert [tasks(f"-f {path} -i {job} -g 2") for job in range(3)] == [
        BOXES[:2], BOXES[2:4], BOXES[4:]
    ]  # fmt: skip
    assert tasks(f"-f {path} -i 3") == BOXES[3:4]


@pytest.mark.parametrize(
    ("variable", "option"),
    [("SLURM_ARRAY_TASK_ID", "--slurm-job-array"), ("DISBATCH_REPEAT_INDEX", "--disbatch")],
)
def test_the_number_comes_from_the_environment(path, monkeypatch, variable, option):
    """Slurm and disBatch say which job this is."""
    monkeypatch.setenv(variable, "1")
    assert tasks(f"-f {path} {option} -g 2") == BOXES[2:4]
    monkeypatch.setenv(variable, "x")
    result = CliRunner().invoke(cli, f"fetch-task-from-file -f {path} {option}".split())
    assert result.exit_code == 2
    assert f"{variable}, which is 'x'" in result.output
    monkeypatch.delenv(variable)
    result = CliRunner().invoke(cli, f"fetch-task-from-file -f {path} {option}".split())
    assert f"{variable}, which is not set" in result.output


@pytest.mark.parametrize("options", ["", "-i 0 --slurm-job-array", "--disbatch -i 0"])
def test_the_job_is_said_once(path, options):
    """No number, or two, is a usage error."""
    result = CliRunner().invoke(cli, f"fetch-task-from-file -f {path} {options}".split())
    assert result.exit_code == 2
    assert "times instead of once" in result.output


def test_a_job_without_boxes_is_refused(path):
    """A job beyond the last is told which is the last."""
    line = f"fetch-task-from-file -f {path} -i 3 -g 2 create-chunk"
    result = CliRunner().invoke(cli, line.split())
    assert result.exit_code == 2
    assert "contains 5" in result.output
    assert "the last job is 2" in " ".join(result.output.split())


def test_a_file_of_objects_is_not_unpickled(tmp_path):
    """What would run code when it is read is refused."""
    path = tmp_path / "evil.npy"

    class Evil:
        def __reduce__(self):
            return (open, (str(tmp_path / "touched"), "w"))

    np.save(path, np.array([Evil()], object), allow_pickle=True)
    line = f"fetch-task-from-file -f {path} -i 0 create-chunk"
    result = CliRunner().invoke(cli, line.split())
    assert result.exit_code == 2
    assert "evil.npy" in result.output
    assert not (tmp_path / "touched").exists()


def test_only_its_part_is_read(tmp_path):
    """A job of a file with ten million boxes begins at once, and takes no memory for the others."""
    path = tmp_path / "many.npy"
    rows = np.lib.format.open_memmap(path, "w+", np.int64, (10_000_000, 6))  # a hole in the disk
    rows[9_999_999] = [0, 0, 0, 1, 1, 1]
    assert tasks(f"-f {path} -i 9999999") == ["0-1_0-1_0-1"]
