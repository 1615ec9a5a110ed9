"""The process of a rehearsal: it does some tasks of a line and tells what they took.

`chunkflow plan` starts ``python -m chunkflow_py.cli.rehearsal``. The request comes as JSON on
stdin, what is found leaves on stdout, see `chunkflow_py.planning.rehearsal`.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from chunkflow_py.core.allocator import keep_freed_memory, sleep_while_waiting
from chunkflow_py.errors import ChunkflowError, OptionError

NAME = "chunkflow_py.cli.rehearsal"  # of this module


def main() -> None:
    """Serve one request."""
    keep_freed_memory()
    sleep_while_waiting()
    results = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a plugin prints is no result
    request: dict[str, Any] = json.load(sys.stdin)

    def tell(event: dict[str, Any]) -> None:
        results.write(json.dumps(event) + "\n")
        results.flush()

    try:
        _rehearse(request, tell)
    except Exception as error:  # noqa: BLE001  (told to the process that asked)
        ours = isinstance(error, ChunkflowError)
        said = str(error) if ours else f"{type(error).__name__}: {error}"
        refused = isinstance(error, OptionError)
        tell({"event": "failure", "failure": said, "refused": refused})
    os._exit(0)  # what is still on its way belongs to nobody


def _rehearse(request: dict[str, Any], tell: Any) -> None:
    from chunkflow_py.cli.command_line import operators_of, read_line
    from chunkflow_py.cli.logs import configure_logging
    from chunkflow_py.pipeline.operator import Source
    from chunkflow_py.planning.rehearsal import Heard, act, rehearsed

    # Nothing that removes files, sends tasks or makes volumes may do so.
    stages = read_line(["--dry-run", *request["words"]], mip=request["mip"])
    configure_logging(verbose=False, debug=False)
    source = stages[0] if isinstance(stages[0], Source) else None
    heard = Heard(tell, request["started"])
    pipeline = rehearsed(
        list(operators_of(stages)),
        source,
        request["numbers"],
        Path(request["scratch"]),
        request["ahead"],
        heard,
    )
    act(pipeline, heard, at_most=len(request["numbers"]) or 1)


if __name__ == "__main__":
    main()
