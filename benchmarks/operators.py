"""Each operator on one chunk beside the same command of chunkflow 1.2.0, in turns.

    python benchmarks/operators.py [--rounds 3] [--quick] [--only NAME] [--write-docs]

Each tool is one process that stays, on all processors. The environment of the peer has to be there
(`benchmarks/peers/build.py chunkflow`).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from operators_cases import cases
from operators_report import PEER, gains, lines
from peers.build import python_of
from processes import HERE, ROOT, run_json
from recorded import Benchmark, add_run

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

    from records import Report


class Tool:
    """A process that calls commands."""

    def __init__(self, name: str) -> None:
        """Start it."""
        python = sys.executable if name == "ours" else str(python_of(PEER))
        self._process = subprocess.Popen(
            [python, str(HERE / "peers" / "run_operators.py"), name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            bufsize=1,
            env=os.environ | {"PYTHONPATH": str(ROOT) if name == "ours" else ""},
        )

    def run(self, job: dict[str, Any]) -> dict[str, Any]:
        """Return what one call took, or why it failed."""
        if self._process.stdin is None or self._process.stdout is None:
            return {"error": "no pipe"}
        try:
            self._process.stdin.write(json.dumps(job) + "\n")
        except BrokenPipeError:
            return {"error": "the process has ended before"}
        answer = self._process.stdout.readline()
        if not answer:
            return {"error": f"the process ended with {self._process.wait()}"}
        found: dict[str, Any] = json.loads(answer)
        return found

    def close(self) -> None:
        """End it."""
        if self._process.stdin:
            self._process.stdin.close()
        self._process.wait(60)


def make_files(folder: Path, size: tuple[int, ...]) -> Path:
    """Return the folder of the chunks of *size*, made if they are not there."""
    files = folder / "x".join(map(str, size))
    if not (files / "ready").exists():
        files.mkdir(parents=True, exist_ok=True)
        image = folder / f"image-{files.name}.npy"
        job = {"size": size, "path": str(image), "image": str(ROOT / "examples/fib25/raw.h5")}
        more = {"size": size, "image": str(image), "folder": str(files)}
        for script, asked in (("make_image.py", job), ("make_chunks.py", more)):
            found = run_json(sys.executable, script, asked)
            if "error" in found:
                msg = f"Error: {script} failed: {found['error']}"
                raise SystemExit(msg)
    return files


def measure(arguments: argparse.Namespace, report: Report) -> None:
    """Run the cases of the report, and add their runs."""
    new = arguments.folder / "new"
    tools = {name: Tool(name) for name in ("ours", PEER)}
    try:
        for name, case in report["cases"].items():
            files = make_files(arguments.folder, case["size"])
            for number in range(arguments.rounds):
                for contestant, words in (("ours", case["words"]), (PEER, case["peer"])):
                    if words is None:
                        continue
                    shutil.rmtree(new, ignore_errors=True)
                    new.mkdir()
                    about = {key: case[key] for key in ("items", "size", "is_inside")}
                    about["words"] = words
                    found = tools[contestant].run(
                        {**about, "files": str(files), "folder": str(new)}
                    )
                    add_run(report, name, contestant, number, found, decimals=3)
    finally:
        for tool in tools.values():
            tool.close()
        shutil.rmtree(new, ignore_errors=True)


BENCHMARK = Benchmark(
    name="operators",
    script="operators.py",
    purpose=__doc__ or "",
    libraries=("numpy", "scipy", "scikit-image", "connected-components-3d", "zmesh"),
    cases=cases,
    lines=lines,
    fills="for chunks; 3 GB",
    quick="one round, a small chunk",
)


def documented() -> str:
    """Return machine, versions and table of what is recorded, and the largest gains."""
    report = BENCHMARK.recorded()
    if report is None:
        return "\n"
    return f"{BENCHMARK.described(report)}The largest gains: {gains(report)}.\n"


def main() -> None:
    """Run the benchmark, and print the largest gains."""
    report = BENCHMARK.run(measure, documented)
    if report is not None:
        print(f"The largest gains: {gains(report)}")


if __name__ == "__main__":
    main()
