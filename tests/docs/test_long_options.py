"""Examples in pages and in help texts use long options: `--volume-path`, not `-v`."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from chunkflow_py.cli import catalog

ROOT = Path(__file__).parents[2]
# Pages that show lines of chunkflow 1.x as their users have them.
EXCEPTIONS = {"docs/from-chunkflow.md"}
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "examples").glob("*/README.md")),
    *sorted((ROOT / "deploy").glob("*/README.md")),
]
BLOCK = re.compile(r"^[ ]*```(?:sh|bash|console)\n(.*?)^[ ]*```", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"\bchunkflow (?!_py)(.*?)(?=[|;&]|$)", re.MULTILINE)
SHORT_OPTION = re.compile(r"(?<=\s)-[a-zA-Z](?=\s|$)")


def short_options(text: str) -> list[str]:
    """Return each short option of a chunkflow command in the blocks of a page."""
    return [
        option
        for block in BLOCK.findall(text)
        for arguments in COMMAND.findall(block.replace("\\\n", " "))
        for option in SHORT_OPTION.findall(" " + arguments)
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_use_long_options(page: Path) -> None:
    """A reader sees what an option means without looking it up."""
    found = short_options(page.read_text("utf-8"))
    if str(page.relative_to(ROOT)) in EXCEPTIONS:
        assert found, "the page uses long options only: take it out of EXCEPTIONS"
    else:
        assert not found


@pytest.mark.parametrize("name", catalog.commands())
def test_the_example_of_a_command_uses_long_options(name: str) -> None:
    """The example in the help of each command uses long options only."""
    text = ast.get_docstring(ast.parse(Path(catalog.path_of(name)).read_text("utf-8"))) or ""
    example = re.search(r"^Example: (chunkflow .*?)(?:\n\n|\Z)", text, re.MULTILINE | re.DOTALL)
    assert example
    assert not short_options(f"```sh\n{example[1]}\n```\n")


def test_short_options_are_found() -> None:
    """The search follows continued lines and stops at the end of the command."""
    block = "```sh\nchunkflow load-h5 \\\n    -f a.h5 | grep -c x\nls -l\n```\n"
    assert short_options(block) == ["-f"]
    assert short_options("```text\nchunkflow load-h5 -f a.h5\n```\n") == []
