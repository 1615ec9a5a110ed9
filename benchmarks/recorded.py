"""Options, report and page of the benchmarks whose results are recorded.

A *report* is the recorded JSON: the command, the machine, the cases, and a record of each run
(`records.py`).
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from page import write_between
from processes import RESULTS, ROOT, machine, say
from table import as_markdown, as_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from records import Record, Report
    from table import Line

NOTHING_RECORDED = "\nNothing has been recorded yet.\n\n"

Cases = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Benchmark:
    """A benchmark that has one file of results and one page.

    Attributes:
        name: part of the names of the file of results, the page and the folder.
        script: name of its file in `benchmarks/`.
        purpose: docstring of the script; ``--help`` shows its first line.
        libraries: packages whose versions are recorded.
        cases: takes ``quick``, and returns the settings of each case by name.
        lines: takes a report, and returns its table.
        fills: help of ``--folder``.
        quick: help of ``--quick``.
    """

    name: str
    script: str
    purpose: str
    libraries: Sequence[str]
    cases: Callable[..., Cases]
    lines: Callable[[Report], list[Line]]
    fills: str
    quick: str

    @property
    def result(self) -> Path:
        """Return the file in which a whole run is recorded."""
        return RESULTS / f"{self.name}.json"

    @property
    def page(self) -> Path:
        """Return the page of the documentation."""
        return ROOT / "docs" / f"benchmarks-{self.name}.md"

    def run(
        self,
        measure: Callable[[argparse.Namespace, Report], None],
        documented: Callable[[], str] | None = None,
    ) -> Report | None:
        """Measure, print the table, and write the results of a whole run.

        Args:
            measure: takes the options and a report without runs, and adds the runs.
            documented: returns the text for the page; default: the method `documented`.

        Returns:
            The report, or ``None`` if only the page was written.
        """
        arguments = self._options()
        documented = documented or self.documented
        if arguments.write_docs:
            write_between(self.page, documented())
            return None
        if arguments.quick:
            arguments.rounds = 1
        chosen = selected(self.cases(quick=arguments.quick), arguments.only)
        report = new_report(self.script, self.libraries, arguments.rounds, chosen)
        measure(arguments, report)
        whole = not (arguments.quick or arguments.only)
        if output := arguments.output or (self.result if whole else None):
            write_json(report, output)
            say(f"recorded in {output}")
        if whole:
            write_between(self.page, documented())
        print(as_text(self.lines(report)))
        return report

    def _options(self) -> argparse.Namespace:
        parser = argparse.ArgumentParser(description=self.purpose.partition("\n")[0])
        folder = ROOT / "build" / f"benchmark-{self.name}"
        parser.add_argument("--rounds", type=int, default=3, help="of every case (default 3)")
        parser.add_argument("--quick", action="store_true", help=self.quick)
        parser.add_argument("--only", default="", help="cases whose name holds this")
        parser.add_argument("--folder", type=Path, default=folder, help=self.fills)
        parser.add_argument("--output", type=Path, help="where the results go")
        rewrite = f"only rewrite {self.page.name}"
        parser.add_argument("--write-docs", action="store_true", help=rewrite)
        return parser.parse_args()

    def recorded(self) -> Report | None:
        """Return the report of the last whole run, or ``None`` if there is none."""
        return read_json(self.result) if self.result.exists() else None

    def documented(self) -> str:
        """Return machine, versions and table of what is recorded, for the page."""
        report = self.recorded()
        return NOTHING_RECORDED if report is None else self.described(report)

    def described(self, report: Report, result: Path | None = None) -> str:
        """Return the command, the machine, the versions and the table of a report.

        Args:
            report: the report.
            result: file in which it is recorded (default: that of a whole run).
        """
        about, result = report["machine"], result or self.result
        versions = ", ".join(f"{name} {about[name]}" for name in self.libraries)
        return (
            f"\n`{report['command']}`\n\n"
            f"{about['processor']}, {about['threads']} of {about['cores']} processors, "
            f"{about['memory_gb']} GB; Python {about['python']}, {versions}. {report['rounds']} "
            f"interleaved rounds, medians. Recorded in `benchmarks/results/{result.name}`."
            f"\n\n{as_markdown(self.lines(report))}\n"
        )


# --- reports -------------------------------------------------------------------------------------


def selected(cases: Cases, only: str) -> Cases:
    """Return the cases whose names contain *only*."""
    return {name: case for name, case in cases.items() if only in name}


def new_report(
    script: str, libraries: Sequence[str], rounds: int, cases: Cases, **measured: Any
) -> Report:
    """Return a report without runs.

    Args:
        script: name of the file in `benchmarks/`.
        libraries: packages whose versions are recorded.
        rounds: number of rounds of every case.
        cases: settings of the cases to run, by name.
        measured: further values of the machine, which stand before the cases.
    """
    return {
        "command": shlex.join(["python", f"benchmarks/{script}", *sys.argv[1:]]),
        "machine": machine(libraries),
        "rounds": rounds,
        **measured,
        "cases": cases,
        "runs": [],
    }


def add_run(
    report: Report, case: str, contestant: str, number: int, run: Record, *, decimals: int = 2
) -> None:
    """Add the record of one run of a contestant, and print its time or its error.

    Args:
        report: to which the record is added.
        case: name of the case.
        contestant: name of the contestant.
        number: of the round, from 0.
        run: what was measured, or ``error``.
        decimals: of the printed seconds.
    """
    report["runs"].append({"case": case, "contestant": contestant, "round": number, **run})
    text = f"{run['wall_s']:.{decimals}f} s" if "wall_s" in run else run["error"]
    say(f"  {case}, round {number + 1}, {contestant}: {text}")


def read_json(path: Path) -> Any:
    """Return what is recorded in a file of results."""
    return json.loads(path.read_text(encoding="utf-8"))


def write_json(report: Report, path: Path) -> None:
    """Record a report in a file of results."""
    path.write_text(json.dumps(report, indent=1) + "\n")
