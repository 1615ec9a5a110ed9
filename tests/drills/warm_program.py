"""The command line as a warm process: each command is a fork of one that has imported everything.

A command takes some milliseconds rather than half a second, so that a drill can afford thousands.
It is a process of its own all the same: with its own exit code, output, signals and limit of time.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

MODULES = (
    "chunkflow_py.cli.main",
    "chunkflow_py.cli.run_pipelines",
    "chunkflow_py.queue.sqlite_queue",
    "chunkflow_py.run.repair",
    "chunkflow_py.monitor.run_status",
    "chunkflow_py.run.submit",
    "chunkflow_py.run.verify",
    "chunkflow_py.run.worker.worker",
    "chunkflow_py.store.local_files",
    "numpy",
)


class Ended(NamedTuple):
    """What a command has left.

    Attributes:
        argv: its arguments.
        code: exit code, negative for a signal; ``None`` if it did not end in time and was killed.
        output: standard output.
        errors: standard error.
    """

    argv: tuple[str, ...]
    code: int | None
    output: str
    errors: str

    @property
    def text(self):
        """All that it has printed."""
        return self.output + self.errors

    def __str__(self):
        """Return the command with its exit code and the end of what it has printed."""
        ended = "was killed: it did not end" if self.code is None else f"exit code {self.code}"
        return f"$ chunkflow {' '.join(self.argv)}\n{self.text[-1500:]}-> {ended}"


class WarmProgram:
    """Runs commands one after the other.

    Args:
        folder: for what they print, and for what they keep beside runs.
        patience_s: after which a command and all its processes are killed.
    """

    def __init__(self, folder, patience_s):
        from drills.worker import environment  # which the served process needs not find

        self.folder, self.patience_s = Path(folder), patience_s
        self.folder.mkdir(parents=True, exist_ok=True)
        self._calls = 0
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment(XDG_CACHE_HOME=str(self.folder / "cache")),
        )

    def __call__(self, *argv, cwd, mutation=""):
        """Run a command to its end.

        Args:
            argv: its arguments.
            cwd: folder in which it is given.
            mutation: statements of Python that are executed in its process before.
        """
        argv = tuple(map(str, argv))
        printed = [str(self.folder / name) for name in ("stdout", "stderr")]
        self._calls += 1
        request = [self._calls, argv, str(cwd), *printed, self.patience_s, mutation]
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        call = None
        while call != self._calls:  # nor what was still running when a test was cut off
            call, code = json.loads(self._process.stdout.readline())
        return Ended(argv, code, *(Path(each).read_text(errors="replace") for each in printed))

    def close(self):
        """End it."""
        self._process.stdin.close()
        self._process.wait(30)
        self._process.stdout.close()


def _serve():
    import importlib
    import threading

    for name in MODULES:
        importlib.import_module(name)
    assert threading.active_count() == 1, "a fork would lack the other threads"
    for line in sys.stdin:
        call, argv, cwd, stdout, stderr, patience_s, mutation = json.loads(line)
        pid = os.fork()
        if not pid:
            _become(argv, cwd, stdout, stderr, mutation)
        print(json.dumps([call, _code(pid, patience_s)]), flush=True)  # noqa: T201 the reply


def _become(argv, cwd, stdout, stderr, mutation):
    """Be the command; this ends the process."""
    os.setsid()
    os.chdir(cwd)
    for name, descriptor in ((os.devnull, 0), (stdout, 1), (stderr, 2)):
        flags = os.O_RDONLY if descriptor == 0 else os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        opened = os.open(name, flags, 0o644)
        os.dup2(opened, descriptor)
        os.close(opened)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 not what the parent has read ahead
    sys.argv = ["chunkflow", *argv]
    if mutation:
        exec(mutation, {})
    from chunkflow_py.cli.main import main

    main(argv)


def _code(pid, patience_s):
    """Wait for a command; end whatever it leaves behind."""
    import signal
    import time
    from contextlib import suppress

    deadline = time.monotonic() + patience_s
    code = None
    wait_s = 0.001
    while code is None and time.monotonic() < deadline:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            code = os.waitstatus_to_exitcode(status)
        else:
            time.sleep(wait_s)
            wait_s = min(0.02, wait_s * 1.5)
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    if code is None:
        os.waitpid(pid, 0)
    return code


if __name__ == "__main__":
    _serve()
