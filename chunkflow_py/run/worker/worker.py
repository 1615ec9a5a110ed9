"""A worker: takes pipelines, networks and queue from a run, and works on its steps in order."""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chunkflow_py.core.failpoints import removed
from chunkflow_py.core.interrupts import on_stop_signals, restore_signals
from chunkflow_py.errors import ChunkflowError, OptionError, QueueError
from chunkflow_py.queue.message_body import run_of
from chunkflow_py.queue.queue_protocol import open_queue
from chunkflow_py.run.earlier_steps import EarlierStep, earlier_steps
from chunkflow_py.run.submit import send_step
from chunkflow_py.run.worker.failure_policy import fault_of
from chunkflow_py.run.worker.supervisor import Supervisor
from chunkflow_py.run.worker.task_receiver import FOREIGN_DELAY_S
from chunkflow_py.run.worker.worker_pool import ProcessStart

if TYPE_CHECKING:
    from chunkflow_py.pipeline.pipeline import Pipeline
    from chunkflow_py.queue.queue_protocol import Queue
    from chunkflow_py.run.run_directory import RunDirectory
    from chunkflow_py.run.run_spec import RunStep
    from chunkflow_py.run.worker.supervisor import WorkerListener, WorkerOutcome
    from chunkflow_py.run.worker.worker_limits import WorkerLimits, WorkerSettings
    from chunkflow_py.run.worker.worker_process import TaskFeed
    from chunkflow_py.tasks.task_plan import Plan

logger = logging.getLogger(__name__)

COMPLETE, FAILURES, WORK_LEFT = 0, 1, 75  # exit codes; 75 is EX_TEMPFAIL: try again later
CLAIM_EXPIRES_S = 120.0  # without a renewal
CLAIM_RENEWAL_S = 20.0
CLAIM_CHECK_S = 5.0
_CLEARED_AT_ONCE = 100  # messages
_REOPENED_CHECK_S = 30.0  # between two checks whether a complete run was reopened

MakeSourcedPipeline = Callable[["PipelineSource", "TaskFeed"], "Pipeline"]


@dataclass(frozen=True)
class PipelineSource:
    """What a process needs to make the pipeline of a step; pickled and sent to it.

    Attributes:
        argv: of the operators, with the paths of files on this machine.
        mip: the global option.
        plan: the tasks.
        folder: in which relative paths start.
        ahead: how many tasks each stage of the pipeline may work ahead.
        allow_code: whether it may run code that is not part of this package.
        earlier: the steps before it, whose outputs it may read.
    """

    argv: tuple[str, ...]
    mip: int
    plan: Plan
    folder: str
    ahead: int | None = None
    allow_code: bool = True
    earlier: tuple[EarlierStep, ...] = ()


def pipeline_source(
    home: RunDirectory, stage: RunStep, *, allow_code: bool = True, ahead: int | None = None
) -> PipelineSource:
    """Fetch the files of a step and return what its pipeline needs.

    Raises:
        OptionError: the step runs code, and that is not allowed; a file is damaged; or the folder
            in which its paths start is not on this machine.
    """
    if stage.code and not allow_code:
        msg = (
            f"stage {stage.name} of {home.url} runs {', '.join(stage.code)}, which --no-code "
            "refuses; leave it out, or use a built-in network"
        )
        raise OptionError(msg)
    _check_folder(home.spec.folder, stage)
    argv = list(stage.arguments)
    for file in stage.files:
        path = str(home.fetch(file))
        argv = [each.replace(file.placeholder, path) for each in argv]
    plan, folder = home.plan(stage.name), home.spec.folder
    earlier = earlier_steps(home, stage)
    return PipelineSource(tuple(argv), stage.mip, plan, folder, ahead, allow_code, earlier)


def _check_folder(folder: str, stage: RunStep) -> None:
    """Refuse a step whose relative paths would mean other places on this machine.

    Raises:
        OptionError: names the folder and a path.
    """
    if _is_here(folder):
        return
    places = (place for _, options in stage.options for place in _places(options))
    below = next((each for each in places if each.startswith(f"file://{folder.rstrip('/')}/")), "")
    if below:
        msg = (
            f"stage {stage.name} uses {below.removeprefix('file://')}, and this machine has no "
            f"folder {folder}: mount it, or submit the line with a file system that machines "
            "share, or a bucket"
        )
        raise OptionError(msg)


def _places(options: dict[str, Any]) -> Iterable[str]:
    return (*options.get("reads", ()), *options.get("writes", ()))


