"""Every example is a folder with a page that runs; tests/docs/test_documentation.py runs it."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
FOLDERS = sorted(path for path in EXAMPLES.iterdir() if path.is_dir())


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_an_example_explains_itself(folder: Path) -> None:
    """Its page has commands that run, and names each of its programs."""
    page = (folder / "README.md").read_text(encoding="utf-8")
    assert re.search(r"(?<!-->\n)```(?:sh|console)\n", page)
    for program in (*folder.glob("*.py"), *folder.glob("*.sh")):
        assert program.name in page


def test_shell_scripts_have_no_findings() -> None:
    """ShellCheck has nothing to say of them."""
    scripts = sorted(EXAMPLES.rglob("*.sh"))
    assert scripts
    shellcheck = Path(sys.executable).with_name("shellcheck")
    done = subprocess.run([shellcheck, *scripts], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
