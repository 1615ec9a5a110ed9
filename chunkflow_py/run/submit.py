"""Submission of a run: check the pipelines, create the outputs and the spec, and send the tasks."""

from __future__ import annotations

import logging
import os
import re
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chunkflow_py.core.host_memory import describe_bytes
from chunkflow_py.core.task import BOX
from chunkflow_py.errors import OptionError, VolumeError
from chunkflow_py.queue.message_body import BodyError, body_text, parse_body
from chunkflow_py.queue.queue_protocol import address_of, open_queue
from chunkflow_py.run.coverage import with_documents
from chunkflow_py.run.earlier_steps import check_readers
from chunkflow_py.run.exchange_store import ExchangeSettings
from chunkflow_py.run.leftovers import clear_leftovers, leftovers
from chunkflow_py.run.run_spec import File, RunStep, Spec, options_of, sha256_of
from chunkflow_py.run.scheduling import change_scheduling, check_priority
from chunkflow_py.run.sending_order import set_sending_order, tasks_in_order
from chunkflow_py.run.spending import budget_of, check_budget, money, set_budget
from chunkflow_py.run.step_pipeline import create_outputs, prepared
from chunkflow_py.store.local_files import absolute
from chunkflow_py.store.store_address import public
from chunkflow_py.tasks.checkerboard import USUAL_WORKERS
from chunkflow_py.volume.location import LEVEL, Location

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from chunkflow_py.pipeline.operator import Operator
    from chunkflow_py.queue.queue_protocol import Queue
    from chunkflow_py.run.run_directory import RunDirectory
    from chunkflow_py.run.step_pipeline import StepEstimate, StepPipeline

logger = logging.getLogger(__name__)

# Address with a placeholder for the box of each task, or the ID of each object.
_TEMPLATE = re.compile(rf"(.*?)(?:{BOX}|ID)(?:\.[^/]*)?")
_PEEK_LEASE_S = 10.0  # lease of a message that is read only to report it


@dataclass(frozen=True)
class Submission:
    """The result of `submit`.

    Attributes:
        address: address of the run for workers, with the hash of the spec.
        steps: estimates, one for each step.
        reused: names of the steps that are reused from another run.
        sent: number of tasks that this call sent; all belong to the first incomplete step.
        is_new: whether this call created the run; false if the run already existed.
        queue: URL of the queue; empty for a run on Dask.
        budget: budget of the run; ``None`` if the run has none.
    """

    address: str
    steps: tuple[StepEstimate, ...]
    reused: tuple[str, ...]
    sent: int
    is_new: bool
    queue: str
    budget: float | None = None

    def summary(self) -> Iterator[str]:
        """Yield lines of text for the terminal; the last line is the command for a worker."""
        for step in self.steps:
            parts = [f"{step.tasks} tasks"]
            if step.output_bytes:
                parts.append(f"{describe_bytes(step.output_bytes)} to store before compression")
            if step.memory is not None:
                parts.append(f"a worker process takes {step.memory}")
            suffix = "; reused" if step.step in self.reused else ""
            yield f"step {step.step}: {'; '.join(parts)}{suffix}"
            yield from (f"  created {address}" for address in step.created)
        if self.reused:
            remaining = [each.step for each in self.steps if each.step not in self.reused]
            yield f"steps to run: {', '.join(remaining) or 'none'}"
        suffix = "" if self.is_new else "; the run already existed"
        yield f"sent {self.sent} tasks to {self.queue}{suffix}"
        price = ""
        if self.budget is not None:
            price = " --cost-per-hour PRICE"
            yield f"workers stop when they have spent {money(self.budget)} together"
        yield "start workers with:"
        yield f"  chunkflow work '{self.address}'{price}"


