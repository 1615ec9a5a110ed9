"""README.md, docs/ and the pages of examples/ say what is true: every command block runs.

A page's blocks run in order in one scratch folder that holds a copy of `examples/`:

- ``sh``, ``bash``: by bash, which stops at the first failing command;
- ``console``: the lines after ``$ `` run so, and the other lines must stand in the output, in
  order (``...`` stands for any text);
- ``python``: as a script.

Other blocks are not run but must say what they are (``text``, ``toml``, ...). A block that cannot
run here has one of these two comments on the line before it:

    <!-- run by .ci/run -->        each of its lines must be a line of .ci/run
    <!-- not run: reason -->       listed among the skipped tests with its reason

Buckets that blocks name (``s3://bucket``) are made on an emulator, to which the environment points.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from rigs import servers
from rigs.s3 import environment

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "examples").glob("*/README.md")),
]
# Those that a new user meets first, and short ones; `make drills` and `make docs-test` run all.
IN_THE_GATE = {
    "README.md",
    "docs/api.md",
    "docs/own-format.md",
}
RUNNABLE = ("sh", "bash", "console", "python")
FENCE = re.compile(
    r"(?:^<!--[ ]*(?P<comment>.*?)[ ]*-->\n\n?)?"
    r"^(?P<indent>[ ]*)```(?P<language>\S*)[^\n]*\n(?P<code>.*?)^(?P=indent)```[ ]*$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    """One fenced block of a page."""

    place: str
    language: str
    code: str
    comment: str = ""

    @property
    def by_ci(self) -> bool:
        return self.comment == "run by .ci/run"

    @property
    def reason_not_run(self) -> str | None:
        match = re.fullmatch(r"not run: (\S.*)", self.comment)
        return match and match[1]

    @property
    def runs_here(self) -> bool:
        return self.language in RUNNABLE and not self.by_ci and self.reason_not_run is None


def blocks_of(page: Path) -> list[Block]:
    """Return the fenced blocks of *page* in order."""
    text = page.read_text(encoding="utf-8")
    name = page.relative_to(ROOT) if page.is_relative_to(ROOT) else page.name
    result = []
    for match in FENCE.finditer(text):
        line = text.count("\n", 0, match.start("language")) + 1
        code = re.sub(f"^{match['indent']}", "", match["code"], flags=re.MULTILINE)
        result.append(Block(f"{name}:{line}", match["language"], code, match["comment"] or ""))
    return result


def run_block(block: Block, folder: Path, variables: dict[str, str]) -> None:
    """Run one block in *folder*; fail with its place, its output and what was expected."""
    commands = [sys.executable, "-c", block.code]
    expected: list[str] = []
    if block.language != "python":
        script = block.code
        if block.language == "console":
            lines = block.code.splitlines()
            script = "\n".join(line[2:] for line in lines if line.startswith(("$ ", "> ")))
            expected = [line for line in lines if not line.startswith(("$ ", "> "))]
        commands = ["bash", "-euo", "pipefail", "-c", script]
    settings = {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(folder),
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        commands,
        cwd=folder,
        env=os.environ | settings | variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )
    said = f"{block.place}: {block.code}\nexit code {done.returncode}, output:\n{done.stdout}"
    assert done.returncode == 0, said
    pattern = re.escape("\n".join(expected)).replace(r"\.\.\.", ".*?")
    assert re.search(pattern, done.stdout, re.DOTALL), f"{said}\nexpected:\n{expected}"


def buckets_of(page: Path) -> set[str]:
    """Return the names of the buckets in the blocks of *page* that run."""
    code = "".join(block.code for block in blocks_of(page) if block.runs_here)
    return set(re.findall(r"s3://([a-z0-9.-]+)", code))


def run_page(page: Path, folder: Path, variables: dict[str, str]) -> None:
    """Run all blocks of *page* that can run in a scratch folder."""
    if (ROOT / "examples").is_dir():
        shutil.copytree(ROOT / "examples", folder / "examples")
    for block in blocks_of(page):
        if block.runs_here:
            run_block(block, folder, variables)


ALL_BLOCKS = [block for page in PAGES for block in blocks_of(page)]


def _marks(page: Path) -> list[pytest.MarkDecorator]:
    marks = [pytest.mark.aws] if buckets_of(page) else []
    return marks if page.relative_to(ROOT).as_posix() in IN_THE_GATE else [*marks, pytest.mark.long]


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=_marks(page))
        for page in PAGES
        if any(block.runs_here for block in blocks_of(page))
    ],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_page_runs(page: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Every command of the page can be pasted, from the first to the last."""
    variables: dict[str, str] = {}
    for bucket in buckets_of(page):
        address = request.getfixturevalue("ministack").address
        servers.call(f"{address}/{bucket}", b"", method="PUT")
        variables = environment(address, tmp_path)
    run_page(page, tmp_path, variables)


