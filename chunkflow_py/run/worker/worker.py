"""A worker: takes pipeline, network and queue from a run, and works off its stages in order."""

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
from chunkflow_py.queue.body import run_of
from chunkflow_py.queue.protocol import open_queue
from chunkflow_py.run.earlier_steps import EarlierStep, earlier_steps
from chunkflow_py.run.submit import send_step
from chunkflow_py.run.worker.failure_policy import fault_of
from chunkflow_py.run.worker.supervisor import Supervisor
from chunkflow_py.run.worker.task_receiver import FOREIGN_DELAY_S
from chunkflow_py.run.worker.worker_pool import ProcessStart

if TYPE_CHECKING:
    from chunkflow_py.pipeline.pipeline import Pipeline
    from chunkflow_py.queue.protocol import Queue
    from chunkflow_py.run.run_directory import RunDirectory
    from chunkflow_py.run.run_spec import RunStep
    from chunkflow_py.run.worker.supervisor import WorkerListener, WorkerOutcome
    from chunkflow_py.run.worker.worker_limits import WorkerLimits, WorkerSettings
    from chunkflow_py.run.worker.worker_process import TaskFeed
    from chunkflow_py.tasks.plan import Plan

logger = logging.getLogger(__name__)

COMPLETE, FAILURES, WORK_LEFT = 0, 1, 75  # exit codes; 75 is EX_TEMPFAIL: try again later
_SILENT_S = 120.0  # after which who sends the tasks of a stage is taken for dead
_RENEW_S = 20.0
_LOOK_S = 5.0
_CLEARED = 100  # messages at once
_IDLE_S = 30.0  # between two looks whether a complete run was reopened

MakeLine = Callable[["LineOfStage", "TaskFeed"], "Pipeline"]


@dataclass(frozen=True)
class LineOfStage:
    """What a process needs to make the line of a stage; goes to it as it is.

    Attributes:
        words: of the operators, with the paths of files on this machine.
        mip: the global option.
        plan: which tasks there are.
        folder: in which relative paths begin.
        ahead: how far lanes may work ahead.
        allow_code: whether it may run code that is not part of this package.
        earlier: the steps before it, whose outputs it may read.
    """

    words: tuple[str, ...]
    mip: int
    plan: Plan
    folder: str
    ahead: int | None = None
    allow_code: bool = True
    earlier: tuple[EarlierStep, ...] = ()


def line_of_stage(
    home: RunDirectory, stage: RunStep, *, allow_code: bool = True, ahead: int | None = None
) -> LineOfStage:
    """Fetch the files of a stage and return its line.

    Raises:
        OptionError: the stage runs code, and that is not allowed; a file is damaged; or the
            folder is not on this machine in which paths of the line begin.
    """
    if stage.code and not allow_code:
        msg = (
            f"stage {stage.name} of {home.url} runs {', '.join(stage.code)}, which --no-code "
            "refuses; leave it out, or use a built-in network"
        )
        raise OptionError(msg)
    _check_folder(home.spec.folder, stage)
    words = list(stage.words)
    for file in stage.files:
        path = str(home.fetch(file))
        words = [word.replace(file.word, path) for word in words]
    plan, folder = home.plan(stage.name), home.spec.folder
    earlier = earlier_steps(home, stage)
    return LineOfStage(tuple(words), stage.mip, plan, folder, ahead, allow_code, earlier)


def _check_folder(folder: str, stage: RunStep) -> None:
    """Refuse a stage whose relative paths would lead elsewhere on this machine.

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
    """Go to the folder in which the line was typed, if it is on this machine."""
    if _is_here(folder):
        os.chdir(folder)
    else:
        logger.info("%s cannot be entered here; relative paths begin in %s", folder, Path.cwd())


def _is_here(folder: str) -> bool:
    return os.access(folder, os.X_OK) and os.path.isdir(folder)  # noqa: PTH112 is_dir may raise


@dataclass(frozen=True)
class Working:
    """How a worker works off a run.

    Attributes:
        settings: of its supervisor.
        worker: its name in records.
        threads: of each process for computing; ``None``: as the environment says.
        allow_code: whether model files and plugins may run.
        until_complete: leave when the run is complete; or wait until it is repaired or retried.
    """

    settings: WorkerSettings
    worker: str
    threads: int | None = None
    allow_code: bool = True
    until_complete: bool = True


def work(
    home: RunDirectory,
    working: Working,
    make_line: MakeLine,
    listener: WorkerListener | None = None,
) -> tuple[int, str]:
    """Work off the stages of a run; return the exit code and a sentence for a person.

    Args:
        home: of the run.
        working: how.
        make_line: makes the line of a stage from its source; a function of a module.
        listener: hears of progress.

    Raises:
        OptionError: the spec is not pinned where it must be, or not what was pinned; or this
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
        line_of_stage(home, stage, allow_code=working.allow_code)
    enter_folder(spec.folder)
    ended, idle_s = 0, 0.0
    asked: str | None = None  # by a signal that came when a stage was about to end
    with closing(_opened(spec.queue, working.settings.disk_wait_s)) as queue:
        while True:
            limits = working.settings.limits.after(time.monotonic() - began, ended)
            name = home.current_step()
            if name is not None:
                if limits.reached is not None:
                    return WORK_LEFT, f"stopped: {limits.reached}"
                if asked is not None:
                    return WORK_LEFT, f"stopped: got {asked}"
                try:
                    outcome = _work_on(home, queue, name, working, limits, make_line, listener)
                except ChunkflowError:
                    home.check_there()  # which would be the cause
                    raise
                home.check_there()
                asked = asked or outcome.signal
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
                code, words = (
                    FAILURES,
                    f"{outcome.message}; chunkflow status {home.shown} lists them",
                )
            elif lost := _no_longer_recorded(home):
                return WORK_LEFT, lost
            else:
                _clear(home, queue, working.settings.lease_s)
                code, words = COMPLETE, f"{home.shown} is complete"
            # As long as no limit is reached: an --idle-exit counts from the end of the last task.
            wait_s = min(_IDLE_S, limits.idle_left_s(idle_s))
            leaves = working.until_complete or asked is not None or wait_s <= 0
            if leaves or not _waited(wait_s):
                return code, words
            idle_s += wait_s


