"""A worker as a drill sees it: a group of processes to be killed, stopped and looked at."""

import os
import signal
import subprocess
import sys
from contextlib import suppress

import psutil

PROGRAM = (sys.executable, "-m", "chunkflow_py")


def environment(**more):
    """Return what processes are told: nothing of clouds or of other drills, and one thread each."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("CHUNKFLOW_", "COV_"))}
    quiet = {"AWS_EC2_METADATA_DISABLED": "true", "NO_GCE_CHECK": "true", "OMP_NUM_THREADS": "1"}
    return kept | quiet | more


class Worker:
    """`chunkflow work` in a group of processes of its own: a supervisor and its children.

    Attributes:
        process: the supervisor.
        was_asked: whether a signal asked it to stop.
    """

    def __init__(self, drill, name, options, *, failpoint="", unsafe="", ahead=None, place=None):
        self.drill, self.name = drill, name
        self.was_asked = False
        self.output = drill.folder / f"{name}.log"
        ahead = [] if ahead is None else ["--ahead", str(ahead)]
        line = [
            *PROGRAM,
            *ahead,
            "work",
            place or drill.address,
            "--worker-name",
            name,
            "--threads",
            "1",
        ]
        more = {"CHUNKFLOW_FAILPOINT": failpoint, "CHUNKFLOW_UNSAFE": unsafe}
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                [*line, *map(str, options)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment(**drill.variables, **{k: v for k, v in more.items() if v}),
                cwd=drill.folder,
                start_new_session=True,
            )

    @property
    def is_killed(self):
        """Whether it has not ended by itself."""
        return self.process.poll() == -signal.SIGKILL

    @property
    def is_alive(self):
        """Whether the supervisor has not ended."""
        return self.process.poll() is None

    def said(self):
        """Return what it has printed."""
        return self.output.read_text()

    def children(self):
        """Return the processes that run the line."""
        with suppress(psutil.Error):
            below = psutil.Process(self.process.pid).children()
            return [each for each in below if "spawn_main" in " ".join(each.cmdline())]
        return []

    def pids(self):
        """Return the process ids of the supervisor and its children."""
        return [self.process.pid, *(child.pid for child in self.children())]

    def send(self, number):
        """Send a signal to all its processes."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def ask(self, number=signal.SIGTERM):
        """Ask it to stop."""
        self.was_asked = True
        self.process.send_signal(number)

    def kill(self):
        """Kill all its processes at once, as when a machine is taken away."""
        self.send(signal.SIGKILL)
        self.process.wait()

    def kill_supervisor(self):
        """Kill the supervisor alone; its children must follow by themselves."""
        self.process.kill()
        self.process.wait()

    def kill_child(self):
        """Kill one child; return whether there was one."""
        for child in self.children():
            with suppress(psutil.Error):
                child.kill()
                return True
        return False

    def has_stopped(self):
        """Return whether its supervisor was stopped, and does not run."""
        with suppress(psutil.Error):
            return psutil.Process(self.process.pid).status() == psutil.STATUS_STOPPED
        return False
