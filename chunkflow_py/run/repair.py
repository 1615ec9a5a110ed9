"""Repair a run: send the tasks again whose output is missing or damaged, or that failed."""

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
    """Yield the damages of all steps, each with the name of its step."""
    begun = {step.name for step in _begun(run)}
    for step in run.spec.steps:
        if step.name in begun:
            for damage in _found(run, step):
                yield step.name, damage
        else:
            reason = f"none of its {step.tasks} tasks: the stage has not begun"
            yield step.name, Damage(None, "", "not recorded", reason)


@dataclass(frozen=True)
class Repair:
    """The result of `repair_run`.

    Attributes:
        sent: how many tasks were sent.
        mended: addresses of the metadata that was restored.
        removed: addresses of the objects that were removed.
        later: name of a later step -> how many of its tasks are done again after those.
    """

    sent: int
    mended: tuple[str, ...]
    removed: tuple[str, ...]
    later: dict[str, int]


def repair_run(run: RunDirectory, make_line: MakeSourcedPipeline) -> Repair:
    """Restore metadata of outputs, and send the tasks again whose output is missing or damaged.

    Tasks of later steps that have read that output are done again afterwards. The queue is
    created if it is gone. Objects that the tasks would not overwrite are removed; see
    `_unexpected` and `_counted_as_done`.

    Args:
        run: its directory.
        make_line: makes the pipeline of a step as for a worker, which shows what its tasks read.

    Raises:
        OptionError: something is wrong with a step that was taken over from another run, whose
            workers alone do its tasks. What was made of it here is noted for the next repair.
    """
    run.spec.check_current()
    mended, refusal = list[str](), ""
    counted_as_done: dict[str, list[str]] = {}
    unexpected: dict[str, list[str]] = {}
    again: dict[str, Tasks] = {}  # tasks that are done again
    changed: dict[str, Tasks] = {}  # tasks of which later steps may have read something wrong
    read: dict[str, Tasks] = {}  # tasks that have read something wrong
    steps = list(_begun(run))
    for step in steps:
        plan, owner = run.plan(step.name), run.spec.reused.get(step.name)
        coverage = run.coverage(step.name)
        restored = coverage.restore()
        found = [each for each in _found(run, step, coverage) if each.can_be_repaired]
        own = {each.number for each in found if each.number is not None}
        noted = run.stale(step.name) if owner is None else set[int]()
        read[step.name] = _union(plan, dependents(run, step, changed, make_line), noted)
        again[step.name] = _union(plan, own, read[step.name])
        damaged = {each.url for each in found if each.kind == "damaged" and each.url}
        records = run.ledger(step.name).records()
        counted_as_done[step.name] = list(
            _counted_as_done(plan, coverage, records, damaged, read[step.name])
        )
        unexpected[step.name] = list(_unexpected(plan, coverage, found))
        changed[step.name] = plan if restored else again[step.name]
        mended += restored
        if found and owner is not None and not refusal:
            refusal = (
                f"stage {step.name} of {run.url} is taken over from {owner}, where "
                f"{len(found)} things are missing or damaged; mend them there: chunkflow "
                f"repair {owner}, and chunkflow work {owner}; then repair this run again"
            )
    todo = [s.name for s in steps if s.name not in run.spec.reused and len(again[s.name])]
    for name in todo if refusal else todo[1:]:
        if len(read[name]):
            run.add_stale(name, read[name])
    if refusal:
        raise OptionError(refusal)
    # A queue that was lost is made again: what it held has no record, and is sent below.
    with closing(_queue_of(run, create=True)) as queue:
        if not todo:
            return Repair(0, tuple(mended), (), {})
        # A repair that is cut off finds these missing, but not what they were without a record.
        outdated = [url for name in todo for url in counted_as_done[name]]
        for url in outdated:
            remove(url)
        # No worker must find a step open while the one before it seems to be done.
        run.renew(todo[0])
        run.ledger(todo[0]).reopen(again[todo[0]])
        run.reopen(todo[0])
        for name in todo[1:]:
            run.ledger(name).reopen(again[name])
            run.reopen(name)
            run.unsend(name)
        # The records of these are gone, so that later steps are not taken for right before.
        stray = [url for name in todo for url in unexpected[name]]
        for url in stray:
            remove(url)
        step = run.spec.step(todo[0])
        damages = (Damage(number, "", "missing") for number in again[todo[0]])
        body_of = partial(_body, run, step)
        sent = repair_tasks(run.ledger(step.name), run.plan(step.name), queue, damages, body_of)
    removed = tuple(dict.fromkeys(outdated + stray))
    return Repair(sent, tuple(mended), removed, {name: len(again[name]) for name in todo[1:]})