def submit(
    run: RunDirectory,
    pipelines: Sequence[StepPipeline],
    queue_url: str,
    *,
    create_queue: bool = True,
    shared_queue: bool = False,
    fork: RunDirectory | None = None,
    rehearse: bool = True,
    clear_output: bool = False,
    exchange: str | None = None,
    exchange_limit: int | None = None,
    workers: int = USUAL_WORKERS,
    budget: float | None = None,
    priority: int | None = None,
    sign_key: str | None = None,
) -> Submission:
    """Create a run, or complete an interrupted submission of the same pipelines.

    Args:
        run: run directory.
        pipelines: pipelines of the steps, in order.
        queue_url: URL of the queue; empty for a run on Dask, which has no queue.
        create_queue: whether to create the queue if it does not exist.
        shared_queue: whether to accept a queue that already has tasks of another run.
        fork: run from which the first steps are reused if they are complete and have the same
            hashes as the steps of the new run; ``None`` reuses no step.
        rehearse: whether to load the networks, to choose their backends and to estimate memory.
        exchange: whether and where tasks exchange the patches that they share. ``on`` uses the run
            directory. ``auto`` uses the run directory as long as the exchange saves time. ``off``
            disables the exchange. A URL is the address of another folder or bucket.
            ``None`` keeps the setting of an existing run, and means ``auto`` for a new run.
        exchange_limit: limit of the size of the exchange of a step, in bytes. ``None`` means half
            of the free space on a disk, and no limit in a bucket.
        clear_output: whether to delete objects that already exist where the tasks will write. If
            this run already exists, nothing is deleted.
        workers: number of worker processes that are expected to work at the same time; the order
            in which tasks are sent depends on this number.
        budget: limit of the cost of all workers together, in the currency of ``--cost-per-hour``.
            Workers take no more tasks when the limit is reached. ``None`` keeps the budget of an
            existing run.
        priority: priority of the run in a pool of workers; ``None`` keeps the priority of an
            existing run.
        sign_key: path of the private key with which to sign the spec; ``None`` for no signature.

    Raises:
        ChunkflowError: a pipeline, the store or the queue cannot be used. No task was sent.
    """
    if queue_url and address_of(queue_url)[0] == "memory":
        msg = (
            f"queue {queue_url} exists only in the memory of this process, so workers cannot reach "
            "it; use --queue sqlite:///PATH, or omit --queue"
        )
        raise OptionError(msg)
    _check_names(pipelines)
    if budget is not None:
        check_budget(budget)
    check_priority(priority or 0)
    key = None
    if sign_key is not None:
        from chunkflow_py.run.signatures import SigningKey

        key = SigningKey(sign_key)
    settings = None
    if (exchange, exchange_limit) != (None, None):
        settings = ExchangeSettings.of(exchange or "auto", exchange_limit)
    # Checks that can fail come before the creation of anything permanent.
    is_known = run.exists()
    if not is_known:
        run.check_no_old_records()
    if fork is not None:
        _ = fork.spec
    with ExitStack() as stack:
        stack.enter_context(run.folder_removed_on_failure())
        run.check_store()
        ready: list[StepPipeline] = []
        estimates: list[StepEstimate] = []
        stack.push(lambda kind, *_: _log_incomplete(run, estimates, kind) if kind else None)
        queue = None
        for pipeline in pipelines:
            # A step may read the outputs of the previous one, which exist by now.
            checked, estimate = prepared(pipeline, load_networks=rehearse)
            ready.append(checked)
            if queue_url and queue is None:
                queue = stack.enter_context(closing(open_queue(queue_url, create=create_queue)))
                queue_url = queue.url  # absolute, so that workers can start in any folder
                if not shared_queue:
                    check_queue_unused(queue, run)
            spec, plans, files = spec_of(ready, queue_url)
            earlier = (
                replace(s, outputs=e.outputs) for s, e in zip(spec.steps, estimates, strict=False)
            )
            check_readers(checked.operators, earlier)
            if is_known:
                run.check_same(spec, len(pipelines))
            estimates.append(replace(estimate, created=create_outputs(checked)))
        if fork is not None:
            spec = forked(spec, fork)
        if not run.exists():  # otherwise the stored objects may be results of this run
            for pipeline in ready:
                if pipeline.name not in spec.reused:
                    objects = leftovers(pipeline.pipeline(), pipeline.plan)
                    if deleted := clear_leftovers(objects, clear=clear_output):
                        logger.info(
                            "step %s: deleted %d objects of other runs", pipeline.name, deleted
                        )
        # Read metadata only now: later steps may have added levels to outputs of earlier ones.
        documents: dict[str, bytes] = {}
        steps = [
            replace(step, outputs=with_documents(estimate.outputs, documents))
            for step, estimate in zip(spec.steps, estimates, strict=True)
        ]
        spec = replace(spec, steps=tuple(steps))
        if budget is not None or not is_known:
            set_budget(run.store, budget)  # before workers can see the run
        if priority is not None:
            change_scheduling(run.store, priority=priority)
        if key is not None:
            if is_known and run.spec.digest != spec.digest:
                # The stored spec may differ in what `check_same` does not compare.
                msg = (
                    f"cannot sign {run.shown}: its stored spec (SHA-256 {run.spec.digest}) is not "
                    f"the spec of this pipeline (SHA-256 {spec.digest}), for example because "
                    "another version of chunkflow_py submitted the run; choose another --run"
                )
                raise OptionError(msg)
            key.sign(run.store, spec.digest)
        is_new, sent = run.create(spec, plans, files, documents), 0
        _set_exchange(run, ready, settings)
        mode = "off" if run.exchange is None else run.exchange.mode
        for pipeline in ready:
            set_sending_order(run, pipeline, mode, workers)
        step = run.current_step()
        # Workers send the tasks of later steps when the steps before them are complete.
        if queue is not None and step is not None and step == spec.first:
            sent = send_step(run, queue, step)
    return Submission(
        run.address,
        tuple(estimates),
        tuple(spec.reused),
        sent,
        is_new,
        queue_url,
        budget_of(run.store),
    )


