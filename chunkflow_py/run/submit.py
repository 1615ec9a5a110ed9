"""Submit a run: check its pipelines, create their outputs, store the spec, send the tasks."""

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
from chunkflow_py.core.outputs import BOX
from chunkflow_py.errors import OptionError, VolumeError
from chunkflow_py.pipeline.hooks import HasFiles, places_read, places_written
from chunkflow_py.queue.message_body import BodyError, body_text, parse_body
from chunkflow_py.queue.queue_protocol import address_of, open_queue
from chunkflow_py.run.coverage import documented
from chunkflow_py.run.earlier_steps import check_readers
from chunkflow_py.run.leftovers import leftovers, settle
from chunkflow_py.run.run_spec import File, RunStep, Spec, options_of, sha256_of
from chunkflow_py.run.step_pipeline import create_outputs, prepared
from chunkflow_py.store.local_files import absolute
from chunkflow_py.volume.location import LEVEL, Location

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from chunkflow_py.pipeline.operator import Operator
    from chunkflow_py.queue.queue_protocol import Queue
    from chunkflow_py.run.run_directory import RunDirectory
    from chunkflow_py.run.step_pipeline import StepEstimate, StepPipeline

logger = logging.getLogger(__name__)

# A place of one file for each task, or for each object.
_TEMPLATE = re.compile(rf"(.*?)(?:{BOX}|ID)(?:\.[^/]*)?")
_GLANCE_S = 10.0  # for which a message is leased that is only looked at


@dataclass(frozen=True)
class Submission:
    """The result of `submit`.

    Attributes:
        address: of the run, for workers.
        steps: estimate of each step.
        reused: steps that were taken over.
        sent: how many tasks of the first open step were sent by this call.
        is_new: whether this call made the run.
        queue: URL.
    """

    address: str
    steps: tuple[StepEstimate, ...]
    reused: tuple[str, ...]
    sent: int
    is_new: bool
    queue: str

    def words(self) -> Iterator[str]:
        """Yield lines for a person; the last is for workers."""
        for step in self.steps:
            parts = [f"{step.tasks} tasks"]
            if step.output_bytes:
                parts.append(f"{describe_bytes(step.output_bytes)} to store before compression")
            if step.memory is not None:
                parts.append(f"a worker process takes {step.memory}")
            again = "; taken over" if step.step in self.reused else ""
            yield f"stage {step.step}: {'; '.join(parts)}{again}"
            yield from (f"  created {address}" for address in step.created)
        if self.reused:
            rest = [each.step for each in self.steps if each.step not in self.reused]
            yield f"to be done: {', '.join(rest) or 'nothing'}"
        known = "" if self.is_new else "; the run was there already"
        yield f"sent {self.sent} tasks to {self.queue}{known}"
        yield "start workers with:"
        yield f"  chunkflow work '{self.address}'"


def submit(
    run: RunDirectory,
    lines: Sequence[StepPipeline],
    queue_url: str,
    *,
    create_queue: bool = True,
    shared_queue: bool = False,
    fork: RunDirectory | None = None,
    rehearse: bool = True,
    clear_output: bool = False,
) -> Submission:
    """Make a run, or complete an interrupted submission of the same pipelines.

    Args:
        run: its directory.
        lines: its steps.
        queue_url: of its tasks; empty: there is none.
        create_queue: make the queue unless it is there.
        shared_queue: take a queue that holds tasks of others.
        fork: a run whose finished steps are taken over where their output would be the same.
        rehearse: load networks, and estimate the memory.
        clear_output: delete what other runs have stored where tasks of this one will write; of a
            run that is there already nothing is deleted.

    Raises:
        ChunkflowError: a pipeline, the store or the queue is not usable; nothing was sent.
    """
    if queue_url and address_of(queue_url)[0] == "memory":
        msg = f"queue {queue_url} ends with this process; give --queue sqlite:///PATH, or none"
        raise OptionError(msg)
    _check_names(lines)
    # What can be refused is looked at before anything is made that would stay.
    is_known = run.exists()
    if not is_known:
        run.check_free()
    if fork is not None:
        _ = fork.spec
    with ExitStack() as stack:
        stack.enter_context(run.undone_if_refused())
        run.check_store()
        ready: list[StepPipeline] = []
        expected: list[StepEstimate] = []
        stack.push(lambda kind, *_: _tell_of(run, expected, kind) if kind else None)
        queue = None
        for line in lines:
            # A step may read what the one before it writes, which is then there.
            checked, told = prepared(line, rehearse=rehearse)
            ready.append(checked)
            if queue_url and queue is None:
                queue = stack.enter_context(closing(open_queue(queue_url, create=create_queue)))
                queue_url = queue.url  # the same from whatever folder a worker is started
                if not shared_queue:
                    check_own(queue, run)
            spec, plans, files = spec_of(ready, queue_url)
            earlier = (
                replace(s, outputs=e.outputs) for s, e in zip(spec.steps, expected, strict=False)
            )
            check_readers(checked.operators, earlier)
            if is_known:
                run.check_same(spec, len(lines))
            expected.append(replace(told, created=create_outputs(checked)))
        if fork is not None:
            spec = forked(spec, fork)
        if not run.exists():  # what one that is there has stored is its own
            for line in ready:
                if line.name not in spec.reused:
                    found = leftovers(line.pipeline(), line.plan)
                    if deleted := settle(found, clear=clear_output):
                        logger.info("stage %s: deleted %d objects", line.name, deleted)
        # All outputs are there: a later step may have added levels to what one before it writes.
        documents: dict[str, bytes] = {}
        steps = [
            replace(step, outputs=documented(told.outputs, documents))
            for step, told in zip(spec.steps, expected, strict=True)
        ]
        spec = replace(spec, steps=tuple(steps))
        is_new, sent = run.create(spec, plans, files, documents), 0
        step = run.current_step()
        # Later steps are opened by workers when all before them is done.
        if queue is not None and step is not None and step == spec.first:
            sent = send_step(run, queue, step)
    return Submission(run.address, tuple(expected), tuple(spec.reused), sent, is_new, queue_url)


