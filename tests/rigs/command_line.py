"""Lines of the command line on a small volume, and what says them in this process."""

import shlex

from click.testing import CliRunner

from chunkflow_py.cli.main import cli

TASKS = "generate-tasks --roi-size 16 32 32 --chunk-size 8 16 16"
IMAGE = "create-chunk --size 16 32 32 --pattern random"
LINE = f"{TASKS} load-zarr --store image.zarr"
SAVE = "save-zarr --chunk-size 8 16 16 --store"


def say(line, code=0):
    """Run a line in this process; return what it printed."""
    result = CliRunner().invoke(cli, shlex.split(line))
    assert result.exit_code == code, result.output
    return result.output
