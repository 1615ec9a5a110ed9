"""create-bbox."""

import pytest
from click.testing import CliRunner

from chunkflow_py.cli.main import cli
from chunkflow_py.core.geometry import Zyx
from chunkflow_py.errors import OptionError
from chunkflow_py.ops.create_bbox import command, create_bbox


def run(*args):
    """Return the tasks of a create-bbox."""
    return [str(task) for task in command.main(args, standalone_mode=False).body]


def test_box_by_size_and_by_stop():
    """Size and stop describe the same box; negative starts work."""
    assert run("-s", "-8", "0", "0", "-z", "10", "20", "30") == ["-8-2_0-20_0-30"]
    assert run("--start", "-8", "0", "0", "--stop", "2", "20", "30") == ["-8-2_0-20_0-30"]


def test_stop_and_size_that_agree_are_accepted():
    """Saying the same thing twice is no error."""
    box = create_bbox(Zyx(1, 1, 1), Zyx(2, 3, 4), Zyx(1, 2, 3))
    assert str(box) == "1-2_1-3_1-4"


@pytest.mark.parametrize("stop", [Zyx(0, 4, 4), Zyx(1, 4, 4)])
def test_empty_boxes_are_refused(stop):
    """A stop that is not behind the start is refused."""
    with pytest.raises(OptionError, match="--stop must be greater than --start"):
        create_bbox(Zyx(1, 1, 1), stop)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["-s", "0", "0", "0"], "also give --stop or --size"),
        (["-s", "0", "0", "0", "-p", "2", "2", "2", "-z", "1", "1", "1"], "leave --stop or"),
        (["-z", "1", "1", "1"], "Missing option"),
        (["-s", "0", "0", "0", "-z", "0", "1", "1"], "x>=1"),
    ],
)
def test_bad_options_end_with_2(args, words):
    """A box that is not described is a usage error with one sentence."""
    result = CliRunner().invoke(cli, ["create-bbox", *args])
    assert result.exit_code == 2
    assert words in result.output