def _opened(url: str, disk_wait_s: float) -> Queue:
    """Return a queue; while its disk is full it is waited for, as for the disk of an output."""
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
    working: Working,
    limits: WorkerLimits,
    make_line: MakeLine,
    listener: WorkerListener | None,
) -> WorkerOutcome:
    """Work off one stage."""
    _open_stage(home, queue, name)
    stage, settings = home.spec.step(name), working.settings
    line = line_of_stage(home, stage, allow_code=working.allow_code, ahead=settings.ahead)
    supervisor = Supervisor(
        stage=name,
        spec=stage.hash,
        run=stage.hash,
        stages={each.name: each.hash for each in home.spec.steps},
        is_wanted=partial(_is_wanted, home, name),
        plan=home.plan(name),
        queue=queue,
        ledger=home.ledger(name),
        start=ProcessStart(partial(make_line, line), threads=working.threads),
        settings=replace(settings, limits=limits, records_attempts=stage.device_class == "any"),
        check_profile=partial(home.check_profile, name),
        worker=working.worker,
        listener=listener,
    )
    return supervisor.run()


def _is_wanted(home: RunDirectory, ours: str, other: str) -> bool:
    """Return whether a worker of one stage keeps a message of another stage.

    A stage before it may have been reopened by a repair. One after it, too; that is sent anew when
    it opens, unless somebody is about to send it.
    """
    names = [stage.name for stage in home.spec.steps]
    if names.index(other) < names.index(ours):
        return not home.is_closed(other)
    return home.is_sent(other) or home.store.size(f"stages/{other}/sending") is not None


def _no_longer_recorded(home: RunDirectory) -> str:
    """Return what is missing of the records of a run whose stages are closed; nothing: nothing."""
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
    """Acknowledge what a complete run has left in its queue, such as tasks that were sent twice.

    A fleet that starts machines while there are messages would start them for ever.
    """
    hashes = {stage.hash for stage in home.spec.steps}
    try:
        while messages := queue.receive(_CLEARED, lease_s):
            ours = [message for message in messages if run_of(message.body) in hashes]
            others = [message for message in messages if message not in ours]
            queue.release(others, FOREIGN_DELAY_S)
            if home.current_step() is not None:  # reopened: these may be of what is to be repaired
                queue.release(ours)
                return
            queue.acknowledge(ours)
    except QueueError as error:
        logger.debug("what is left in the queue stays there: %s", error)


def _waited(seconds: float) -> bool:
    """Wait so long; return whether nobody has asked this process to stop meanwhile."""
    asked = threading.Event()
    before = on_stop_signals(lambda _: asked.set())
    try:
        return not asked.wait(seconds)
    finally:
        restore_signals(before)


def _open_stage(home: RunDirectory, queue: Queue, stage: str) -> None:
    """See to it that the tasks of a stage are sent: by one worker; the others wait for it.

    Who sends says so again and again, however long it takes. Who was not heard of for some time, by
    the clock of who listens, is taken for dead.
    """
    if stage == home.spec.first:
        return  # which submit sends
    key, heard, since = f"stages/{stage}/sending", None, time.monotonic()
    while not home.is_sent(stage):
        if home.store.put_if_absent(key, _claim()):
            logger.info("stage %s opens: sending its tasks", stage)
            try:
                with _renewed(home, key):
                    home.renew(stage)
                    send_step(home, queue, stage)
            except BaseException:  # also a signal: others need not wait for what does not come
                home.store.delete(key)
                raise
            return
        if (said := home.store.get(key)) != heard:
            heard, since = said, time.monotonic()
        elif time.monotonic() - since > _SILENT_S:
            home.store.delete(key)  # who sends it twice does no harm
        time.sleep(_LOOK_S)


def _claim() -> bytes:
    """Return what no claim has said before."""
    return json.dumps({"since": time.time(), "process": os.getpid()}).encode()


@contextmanager
def _renewed(home: RunDirectory, key: str) -> Iterator[None]:
    """Renew a claim meanwhile, in a thread."""
    over = threading.Event()

    def renew() -> None:
        while not over.wait(_RENEW_S):
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
