"""The main loop of a worker: runs the steps of a run in the order of the spec."""

from __future__ import annotations

import json
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chunkflow_py.core.failpoints import removed
from chunkflow_py.core.interrupts import on_stop_signals, restore_signals
from chunkflow_py.errors import ChunkflowError, OptionError, QueueError, text_of
from chunkflow_py.queue.message_body import run_of
from chunkflow_py.queue.queue_protocol import open_queue
from chunkflow_py.run.earlier_steps import EarlierStep, earlier_steps
from chunkflow_py.run.exchange_store import PartRemover, remove_parts
from chunkflow_py.run.scheduling import scheduling_of
from chunkflow_py.run.spending import metered
from chunkflow_py.run.stop_watch import StopWatch, watching
from chunkflow_py.run.submit import send_step
from chunkflow_py.run.worker.failure_cause import cause_of_signal
from chunkflow_py.run.worker.failure_policy import fault_of
from chunkflow_py.run.worker.supervisor import Supervisor
from chunkflow_py.run.worker.task_receiver import FOREIGN_DELAY_S
from chunkflow_py.run.worker.worker_interruption import StopRequested
from chunkflow_py.run.worker.worker_pool import ProcessStart
from chunkflow_py.run.worker_records import WorkerRecords, WorkerRegistration, WorkerStart

if TYPE_CHECKING:
    from chunkflow_py.pipeline.pipeline import Pipeline
    from chunkflow_py.queue.queue_protocol import Queue
    from chunkflow_py.run.exchange_store import ExchangeAddress
    from chunkflow_py.run.run_directory import RunDirectory
    from chunkflow_py.run.run_spec import RunStep
    from chunkflow_py.run.worker.supervisor import WorkerListener, WorkerOutcome
    from chunkflow_py.run.worker.worker_limits import WorkerLimits, WorkerSettings
    from chunkflow_py.run.worker.worker_process import TaskFeed
    from chunkflow_py.tasks.task_plan import Plan

logger = logging.getLogger(__name__)

_ENDED = ("complete", "complete-with-failures")  # states in which no task is left
COMPLETE, FAILURES, WORK_LEFT = 0, 1, 75  # exit codes; 75 is EX_TEMPFAIL: try again later
CLAIM_EXPIRES_S = 120.0  # after its last renewal
CLAIM_RENEWAL_S = 20.0
CLAIM_CHECK_S = 5.0
_CLEARED_AT_ONCE = 100  # messages
_REOPENED_CHECK_S = 30.0  # between two checks whether a complete run was reopened

MakeSourcedPipeline = Callable[["PipelineSource", "TaskFeed"], "Pipeline"]


@dataclass(frozen=True)
class PipelineSource:
    """Everything that a worker process needs to make the pipeline of a step; can be pickled.

    Attributes:
        argv: command-line arguments of the operators, with paths of files on this machine.
        mip: value of the global option ``--mip``.
        plan: tasks of the step.
        folder: directory to which relative paths refer.
        ahead: number of tasks that each stage of the pipeline prefetches; ``None`` for the default.
        allow_code: whether the pipeline may run code that is not part of this package.
        earlier: earlier steps of the run, whose outputs this step may read.
        exchange: where tasks exchange patches; ``None`` if tasks exchange no patches.
    """

    argv: tuple[str, ...]
    mip: int
    plan: Plan
    folder: str
    ahead: int | None = None
    allow_code: bool = True
    earlier: tuple[EarlierStep, ...] = ()
    exchange: ExchangeAddress | None = None