def test_blocks_stand_in_ci() -> None:
    """What a page says is run by .ci/run is run there, line by line."""
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    for block in ALL_BLOCKS:
        if block.by_ci:
            missing = [line for line in block.code.splitlines() if line and line not in script]
            assert not missing, f"{block.place} is not run by .ci/run"


if NOT_RUN := [block for block in ALL_BLOCKS if block.reason_not_run]:

    @pytest.mark.parametrize("block", NOT_RUN, ids=lambda block: block.place)
    def test_block_not_run(block: Block) -> None:
        """A block that is not run is listed with its reason."""
        pytest.skip(f"{block.place}: {block.reason_not_run}")


def test_every_block_says_what_it_is() -> None:
    """No block escapes for want of a language, and no comment is misspelt."""
    nameless = [block.place for block in ALL_BLOCKS if not block.language]
    assert not nameless, f"say ```sh, ```text, ... at {nameless}"
    for page in PAGES:
        for comment in re.findall(r"<!--\s*((?:not )?run\b.*?)\s*-->", page.read_text("utf-8")):
            assert comment == "run by .ci/run" or comment.startswith("not run: "), page


# --- the harness itself --------------------------------------------------------------------------


def _page(folder: Path, text: str) -> Path:
    page = folder / "page.md"
    page.write_text(text.replace("'''", "```"), encoding="utf-8")
    return page


def test_blocks_are_found(tmp_path: Path) -> None:
    """Language, place, indentation and the comment before a block are read."""
    page = _page(
        tmp_path,
        "'''sh\na\n'''\n- item\n  '''text\n  b\n  '''\n"
        "<!-- not run: needs a GPU -->\n'''sh\nc\n'''\n<!-- run by .ci/run -->\n'''sh\nmake\n'''\n",
    )
    first, second, third, fourth = blocks_of(page)
    assert (first.place, first.language, first.code, first.runs_here) == (
        "page.md:1",
        "sh",
        "a\n",
        True,
    )
    assert (second.language, second.code, second.runs_here) == ("text", "b\n", False)
    assert (third.reason_not_run, third.runs_here) == ("needs a GPU", False)
    assert (fourth.by_ci, fourth.runs_here) == (True, False)


@pytest.mark.parametrize("reason", ["", ":", ": "])
def test_not_running_needs_a_reason(reason: str, tmp_path: Path) -> None:
    """Without a reason the block runs, and fails."""
    (block,) = blocks_of(_page(tmp_path, f"<!-- not run{reason} -->\n'''sh\nfalse\n'''\n"))
    assert block.runs_here


@pytest.mark.parametrize(
    "text",
    [
        "'''sh\nfalse\ntrue\n'''\n",
        "'''sh\nfalse | true\n'''\n",
        "'''bash\nnot-a-command\n'''\n",
        "'''python\nraise SystemExit(3)\n'''\n",
        "'''console\n$ echo one\ntwo\n'''\n",
        "'''sh\ntrue\n'''\n'''sh\nls nothing-made-this\n'''\n",
    ],
)
def test_wrong_page_fails(text: str, tmp_path: Path) -> None:
    """A command that fails, or prints something else, fails the page and names the block."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    with pytest.raises(AssertionError, match=r"page\.md:\d+"):
        run_page(_page(tmp_path, text), folder, {})


def test_right_page_passes(tmp_path: Path) -> None:
    """Blocks share a folder, know `chunkflow`, and see the examples and the variables."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    text = (
        "'''sh\necho 12 > made\nchunkflow --version\n'''\n"
        "'''python\nimport chunkflow_py, pathlib\nassert pathlib.Path('made').exists()\n'''\n"
        "'''console\n$ cat made; echo 3.5 s\n12\n... s\n'''\n"
        "'''sh\nif [ -e examples ]; then ls examples; fi\n[ $SAID = yes ]\n'''\n"
    )
    run_page(_page(tmp_path, text), folder, {"SAID": "yes"})


def test_buckets_are_found(tmp_path: Path) -> None:
    """Buckets of blocks that run are named; those of others, and of the text, are not."""
    text = "s3://a/em\n'''sh\nx -v zarr://s3://b.c/em s3://d\n'''\n'''text\ns3://e/em\n'''\n"
    assert buckets_of(_page(tmp_path, text)) == {"b.c", "d"}
