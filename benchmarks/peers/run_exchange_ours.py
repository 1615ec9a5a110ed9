"""Submit a run to this machine and work it off with one process.

Keys of the job: ``line``, the arguments of the pipeline; ``exchange``, the option of `submit`;
``folder`` for the run. What is reported is that of `watched_line`, ``wall_s`` (from the beginning
of the first operator to the end of the last one) and ``tasks``.
"""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from measure import job, report
from watched_line import watched_line


def command_line(*arguments: str) -> None:
    """Run a command line in this process.

    Raises:
        SystemExit: it failed.
    """
    from chunkflow_py.cli.main import main

    sys.argv[1:] = arguments
    try:
        main()
    except SystemExit as end:
        if end.code:
            raise


def main() -> None:
    """Measure one run."""
    from chunkflow_py.run.run_directory import RunDirectory
    from chunkflow_py.run.worker.worker import WorkOptions, work
    from chunkflow_py.run.worker.worker_limits import WorkerSettings

    asked = job()
    with TemporaryDirectory(dir=asked["folder"]) as folder:
        run = f"{folder}/r"
        options = ("--run", run, "--exchange", asked["exchange"], "--workers", "1")
        command_line("--quiet", "submit", *options, "--no-rehearse", *asked["line"])
        watched = partial(watched_line, folder)
        settings = WorkerSettings(processes=1, watches_notices=False)
        code, message = work(RunDirectory(run), WorkOptions(settings, "benchmark"), watched)
        if code:
            raise SystemExit(message)
        (found,) = (json.loads(path.read_text()) for path in Path(folder).glob("*.json"))
        (step,) = RunDirectory(run).spec.steps
        done = RunDirectory(run).ledger(step.name).counts().done
    report({**found, "wall_s": found["ended"] - found["begun"], "tasks": done})


if __name__ == "__main__":
    main()