def pipeline_source(
    home: RunDirectory, stage: RunStep, *, allow_code: bool = True, ahead: int | None = None
) -> PipelineSource:
    """Download the files of a step, and return the source from which to make its pipeline.

    Args:
        home: the run directory.
        stage: the step.
        allow_code: whether the step may run code that is not part of this package.
        ahead: number of tasks that each stage of the pipeline prefetches; ``None`` for the default.

    Raises:
        OptionError: the step runs code that is not allowed, a file is damaged, or the folder to
            which relative paths of the step refer does not exist on this machine.
    """
    if stage.code and not allow_code:
        msg = (
            f"step {stage.name} of {home.url} runs {', '.join(stage.code)}, but --no-code forbids "
            "code that is not part of chunkflow_py; omit --no-code, or use a built-in network"
        )
        raise OptionError(msg)
    _check_folder(home.spec.folder, stage)
    argv = list(stage.arguments)
    for file in stage.files:
        path = str(home.fetch(file))
        argv = [each.replace(file.placeholder, path) for each in argv]
    plan, folder = home.plan(stage.name), home.spec.folder
    earlier = earlier_steps(home, stage)
    exchange = home.exchange_of(stage.name)
    return PipelineSource(
        tuple(argv), stage.mip, plan, folder, ahead, allow_code, earlier, exchange
    )


def _check_folder(folder: str, stage: RunStep) -> None:
    """Check that this machine has *folder* if the step uses local paths inside this folder.

    Raises:
        OptionError: the folder does not exist. The message names the folder and a path.
    """
    if _is_here(folder):
        return
    places = (place for _, options in stage.options for place in _places(options))
    below = next((each for each in places if each.startswith(f"file://{folder.rstrip('/')}/")), "")
    if below:
        msg = (
            f"step {stage.name} uses {below.removeprefix('file://')}, but this machine has no "
            f"folder {folder}; mount the folder, or submit the pipeline with paths on a shared "
            "file system or in a bucket"
        )
        raise OptionError(msg)


def _places(options: dict[str, Any]) -> Iterable[str]:
    return (*options.get("reads", ()), *options.get("writes", ()))


def enter_folder(folder: str) -> None:
    """Change the working directory to *folder*, if this machine has this folder."""
    if _is_here(folder):
        os.chdir(folder)
    else:
        logger.info(
            "cannot change to the folder %s on this machine; relative paths refer to %s",
            folder,
            Path.cwd(),
        )


def _is_here(folder: str) -> bool:
    return os.access(folder, os.X_OK) and os.path.isdir(folder)  # noqa: PTH112 is_dir may raise


@dataclass(frozen=True)
class WorkOptions:
    """Options of a worker, or of a run on Dask.

    Attributes:
        settings: settings of the supervisor of the worker.
        worker: name of the worker in records.
        threads: number of compute threads of each process; ``None`` for the number that the
            environment variables set.
        allow_code: whether model files and plugins may run.
        until_complete: whether the worker exits when the run is complete. If false, the worker
            waits for a repair or a retry of the complete run.
        same_version: whether to refuse a run that another version of the package has submitted.
    """

    settings: WorkerSettings
    worker: str
    threads: int | None = None
    allow_code: bool = True
    until_complete: bool = True
    same_version: bool = False


@dataclass(frozen=True)
class RunOutcome:
    """The result of a worker's work on a run.

    Attributes:
        code: exit code of the worker if the worker ends after this run.
        message: the result in one sentence, for the user.
        ended: number of attempts that have ended on this worker.
        signal: name of the latest stop signal; ``None`` if no signal arrived.
    """

    code: int
    message: str
    ended: int = 0
    signal: str | None = None


def work(
    home: RunDirectory,
    working: WorkOptions,
    make_pipeline: MakeSourcedPipeline,
    listener: WorkerListener | None = None,
) -> tuple[int, str]:
    """Work on one run; return the exit code and a message for the user.

    The worker takes no more tasks when the run is paused. `work_on_run` describes the arguments.
    """

    def pause() -> str | None:
        return pause_of(home)

    with watching(pause) as watch:
        outcome = work_on_run(home, working, make_pipeline, listener, watch)
    return outcome.code, outcome.message


