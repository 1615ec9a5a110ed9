"""The lines of a run: from what was typed to what is submitted, and back in the workers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chunkflow_py.cli.command_line import read_line
from chunkflow_py.cli.command_parts import check_source_first, operators_of
from chunkflow_py.cli.subcommands import Subcommand
from chunkflow_py.errors import OptionError
from chunkflow_py.pipeline.operator import Operator, Source
from chunkflow_py.pipeline.task_source import TaskGenerator
from chunkflow_py.run.earlier_steps import expect_outputs
from chunkflow_py.run.step_pipeline import StepPipeline, check_outputs_exist, worker_pipeline
from chunkflow_py.run.worker.worker import PipelineSource, enter_folder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chunkflow_py.cli.command_parts import Part
    from chunkflow_py.pipeline.pipeline import Pipeline
    from chunkflow_py.run.worker.worker_process import TaskFeed

THEN = "then"  # the subcommand that divides the stages of a line


def stage_lines(
    parts: Sequence[Part], first: str | None, *, mip: int, device_class: str
) -> list[StepPipeline]:
    """Return the stages of a line, which the subcommand ``then`` divides.

    Args:
        parts: of the line.
        first: name of the first stage, if it was given one.
        mip: the global option.
        device_class: ``same`` or ``any``.

    Raises:
        OptionError: a stage is empty, or does not begin with a source.
    """
    groups: list[tuple[str | None, list[Part]]] = [(first, [])]
    for part in parts:
        if isinstance(part.stage, Subcommand) and part.stage.name == THEN:
            groups.append((part.stage.act(), []))
        else:
            groups[-1][1].append(part)
    lines: list[StepPipeline] = []
    for name, group in groups:
        stages = [part.stage for part in group]
        if others := [stage.name for stage in stages if isinstance(stage, Subcommand)]:
            msg = (
                f"stage {len(lines) + 1} holds {', '.join(others)}, which cannot be part of a "
                "pipeline; leave it out"
            )
            raise OptionError(msg)
        if not stages or not isinstance(stages[0], Source):
            begun = f"begins with {stages[0].name}" if stages else "is empty"
            msg = (
                f"stage {len(lines) + 1} {begun}; a stage of a run begins with generate-tasks and "
                "goes on with what is done with each task"
            )
            raise OptionError(msg)
        check_source_first(stages)
        _check_tasks_stay(stages[0])
        operators = tuple(operators_of(stages))
        if not operators:
            msg = (
                f"stage {len(lines) + 1} ends with {stages[0].name} and has nothing to do for a "
                "task; go on with what is done with each task"
            )
            raise OptionError(msg)
        argv = tuple(part.argv for part in group if any(operators_of([part.stage])))
        lines.append(
            StepPipeline(
                name or _name(operators, {line.name for line in lines}),
                stages[0],
                operators,
                argv,
                group[0].argv,
                mip,
                device_class,
            )
        )
    return lines


def _check_tasks_stay(source: Source) -> None:
    """Refuse a source that is to hand its tasks over, which is what a run does.

    Raises:
        OptionError: names the option.
    """
    body = source.body
    if not isinstance(body, TaskGenerator):
        return
    for option, place in (("--queue-name", body.queue_name), ("--file-path", body.file_path)):
        if place:
            msg = (
                f"{source.name} {option} {place} would hand the tasks over, which a run does by "
                f"itself; leave {option} out, and say the queue with submit --queue"
            )
            raise OptionError(msg)


def _name(operators: Sequence[Operator], taken: set[str]) -> str:
    """Return a name for a stage: that of its main operator."""
    computing = [each for each in operators if each.stage == "compute"]
    network = [each for each in computing if each.hooks.placement is not None]
    main = (network or computing or list(operators))[-1].name.partition("#")[0]
    names = (main if k == 1 else f"{main}-{k}" for k in range(1, len(taken) + 2))
    return next(name for name in names if name not in taken)


def worker_line(line: PipelineSource, feed: TaskFeed) -> Pipeline:
    """Return the line of a stage of a run, checked; called in the processes of workers.

    Raises:
        OptionError: the line is wrong, or runs code and may not.
    """
    enter_folder(line.folder)
    expect_outputs(line.earlier)
    if not line.allow_code and "plugin" in line.argv:  # which may run it while the line is read
        _refuse_code(("a plugin",))
    operators = list(operators_of(read_line(line.argv, mip=line.mip)))
    if not line.allow_code:
        _refuse_code(tuple(code for operator in operators for code in operator.runs_code))
    feed.boxes = line.plan.boxes
    pipeline = worker_pipeline(operators, Source("work", feed), line.ahead)
    pipeline.check()
    check_outputs_exist(operators)
    return pipeline


def _refuse_code(code: tuple[str, ...]) -> None:
    """Refuse a line that runs code, whatever its spec says of it."""
    if code:
        msg = (
            f"the line runs {', '.join(code)}, which --no-code refuses, though the run's spec does "
            "not say that it does; find out who made the run"
        )
        raise OptionError(msg)
