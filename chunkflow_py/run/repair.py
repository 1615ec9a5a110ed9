"""Repair and retry: resend tasks with missing or damaged output, and tasks that failed."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import groupby, islice
from typing import TYPE_CHECKING

from chunkflow_py.errors import OptionError
from chunkflow_py.queue.message_body import body_text
from chunkflow_py.queue.queue_protocol import open_queue
from chunkflow_py.run.dependent_tasks import dependents
from chunkflow_py.run.verify import Damage, split_address, verify
from chunkflow_py.store import open_store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from chunkflow_py.queue.queue_protocol import Queue
    from chunkflow_py.run.coverage import Coverage
    from chunkflow_py.run.dependent_tasks import MakeSourcedPipeline, Tasks
    from chunkflow_py.run.ledger.ledger import Ledger
    from chunkflow_py.run.ledger.ledger_record import Record
    from chunkflow_py.run.run_directory import RunDirectory
    from chunkflow_py.run.run_spec import RunStep
    from chunkflow_py.tasks.task_plan import Plan

BATCH = 1000  # tasks


def damages_of(run: RunDirectory) -> Iterator[tuple[str, Damage]]:
    """Yield the problems of all steps of a run, each with the name of its step."""
    begun = {step.name for step in _begun(run)}
    for step in run.spec.steps:
        if step.name in begun:
            for damage in _verified(run, step):
                yield step.name, damage
        else:
            reason = f"step {step.name} with {step.tasks} tasks has not begun"
            yield step.name, Damage(None, "", "not recorded", reason)


@dataclass(frozen=True)
class Repair:
    """The result of `repair_run`.

    Attributes:
        sent: number of tasks that were sent again.
        restored: addresses of the metadata documents that were restored.
        removed: addresses of the objects that were removed.
        later: for each later step, its name and the number of its tasks that will be repeated.
    """

    sent: int
    restored: tuple[str, ...]
    removed: tuple[str, ...]
    later: dict[str, int]


def repair_run(run: RunDirectory, make_pipeline: MakeSourcedPipeline) -> Repair:
    """Restore metadata, and resend the tasks whose output is missing or damaged.

    If tasks of later steps have read missing or damaged output, workers repeat these tasks when the
    earlier steps are complete again. The queue is created if it does not exist. A wrong object is
    removed in two cases: the repeated task would not overwrite the object, or would be skipped
    because the object exists.

    Args:
        run: run directory.
        make_pipeline: function that takes a `PipelineSource` and a source of tasks, and returns the
            pipeline of a step. The pipeline shows which boxes the tasks read.

    Raises:
        OptionError: a step that is reused from another run has problems. Only a repair of the other
            run can solve these problems. The tasks of this run that depend on the step are recorded
            for the next repair of this run.
    """
    run.spec.check_current()
    restored, refusal = list[str](), ""
    counted_as_done: dict[str, list[str]] = {}
    unexpected: dict[str, list[str]] = {}
    repeated: dict[str, Tasks] = {}
    changed: dict[str, Tasks] = {}  # tasks whose wrong output later steps may have read
    dependent: dict[str, Tasks] = {}  # tasks that have read wrong output
    steps = list(_begun(run))
    for step in steps:
        plan, owner = run.plan(step.name), run.spec.reused.get(step.name)
        coverage = run.coverage(step.name)
        documents = coverage.restore()
        problems = [each for each in _verified(run, step, coverage) if each.can_be_repaired]
        own = {each.number for each in problems if each.number is not None}
        stale = run.stale(step.name) if owner is None else set[int]()
        dependent[step.name] = _union(plan, dependents(run, step, changed, make_pipeline), stale)
        repeated[step.name] = _union(plan, own, dependent[step.name])
        damaged = {each.url for each in problems if each.kind == "damaged" and each.url}
        records = run.ledger(step.name).records()
        counted_as_done[step.name] = list(
            _counted_as_done(plan, coverage, records, damaged, dependent[step.name])
        )
        unexpected[step.name] = list(_unexpected(plan, coverage, problems))
        changed[step.name] = plan if documents else repeated[step.name]
        restored += documents
        if problems and owner is not None and not refusal:
            refusal = (
                f"step {step.name} of {run.url} is reused from {owner}, which has "
                f"{len(problems)} missing or damaged objects or tasks; run chunkflow repair "
                f"{owner} and chunkflow work {owner}, then repair this run again"
            )
    todo = [s.name for s in steps if s.name not in run.spec.reused and len(repeated[s.name])]
    for name in todo if refusal else todo[1:]:
        if len(dependent[name]):
            run.add_stale(name, dependent[name])
    if refusal:
        raise OptionError(refusal)
    # If the queue was lost, its tasks have no record and are sent again below.
    with closing(_queue_of(run, create=True)) as queue:
        if not todo:
            return Repair(0, tuple(restored), (), {})
        # Remove objects before their records. If the repair is interrupted in between, the next
        # repair finds that the objects are missing. If instead the records were removed first, the
        # next repair could not tell that the objects are outdated.
        outdated = [url for name in todo for url in counted_as_done[name]]
        for url in outdated:
            remove(url)
        # Reopen steps in order, so that no worker begins a step whose predecessor looks complete.
        run.renew(todo[0])
        run.ledger(todo[0]).reopen(repeated[todo[0]])
        run.reopen(todo[0])
        for name in todo[1:]:
            run.ledger(name).reopen(repeated[name])
            run.reopen(name)
            run.unsend(name)
        # Remove these objects after reopening their tasks. Otherwise, if this repair is
        # interrupted, the next repair would not know that later steps have read the objects.
        stray = [url for name in todo for url in unexpected[name]]
        for url in stray:
            remove(url)
        step = run.spec.step(todo[0])
        damages = (Damage(number, "", "missing") for number in repeated[todo[0]])
        body_of = partial(_body, run, step)
        sent = repair_tasks(run.ledger(step.name), run.plan(step.name), queue, damages, body_of)
    removed = tuple(dict.fromkeys(outdated + stray))
    return Repair(sent, tuple(restored), removed, {name: len(repeated[name]) for name in todo[1:]})


def _unexpected(plan: Plan, coverage: Coverage, problems: list[Damage]) -> Iterator[str]:
    """Yield the addresses of unexpected objects that a repeated task might not overwrite.

    A task does not overwrite existing objects if it is skipped or omits empty blocks. Objects
    outside the box of the task are not yielded, even if the record of the task names them.

    Args:
        plan: plan of the step.
        coverage: coverage of the step, which `verify` has already used.
        problems: problems of the step.
    """
    for each in problems:
        if each.kind != "unexpected" or each.number is None or each.url is None:
            continue
        if each.url in coverage.expected(plan.region(each.number)):
            yield each.url


def _counted_as_done(
    plan: Plan, coverage: Coverage, records: Iterable[Record], damaged: set[str], dependent: Tasks
) -> Iterator[str]:
    """Yield the addresses of wrong objects that would cause a repeated task to be skipped.

    Args:
        plan: plan of the step.
        coverage: coverage of the step, which `verify` has already used.
        records: records of the step.
        damaged: addresses of damaged objects.
        dependent: tasks of the step that have read wrong output of an earlier step.
    """
    if not coverage.skips_stored or not (damaged or len(dependent)):
        return
    for record in records:
        if record.number not in plan:
            continue
        urls = {stored.url for stored in record.written if stored.size is not None}
        if record.number not in dependent:
            urls &= damaged
        if urls:
            yield from urls & coverage.expected(plan.region(record.number)).keys()


def _union(plan: Plan, one: Tasks, other: Tasks) -> Tasks:
    return plan if one is plan or other is plan else {*one, *other}


def retry_run(run: RunDirectory) -> int:
    """Send the failed tasks of all steps again; return the number of tasks sent."""
    run.spec.check_current()
    count = 0
    with closing(_queue_of(run)) as queue:
        for step in _begun(run):
            count += retry_failed(
                run.ledger(step.name), run.plan(step.name), queue, partial(_body, run, step)
            )
    return count


def _queue_of(run: RunDirectory, *, create: bool = False) -> Queue:
    """Open the queue of a run, or a temporary queue in memory for a run on Dask.

    A run on Dask has no queue. The Dask client finds the tasks without a record and submits them.
    """
    return open_queue(run.spec.queue or "memory://none", create=create or not run.spec.queue)


def _begun(run: RunDirectory) -> Iterator[RunStep]:
    """Yield the steps that have begun.

    A step has begun if its tasks were sent, if the step is reused from another run, or if all tasks
    of the previous step have ended. The last condition is needed for runs on Dask, which send no
    tasks.
    """
    previous_is_closed = True
    for step in run.spec.steps:
        if previous_is_closed or run.is_sent(step.name) or run.is_closed(step.name):
            yield step
        previous_is_closed = run.is_closed(step.name)


def _verified(
    run: RunDirectory, step: RunStep, coverage: Coverage | None = None
) -> Iterator[Damage]:
    mixed = step.device_class == "any"
    if run.spec.is_older:
        return verify(run.ledger(step.name), run.plan(step.name), mixed=mixed)
    return verify(
        run.ledger(step.name),
        run.plan(step.name),
        spec=step.hash,
        coverage=coverage or run.coverage(step.name),
        mixed=mixed,
    )


def _body(run: RunDirectory, step: RunStep, number: int) -> str:
    return body_text(run.plan(step.name).text(number), step.hash, step.name)


def remove(url: str) -> None:
    """Delete the object at *url* if it exists.

    Raises:
        VolumeError: the store refuses to delete the object.
    """
    root, key = split_address(url)
    open_store(root).delete(key)


def repair_tasks(
    ledger: Ledger,
    plan: Plan,
    queue: Queue,
    damages: Iterable[Damage],
    body_of: Callable[[int], str],
) -> int:
    """Resend the tasks whose output is missing or damaged; return the number of tasks sent.

    The records of the tasks are removed before their messages are sent. If the repair is
    interrupted before the messages are sent, `verify` still reports the tasks. Tasks that have
    failed are not sent.

    Args:
        ledger: ledger of the step.
        plan: plan of the step.
        queue: queue of the run.
        damages: problems, as yielded by `verify`.
        body_of: function that takes the number of a task and returns the text of its message.
    """
    damaged = (d.number for d in damages if d.can_be_repaired and d.number is not None)
    numbers = (number for number, _ in groupby(damaged) if number in plan)
    return _send_again(ledger, queue, numbers, body_of)


def retry_failed(ledger: Ledger, plan: Plan, queue: Queue, body_of: Callable[[int], str]) -> int:
    """Remove the failures of failed tasks, and resend these tasks; return the number of tasks.

    Args:
        ledger: ledger of the step.
        plan: plan of the step.
        queue: queue of the run.
        body_of: function that takes the number of a task and returns the text of its message.
    """
    dead = (record.number for record in ledger.records(states={"dead"}) if record.number in plan)
    return _send_again(ledger, queue, dead, body_of)


def _send_again(
    ledger: Ledger,
    queue: Queue,
    numbers: Iterator[int],
    body_of: Callable[[int], str],
) -> int:
    sent = 0
    while batch := list(islice(numbers, BATCH)):
        # Also reopen tasks that seem to have no record: the record may be unreadable.
        ledger.reopen(batch)
        sent += queue.send(map(body_of, batch))
    return sent
