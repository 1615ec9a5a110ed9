"""The command line of a benchmark whose results are recorded, and stand on a page."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from page import write_between
from processes import say
from table import as_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from records import Report
    from table import Line


def run_benchmark(
    purpose: str,
    measure: Callable[[argparse.Namespace], Report],
    lines: Callable[[Report], list[Line]],
    documented: Callable[[], str],
    *,
    result: Path,
    page: Path,
    folder: Path,
    fills: str,
    quick: str,
) -> Report | None:
    """Measure, print the table, and write the results of a whole run.

    Args:
        purpose: of the benchmark, for ``--help``.
        measure: takes the options, and returns what was measured.
        lines: of the table.
        documented: returns what the page says of what is recorded.
        result: where a whole run is recorded.
        page: of the documentation.
        folder: default of ``--folder``.
        fills: what is in it, for ``--help``.
        quick: what ``--quick`` does.

    Returns:
        What was measured, unless the page alone was written.
    """
    parser = argparse.ArgumentParser(description=purpose)
    parser.add_argument("--rounds", type=int, default=3, help="of every case (default 3)")
    parser.add_argument("--quick", action="store_true", help=quick)
    parser.add_argument("--only", default="", help="cases whose name holds this")
    parser.add_argument("--folder", type=Path, default=folder, help=fills)
    parser.add_argument("--output", type=Path, help="where the results go")
    parser.add_argument("--write-docs", action="store_true", help=f"only rewrite {page.name}")
    arguments = parser.parse_args()
    if arguments.write_docs:
        write_between(page, documented())
        return None
    if arguments.quick:
        arguments.rounds = 1
    report = measure(arguments)
    whole = not (arguments.quick or arguments.only)
    if output := arguments.output or (result if whole else None):
        output.write_text(json.dumps(report, indent=1) + "\n")
        say(f"recorded in {output}")
    if whole:
        write_between(page, documented())
    print(as_text(lines(report)))
    return report


def how_it_was_measured(report: Report, libraries: Sequence[str], result: Path) -> str:
    """Return the command, the machine and the versions of a recorded run, for a page."""
    about = report["machine"]
    versions = ", ".join(f"{name} {about[name]}" for name in libraries)
    return (
        f"\n`{report['command']}`\n\n"
        f"{about['processor']}, {about['threads']} of {about['cores']} processors, "
        f"{about['memory_gb']} GB; Python {about['python']}, {versions}. {report['rounds']} "
        f"interleaved rounds, medians. Recorded in `benchmarks/results/{result.name}`.\n\n"
    )