def enter_folder(folder: str) -> None:
    """Change to the folder in which the run was submitted, if it is on this machine."""
    if _is_here(folder):
        os.chdir(folder)
    else:
        logger.info("%s cannot be entered here; relative paths begin in %s", folder, Path.cwd())


def _is_here(folder: str) -> bool:
    return os.access(folder, os.X_OK) and os.path.isdir(folder)  # noqa: PTH112 is_dir may raise


@dataclass(frozen=True)
class WorkOptions:
    """How a worker works on a run.

    Attributes:
        settings: of its supervisor.
        worker: its name in records.
        threads: of each process for computing; ``None``: as the environment says.
        allow_code: whether model files and plugins may run.
        until_complete: whether to leave when the run is complete, or to wait for a repair or retry.
    """

    settings: WorkerSettings
    worker: str
    threads: int | None = None
    allow_code: bool = True
    until_complete: bool = True


def work(
    home: RunDirectory,
    working: WorkOptions,
    make_pipeline: MakeSourcedPipeline,
    listener: WorkerListener | None = None,
) -> tuple[int, str]:
    """Work on the steps of a run; return the exit code and a sentence for people.

    Args:
        home: of the run.
        working: settings and limits.
        make_pipeline: makes the pipeline of a step from its source; a function of a module.
        listener: hears of progress.

    Raises:
        OptionError: the spec is not pinned where it must be, or is not the pinned one; or this
            machine computes other bytes.
    """
    began = time.monotonic()
    spec = home.spec
    spec.check_current()
    if not home.digest and not home.store.is_local and not removed("pinned-spec"):
        msg = (
            f"{home.url} can be written by others, who could change what runs here; start the "
            f"worker with the address that submit printed, {home.address}, if that is yours"
        )
        raise OptionError(msg)
    if not spec.queue:
        msg = f"{home.url} has no queue; chunkflow run --on dask://HOST:PORT carries it out"
        raise OptionError(msg)
    for stage in spec.steps:
        # All files are there before the first task.
        pipeline_source(home, stage, allow_code=working.allow_code)
    enter_folder(spec.folder)
    ended, idle_s = 0, 0.0
    stop_signal: str | None = None  # one that came when a step was about to end
    with closing(_opened(spec.queue, working.settings.disk_wait_s)) as queue:
        while True:
            limits = working.settings.limits.after(time.monotonic() - began, ended)
            name = home.current_step()
            if name is not None:
                if limits.reached is not None:
                    return WORK_LEFT, f"stopped: {limits.reached}"
                if stop_signal is not None:
                    return WORK_LEFT, f"stopped: got {stop_signal}"
                try:
                    outcome = _work_on(home, queue, name, working, limits, make_pipeline, listener)
                except ChunkflowError:
                    home.check_not_deleted()  # which would be the cause
                    raise
                home.check_not_deleted()
                stop_signal = stop_signal or outcome.signal
                if outcome.ended:
                    ended, idle_s = ended + outcome.ended, 0.0
                if outcome.state in ("complete", "complete-with-failures"):
                    home.ledger(name).compact()  # leaves few objects behind
                if outcome.state == "complete":
                    home.close(name)
                if outcome.state == "stopped":
                    return WORK_LEFT, outcome.message
                if outcome.state in ("complete", "stage-closed"):
                    continue
                code, message = (
                    FAILURES,
                    f"{outcome.message}; chunkflow status {home.shown} lists them",
                )
            elif lost := _no_longer_recorded(home):
                return WORK_LEFT, lost
            else:
                _clear(home, queue, working.settings.lease_s)
                code, message = COMPLETE, f"{home.shown} is complete"
            # As long as no limit is reached: an --idle-exit counts from the end of the last task.
            wait_s = min(_REOPENED_CHECK_S, limits.idle_left_s(idle_s))
            leaves = working.until_complete or stop_signal is not None or wait_s <= 0
            if leaves or not _waited(wait_s):
                return code, message
            idle_s += wait_s


def _opened(url: str, disk_wait_s: float) -> Queue:
    """Open a queue; wait while its disk is full, as for the disk of an output."""
    while True:
        try:
            return open_queue(url)
        except QueueError as error:
            if fault_of(error).shortage != "disk":
                raise
            logger.warning("%s; tried again in %.0f s", error, disk_wait_s)
        time.sleep(disk_wait_s)


