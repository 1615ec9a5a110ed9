"""Runs of several steps, in each of which a worker is killed with all its processes."""

import os
import shlex
import signal
import subprocess

from click.testing import CliRunner

from chunkflow_py.cli.main import cli
from chunkflow_py.run.run_directory import RunDirectory
from drills.worker import PROGRAM, environment


def say(line):
    """Run a command line in this process; return what it printed."""
    result = CliRunner().invoke(cli, shlex.split(line))
    assert result.exit_code == 0, result.output
    return result.output


def work(*options, failpoint=""):
    """Run a worker on the run ``r`` to its end; return its exit code."""
    more = {"CHUNKFLOW_FAILPOINT": failpoint} if failpoint else {}
    line = [*PROGRAM, "--ahead", "0", "work", "r", "--lease", "5", "--threads", "1", *options]
    ended = subprocess.run(
        line,
        capture_output=True,
        env=environment(XDG_CACHE_HOME=os.environ["XDG_CACHE_HOME"], **more),
        start_new_session=True,
        timeout=600,
        check=False,
    )
    return ended.returncode


def kill_in_each_step(totals):
    """Carry out the run ``r``, and in each step kill a worker before it records a written task.

    Args:
        totals: number of tasks of each step, by its name, in order.
    """
    run, steps, counts = RunDirectory("r"), list(totals), list(totals.values())

    def done():
        return [sum(1 for _ in run.ledger(step).records()) for step in steps]

    for step, count in enumerate(counts):
        missing = sum(counts[:step]) - sum(done())
        if missing:
            assert work("--max-tasks", str(missing)) == 75
        assert done()[:step] == counts[:step]
        # A busy machine records all tasks after the first one together, so there may be no third
        # time that outcomes are recorded in this step, only one in the next step.
        number = min(2, count)
        assert work(failpoint=f"written-not-recorded:kill-all@{number}") == -signal.SIGKILL
        there = done()
        assert there[step] < count
        assert not any(there[step + 1 :])
    assert work() == 0
    assert done() == counts