def _check_names(lines: Sequence[StepPipeline]) -> None:
    seen: set[str] = set()
    for line in lines:
        if line.name in seen:
            msg = f"two stages are called {line.name}; give one another --stage"
            raise OptionError(msg)
        seen.add(line.name)


def _tell_of(
    run: RunDirectory, expected: Iterable[StepEstimate], kind: type[BaseException]
) -> None:
    """Say what a submission has made that is refused at a later step, or was interrupted."""
    made = " and ".join(address for step in expected for address in step.created)
    if issubclass(kind, Exception):
        if made:
            words = "made for an earlier stage, stays there; mend the line and submit it again"
            logger.warning("%s, %s", made, words)
    elif run.exists():
        logger.warning("%s is there, but not all of its tasks; the same line goes on", run.url)
    elif made:
        logger.warning("no run was made, but %s, which the same line takes over", made)
    else:
        logger.warning("no run was made")


def check_own(queue: Queue, run: RunDirectory) -> None:
    """Refuse the queue of another run, for a run that is new: workers of both would starve.

    Raises:
        OptionError: it holds tasks; says of which run, as far as they tell.
    """
    there = sum(_held(queue))
    # What another producer of this run has sent came after the run.
    if not there or run.exists():
        return
    msg = (
        f"queue {queue.url} holds {there} tasks already{_whose(queue)}, and workers of two runs "
        "on one queue keep each other from their tasks; give this run a --queue of its own, or "
        "--shared-queue if that is meant"
    )
    raise OptionError(msg)


def _whose(queue: Queue) -> str:
    """Return in words what the next message of a queue is of; it is given back at once."""
    messages = queue.receive(1, lease_s=_GLANCE_S)
    queue.release(messages)
    for message in messages:
        try:
            body = parse_body(message.body)
        except BodyError:
            return f", such as {message.body[:80]!r}"
        if body.run:
            return f", of stage {body.stage} of another run (its hash is {body.run})"
        return f", such as {message.body!r}, which says no run"
    return ""  # others work on all of them


def spec_of(
    lines: Sequence[StepPipeline], queue: str
) -> tuple[Spec, dict[str, bytes], dict[File, Path]]:
    """Return the spec of a run, the contents of its plans, and where its files are.

    Raises:
        OptionError: a file does not exist.
    """
    steps: list[RunStep] = []
    plans: dict[str, bytes] = {}
    paths: dict[File, Path] = {}
    for line in lines:
        found = _files(line.operators)
        paths |= dict(found.values())
        marks = {word: file.word for word, (file, _) in found.items()}
        said, content = line.plan.to_json()
        plans[line.name] = content
        steps.append(
            RunStep(
                name=line.name,
                words=tuple(_marked(word, marks) for words in line.words for word in words),
                source=line.source_words,
                mip=line.mip,
                options=tuple(
                    options_of(words[0], _covered(op, marks))
                    for op, words in zip(line.operators, line.words, strict=True)
                ),
                plan=said,
                plan_sha256=sha256_of(content),
                tasks=len(line.plan),
                files=tuple(sorted((f for f, _ in found.values()), key=lambda f: f.word)),
                code=tuple(words for op in line.operators for words in op.runs_code),
                device_class=line.device_class,
                previous=steps[-1].hash if steps else "",
            )
        )
    spec = Spec(tuple(steps), queue, str(Path.cwd()), version("chunkflow_py"), {})
    return spec, plans, paths


