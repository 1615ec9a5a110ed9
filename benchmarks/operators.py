"""Each operator on one chunk beside the same command of chunkflow 1.2.0, in turns.

    python benchmarks/operators.py [--rounds 3] [--quick] [--only NAME] [--write-docs]

Each tool is one process that stays, on all processors. The environment of the peer has to be there
(`benchmarks/peers/build.py chunkflow`).
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from operators_cases import cases
from operators_report import PEER, gains, lines
from page import write_between
from peers.build import python_of
from processes import HERE, RESULTS, ROOT, machine, run_json, say
from table import as_markdown, as_text

PAGE = ROOT / "docs" / "benchmarks-operators.md"
RESULT = RESULTS / "operators.json"
FOLDER = ROOT / "build" / "benchmark-operators"
LIBRARIES = ("numpy", "scipy", "scikit-image", "connected-components-3d", "zmesh")


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


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Run everything that was asked for and return the report."""
    chosen = {
        name: case for name, case in cases(quick=arguments.quick).items() if arguments.only in name
    }
    report: dict[str, Any] = {
        "command": shlex.join(["python", "benchmarks/operators.py", *sys.argv[1:]]),
        "machine": machine(LIBRARIES),
        "rounds": arguments.rounds,
        "cases": chosen,
        "runs": [],
    }
    new = arguments.folder / "new"
    tools = {name: Tool(name) for name in ("ours", PEER)}
    try:
        for name, case in chosen.items():
            files = make_files(arguments.folder, case["size"])
            for number in range(arguments.rounds):
                for contestant, words in (("ours", case["words"]), (PEER, case["peer"])):
                    if words is None:
                        continue
                    shutil.rmtree(new, ignore_errors=True)
                    new.mkdir()
                    about = {"words": words, "items": case["items"], "size": case["size"]}
                    found = tools[contestant].run(
                        {**about, "files": str(files), "folder": str(new)}
                    )
                    record = {"case": name, "contestant": contestant, "round": number, **found}
                    report["runs"].append(record)
                    said = f"{found['wall_s']:.3f} s" if "wall_s" in found else found["error"]
                    say(f"  {name}, round {number + 1}, {contestant}: {said}")
    finally:
        for tool in tools.values():
            tool.close()
        shutil.rmtree(new, ignore_errors=True)
    return report


def documented() -> str:
    """Return machine, versions and tables of what is recorded."""
    if not RESULT.exists():
        return "\n"
    report = json.loads(RESULT.read_text(encoding="utf-8"))
    about = report["machine"]
    versions = ", ".join(f"{name} {about[name]}" for name in LIBRARIES)
    return (
        f"\n`{report['command']}`\n\n"
        f"{about['processor']}, {about['threads']} of {about['cores']} processors, "
        f"{about['memory_gb']} GB; Python {about['python']}, {versions}. "
        f"{report['rounds']} interleaved rounds, medians. "
        f"Recorded in `benchmarks/results/{RESULT.name}`.\n\n"
        f"{as_markdown(lines(report))}\n"
        f"The largest gains: {gains(report)}.\n"
    )


def main() -> None:
    """Measure, print the table, and write the results of a whole run."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3, help="of every case (default 3)")
    parser.add_argument("--quick", action="store_true", help="one round, a small chunk")
    parser.add_argument("--only", default="", help="cases whose name holds this")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="for chunks; 3 GB")
    parser.add_argument("--output", type=Path, help="where the results go")
    parser.add_argument("--write-docs", action="store_true", help=f"only rewrite {PAGE.name}")
    arguments = parser.parse_args()
    if arguments.write_docs:
        write_between(PAGE, documented())
        return
    if arguments.quick:
        arguments.rounds = 1
    report = measure(arguments)
    whole = not (arguments.quick or arguments.only)
    if output := arguments.output or (RESULT if whole else None):
        output.write_text(json.dumps(report, indent=1) + "\n")
        say(f"recorded in {output}")
    if whole:
        write_between(PAGE, documented())
    print(as_text(lines(report)))
    print(f"The largest gains: {gains(report)}")


if __name__ == "__main__":
    main()
