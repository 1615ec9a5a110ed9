"""The pages for contributors, the hooks and the list of changes say what is."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).parents[2]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_every_target_is_explained() -> None:
    """Targets of the Makefile stand in `make help` and in CONTRIBUTING, and those there exist."""
    targets = set(re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE))
    assert {"help", "test", "lint"} <= targets
    asked = ["make", "--no-print-directory", "help"]
    said = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert set(re.findall(r"^  make ([a-z-]+) +\S", said, re.MULTILINE)) == targets
    phony = re.search(r"^\.PHONY: (.*)$", MAKEFILE, re.MULTILINE)
    assert set(phony[1].split()) == targets
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(?:make )?([a-z][a-z-]+)`", page.split("\n\n")[2]))
    assert named == targets


def test_hooks_are_the_checks_of_make_lint() -> None:
    """pre-commit runs the programs of `make lint`, of its environment, and no other."""
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    (repository,) = hooks["repos"]
    assert repository["repo"] == "local", "other repositories would bring versions of their own"
    assert all(hook["language"] == "system" for hook in repository["hooks"])
    entries = {hook["entry"].removeprefix(".venv/bin/") for hook in repository["hooks"]}
    # Without it ruff takes files that are named to it though the settings exclude them.
    assert all("--force-exclude" in entry for entry in entries if entry.startswith("ruff"))
    recipe = re.search(r"^lint:.*\n((?:\t.*\n)+)", MAKEFILE, re.MULTILINE)[1]
    checks = {re.sub(r" --check| \.$", "", line) for line in re.findall(r"BIN\)/(.*)", recipe)}
    assert {re.sub(" --fix| --force-exclude", "", entry) for entry in entries} == checks


def test_the_version_has_its_changes() -> None:
    """The version of the package heads the list of changes, with a day or not yet released."""
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    headings = re.findall(r"^## \[(\S+)\](?: - (\S.*))?$", changes, re.MULTILINE)
    released = [(version, day) for version, day in headings if version != "Unreleased"]
    assert released[0][0] == PROJECT["project"]["version"]
    for _, day in released:
        assert day == "not yet released" or re.fullmatch(r"\d{4}-\d\d-\d\d", day)


def test_files_of_contributing_exist() -> None:
    """What CONTRIBUTING names is where it says, in the tree or in the package."""
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    names = set(re.findall(r"`((?:[a-z_0-9]+/)+[a-z_0-9]+(?:\.[a-z]+)?)`", page))
    assert len(names) > 15
    bases = (ROOT, ROOT / "chunkflow_py")
    assert not [name for name in names if not any((base / name).exists() for base in bases)]
