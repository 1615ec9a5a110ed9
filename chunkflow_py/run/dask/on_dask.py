"""A run on a Dask cluster that is there: its scheduler takes the place of the queue.

```
ledger: missing -> a few tasks for each thread -> scheduler -> workers: perform -> ledger
                       ^-- later: what has failed, with a pause <-- why it has not ended
```

Workers record what they have done, so that the end of this process, of the scheduler or of a worker
loses no more than the tasks in hand; the same call again does what is missing. Several such calls
on one run do no harm.
"""

from __future__ import annotations

import time
import warnings
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from chunkflow_py.errors import OptionError, needs_extra
from chunkflow_py.run.dask.dask_dispatch import Dispatch, Stop
from chunkflow_py.run.dask.dask_versions import check_cluster, versions_here
from chunkflow_py.run.dask.dask_worker import Order, release
from chunkflow_py.run.worker.failure_policy import AttemptLimits
from chunkflow_py.run.worker.worker import COMPLETE, FAILURES, WORK_LEFT, line_of_stage

if TYPE_CHECKING:
    from chunkflow_py.run.run_directory import RunDirectory
    from chunkflow_py.run.worker.worker import MakeLine, Working

CONNECT_S = 30.0


def run_on_dask(
    home: RunDirectory,
    address: str,
    make_line: MakeLine,
    working: Working,
) -> tuple[int, str]:
    """Work off the stages of a run on a cluster; return the exit code and words for a person.

    Args:
        home: of the run.
        address: of the scheduler, ``tcp://HOST:PORT``.
        make_line: makes the line of a stage from its source; a function of a module.
        working: of it, failures, code, threads, and the limits of a task, of tasks and of time are
            for a cluster; the worker is who writes down that others have died.

    Raises:
        OptionError: the line is wrong, a worker computes other bytes than the run's first one, or
            the environments of the cluster and of this process do not fit together.
        ChunkflowError: the ledger refuses, or the line cannot be made.
    """
    _check(working)
    for stage in home.spec.steps:
        # Whether code is allowed is known before anything is sent.
        line_of_stage(home, stage, allow_code=working.allow_code)
    settings = working.settings
    caps = AttemptLimits(settings.max_failures, settings.max_transient, settings.retry_s)
    with needs_extra("dask", "run --on dask://"):
        import distributed  # noqa: F401
    with Stop() as stop:
        bound_s = settings.limits.deadline_s
        stop.deadline = None if bound_s is None else time.monotonic() + bound_s
        try:
            client = _connect(address)
        except OSError as error:
            msg = f"there is no Dask scheduler at {address} for now ({error}); start one there"
            return WORK_LEFT, msg
        try:
            check_cluster(client, address)
            while (name := home.current_step()) is not None:
                order = Order(
                    home.address,
                    name,
                    make_line,
                    caps,
                    settings.task_limit,
                    working.allow_code,
                    working.threads,
                    settings.ahead,
                    versions_here(),
                )
                home.renew(name)
                Dispatch(client, home, order, working, stop).run()
                counts, tasks = home.ledger(name).counts(), len(home.plan(name))
                if counts.finished < tasks:
                    left = f"{tasks - counts.finished} of {tasks} tasks of stage {name} are left"
                    return WORK_LEFT, f"stopped: {stop.reason or 'others reopened tasks'}; {left}"
                home.ledger(name).compact()  # leaves few objects behind
                if counts.dead:
                    words = f"all {tasks} tasks are recorded, {counts.dead} of them as failed"
                    return FAILURES, f"{words}; chunkflow status {home.shown} lists them"
                home.close(name)
        finally:
            _leave(client, home.address)
    return COMPLETE, f"{home.shown} is complete"


def _check(working: Working) -> None:
    """Refuse what a cluster decides.

    Raises:
        OptionError: names it.
    """
    settings, limits = working.settings, working.settings.limits
    given = {
        "--processes": settings.processes > 1,
        "--gpus": bool(settings.devices),
        "--no-until-complete": not working.until_complete,
        "--idle-exit": limits.idle_exit_s is not None,
        "--max-cost": limits.max_cost is not None,
    }
    if found := [name for name, is_given in given.items() if is_given]:
        msg = (
            f"{', '.join(found)} says how the workers of this machine are, and --on dask:// runs "
            "on those of a cluster; leave it out, and start dask worker as you need them"
        )
        raise OptionError(msg)


# --- the cluster --------------------------------------------------------------------------------


def _connect(address: str) -> Any:
    import distributed
    from distributed.versions import VersionMismatchWarning

    client: Any = distributed.Client  # which says little of its types
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", VersionMismatchWarning)  # refused below, or harmless
        return client(address, timeout=CONNECT_S, set_as_default=False)


def _leave(client: Any, run: str) -> None:
    """Have workers let go of the run, as far as they can be reached, and close the client."""
    with suppress(OSError, ValueError, TimeoutError):  # those that have left have let go of it
        if client.status == "running":
            client.run(release, run, on_error="ignore")
    client.close()
