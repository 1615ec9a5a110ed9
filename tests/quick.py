"""Print the test files that `make quick` runs: a fixed core, and those of what has changed.

What has changed is what git knows: files that differ from the last commit of the upstream branch,
or, where there is no upstream branch, from the commit before the last one, and untracked files.

    python tests/quick.py [BASE]
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]

# One promise each that any change may break: geometry, pipelines, the command line, what hashes
# and grids are made of, every operator, and what pages say.
CORE = (
    "tests/core/test_*.py",
    "tests/pipeline/test_*.py",
    "tests/cli/test_cli_main.py",
    "tests/cli/test_cli_startup.py",
    "tests/docs/test_architecture_page.py",
    "tests/docs/test_plain_english.py",
    "tests/docs/test_upkeep.py",
    "tests/docs/test_words.py",
    "tests/inference/test_*_grid.py",
    "tests/ops/test_every_operator.py",
    "tests/queue/test_*memory*.py",
    "tests/run/test_run_spec.py",
    "tests/test_errors.py",
)


def core() -> set[str]:
    """Return the files of the fixed list.

    Raises:
        FileNotFoundError: A row of the list names no file: it was moved.
    """
    files: set[str] = set()
    for pattern in CORE:
        matches = {str(path.relative_to(ROOT)) for path in ROOT.glob(pattern)}
        if not matches:
            msg = f"{pattern} of CORE in tests/quick.py matches no file"
            raise FileNotFoundError(msg)
        files |= matches
    return files


def changed(base: str | None = None) -> list[str]:
    """Return the files that differ from *base*, and those that git does not know."""
    for revision in (base,) if base else ("@{upstream}", "HEAD~1", "HEAD"):
        done = _git("diff", "--name-only", revision)
        if done.returncode == 0:
            return sorted(
                {*done.stdout.split(), *_git("ls-files", "-o", "--exclude-standard").stdout.split()}
            )
    raise SystemExit(done.stderr)


def tests_of(file: str) -> set[str]:
    """Return the test files that mirror a file: by their name, or because they import it."""
    path = Path(file)
    if path.suffix != ".py":
        return set()
    if path.parts[0] == "tests":
        return {file} if path.name.startswith("test_") and (ROOT / path).exists() else set()
    if path.parts[0] != "chunkflow_py" or len(path.parts) < 3:
        return set()
    module = ".".join(path.with_suffix("").parts).removesuffix(".__init__")
    folder = ROOT.joinpath("tests", path.parts[1])
    return {
        str(test.relative_to(ROOT))
        for test in folder.rglob("test_*.py")
        if test.stem.endswith(f"_{path.stem}") or f"{module} import" in test.read_text("utf-8")
    }


def _git(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )


def main() -> None:
    """Print the files, one a line."""
    files = core().union(*map(tests_of, changed(*sys.argv[1:])))
    sys.stdout.write("\n".join(sorted(files)) + "\n")


if __name__ == "__main__":
    main()
