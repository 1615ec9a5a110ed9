"""Estimate tasks, bytes, memory, time and cost.

Nothing is made. A few tasks are done as a pilot, by processes of their own, which write into a
folder that is removed, so that memory and time are measured. All problems are listed, each with the
nearest value that works; the exit code is then 2, else 0.

Example: chunkflow plan --machines 20 --instance g5.xlarge

The pipeline follows these options: generate-tasks … load-zarr … inference … save-zarr …
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from chunkflow_py.cli.subcommands import Subcommand, pipeline_subcommand
from chunkflow_py.cli.subcommands.tune import MemoryType
from chunkflow_py.pipeline.terminal import echo

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from chunkflow_py.cli.command_parts import Part
    from chunkflow_py.planning.run_plan import PlannedStep

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_POSITIVE = click.FloatRange(min=0, min_open=True)


# fmt: off
@pipeline_subcommand
@click.option("--machines", type=click.IntRange(min=1), default=1, show_default=True,
              help="Machines that work at the same time.")
@click.option("--processes", type=click.IntRange(min=1), default=1, show_default=True,
              help="Processes on each machine; as many pilots run side by side.")
@click.option("--instance", metavar="TYPE",
              help="Type of machine, such as g5.xlarge, whose price and memory are known.")
@click.option("--memory", type=MemoryType(), metavar="SIZE",
              help="Memory of a machine, such as 16GB.  [default: that of the instance, else of "
                   "this one]")
@click.option("--price", type=click.FloatRange(min=0), metavar="DOLLARS",
              help="Price of a machine, an hour.  [default: that of the instance]")
@click.option("--price-file", type=_FILE, help="Table of prices instead of the built-in one.")
@click.option("--rehearse/--no-rehearse", default=True, show_default=True,
              help="Measure memory and time with a pilot; or estimate only.")
@click.option("--seconds", type=_POSITIVE, default=60, show_default=True,
              help="Time for the pilot, seconds.")
@click.option("--seconds-per-task", type=_POSITIVE,
              help="In one process, instead of what is measured.")
@click.option("--speeds", type=_FILE,
              help="What tune --json has printed: the speed of the network, instead of what is "
                   "measured.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of lines.")
def command(*, as_json: bool, **options: Any) -> Callable[[Sequence[Part]], None]:
    """Take the options; all is done when the whole line has been read."""
    # fmt: on

    def act(parts: Sequence[Part]) -> None:
        from chunkflow_py.cli.pilot_process import NAME
        from chunkflow_py.planning.duration_estimate import Fleet
        from chunkflow_py.planning.planner import plan_run
        from chunkflow_py.planning.run_plan import PlanSettings, plan_json, plan_lines

        settings = PlanSettings(
            module=NAME if options["rehearse"] else None,
            pilot_s=options["seconds"],
            fleet=Fleet(options["machines"], options["processes"]),
            memory_bytes=options["memory"],
            instance=options["instance"],
            price=options["price"],
            price_file=options["price_file"],
            seconds_per_task=options["seconds_per_task"],
            speeds=options["speeds"],
        )
        plan = plan_run(_lines(parts), settings)
        if as_json:
            import json

            echo(json.dumps(plan_json(plan), indent=2))
        else:
            for line in plan_lines(plan):
                echo(line)
        click.get_current_context().exit(0 if plan.fits else 2)

    return act


def _lines(parts: Sequence[Part]) -> list[PlannedStep]:
    """Return the steps of a run; a pipeline without tasks is a single step."""
    from chunkflow_py.cli.command_parts import check_source_first, operators_of
    from chunkflow_py.cli.run_pipelines import stage_lines
    from chunkflow_py.errors import OptionError
    from chunkflow_py.pipeline.operator import Source
    from chunkflow_py.planning.run_plan import PlannedStep

    params = click.get_current_context().find_root().params
    mip, ahead = params["mip"], params["ahead"]
    stages = [part.stage for part in parts]
    if any(isinstance(stage, Source | Subcommand) for stage in stages):
        return [
            PlannedStep(
                line.name,
                line.operators,
                line.source,
                (*line.source_arguments, *(word for argv in line.arguments for word in argv)),
                mip,
                ahead,
            )
            for line in stage_lines(parts, None, mip=mip, device_class="any")
        ]
    check_source_first(stages)
    operators = tuple(operators_of(stages))
    if not operators:
        msg = "there is no pipeline to plan; write it after plan and its options"
        raise OptionError(msg)
    argv = tuple(word for part in parts for word in part.argv)
    return [PlannedStep("line", operators, None, argv, mip, ahead)]
