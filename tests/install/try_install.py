"""Install the package as a new user does, and try it: `make install-test`, minutes for each row.

For every Python from 3.11 to 3.13 that is found, with the lowest and with the highest versions that
pyproject.toml allows of what it needs, without extras: a new environment, `pip install`, then the
first lines of a new user. Prints a table; ends with 1 if a row failed.

    python tests/install/try_install.py [--python 3.12] [--versions lowest|highest]
"""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # this runs as a script, too
from install.first_minutes import check_first_minutes

ROOT = Path(__file__).parents[2]
PYTHONS = "3.11", "3.12", "3.13"
VERSIONS = "lowest", "highest"
SOURCES = "chunkflow_py", "pyproject.toml", "setup.py", "README.md", "LICENSE"


def lowest(requirements):
    """Return the requirements that allow the lowest version only of those that say one."""
    found = [re.match(r"([\w.-]+)(?:\[[^\]]*\])?>=([\w.]+)", each) for each in requirements]
    return [f"{match[1]}=={match[2]}" for match in found if match]


def find_python(version):
    """Return the path of a Python such as 3.12, or ``None``."""
    # Of pyenv: its shims are on PATH for every version, and refuse most.
    installed = sorted((Path.home() / ".pyenv" / "versions").glob(f"{version}.*/bin/python"))
    for each in [shutil.which(f"python{version}"), *reversed(installed), sys.executable]:
        if each is None:
            continue
        code = "import sys, venv, ensurepip; print('%d.%d' % sys.version_info[:2])"
        done = subprocess.run([each, "-c", code], capture_output=True, text=True, check=False)
        if done.stdout.strip() == version:
            return str(each)
    return None


def try_one(python, versions, folder):
    """Install into a new environment; return what was tried and what was installed.

    Args:
        python: path of the interpreter.
        versions: ``lowest`` or ``highest``.
        folder: an empty one.
    """
    source, home = folder / "source", folder / "home"
    source.mkdir()
    home.mkdir()
    for name in SOURCES:  # not in place: what an earlier build has left there would come along
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, source / name)
    needed = tomllib.loads((source / "pyproject.toml").read_text())["project"]["dependencies"]
    constraints = folder / "constraints.txt"
    constraints.write_text("\n".join(lowest(needed)) if versions == "lowest" else "")
    environment = folder / "environment"
    subprocess.run([python, "-m", "venv", environment], check=True)
    pip = [environment / "bin" / "python", "-m", "pip", "--quiet", "--no-input"]
    done = subprocess.run(
        [*pip, "install", "--no-cache-dir", "--only-binary", ":all:", "-c", constraints, source],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"pip install failed:\n{done.stderr}"
    tried = check_first_minutes([str(environment / "bin" / "chunkflow")], home)
    frozen = subprocess.run([*pip, "freeze"], capture_output=True, text=True, check=True).stdout
    names = {re.match(r"[\w-]+", each)[0].lower() for each in needed}
    lines = [line for line in frozen.splitlines() if line.partition("==")[0].lower() in names]
    return tried, " ".join(lines)


def main():
    """Try every row; print one line each."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--python", choices=PYTHONS, action="append", help="default: all found")
    parser.add_argument("--versions", choices=VERSIONS, action="append", help="default: both")
    chosen = parser.parse_args()
    failed = 0
    for version in chosen.python or PYTHONS:
        python = find_python(version)
        if python is None:
            print(f"{version}  not installed here", flush=True)  # noqa: T201
            continue
        for versions in chosen.versions or VERSIONS:
            start = time.monotonic()
            with tempfile.TemporaryDirectory() as folder:
                try:
                    tried, installed = try_one(python, versions, Path(folder))
                    result = f"ok: {tried}; {installed}"
                except AssertionError as error:
                    failed += 1
                    result = f"FAILED: {error}"
            seconds = time.monotonic() - start
            print(f"{version}  {versions:7}  {seconds:4.0f} s  {result}", flush=True)  # noqa: T201
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