def _set_exchange(
    run: RunDirectory, pipelines: Iterable[StepPipeline], settings: ExchangeSettings | None
) -> None:
    """Store *settings*, or the default if *settings* is ``None`` and the run has no settings."""
    networks = [
        pipeline
        for pipeline in pipelines
        if any(operator.hooks.declares("part_store") for operator in pipeline.operators)
    ]
    if not networks or (settings is None and run.exchange is not None):
        return
    settings = settings or ExchangeSettings("auto")
    run.set_exchange(settings)
    for pipeline in networks:
        if pipeline.device_class == "any" and settings.mode != "off":
            logger.info(
                "step %s: tasks do not exchange patches, because machines of different types may "
                "compute different values (--device-class any)",
                pipeline.name,
            )


def _check_names(pipelines: Sequence[StepPipeline]) -> None:
    seen: set[str] = set()
    for pipeline in pipelines:
        if pipeline.name in seen:
            msg = f"two steps are called {pipeline.name}; change the --stage of one step"
            raise OptionError(msg)
        seen.add(pipeline.name)


def _log_incomplete(
    run: RunDirectory, estimates: Iterable[StepEstimate], kind: type[BaseException]
) -> None:
    """Log the outputs and the run that a failed or interrupted submission has created."""
    created = " and ".join(address for step in estimates for address in step.created)
    if issubclass(kind, Exception):
        if created:
            logger.warning(
                "outputs of earlier steps were created and are kept: %s; correct the pipeline and "
                "submit it again",
                created,
            )
    elif run.exists():
        logger.warning(
            "the run %s was created, but not all of its tasks were sent; submit the same pipeline "
            "again to send the other tasks",
            run.url,
        )
    elif created:
        logger.warning(
            "the run was not created, but these outputs were created: %s; submit the same "
            "pipeline again to use them",
            created,
        )
    else:
        logger.warning("the run was not created")


def check_queue_unused(queue: Queue, run: RunDirectory) -> None:
    """Check that the queue of a new run is empty.

    If two runs share a queue, each worker also receives tasks of the other run. The worker must
    return these tasks to the queue, which delays both runs.

    Raises:
        OptionError: the queue contains tasks. The message shows one of these tasks.
    """
    count = sum(_task_counts(queue))
    # If the run exists, the tasks may be its own.
    if not count or run.exists():
        return
    msg = (
        f"queue {queue.url} already has {count} tasks{_described_task(queue)}, and workers of "
        "two runs that share a queue delay each other; give this run its own --queue, or add "
        "--shared-queue to share the queue on purpose"
    )
    raise OptionError(msg)