def _work_on(
    home: RunDirectory,
    queue: Queue,
    name: str,
    working: WorkOptions,
    limits: WorkerLimits,
    make_pipeline: MakeSourcedPipeline,
    listener: WorkerListener | None,
) -> WorkerOutcome:
    """Work on one step."""
    _open_stage(home, queue, name)
    stage, settings = home.spec.step(name), working.settings
    source = pipeline_source(home, stage, allow_code=working.allow_code, ahead=settings.ahead)
    supervisor = Supervisor(
        stage=name,
        spec=stage.hash,
        run=stage.hash,
        stages={each.name: each.hash for each in home.spec.steps},
        is_wanted=partial(_is_wanted, home, name),
        plan=home.plan(name),
        queue=queue,
        ledger=home.ledger(name),
        start=ProcessStart(partial(make_pipeline, source), threads=working.threads),
        settings=replace(settings, limits=limits, records_attempts=stage.device_class == "any"),
        check_profile=partial(home.check_profile, name),
        worker=working.worker,
        listener=listener,
    )
    return supervisor.run()


def _is_wanted(home: RunDirectory, ours: str, other: str) -> bool:
    """Return whether a worker of one step keeps a message of another step.

    A repair may have reopened an earlier step. The tasks of a later step are sent again when it
    opens, unless another worker is sending them.
    """
    names = [stage.name for stage in home.spec.steps]
    if names.index(other) < names.index(ours):
        return not home.is_closed(other)
    return home.is_sent(other) or home.store.size(f"stages/{other}/sending") is not None


def _no_longer_recorded(home: RunDirectory) -> str:
    """Describe the missing records of a run whose steps are closed; empty: none is missing."""
    for stage in home.spec.steps:
        finished = home.counts(stage.name).finished
        if finished < stage.tasks:
            return (
                f"stage {stage.name} of {home.shown} was complete, and {stage.tasks - finished} of "
                f"its {stage.tasks} tasks are no longer recorded; chunkflow verify lists them, "
                "chunkflow repair does them again"
            )
    return ""


def _clear(home: RunDirectory, queue: Queue, lease_s: float) -> None:
    """Acknowledge the messages that a complete run has left, such as tasks that were sent twice.

    A fleet that starts machines while there are messages would start them forever.
    """
    hashes = {stage.hash for stage in home.spec.steps}
    try:
        while messages := queue.receive(_CLEARED_AT_ONCE, lease_s):
            ours = [message for message in messages if run_of(message.body) in hashes]
            others = [message for message in messages if message not in ours]
            queue.release(others, FOREIGN_DELAY_S)
            if home.current_step() is not None:  # reopened: they may be of tasks to repair
                queue.release(ours)
                return
            queue.acknowledge(ours)
    except QueueError as error:
        logger.debug("the remaining messages stay in the queue: %s", error)


def _waited(seconds: float) -> bool:
    """Wait; return ``False`` if a signal asks this process to stop meanwhile."""
    asked = threading.Event()
    before = on_stop_signals(lambda _: asked.set())
    try:
        return not asked.wait(seconds)
    finally:
        restore_signals(before)


def _open_stage(home: RunDirectory, queue: Queue, stage: str) -> None:
    """Make sure that the tasks of a step are sent, by one worker; the others wait for it.

    The worker that sends renews its claim however long that takes. A claim that has not changed for
    `CLAIM_EXPIRES_S`, by the clock of the worker that waits, counts as abandoned.
    """
    if stage == home.spec.first:
        return  # submit has sent it
    key, seen, since = f"stages/{stage}/sending", None, time.monotonic()
    while not home.is_sent(stage):
        if home.store.put_if_absent(key, _claim()):
            logger.info("stage %s opens: sending its tasks", stage)
            try:
                with _renewed(home, key):
                    home.renew(stage)
                    send_step(home, queue, stage)
            except BaseException:  # also a signal: the others must not wait
                home.store.delete(key)
                raise
            return
        if (claim := home.store.get(key)) != seen:
            seen, since = claim, time.monotonic()
        elif time.monotonic() - since > CLAIM_EXPIRES_S:
            home.store.delete(key)  # tasks that are sent twice do no harm
        time.sleep(CLAIM_CHECK_S)


def _claim() -> bytes:
    """Return the content of a new claim, different from all others."""
    return json.dumps({"since": time.time(), "process": os.getpid()}).encode()


@contextmanager
def _renewed(home: RunDirectory, key: str) -> Iterator[None]:
    """Renew a claim in a thread until the block ends."""
    over = threading.Event()

    def renew() -> None:
        while not over.wait(CLAIM_RENEWAL_S):
            try:
                home.store.put(key, _claim())
            except ChunkflowError as error:
                logger.warning("others may send the tasks as well: %s", error)

    thread = threading.Thread(target=renew, name="claim", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
