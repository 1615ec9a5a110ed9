"""Lines of simple operators, for children of supervisors in tests: one voxel a task.

Lines are made in a child process, from a function of this module with some of its arguments given.
"""

import logging
import os
import signal
import tempfile
import time
import warnings
from pathlib import Path

from chunkflow_py.core.operator_base import OperatorBase, hook_value
from chunkflow_py.core.task import Skip
from chunkflow_py.core.temporary_folders import temporary_folder
from chunkflow_py.errors import OptionError
from chunkflow_py.pipeline.operator import Operator, Source
from chunkflow_py.pipeline.pipeline import Pipeline
from chunkflow_py.store.store_protocol import Stored
from chunkflow_py.volume.engine.block_volume import Traffic


def number_of(task):
    """Return which task of a row of boxes along x this is."""
    return task.bbox.start.x


def operator(name, call, lane="compute"):
    """Return an operator as a command would."""
    return Operator(name, lane, call, call)


def pipeline(operators, feed, ahead=0):
    """Return the checked line."""
    line = Pipeline(operators, Source("feed", feed), ahead=ahead)
    line.check()
    return line


def nothing(feed):
    """A line that does nothing."""
    return pipeline([operator("nothing", lambda task: task)], feed)


class ShowsProgress(OperatorBase):
    """Says that it has done 31 of 68, that its network has run and that it has read."""

    on_progress = hook_value(None)
    network_seconds = hook_value(0.0)
    traffic = hook_value(Traffic(stored_bytes=4096))

    def __call__(self, task):
        self.network_seconds = 1.5
        self.on_progress(31, 68)
        time.sleep(60)


def shows_progress(feed):
    """A line that is seen at work."""
    return pipeline([operator("network", ShowsProgress())], feed)


def speaks(feed):
    """A line that logs and warns while it is made."""
    logging.getLogger("chunkflow_py.rig").info("not worth telling")
    logging.getLogger("chunkflow_py.rig").warning("take %s", "care")
    logging.getLogger("library").error("of a library")
    warnings.warn("it is old", UserWarning, stacklevel=1)
    return nothing(feed)


class Acts:
    """Does with a task what is said for its number; writes a line into a file for each attempt.

    Args:
        folder: where a file a task is written.
        acts: number of a task -> what it does; sleeps *seconds* without any.
        seconds: of sleep.
    """

    def __init__(self, folder, acts, seconds):
        self.folder, self.acts, self.seconds = Path(folder), acts, seconds

    def __call__(self, task):
        number = number_of(task)
        with (self.folder / f"{number}.begun").open("a") as file:
            file.write(f"{os.getpid()} {time.time()}\n")
        act, _, many = self.acts.get(number, "").partition("@")
        attempts = len((self.folder / f"{number}.begun").read_text().splitlines())
        if act and (not many or attempts <= int(many)):
            getattr(self, act)(task)
        else:
            time.sleep(self.seconds)
        path = self.folder / f"{number}.done"
        path.write_text(str(number))
        task.written.append(Stored(f"file://{path}", len(str(number)), None))
        return task

    def fails(self, task):
        msg = f"task {number_of(task)} is poison"
        raise ValueError(msg)

    def skips(self, task):
        reason = "nothing to see"
        raise Skip(reason)

    def crashes(self, task):
        os.kill(os.getpid(), signal.SIGSEGV)
        time.sleep(60)

    def is_killed(self, task):
        os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)

    def hangs(self, task):
        time.sleep(3600)

    def hangs_2_s(self, task):
        time.sleep(2)

    def breaks_device(self, task):
        msg = "CUDA error: an illegal memory access was encountered"
        raise RuntimeError(msg)

    def disconnects(self, task):
        raise ConnectionResetError(104, "Connection reset by peer")

    def fills_disk(self, task):
        raise OSError(28, "No space left on device")

    def takes_memory(self, task):
        import resource

        limit = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (1 << 30, limit[1]))
        try:
            bytearray(1 << 32)
        finally:
            resource.setrlimit(resource.RLIMIT_AS, limit)


def acts(folder, acts, seconds, ahead, feed):
    """A line of one operator that acts."""
    return pipeline([operator("acts", Acts(folder, acts, seconds))], feed, ahead)


def loads_then_acts(folder, which, seconds, ahead, feed):
    """A line of two lanes, of which the second acts."""
    first = operator("loads", lambda task: task, "read")
    return pipeline([first, operator("acts", Acts(folder, which, seconds))], feed, ahead)


def wrong(feed):
    """A line that cannot be made."""
    msg = "there is no such option"
    raise OptionError(msg)


def unpacks(act, feed):
    """A line whose network was unpacked into a temporary folder, and which acts on task 0."""
    temporary_folder("unpacked-")
    return wrong(feed) if act == "wrong" else acts(tempfile.gettempdir(), {0: act}, 0, 0, feed)


def dies(feed):
    """A line whose process dies while it is made."""
    os.kill(os.getpid(), signal.SIGKILL)


class Profiled(OperatorBase):
    """An operator with a compute profile."""

    profile = hook_value()

    def __init__(self, profile):
        self.profile = profile

    def __call__(self, task):
        return task


def profiled(profiles, feed):
    """A line of operators with these profiles."""
    return pipeline([operator(name, Profiled(p)) for name, p in profiles.items()], feed)


def tells(variables, folder, feed):
    """A line that writes down what the environment says."""
    text = "\n".join(f"{name}={os.environ.get(name)}" for name in variables)
    (Path(folder) / "environment").write_text(text)
    return nothing(feed)