def _described_task(queue: Queue) -> str:
    """Return a phrase that describes the next message of a queue; the message stays available."""
    messages = queue.receive(1, lease_s=_PEEK_LEASE_S)
    queue.release(messages)
    for message in messages:
        try:
            body = parse_body(message.body)
        except BodyError:
            return f", such as {message.body[:80]!r}"
        if body.run:
            return f" of step {body.stage} of another run (the hash of the step is {body.run})"
        return f", such as {message.body!r}, which names no run"
    return ""  # all tasks are leased by workers


def spec_of(
    pipelines: Sequence[StepPipeline], queue: str
) -> tuple[Spec, dict[str, bytes], dict[File, Path]]:
    """Return the spec of a run, the contents of its plans, and the paths of its files.

    Raises:
        OptionError: a file that an operator needs does not exist on this machine.
    """
    steps: list[RunStep] = []
    plans: dict[str, bytes] = {}
    paths: dict[File, Path] = {}
    for pipeline in pipelines:
        files = _files(pipeline.operators)
        paths |= dict(files.values())
        placeholders = {typed: file.placeholder for typed, (file, _) in files.items()}
        description, content = pipeline.plan.to_json()
        plans[pipeline.name] = content
        steps.append(
            RunStep(
                name=pipeline.name,
                arguments=tuple(
                    _without_path(argument, placeholders)
                    for argv in pipeline.arguments
                    for argument in argv
                ),
                source=pipeline.source_arguments,
                mip=pipeline.mip,
                options=tuple(
                    options_of(argv[0], _covered(op, placeholders))
                    for op, argv in zip(pipeline.operators, pipeline.arguments, strict=True)
                ),
                plan=description,
                plan_sha256=sha256_of(content),
                tasks=len(pipeline.plan),
                files=tuple(sorted((f for f, _ in files.values()), key=lambda f: f.placeholder)),
                code=tuple(code for op in pipeline.operators for code in op.runs_code),
                device_class=pipeline.device_class,
                previous=steps[-1].hash if steps else "",
            )
        )
    spec = Spec(tuple(steps), queue, str(Path.cwd()), version("chunkflow_py"), {})
    return spec, plans, paths


def forked(spec: Spec, old: RunDirectory) -> Spec:
    """Return a copy of *spec* that reuses the completed first steps of *old*.

    A step is reused if *old* has completed the step, if name and hash of the step are the same in
    both runs, and if all earlier steps are reused.
    """
    reused: dict[str, str] = {}
    for new, was in zip(spec.steps, old.spec.steps, strict=False):
        if new.name != was.name or new.hash != was.hash or not old.is_closed(was.name):
            break  # later steps would read a different input
        reused[new.name] = old.spec.reused.get(was.name, old.url)
    return replace(spec, reused=reused)


def send_step(run: RunDirectory, queue: Queue, step: str) -> int:
    """Send the tasks of a step that have no record; return the number of tasks sent.

    The tasks are sent in the order that `chunkflow_py.run.sending_order.tasks_in_order` returns.
    Memory use does not depend on the number of tasks. Repeated or concurrent calls are safe: a task
    that is queued twice is recorded only once.
    """
    numbers: Iterable[int] = ()
    # An empty queue may have been deleted and created again, which loses its tasks.
    if not run.is_sent(step) or not any(_task_counts(queue)):
        numbers = run.ledger(step).missing(tasks_in_order(run, step))
    count = queue.send(bodies(run, step, numbers))
    run.set_sent(step, count)
    return count


def _task_counts(queue: Queue) -> tuple[int, int]:
    counts = queue.counts(dead=False)
    return counts.waiting, counts.leased


def bodies(run: RunDirectory, step: str, numbers: Iterable[int]) -> Iterator[str]:
    """Yield the text of the queue message of each task.

    Args:
        run: run directory.
        step: name of the step.
        numbers: numbers of the tasks in the plan of the step.
    """
    plan, step_hash = run.plan(step), run.spec.step(step).hash
    return (body_text(plan.text(number), step_hash, step) for number in numbers)


