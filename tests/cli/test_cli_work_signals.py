"""Signals at any time of a worker's life: it drains, and never just dies of one."""

from __future__ import annotations

import os
import pty
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import pytest
from rigs.command_line import IMAGE, LINE, SAVE, say
from rigs.variants import gate_runs

from chunkflow_py.cli.main import cli
from chunkflow_py.core.interrupts import _TAKE_A_VALUE, STOP, starts_worker
from chunkflow_py.queue.queue_protocol import open_queue
from chunkflow_py.run.run_directory import RunDirectory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LONG_S = 60.0
SLOW = "import time\ndef execute(chunk):\n    time.sleep(0.3)\n    return chunk\n"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDirectory:
    """A run of eight tasks that take some time."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    say(f"--quiet {IMAGE} {SAVE} image.zarr")
    Path("slow.py").write_text(SLOW)
    plugin = "plugin -f slow.py -i chunk -o other"
    say(f"submit --run r {LINE} {plugin} threshold -i chunk {SAVE} mask.zarr")
    return RunDirectory("r")


@pytest.fixture
def start(home: RunDirectory) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """A function that starts a worker as the leader of a session."""
    started: list[subprocess.Popen[bytes]] = []

    def begin(**how: Any) -> subprocess.Popen[bytes]:
        words = [sys.executable, "-m", "chunkflow_py", "work", "r", "--lease", "600"]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        how = {"stderr": subprocess.PIPE, "start_new_session": True} | how
        started.append(subprocess.Popen(words, env=environment, **how))
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def wait_for(is_so: Callable[[], bool]) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + LONG_S
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def listens(process: subprocess.Popen[bytes]) -> bool:
    """Tell whether a process handles SIGQUIT, which Python does not by itself."""
    said = Path(f"/proc/{process.pid}/status").read_text()
    caught = int(said.partition("SigCgt:")[2].split()[0], 16)
    return bool(caught >> (signal.SIGQUIT - 1) & 1)


def is_at_work(home: RunDirectory) -> bool:
    """Tell whether tasks have begun to be recorded."""
    return home.ledger("threshold").counts().done > 0


def check_drained(home: RunDirectory, process: subprocess.Popen[bytes], name: str) -> None:
    """Check the exit code of a drained worker, and that no message stays leased."""
    _, said = process.communicate(timeout=LONG_S)
    assert process.returncode in (0, 75), said
    if process.returncode == 75:
        assert f"got {name}".encode() in said
    queue = open_queue(home.spec.queue)
    counts = queue.counts()
    queue.close()
    done = home.ledger("threshold").counts().done
    assert (counts.leased, counts.waiting) == (0, 8 - done)
    assert (process.returncode == 0) == (done == 8)


@pytest.mark.parametrize("number", STOP)
def test_in_its_first_second(home: RunDirectory, start: Any, number: signal.Signals) -> None:
    """From its first instant on, sent to all of its processes, a signal drains it."""
    draw = random.Random(number)
    for delay_s in (draw.uniform(0, 0.2), draw.uniform(0.2, 1.2)):
        process = start()
        wait_for(lambda process=process: listens(process))  # type: ignore[misc]
        time.sleep(delay_s)
        os.killpg(process.pid, number)
        check_drained(home, process, number.name)


@pytest.mark.parametrize("number", gate_runs(STOP, signal.SIGTERM, signal.SIGHUP))
def test_while_it_works(home: RunDirectory, start: Any, number: signal.Signals) -> None:
    """Running tasks are finished, and the others are released at once."""
    process = start()
    wait_for(lambda: is_at_work(home))
    os.killpg(process.pid, number)
    check_drained(home, process, number.name)


@pytest.mark.long
@pytest.mark.slow
def test_at_many_random_times(home: RunDirectory, start: Any) -> None:
    """Whatever the signal and the time, as long as there is work; then the run is complete."""
    draw = random.Random(5)
    for _ in range(25):
        if home.ledger("threshold").counts().done == 8:
            return  # a worker that is stopped before it has looked does not know that
        process = start()
        wait_for(lambda process=process: listens(process))  # type: ignore[misc]
        time.sleep(draw.uniform(0, 2.5))
        number = draw.choice(STOP)
        os.killpg(process.pid, number)
        check_drained(home, process, number.name)


def test_it_listens_before_the_command_line_is_imported() -> None:
    """The imports take a fraction of a second, in which a scheduler may send a signal."""
    code = (
        "import sys, chunkflow_py.__main__\n"
        "print(sorted({'click', 'numpy', 'chunkflow_py.cli.main'} & sys.modules.keys()))"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "[]"


def test_a_sighup_that_nohup_ignores_stays_ignored(home: RunDirectory, start: Any) -> None:
    """A worker under nohup outlives its terminal, and completes the run."""
    process = start(preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    wait_for(lambda: listens(process))
    os.killpg(process.pid, signal.SIGHUP)
    wait_for(lambda: is_at_work(home))
    os.killpg(process.pid, signal.SIGHUP)
    _, said = process.communicate(timeout=LONG_S)
    assert process.returncode == 0, said


def test_a_terminal_that_closes(home: RunDirectory, start: Any) -> None:
    """Its worker drains, though there is nowhere to write to any more."""
    ours, theirs = pty.openpty()

    def take_terminal() -> None:
        import fcntl
        import termios

        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    process = start(stdin=theirs, stdout=theirs, stderr=theirs, preexec_fn=take_terminal)
    os.close(theirs)
    wait_for(lambda: is_at_work(home))
    os.close(ours)
    process.wait(LONG_S)
    queue = open_queue(home.spec.queue)
    counts = queue.counts()
    queue.close()
    assert process.returncode == 75
    assert counts.leased == 0
    assert counts.waiting == 8 - home.ledger("threshold").counts().done


def test_two_signals_at_once_leave_at_once(home: RunDirectory, start: Any) -> None:
    """The second one does not wait for anything."""
    process = start()
    wait_for(lambda: listens(process))
    process.send_signal(signal.SIGTERM)
    time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=LONG_S)
    assert process.returncode == 75


def test_which_lines_start_a_worker() -> None:
    """Whatever options come before; and only these subcommands handle signals so early."""
    assert starts_worker(["work", "r"])
    assert starts_worker(
        ["--ahead", "2", "--mip=1", "-m", "3", "--debug", "run", "--on", "local:2"]
    )
    assert not starts_worker(["status", "work"])
    assert not starts_worker(["--mip", "1", "load-h5", "-f", "run"])
    assert not starts_worker([])
    with_values = {
        name
        for param in cli.params
        if isinstance(param, click.Option) and not param.is_flag
        for name in param.opts
    }
    assert with_values == set(_TAKE_A_VALUE)
