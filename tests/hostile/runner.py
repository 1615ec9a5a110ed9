"""Run commands of chunkflow, each in a process of its own, and say what each took.

    python runner.py FILE

FILE holds ``[[name, [argument, ...]], ...]`` as JSON. A command runs twice, in forks of this
process: the first time to find what it imports, which this process then imports as well; so the
second time what it takes is its work. A line of JSON is printed for each: exit code, what was said
on stderr, CPU seconds, bytes above this process.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import resource
import signal
import sys
import tempfile
import traceback
from contextlib import suppress
from pathlib import Path

from chunkflow_py.cli.main import main

MOST_BYTES = 8 << 30  # of addresses: whoever is bad does not take the machine along
MOST_SECONDS = 20
MOST_WAIT = 60  # seconds, for what waits and computes nothing


def in_a_fork(work) -> tuple[int, str, resource.struct_rusage]:
    """Run *work* in a fork; return its exit code, all that it printed, and what it took."""
    with tempfile.TemporaryFile() as file:
        gc.collect()
        child = os.fork()
        if child == 0:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
            resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
            signal.alarm(MOST_WAIT)
            resource.setrlimit(resource.RLIMIT_CPU, (MOST_SECONDS, MOST_SECONDS))
            try:
                code = work()
            except SystemExit as ended:
                code = ended.code
            except BaseException:  # noqa: BLE001 what the test is to show
                traceback.print_exc()
                code = 99
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(int(code or 0))
        _, status, usage = os.wait4(child, 0)
        file.seek(0)
        return os.waitstatus_to_exitcode(status), file.read().decode(errors="replace"), usage


def imports_of(arguments: list[str]) -> list[str]:
    """Return the modules that a command imports."""

    def work() -> int:
        before = set(sys.modules)
        with suppress(SystemExit):
            main(arguments)
        names = " ".join(name for name in sys.modules if name not in before)
        sys.stdout.write(f"\nIMPORTS {names}\n")
        return 0

    return in_a_fork(work)[1].rpartition("\nIMPORTS ")[2].split()


def main_of_all() -> None:
    """Run all commands of a file."""
    known: set[str] = set()
    for name, arguments in json.loads(Path(sys.argv[1]).read_text()):
        for module in imports_of(arguments):
            if module not in known:
                known.add(module)
                with suppress(Exception):
                    importlib.import_module(module)
        rest = in_a_fork(lambda: 0)[2].ru_maxrss
        code, said, usage = in_a_fork(lambda arguments=arguments: main(arguments))
        found = {
            "name": name, "code": code, "said": said,
            "seconds": usage.ru_utime + usage.ru_stime,
            "bytes": (usage.ru_maxrss - rest) * 1024,
        }  # fmt: skip
        sys.stdout.write(json.dumps(found) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main_of_all()
