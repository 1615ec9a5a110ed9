"""Help pages: options below headings."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from chunkflow_py.cli.main import cli
from chunkflow_py.pipeline.terminal import Command, option_headings


def test_options_are_shown_below_their_headings():
    """Options without a heading come first; every option is shown once."""

    @click.command(cls=Command)
    @option_headings({"Blending": ("bump",)})
    @click.option("--bump", help="Window.")
    @click.option("--device", help="Device.")
    def command(**options: str) -> None:
        """Blend."""

    text = CliRunner().invoke(command, ["--help"]).output
    general, blending = text.split("Blending:")
    assert "--device" in general.split("Options:")[1]
    assert "--help" in general
    assert "--bump" in blending
    assert text.count("--bump") == 1


def test_a_heading_of_an_unknown_option_is_refused():
    """A misspelled name in a heading is an error when the command is declared."""
    with pytest.raises(ValueError, match="no option bmup to show below 'Blending'; options: bump"):
        option_headings({"Blending": ("bmup",)})(click.option("--bump")(lambda bump: bump))


@pytest.mark.parametrize(
    ("command", "heading"),
    [
        ("inference", "Patches:"),
        ("load-zarr", "Part to read:"),
        ("save-zarr", "New volume:"),
        ("generate-tasks", "Region:"),
        ("work", "When to stop:"),
    ],
)
def test_long_help_is_grouped(command, heading):
    """The commands with the most options show them below headings."""
    result = CliRunner().invoke(cli, [command, "--help"])
    assert result.exit_code == 0
    assert heading in result.output.splitlines()
