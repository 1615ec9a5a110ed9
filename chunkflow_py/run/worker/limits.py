"""How long a worker may go on: time, tasks and money.

```
start ---------- takes tasks ----------| takes those that fit |--- ends what it has ---| deadline
```
"""

from __future__ import annotations

import math
import os
import subprocess
import time
from dataclasses import dataclass, replace

from chunkflow_py.core.plain_text import is_digits
from chunkflow_py.errors import OptionError

_SQUEUE_S = 20
SHARE_S = 0.02  # of the time, kept for leaving in order
MOST_SHARE_S = 20.0


def walltime_of_job() -> float:
    """Return how many seconds the Slurm job has left in which this process runs.

    Raises:
        OptionError: there is no such job, or it has no limit; says what to write instead.
    """
    end = os.environ.get("SLURM_JOB_END_TIME", "")
    if is_digits(end):
        return max(0.0, int(end) - time.time())
    job = os.environ.get("SLURM_JOB_ID", "")
    if not job:
        msg = "--walltime auto asks Slurm, but SLURM_JOB_ID is not set; write --walltime SECONDS"
        raise OptionError(msg)
    try:
        told = subprocess.run(
            ["squeue", "--noheader", "--job", job, "--format", "%L"],
            capture_output=True,
            text=True,
            timeout=_SQUEUE_S,
            check=True,
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError) as error:
        msg = f"squeue does not tell how long job {job} may run ({error}); write --walltime SECONDS"
        raise OptionError(msg) from error
    return parse_time_left(told)


def parse_time_left(text: str) -> float:
    """Return the seconds of a time as Slurm writes it: ``1-02:03:04``, ``02:03:04``, ``3:04``.

    Raises:
        OptionError: it is none, as ``UNLIMITED``.
    """
    days, dash, clock = text.rpartition("-")
    fields = clock.split(":")
    if not all(is_digits(each) for each in [days if dash else "0", *fields]) or len(fields) > 3:
        msg = f"Slurm gives this job {text or 'no time'}, which is no limit; leave out --walltime"
        raise OptionError(msg)
    seconds = 0
    for each in fields:
        seconds = 60 * seconds + int(each)
    return float(86400 * int(days or 0) + seconds)


@dataclass(frozen=True)
class Limits:
    """Bounds of one worker.

    Attributes:
        max_tasks: how many tasks it ends at most, failures included.
        walltime_s: after which it has left, in seconds.
        max_cost: how much it may spend, in any currency.
        cost_per_hour: what this machine costs, in the same.
        idle_exit_s: it leaves when there was nothing to do for so long.
        spent_s: seconds of *walltime_s* and *max_cost* that are gone already.
    """

    max_tasks: int | None = None
    walltime_s: float | None = None
    max_cost: float | None = None
    cost_per_hour: float | None = None
    idle_exit_s: float | None = None
    spent_s: float = 0.0

    def __post_init__(self) -> None:
        """Check that they can be kept.

        Raises:
            OptionError: the cost is limited, but not known.
        """
        if self.max_cost is not None and not self.cost_per_hour:
            msg = f"max cost {self.max_cost} needs the price of this machine; add --cost-per-hour"
            raise OptionError(msg)

    @property
    def deadline_s(self) -> float | None:
        """Seconds from now at which everything must have ended, if there is such a time."""
        bounds = [] if self.walltime_s is None else [_without_share(self.walltime_s)]
        if self.max_cost is not None and self.cost_per_hour:
            bounds.append(3600 * self.max_cost / self.cost_per_hour)
        return min(bounds) - self.spent_s if bounds else None

    @property
    def reason(self) -> str:
        """Which of them the deadline is, in words."""
        walltime_s = self.walltime_s
        if walltime_s is not None and self.deadline_s == _without_share(walltime_s) - self.spent_s:
            return f"the walltime of {walltime_s:g} s"
        return f"the cost limit of {self.max_cost} at {self.cost_per_hour} per hour"

    def after(self, seconds: float, tasks: int) -> Limits:
        """Return what is left of them when a worker has gone on for *seconds*, and ended *tasks*.

        A run has several stages, and the limits are those of the worker.
        """
        most = None if self.max_tasks is None else max(0, self.max_tasks - tasks)
        return replace(self, max_tasks=most, spent_s=seconds)

    def idle_left_s(self, idle_s: float) -> float:
        """Return for how many seconds a worker may wait that has had nothing to do for *idle_s*."""
        bounds = [] if self.idle_exit_s is None else [self.idle_exit_s - idle_s]
        if (deadline_s := self.deadline_s) is not None:
            bounds.append(deadline_s)
        return min(bounds, default=math.inf)

    @property
    def reached(self) -> str | None:
        """Which of them leaves nothing to begin with, in words."""
        if self.max_tasks == 0:
            return "as many tasks have ended as were asked for"
        deadline_s = self.deadline_s
        return f"{self.reason} is over" if deadline_s is not None and deadline_s <= 0 else None


def _without_share(walltime_s: float) -> float:
    return walltime_s - min(MOST_SHARE_S, SHARE_S * walltime_s)
