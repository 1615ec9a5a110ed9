"""What pages say of commands is true where it cannot be run: in prose, and in blocks for machines.

Pages for clusters and clouds have lines of `kubectl`, `aws` and `sbatch`; the files and parameters
that they name are looked for. The files themselves are checked in tests/deploy.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from chunkflow_py.cli import catalog
from chunkflow_py.cli.main import cli
from chunkflow_py.core import older_names

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("*/*/README.md")],
)
# Options of other programs that pages speak of by themselves.
FOREIGN = {
    *("--array", "--gres", "--nv", "--requeue", "--signal", "--time"),  # Slurm, Apptainer
    *("--lifetime", "--memory-limit", "--nthreads"),  # dask worker
    "--strict",  # mypy
}


@cache
def options_of(name: str) -> frozenset[str]:
    """Return the spellings of all options of a command, older ones too; of the group for ``""``."""
    params = (catalog.load(name) if name else cli).params
    found = {each for param in params for each in (*param.opts, *param.secondary_opts)}
    tables = (older_names.OPTIONS, older_names.OPTIONS_NEEDLESS)
    older = {each for table in tables for each in table.get(name, {})}
    return frozenset({*found, *older, "--help", "-h"})


@cache
def all_options() -> frozenset[str]:
    """Return the spellings of all options of all commands."""
    return frozenset().union(*(options_of(name) for name in ("", *catalog.commands())))


def lines_of(text: str) -> list[list[str]]:
    """Return the words after ``chunkflow`` in each line of a block, continued lines as one."""
    joined = re.sub(r"\\\n", " ", text)
    found = re.findall(r"^[ $]*chunkflow (.*)$|\b0 chunkflow (.*)$", joined, re.MULTILINE)
    return [re.sub(r"[|&;#>].*", "", one or other).split() for one, other in found]


def wrong_words(words: list[str]) -> list[str]:
    """Return what in a line is no command or no option of the command before it."""
    wrong, current = [], ""
    for word in words:
        name = older_names.COMMANDS.get(word, word)
        if name in catalog.commands():
            current = name
        elif re.match(r"--?[a-zA-Z]", word) and current != "plugin":
            option = word.partition("=")[0]
            if option not in options_of(current):
                wrong.append(f"{option} of {current or 'chunkflow'}")
    if not current and words and re.match("[a-z]", words[0]):
        wrong.append(words[0])
    return wrong


def test_lines_and_options_exist() -> None:
    """Each line of a block that nobody runs, and each option in prose, is one that there is."""
    wrong = {page.relative_to(ROOT): wrong_in(page.read_text(encoding="utf-8")) for page in PAGES}
    assert not {page: found for page, found in wrong.items() if found}


def wrong_in(text: str) -> list[str]:
    """Return what a page says of commands and options that do not exist."""
    blocks = re.findall(r"^```text\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    lines = [words for block in blocks for words in lines_of(block)]
    prose = re.sub(r"^ *```.*?^ *```", "", text, flags=re.MULTILINE | re.DOTALL)
    options: list[str] = []
    for span in re.findall(r"`([^`\n]+)`", prose):
        first = span.split()[0] if span.strip() else ""
        if first == "chunkflow" or first in catalog.commands():
            lines.append(span.removeprefix("chunkflow").split())
        elif first.startswith("--"):
            options += re.findall(r"(?<!\S)--[a-z][a-z0-9-]+", span)
    known = all_options() | FOREIGN
    return [
        *(what for words in lines for what in wrong_words(words)),
        *(option for option in options if option not in known),
    ]


def test_files_and_parameters_of_fleets_exist() -> None:
    """Files that kubectl, aws and sbatch are given are there, and so are parameters of stacks."""
    stacks = (ROOT / "deploy" / "aws").glob("*.yaml")
    templates = {f"deploy/aws/{path.name}": path.read_text(encoding="utf-8") for path in stacks}
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for path in set(re.findall(r"(?<![\w/])deploy/[\w./-]+\.\w+", text)):
            assert (ROOT / path).is_file(), f"{path} of {page}"
        commands = r"--template-file (\S+)(.*?)--parameter-overrides(.*?)\n(?:\S|```)"
        for path, _, given in re.findall(commands, text, re.DOTALL):
            for name in re.findall(r"\b([A-Z]\w+)=", given):
                found = re.search(rf"^  {name}:$", templates[path], re.MULTILINE)
                assert found, f"{name} of {page}"


def test_what_does_not_exist_is_found() -> None:
    """A command or an option that is misspelt is told; those of today and of earlier are not."""
    text = "`--chunk-sise`\n```text\nchunkflow submit --rum r \\\n  save-zarr --stor a\n```\n"
    assert wrong_in(text) == ["--rum of submit", "--stor of save-zarr", "--chunk-sise"]
    assert wrong_in("`work RUN --proceses 4`") == ["--proceses of work"]
    assert wrong_in("```text\nchunkflow staus r\n```\n") == ["staus"]
    assert not wrong_in("```text\nchunkflow fetch-task -q a inference --patch-size 1 1 1\n```\n")