def _unexpected(plan: Plan, coverage: Coverage, found: list[Damage]) -> Iterator[str]:
    """Yield the addresses of objects that would remain although their task is done again.

    A task that is skipped, or leaves out a part of its box, does not overwrite what is stored
    there. Only write units of the task's own box count, whatever its record names.

    Args:
        plan: of the step.
        coverage: of the step, as `verify` has used it.
        found: damages of the step.
    """
    for each in found:
        if each.kind != "unexpected" or each.number is None or each.url is None:
            continue
        if each.url in coverage.expected(plan.region(each.number)):
            yield each.url


def _counted_as_done(
    plan: Plan, coverage: Coverage, records: Iterable[Record], damaged: set[str], read: Tasks
) -> Iterator[str]:
    """Yield the addresses of wrong objects that would make a task skip as already done.

    Args:
        plan: of the step.
        coverage: of the step, as `verify` has used it.
        records: of the step.
        damaged: addresses of objects.
        read: the tasks of the step that have read wrong output.
    """
    if not coverage.skips_stored or not (damaged or len(read)):
        return
    for record in records:
        if record.number not in plan:
            continue
        urls = {stored.url for stored in record.written if stored.size is not None}
        if record.number not in read:
            urls &= damaged
        if urls:
            yield from urls & coverage.expected(plan.region(record.number)).keys()


def _union(plan: Plan, one: Tasks, other: Tasks) -> Tasks:
    """Return the tasks of both; the plan itself if one of them is that."""
    return plan if one is plan or other is plan else {*one, *other}


def retry_run(run: RunDirectory) -> int:
    """Send the failed tasks of all steps again; return how many."""
    run.spec.check_current()
    count = 0
    with closing(_queue_of(run)) as queue:
        for step in _begun(run):
            count += retry_failed(
                run.ledger(step.name), run.plan(step.name), queue, partial(_body, run, step)
            )
    return count


def _queue_of(run: RunDirectory, *, create: bool = False) -> Queue:
    """Return the queue of a run; for a run on Dask, which has none, one that is discarded.

    On Dask, tasks without a record are submitted again by the client.
    """
    return open_queue(run.spec.queue or "memory://none", create=create or not run.spec.queue)


def _begun(run: RunDirectory) -> Iterator[RunStep]:
    """Yield the steps whose tasks were sent, or taken over from another run, and the first one.

    Those of a run on Dask are not sent: there a step has begun when the one before it is closed.
    """
    is_next = True
    for step in run.spec.steps:
        if is_next or run.is_sent(step.name) or run.is_closed(step.name):
            yield step
        is_next = run.is_closed(step.name)


def _found(run: RunDirectory, step: RunStep, coverage: Coverage | None = None) -> Iterator[Damage]:
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
    """Delete the object at a URL, if there is one.

    Raises:
        VolumeError: the store does not allow it.
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
    """Send the tasks again of which something is missing or damaged; return how many.

    Their records are removed before their messages are sent. A repair that dies in between leaves
    them without a record, which the next `verify` finds. Tasks that were given up stay so.

    Args:
        ledger: of the step.
        plan: of the step.
        queue: of the run.
        damages: what `verify` yields.
        body_of: number of a task -> text of its message.
    """
    wrong = (d.number for d in damages if d.can_be_repaired and d.number is not None)
    numbers = (number for number, _ in groupby(wrong) if number in plan)
    return _send_again(ledger, queue, numbers, body_of)


def retry_failed(ledger: Ledger, plan: Plan, queue: Queue, body_of: Callable[[int], str]) -> int:
    """Send the tasks again that were given up, as if they had never failed; return how many.

    Args:
        ledger: of the step.
        plan: of the step.
        queue: of the run.
        body_of: number of a task -> text of its message.
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
        # Also those without a record: one may be there that cannot be read.
        ledger.reopen(batch)
        sent += queue.send(map(body_of, batch))
    return sent