def forked(spec: Spec, old: RunDirectory) -> Spec:
    """Return *spec* with the steps taken over that *old* has done already, just so."""
    reused: dict[str, str] = {}
    for new, was in zip(spec.steps, old.spec.steps, strict=False):
        if new.name != was.name or new.hash != was.hash or not old.is_closed(was.name):
            break  # what comes after it reads another input
        reused[new.name] = old.spec.reused.get(was.name, old.url)
    return replace(spec, reused=reused)


def send_step(run: RunDirectory, queue: Queue, step: str) -> int:
    """Send the tasks of a step that have no record, in constant memory; return how many.

    May be done again, or by several at once: what is there twice is done once.
    """
    numbers: Iterable[int] = ()
    # A queue that was deleted has lost what it held.
    if not run.is_sent(step) or not any(_held(queue)):
        numbers = run.ledger(step).missing(run.plan(step))
    count = queue.send(bodies(run, step, numbers))
    run.set_sent(step, count)
    return count


def _held(queue: Queue) -> tuple[int, int]:
    """Return how many tasks wait in a queue, and how many are leased."""
    counts = queue.counts(dead=False)
    return counts.waiting, counts.leased


def bodies(run: RunDirectory, step: str, numbers: Iterable[int]) -> Iterator[str]:
    """Yield the messages of some tasks of a step."""
    plan, name = run.plan(step), run.spec.step(step).hash
    return (body_text(plan.text(number), name, step) for number in numbers)


def default_run(operators: Sequence[Operator]) -> str:
    """Return the default address of a run: the last output of the line, and ``.run``.

    Files that are named after tasks or objects count by what their names begin with:
    ``pts/BOX.h5`` gives ``pts.run``.

    Raises:
        OptionError: the line writes nothing whose place is known.
    """
    for operator in reversed(operators):
        for place in places_written(operator.body)[:1]:
            address, level, _ = place.partition(LEVEL)
            if not level and (template := _TEMPLATE.fullmatch(address)):
                address = template[1].rstrip("_-.")
            return f"{Location.parse(address.rstrip('/')).store_url}.run"
    msg = "nothing in the line says where the run is to be kept; give --run URL"
    raise OptionError(msg)


def default_queue(run: str) -> str:
    """Return the queue of a run for which none is named: a file in its home.

    Raises:
        OptionError: the run is not on this machine.
    """
    scheme, separator, path = run.partition("://")
    if separator and scheme != "file":
        msg = f"the run is at {run}, for which a queue must be named; give --queue sqs://NAME"
        raise OptionError(msg)
    return f"sqlite://{absolute(path if separator else run)}/queue.sqlite"


def _files(operators: Iterable[Operator]) -> dict[str, tuple[File, Path]]:
    found: dict[str, tuple[File, Path]] = {}
    for operator in operators:
        body: Any = operator.body
        needed = body.needed_files if isinstance(body, HasFiles) else {}
        for typed, role in (operator.files | needed).items():
            path = Path(typed).expanduser()
            if not path.is_file():
                msg = f"{operator.name} needs {typed}, which is no file of this machine"
                raise OptionError(msg)
            content = path.read_bytes()
            found[typed] = File(path.name, sha256_of(content), role), path
    return found


def _covered(operator: Operator, marks: dict[str, str]) -> dict[str, Any]:
    """Return the options of a command, with the files of the run and where it reads and writes.

    A relative path is another one in another folder, and one place has many spellings.
    """
    body, places = operator.body, dict[str, list[str]]()
    for name, found in (("reads", places_read(body)), ("writes", places_written(body))):
        if found:
            places[name] = [spelled_alike(place) for place in found]
    known = [place for some in places.values() for place in some]
    options = {
        name: _placed(_marked(value, marks), known) for name, value in operator.options.items()
    }
    return options | places


def spelled_alike(place: str) -> str:
    """Return what is the same for every spelling of a local path; other places stay."""
    scheme, separator, path = place.partition("://")
    if separator and scheme != "file":
        return place
    return f"file://{os.path.realpath(os.path.expanduser(path if separator else place))}"  # noqa: PTH111


def _placed(value: Any, places: Sequence[str]) -> Any:
    """Return an option that says one of *places*, or how its name begins, spelled like it."""
    if not isinstance(value, str) or not value.strip("/"):
        return value
    try:
        location = Location.parse(value)
    except VolumeError:
        return value
    where = spelled_alike(location.store_url)
    if not any(place.startswith(where) for place in places):
        return value
    form = f"{location.scheme}://" if location.scheme else ""
    return f"{form}{where}{f':{location.dataset}' if location.dataset else ''}"


def _marked(value: Any, marks: dict[str, str]) -> Any:
    """Return *value* with the path of a file replaced by what stands for it."""
    if not isinstance(value, str):
        return value
    if value in marks:
        return marks[value]
    name, separator, path = value.partition("=")
    return f"{name}={marks[path]}" if separator and path in marks else value
