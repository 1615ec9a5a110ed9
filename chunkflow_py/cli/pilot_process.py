"""Process that executes a few tasks for a pilot run, and reports their memory and time.

`chunkflow plan` starts the process with ``python -m chunkflow_py.cli.pilot_process``. The process
reads a request as JSON from stdin and writes events to stdout; see `chunkflow_py.planning.pilot`.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from chunkflow_py.core.allocator import keep_freed_memory, sleep_while_waiting
from chunkflow_py.core.temporary_folders import put_temporary_folders_into
from chunkflow_py.errors import ChunkflowError, OptionError

NAME = "chunkflow_py.cli.pilot_process"  # of this module


def main() -> None:
    """Read a request from stdin, run the tasks that the request names, and end the process."""
    keep_freed_memory()
    sleep_while_waiting()
    results = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # redirect what plugins print to stderr, away from the events
    request: dict[str, Any] = json.load(sys.stdin)
    put_temporary_folders_into(Path(request["scratch"]))  # this process may be killed

    def send(event: dict[str, Any]) -> None:
        results.write(json.dumps(event) + "\n")
        results.flush()

    try:
        _run(request, send)
    except Exception as error:  # noqa: BLE001  (sent to the process of plan)
        ours = isinstance(error, ChunkflowError)
        message = str(error) if ours else f"{type(error).__name__}: {error}"
        refused = isinstance(error, OptionError)
        send({"event": "failure", "failure": message, "refused": refused})
    os._exit(0)  # without waiting for unfinished tasks


def _run(request: dict[str, Any], send: Any) -> None:
    from chunkflow_py.cli.command_line import read_line
    from chunkflow_py.cli.command_parts import operators_of
    from chunkflow_py.cli.logs import configure_logging
    from chunkflow_py.pipeline.operator import Source
    from chunkflow_py.planning.pilot import PilotListener, pilot_pipeline, run_pilot

    # --dry-run keeps operators from removing files, sending tasks and creating volumes.
    operators = read_line(["--dry-run", *request["argv"]], mip=request["mip"])
    configure_logging(verbose=False, debug=False)
    source = operators[0] if isinstance(operators[0], Source) else None
    listener = PilotListener(send, request["started"])
    pipeline = pilot_pipeline(
        list(operators_of(operators)),
        source,
        request["numbers"],
        Path(request["scratch"]),
        request["ahead"],
        listener,
    )
    run_pilot(pipeline, listener, at_most=len(request["numbers"]) or 1)


if __name__ == "__main__":
    main()