def default_run(operators: Sequence[Operator]) -> str:
    """Return the default address of a run: the address of its last output, plus ``.run``.

    If the address of the output has a placeholder (``BOX`` or ``ID``), only the part before the
    placeholder is used: ``pts/BOX.h5`` yields ``pts.run``.

    Raises:
        OptionError: no operator of the pipeline has an output with a known address.
    """
    for operator in reversed(operators):
        for place in operator.hooks.destinations[:1]:
            address, level, _ = place.partition(LEVEL)
            if not level and (template := _TEMPLATE.fullmatch(address)):
                address = template[1].rstrip("_-.")
            return f"{Location.parse(address.rstrip('/')).store_url}.run"
    msg = "the pipeline has no output from which to derive the run directory; add --run URL"
    raise OptionError(msg)


def default_queue(run: str) -> str:
    """Return the URL of the default queue: an SQLite file in the run directory.

    Raises:
        OptionError: the run directory is not a local folder.
    """
    scheme, separator, path = run.partition("://")
    if separator and scheme != "file":
        msg = (
            f"run {run} is not in a local folder, so its queue cannot be a file in the folder; add "
            "--queue sqs://NAME"
        )
        raise OptionError(msg)
    return f"sqlite://{absolute(path if separator else run)}/queue.sqlite"


def _files(operators: Iterable[Operator]) -> dict[str, tuple[File, Path]]:
    files: dict[str, tuple[File, Path]] = {}
    for operator in operators:
        for typed, role in (operator.files | operator.hooks.needed_files).items():
            fetched = operator.hooks.fetched_files.get(typed)
            path = Path(fetched or typed).expanduser()
            if not path.is_file():
                msg = (
                    f"{operator.name} needs {typed}, which is not a file on this machine; correct "
                    "the path"
                )
                raise OptionError(msg)
            content = path.read_bytes()
            origin = public(typed.partition("#")[0]) if fetched else ""
            files[typed] = File(path.name, sha256_of(content), role, origin), path
    return files


def _covered(operator: Operator, placeholders: dict[str, str]) -> dict[str, Any]:
    """Return the canonical options of an operator, and the addresses that the operator uses.

    Paths are made absolute, so the same options have the same hash in every working directory.
    """
    hooks, addresses = operator.hooks, dict[str, list[str]]()
    for name, used in (("reads", hooks.origins), ("writes", hooks.destinations)):
        if used:
            addresses[name] = [canonical_address(address) for address in used]
    known = [address for some in addresses.values() for address in some]
    options = {
        name: _canonical_value(_without_path(value, placeholders), known)
        for name, value in operator.options.items()
    }
    return options | addresses


def canonical_address(place: str) -> str:
    """Return the absolute ``file://`` address of a local path; return other addresses unchanged."""
    scheme, separator, path = place.partition("://")
    if separator and scheme != "file":
        return place
    return f"file://{os.path.realpath(os.path.expanduser(path if separator else place))}"  # noqa: PTH111


def _canonical_value(value: Any, places: Sequence[str]) -> Any:
    """Return the value of an option, with a relative path of an input or output made absolute.

    Args:
        value: value of the option.
        places: absolute addresses that the operator reads and writes. A value is treated as a path
            only if its absolute form is the beginning of one of these addresses.
    """
    if not isinstance(value, str) or not value.strip("/"):
        return value
    try:
        location = Location.parse(value)
    except VolumeError:
        return value
    address = canonical_address(location.store_url)
    if not any(place.startswith(address) for place in places):
        return value
    scheme = f"{location.scheme}://" if location.scheme else ""
    return f"{scheme}{address}{f':{location.dataset}' if location.dataset else ''}"


def _without_path(value: Any, placeholders: dict[str, str]) -> Any:
    if not isinstance(value, str):
        return value
    if value in placeholders:
        return placeholders[value]
    if value[:1] == "-" and value[2:] in placeholders:  # -mnet.py
        return f"{value[:2]}{placeholders[value[2:]]}"
    name, separator, path = value.partition("=")
    return f"{name}={placeholders[path]}" if separator and path in placeholders else value
