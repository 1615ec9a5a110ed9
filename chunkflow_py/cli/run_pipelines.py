"""Parse the pipelines of the steps of a run, and rebuild these pipelines in workers."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

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
    from collections.abc import Mapping, Sequence

    from chunkflow_py.cli.command_parts import CommandPart
    from chunkflow_py.pipeline.pipeline import Pipeline
    from chunkflow_py.run.run_directory import RunDirectory
    from chunkflow_py.run.worker.worker import WorkOptions
    from chunkflow_py.run.worker.worker_process import TaskFeed

THEN = "then"  # the subcommand that separates the steps of a run


def step_pipelines(
    parts: Sequence[CommandPart], first: str | None, *, mip: int, device_class: str
) -> list[StepPipeline]:
    """Split a command line at each ``then``, and return the pipeline of each step of the run.

    Args:
        parts: commands that follow the subcommand on the command line.
        first: name of the first step (default: its last operator that runs a network; if there is
            none, its last operator that computes).
        mip: value of the global option ``--mip``.
        device_class: value of ``--device-class``: ``same`` or ``any``.

    Raises:
        OptionError: a step has no operators, does not begin with a source, contains a subcommand,
            or sends its tasks to a queue or file.
    """
    groups: list[tuple[str | None, list[CommandPart]]] = [(first, [])]
    for part in parts:
        if isinstance(part.command, Subcommand) and part.command.name == THEN:
            groups.append((part.command.act(), []))
        else:
            groups[-1][1].append(part)
    steps: list[StepPipeline] = []
    for name, group in groups:
        number = len(steps) + 1
        commands = [part.command for part in group]
        if others := [command.name for command in commands if isinstance(command, Subcommand)]:
            msg = (
                f"step {number} contains {', '.join(others)}, which cannot be part of a "
                f"pipeline; leave out {', '.join(others)}"
            )
            raise OptionError(msg)
        if not commands or not isinstance(commands[0], Source):
            problem = f"begins with {commands[0].name}" if commands else "is empty"
            msg = (
                f"step {number} {problem}; begin each step of a run with generate-tasks, "
                "followed by the operators to apply to each task"
            )
            raise OptionError(msg)
        check_source_first(commands)
        _check_tasks_stay(commands[0])
        operators = tuple(operators_of(commands))
        if not operators:
            msg = (
                f"step {number} has no operator after {commands[0].name}; add the operators "
                "to apply to each task"
            )
            raise OptionError(msg)
        argv = tuple(part.argv for part in group if any(operators_of([part.command])))
        steps.append(
            StepPipeline(
                name or _name(operators, {step.name for step in steps}),
                commands[0],
                operators,
                argv,
                group[0].argv,
                mip,
                device_class,
            )
        )
    return steps


def _check_tasks_stay(source: Source) -> None:
    """Refuse a source that writes its tasks to a queue or a file of its own.

    Raises:
        OptionError: the source has the option --queue-name or --file-path.
    """
    body = source.body
    if not isinstance(body, TaskGenerator):
        return
    for option, place in (("--queue-name", body.queue_name), ("--file-path", body.file_path)):
        if place:
            msg = (
                f"{source.name} {option} {place} is not allowed in the pipeline of a run, because "
                "the tasks go to the queue of the run; "
                f"leave {option} out and name the queue with submit --queue"
            )
            raise OptionError(msg)


def _name(operators: Sequence[Operator], taken: set[str]) -> str:
    # The main operator gives the name: the last one with a network, else the last that computes.
    computing = [each for each in operators if each.stage == "compute"]
    network = [each for each in computing if each.hooks.placement is not None]
    main = (network or computing or list(operators))[-1].name.partition("#")[0]
    names = (main if k == 1 else f"{main}-{k}" for k in range(1, len(taken) + 2))
    return next(name for name in names if name not in taken)


def pipeline_of_step(stored: PipelineSource, feed: TaskFeed) -> Pipeline:
    """Check and return the pipeline of a step, for the worker process that calls this function.

    Args:
        stored: command line, plan and settings of the step, as the spec of the run stores them.
        feed: source that passes tasks from the worker to the pipeline.

    Raises:
        OptionError: the pipeline has an error, or --no-code is set and the pipeline runs code of
            the user, such as a plugin.
    """
    enter_folder(stored.folder)
    expect_outputs(stored.earlier)
    if not stored.allow_code and "plugin" in stored.argv:  # parsing its options may run its code
        _refuse_code(("a plugin",))
    operators = list(operators_of(read_line(stored.argv, mip=stored.mip)))
    if not stored.allow_code:
        _refuse_code(tuple(code for operator in operators for code in operator.runs_code))
    feed.boxes = stored.plan.boxes
    pipeline = worker_pipeline(operators, Source("work", feed), stored.ahead)
    if stored.exchange is not None:
        pipeline.make_part_store = partial(stored.exchange.parts, stored.plan)
    pipeline.check()
    check_outputs_exist(operators)
    return pipeline


def run_here(
    run: RunDirectory,
    steps: Sequence[StepPipeline],
    working: WorkOptions,
    options: Mapping[str, Any],
    *,
    clear_output: bool = False,
) -> tuple[int, str]:
    """Submit or continue a run, and execute its tasks on this machine.

    Args:
        run: run directory.
        steps: pipelines of the steps.
        working: settings of the worker.
        options: values of the command-line options, for the progress report.
        clear_output: whether to delete what other runs stored inside the boxes of the tasks.

    Returns:
        Exit code and last message of the worker.
    """
    from chunkflow_py.cli.worker_report import WorkerReport
    from chunkflow_py.run.submit import default_queue, submit
    from chunkflow_py.run.worker.worker import work

    submit(
        run, steps, default_queue(run.url), rehearse=False, clear_output=clear_output,
        workers=options["processes"],
    )  # fmt: skip
    with WorkerReport(run, dict(options)) as report:
        return work(run, working, pipeline_of_step, report)


def sent_again(count: int, run: RunDirectory) -> str:
    """Return the message about *count* tasks of a run that workers will execute again."""
    tasks = "task" if count == 1 else "tasks"
    if run.spec.queue:
        return f"sent {count} {tasks} again to {run.spec.queue}"
    return f"reset {count} {tasks}; to execute them, repeat the command chunkflow run --on dask://…"


def _refuse_code(code: tuple[str, ...]) -> None:
    if code:
        msg = (
            f"--no-code refuses this pipeline because it runs {', '.join(code)}, although the spec "
            "(stored description) of the run lists no code; find out who submitted the run before "
            "you trust the run"
        )
        raise OptionError(msg)