def work_on_run(
    home: RunDirectory,
    working: WorkOptions,
    make_pipeline: MakeSourcedPipeline,
    listener: WorkerListener | None,
    watch: StopWatch,
) -> RunOutcome:
    """Run the steps of a run until the run is complete or the worker must stop.

    Args:
        home: the run directory.
        working: settings and limits of the worker.
        make_pipeline: picklable function that takes the `PipelineSource` of a step and a source of
            tasks, and returns the pipeline of the step.
        listener: callbacks that report progress.
        watch: regular check of the run. When its attribute `reason` is set, the worker takes no
            more tasks of the run.

    Raises:
        OptionError: the run is in a bucket, but its address lacks the SHA-256 of the spec; the
            SHA-256 in the address is not that of the spec; the compute profile of this machine
            differs from that of the step's first worker; or the run has a budget, but the price of
            this machine is unknown.
    """
    began = time.monotonic()
    spec = home.spec
    spec.check_current()
    check_version(home, must_be_same=working.same_version)
    if not home.digest and not home.store.is_local and not removed("pinned-spec"):
        msg = (
            f"the address {home.url} lacks the SHA-256 of the spec, so anyone who can write to it "
            "could change the code that runs on this machine; start the worker with the address "
            f"that submit printed; if the run is your own, this address is {home.address}"
        )
        raise OptionError(msg)
    if not spec.queue:
        msg = (
            f"run {home.url} has no queue, because it was submitted for Dask; continue it with "
            "chunkflow run --on dask://HOST:PORT"
        )
        raise OptionError(msg)
    for stage in spec.steps:
        # Fetch all files before the first task.
        pipeline_source(home, stage, allow_code=working.allow_code)
    enter_folder(spec.folder)
    ended, idle_s = 0, 0.0
    stop_signal: str | None = None  # a signal that arrived when a step was about to end
    with (
        metered(home, working.settings.limits.cost_per_hour) as meter,
        registered(home, working.worker) as registration,
        closing(_opened(spec.queue, working.settings.disk_wait_s)) as queue,
    ):
        while True:
            limits = working.settings.limits.after(time.monotonic() - began, ended)
            name = home.current_step()
            if name is not None and watch.reason is not None and not working.until_complete:
                code, message = WORK_LEFT, f"stopped: {watch.reason}"
            elif name is not None:
                if stop_signal is not None:
                    why = cause_of_signal(signal.Signals[stop_signal])
                    registration.stopping(why, f"got {stop_signal}")
                    return RunOutcome(WORK_LEFT, f"stopped: got {stop_signal}", ended, stop_signal)
                reasons = limits.reached, watch.reason, None if meter is None else meter.reached
                if reason := next(filter(None, reasons), None):
                    registration.stopping("limit", reason)
                    return RunOutcome(WORK_LEFT, f"stopped: {reason}", ended)
                try:
                    outcome = _work_on(
                        home, queue, name, working, limits, make_pipeline, listener, registration,
                        lambda: watch.reason or (None if meter is None else meter.reached),
                    )  # fmt: skip
                except ChunkflowError:
                    home.check_not_deleted()  # a deleted run explains the error better
                    raise
                home.check_not_deleted()
                stop_signal = stop_signal or outcome.signal
                if outcome.ended:
                    ended, idle_s = ended + outcome.ended, 0.0
                if outcome.state in _ENDED:
                    home.ledger(name).compact()  # few objects instead of one per task
                if outcome.state == "complete":
                    home.close(name)
                exchange = home.exchange_of(name)
                if outcome.state in _ENDED and exchange is not None and stop_signal is None:
                    remove_parts(exchange)  # last: nothing waits for it
                if outcome.state == "stopped":
                    if watch.reason is not None and not working.until_complete:
                        continue  # wait until the run is resumed
                    return RunOutcome(WORK_LEFT, outcome.message, ended, stop_signal)
                if outcome.state in ("complete", "stage-closed"):
                    continue
                code, message = (
                    FAILURES,
                    f"{outcome.message}; run chunkflow status {home.shown} to list failed tasks",
                )
            elif lost := _no_longer_recorded(home):
                return RunOutcome(WORK_LEFT, lost, ended, stop_signal)
            else:
                _clear(home, queue, working.settings.lease_s)
                for stage in spec.steps:
                    exchange = home.exchange_of(stage.name)
                    if exchange is not None and stop_signal is None:
                        remove_parts(exchange)
                code, message = COMPLETE, f"{home.shown} is complete"
            # Wait until a limit is reached; --idle-exit counts from the end of the last task.
            wait_s = min(_REOPENED_CHECK_S, limits.idle_left_s(idle_s))
            leaves = working.until_complete or stop_signal is not None or wait_s <= 0
            if leaves or not _waited(wait_s):
                return RunOutcome(code, message, ended, stop_signal)
            idle_s += wait_s


