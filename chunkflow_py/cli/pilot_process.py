"""A pilot process: it does some tasks of a pipeline and reports what they took.

`chunkflow plan` starts ``python -m chunkflow_py.cli.pilot_process``. The request comes as JSON on
stdin, events leave on stdout, see `chunkflow_py.planning.pilot`.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from chunkflow_py.core.allocator import keep_freed_memory, sleep_while_waiting
from chunkflow_py.errors import ChunkflowError, OptionError

NAME = "chunkflow_py.cli.pilot_process"  # of this module


def main() -> None:
    """Serve one request."""
    keep_freed_memory()
    sleep_while_waiting()
    results = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a plugin prints is not a result
    request: dict[str, Any] = json.load(sys.stdin)

    def send(event: dict[str, Any]) -> None:
        results.write(json.dumps(event) + "\n")
        results.flush()

    try:
        _run(request, send)
    except Exception as error:  # noqa: BLE001  (sent to the process that asked)
        ours = isinstance(error, ChunkflowError)
        message = str(error) if ours else f"{type(error).__name__}: {error}"
        refused = isinstance(error, OptionError)
        send({"event": "failure", "failure": message, "refused": refused})
    os._exit(0)  # nobody waits for tasks that have not ended


def _run(request: dict[str, Any], send: Any) -> None:
    from chunkflow_py.cli.command_line import read_line
    from chunkflow_py.cli.command_parts import operators_of
    from chunkflow_py.cli.logs import configure_logging
    from chunkflow_py.pipeline.operator import Source
    from chunkflow_py.planning.pilot import PilotListener, pilot_pipeline, run_pilot

    # Nothing that removes files, sends tasks or makes volumes may do so.
    stages = read_line(["--dry-run", *request["argv"]], mip=request["mip"])
    configure_logging(verbose=False, debug=False)
    source = stages[0] if isinstance(stages[0], Source) else None
    listener = PilotListener(send, request["started"])
    pipeline = pilot_pipeline(
        list(operators_of(stages)),
        source,
        request["numbers"],
        Path(request["scratch"]),
        request["ahead"],
        listener,
    )
    run_pilot(pipeline, listener, at_most=len(request["numbers"]) or 1)


if __name__ == "__main__":
    main()
