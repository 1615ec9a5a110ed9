"""print-max-id on lines."""

from click.testing import CliRunner

from chunkflow_py.cli.main import cli


def test_one_line_a_task() -> None:
    """The largest id goes to stdout, with the box of the task if there is one."""
    line = "create-chunk --pattern zero --dtype uint64 --size 4 4 4 print-max-id"
    result = CliRunner().invoke(cli, ["--quiet", *line.split()])
    assert result.stdout == "maximum object ID: 0\n"
    tasks = ["generate-tasks", "--roi-size", "4", "4", "8", "-c", "4", "4", "4"]
    result = CliRunner().invoke(cli, ["--quiet", *tasks, *line.split()])
    assert result.stdout.splitlines() == [
        "maximum object ID of 0-4_0-4_0-4: 0",
        "maximum object ID of 0-4_0-4_4-8: 0",
    ]


def test_a_map_is_explained() -> None:
    """A map has no ids."""
    line = "create-chunk --dtype float32 --size 4 4 4 print-max-id"
    result = CliRunner().invoke(cli, line.split())
    assert result.exit_code == 1
    assert "float32" in result.output