def pause_of(home: RunDirectory) -> str | None:
    """Return a message if a run is paused, else ``None``."""
    if not scheduling_of(home.store).paused:
        return None
    return f"{home.shown} is paused; go on with chunkflow resume {home.shown}"


@contextmanager
def registered(home: RunDirectory, worker: str) -> Iterator[WorkerRegistration]:
    """Record the start of a worker and, when the ``with`` block ends, the reason for its end.

    Args:
        home: the run directory.
        worker: name of the worker.
    """
    registration = WorkerRegistration(home.store, WorkerStart.here(worker))
    try:
        registration.begin()  # a stop signal may interrupt it
        yield registration
    except StopRequested as request:
        why = cause_of_signal(signal.Signals[str(request)])
        registration.end(why, f"got {request}")
        raise
    except BaseException as error:
        registration.end(fault_of(error).cause, text_of(error) or type(error).__name__)
        raise
    else:
        registration.end("complete", "no task is left")


def check_version(home: RunDirectory, *, must_be_same: bool) -> None:
    """Compare the version of this package with the version that submitted the run.

    A warning is logged if the versions differ.

    Raises:
        OptionError: the versions differ, and *must_be_same* is set.
    """
    submitted, own = home.spec.version, version("chunkflow_py")
    if submitted == own:
        return
    if must_be_same:
        msg = (
            f"run {home.shown} was submitted by chunkflow_py {submitted}, but this worker has "
            f"version {own}, and --same-version allows no other version; install chunkflow_py "
            f"{submitted}, or omit --same-version"
        )
        raise OptionError(msg)
    logger.warning(
        "run %s was submitted by chunkflow_py %s, but this worker has version %s; the file "
        "workers/ID/started.json of the run records the version of each worker; to refuse other "
        "versions, add --same-version",
        home.shown,
        submitted,
        own,
    )


def _opened(url: str, disk_wait_s: float) -> Queue:
    """Open a queue; if the disk of the queue is full, wait and try again."""
    while True:
        try:
            return open_queue(url)
        except QueueError as error:
            if fault_of(error).shortage != "disk":
                raise
            logger.warning("%s; trying again in %.0f s", error, disk_wait_s)
        time.sleep(disk_wait_s)


def _work_on(
    home: RunDirectory,
    queue: Queue,
    name: str,
    working: WorkOptions,
    limits: WorkerLimits,
    make_pipeline: MakeSourcedPipeline,
    listener: WorkerListener | None,
    registration: WorkerRegistration,
    stop_reason: Callable[[], str | None],
) -> WorkerOutcome:
    _open_stage(home, queue, name)
    stage, settings = home.spec.step(name), working.settings
    source = pipeline_source(home, stage, allow_code=working.allow_code, ahead=settings.ahead)
    has_network = any(operator == "inference" for operator, _ in stage.options)
    wanted = home.exchange is not None and home.exchange.mode != "off"
    if wanted and has_network and stage.device_class == "any":
        logger.info(
            "tasks do not exchange patches, because machines of different types may compute "
            "different values (--device-class any)"
        )
    remover = PartRemover(source.exchange) if source.exchange else None
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
        on_recorded=None if remover is None else remover.recorded,
        stop_reason=stop_reason,
        registration=registration,
        fate_of=WorkerRecords(home.store).fate_of,
    )
    try:
        return supervisor.run()
    finally:
        if remover is not None:
            remover.close()


