"""The SHA-256 of the packages in constraints.txt, for `pip install --require-hashes`.

    python3 deploy/hashes.py renew               ask the package index; write deploy/hashes.txt
    python3 deploy/hashes.py select report.json  print the lines of the packages in a report

`renew` asks the index of PIP_INDEX_URL, else that of pip. It keeps the hashes of the files that an
image of Linux with Python 3.11 to 3.13 can install: wheels for x86-64 and ARM, and sources.
`select` reads what `pip install --dry-run --report` has chosen, and fails if a package has no hash.
"""

import json
import os
import re
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import quote

ROOT = Path(__file__).parents[1]
CONSTRAINTS = ROOT / "constraints.txt"
HASHES = ROOT / "deploy" / "hashes.txt"
HEAD = """\
# SHA-256 of the packages in constraints.txt: wheels for Linux and sources, from the package index.
# Renew after each change of constraints.txt: python3 deploy/hashes.py renew
"""
FORMAT = "application/vnd.pypi.simple.v1+json"
PYTHONS = re.compile(r"py[23.]*3|cp31[123]|cp3[0-9]+")
SYSTEMS = re.compile(r"any|(many)?linux[0-9_]*_(x86_64|aarch64)")


def normal(name: str) -> str:
    """Return a name as indexes spell it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pins(text: str) -> dict[str, str]:
    """Return the version of each package in the text of a constraints file, by normal name."""
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    pairs = (line.split("==") for line in lines if line)
    return {normal(name): version for name, version in pairs}


def blocks(text: str) -> dict[str, str]:
    """Return the lines of each package in a file of hashes, by normal name."""
    bare = re.sub(r"^#.*\n", "", text, flags=re.MULTILINE).strip()
    return {block.partition("==")[0]: block for block in bare.split("\n\n") if block}


def fits(filename: str) -> bool:
    """Return whether an image can install a file: a source, or a wheel for its systems."""
    if filename.endswith((".tar.gz", ".zip")):
        return True
    if not filename.endswith(".whl"):
        return False
    python, abi, system = filename.removesuffix(".whl").split("-")[-3:]
    is_stable = abi in ("abi3", "none")
    pythons = [each for each in python.split(".") if PYTHONS.fullmatch(each)]
    new = [each for each in pythons if each.startswith("py") or is_stable or each in abi]
    new = [each for each in new if is_stable or each in ("cp311", "cp312", "cp313")]
    return bool(new) and any(SYSTEMS.fullmatch(each) for each in system.split("."))


def version_of(filename: str, name: str) -> str | None:
    """Return the version in the name of a file, ``None`` if it is a file of another package."""
    if filename.endswith(".whl"):
        return filename.split("-")[1]
    stem = re.sub(r"\.(tar\.gz|zip)$", "", filename)
    head, _, version = stem.rpartition("-")
    return version if normal(head) == name else None


def index_url() -> str:
    """Return the address of the package index."""
    if url := os.environ.get("PIP_INDEX_URL"):
        return url.rstrip("/")
    from pip._internal.models.index import PyPI

    return PyPI.simple_url.rstrip("/")


def hashes_of(index: str, name: str, version: str) -> list[str]:
    """Return the sorted hashes of the files of a release.

    Raises:
        SystemExit: the index has none.
    """
    url = f"{index}/{quote(name)}/"
    request = urllib.request.Request(url, headers={"Accept": FORMAT})  # noqa: S310 the index of pip
    with urllib.request.urlopen(request, timeout=120) as answer:  # noqa: S310
        kind = answer.headers.get_content_type()
        if kind != FORMAT:
            sys.exit(f"the index answers with {kind}, not {FORMAT}; set PIP_INDEX_URL to another")
        files = json.load(answer)["files"]
    found = {
        file["hashes"]["sha256"]
        for file in files
        if version_of(file["filename"], name) == version and fits(file["filename"])
    }
    if not found:
        sys.exit(f"the index has no file of {name}=={version}; correct constraints.txt")
    return sorted(found)


def renew() -> None:
    """Write the hashes of all packages in constraints.txt."""
    index, wanted = index_url(), pins(CONSTRAINTS.read_text())
    with ThreadPoolExecutor(8) as pool:
        found = pool.map(lambda item: hashes_of(index, *item), wanted.items())
        written = [
            " \\\n".join([f"{name}=={version}", *(f"    --hash=sha256:{each}" for each in hashes)])
            for (name, version), hashes in zip(wanted.items(), found, strict=True)
        ]
    HASHES.write_text(HEAD + "\n" + "\n\n".join(written) + "\n")


def select(report: str) -> None:
    """Print the lines of the packages that pip would install, except for chunkflow_py.

    Raises:
        SystemExit: a package has no hash, or its version is another one.
    """
    known, versions = blocks(HASHES.read_text()), pins(CONSTRAINTS.read_text())
    for item in json.loads(Path(report).read_text())["install"]:
        name, version = normal(item["metadata"]["name"]), item["metadata"]["version"]
        if name == "chunkflow-py":
            continue
        if versions.get(name) != version or name not in known:
            sys.exit(
                f"{name}=={version} has no hash; add it to constraints.txt, and run python3 "
                "deploy/hashes.py renew"
            )
        sys.stdout.write(f"{known[name]}\n")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["renew"]:
            renew()
        case ["select", report]:
            select(report)
        case _:
            sys.exit(__doc__)