def _is_wanted(home: RunDirectory, ours: str, other: str) -> bool:
    """Return whether a worker of step *ours* keeps a message of step *other* in the queue.

    * If *other* is an earlier step, the message is kept if a repair has reopened *other*. If not,
      the tasks of *other* have ended.
    * If *other* is a later step, the message is kept if the tasks of *other* were sent or are being
      sent. If not, the tasks will be sent again when *other* begins.
    """
    names = [stage.name for stage in home.spec.steps]
    if names.index(other) < names.index(ours):
        return not home.is_closed(other)
    return home.is_sent(other) or home.store.size(f"stages/{other}/sending") is not None


def _no_longer_recorded(home: RunDirectory) -> str:
    for stage in home.spec.steps:
        finished = home.counts(stage.name).finished
        if finished < stage.tasks:
            return (
                f"step {stage.name} of {home.shown} was complete, but {stage.tasks - finished} of "
                f"its {stage.tasks} tasks are no longer recorded; run chunkflow verify to list "
                "these tasks, and chunkflow repair to queue them again"
            )
    return ""


def _clear(home: RunDirectory, queue: Queue, lease_s: float) -> None:
    """Acknowledge the remaining messages of a complete run, such as tasks that were sent twice.

    If these messages remained, an autoscaler that counts messages would start machines forever.
    """
    hashes = {stage.hash for stage in home.spec.steps}
    try:
        while messages := queue.receive(_CLEARED_AT_ONCE, lease_s):
            of_this_run = [message for message in messages if run_of(message.body) in hashes]
            others = [message for message in messages if message not in of_this_run]
            queue.release(others, FOREIGN_DELAY_S)
            if home.current_step() is not None:  # a repair has reopened the run, and sent these
                queue.release(of_this_run)
                return
            queue.acknowledge(of_this_run)
    except QueueError as error:
        logger.debug(
            "cannot acknowledge the remaining messages, so they stay in the queue: %s", error
        )


def _waited(seconds: float) -> bool:
    has_signal = threading.Event()
    before = on_stop_signals(lambda _: has_signal.set())
    try:
        return not has_signal.wait(seconds)
    finally:
        restore_signals(before)


def _open_stage(home: RunDirectory, queue: Queue, stage: str) -> None:
    """Send the tasks of a step, or wait until another worker has sent them.

    The worker that sends the tasks stores a claim (an object in the run directory), and renews the
    claim until all tasks are sent. A waiting worker deletes the claim if the claim has not changed
    for `CLAIM_EXPIRES_S` seconds.
    """
    if stage == home.spec.first:
        return  # submit has sent its tasks
    key, last_claim, since = f"stages/{stage}/sending", None, time.monotonic()
    while not home.is_sent(stage):
        if home.store.put_if_absent(key, _claim()):
            logger.info("step %s starts: sending the tasks of this step", stage)
            try:
                with _renewed(home, key):
                    home.renew(stage)
                    send_step(home, queue, stage)
            except BaseException:  # also a signal: the others must not wait
                home.store.delete(key)
                raise
            return
        if (claim := home.store.get(key)) != last_claim:
            last_claim, since = claim, time.monotonic()
        elif time.monotonic() - since > CLAIM_EXPIRES_S:
            home.store.delete(key)  # sending tasks twice is harmless
        time.sleep(CLAIM_CHECK_S)


def _claim() -> bytes:
    return json.dumps({"since": time.time(), "process": os.getpid()}).encode()


@contextmanager
def _renewed(home: RunDirectory, key: str) -> Iterator[None]:
    """Renew the claim at *key* in a thread until the ``with`` block ends."""
    over = threading.Event()

    def renew() -> None:
        while not over.wait(CLAIM_RENEWAL_S):
            try:
                home.store.put(key, _claim())
            except ChunkflowError as error:
                logger.warning(
                    "cannot write to the run directory while sending the tasks of a step; another "
                    "worker may send the same tasks, which is harmless: %s",
                    error,
                )

    thread = threading.Thread(target=renew, name="claim", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
