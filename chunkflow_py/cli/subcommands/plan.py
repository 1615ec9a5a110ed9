"""Estimate tasks, bytes, memory, time and cost.

plan creates no volumes. To measure memory and time, it executes a few tasks as a pilot run, in
separate processes that write into a temporary folder. plan also lists the problems that would make
the run fail, each with the nearest value that works. The exit code is 2 if there are problems, else
0.

Example: chunkflow plan --machines 20 --instance g5.xlarge

After these options, write the pipeline: generate-tasks … load-zarr … inference … save-zarr …
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from chunkflow_py.cli.shared_options import json_option, price_file_option
from chunkflow_py.cli.subcommands import Subcommand, pipeline_subcommand
from chunkflow_py.cli.subcommands.tune import MemoryType
from chunkflow_py.pipeline.terminal import echo, option_headings

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from chunkflow_py.cli.command_parts import CommandPart
    from chunkflow_py.planning.run_plan import PlannedStep

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_POSITIVE = click.FloatRange(min=0, min_open=True)


# fmt: off
@pipeline_subcommand
@option_headings(
    {
        "Machines": ("machines", "processes", "instance", "memory", "vcpu_quota"),
        "Prices": ("price", "price_file", "read_price", "months"),
        "Measurement": ("rehearse", "seconds", "seconds_per_task", "speeds"),
    }
)
@click.option("--machines", type=click.IntRange(min=1), default=1, show_default=True,
              help="Number of machines that work at the same time.")
@click.option("--processes", type=click.IntRange(min=1), default=1, show_default=True,
              help="Number of worker processes per machine, also in the pilot run.")
@click.option("--instance", metavar="TYPE",
              help="Machine type, such as g5.xlarge, which determines price and memory.")
@click.option("--memory", type=MemoryType(), metavar="SIZE",
              help="Memory of a machine, such as 16GB.  [default: memory of --instance, else the "
                   "available memory of this machine]")
@click.option("--vcpu-quota", type=click.IntRange(min=1),
              help="Largest number of virtual processors that your account may use, such as the "
                   "AWS quota of G and VT spot instances.  [default: not checked]")
@click.option("--price", type=click.FloatRange(min=0), metavar="DOLLARS",
              help="Price of a machine in dollars per hour.  [default: the price of --instance]")
@price_file_option()
@click.option("--read-price", type=click.FloatRange(min=0), default=0.0, metavar="DOLLARS",
              help="Price of reading a gigabyte of the input, in dollars, such as 0.02 if the "
                   "input is in another region of AWS.  [default: 0]")
@click.option("--months", type=click.FloatRange(min=0), default=0.0,
              help="Months for which the output is stored, to add to the cost.  [default: 0]")
@click.option("--rehearse/--no-rehearse", default=True, show_default=True,
              help="Measure memory and time with a pilot run, or only estimate the memory.")
@click.option("--seconds", type=_POSITIVE, default=60, show_default=True,
              help="Time limit of the pilot run of each step, seconds.")
@click.option("--seconds-per-task", type=_POSITIVE,
              help="Seconds that one process needs for a task.  [default: as measured by the pilot "
                   "run]")
@click.option("--speeds", type=_FILE,
              help="File with the output of tune --json, to estimate the time from the speed of "
                   "the network.")
@json_option("Print JSON instead of text.")
def command(*, as_json: bool, **options: Any) -> Callable[[Sequence[CommandPart]], None]:
    """Return the function that estimates tasks, memory, time and cost of a given pipeline."""
    # fmt: on

    def act(parts: Sequence[CommandPart]) -> None:
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
            vcpu_quota=options["vcpu_quota"],
            read_price=options["read_price"],
            months=options["months"],
        )
        plan = plan_run(_planned_steps(parts), settings)
        if as_json:
            import json

            echo(json.dumps(plan_json(plan), indent=2))
        else:
            for line in plan_lines(plan):
                echo(line)
        click.get_current_context().exit(0 if plan.fits else 2)

    return act


def _planned_steps(parts: Sequence[CommandPart]) -> list[PlannedStep]:
    from chunkflow_py.cli.command_parts import check_source_first, operators_of
    from chunkflow_py.cli.run_pipelines import step_pipelines
    from chunkflow_py.errors import OptionError
    from chunkflow_py.pipeline.operator import Source
    from chunkflow_py.planning.run_plan import PlannedStep

    params = click.get_current_context().find_root().params
    mip, ahead = params["mip"], params["ahead"]
    commands = [part.command for part in parts]
    if any(isinstance(command, Source | Subcommand) for command in commands):
        return [
            PlannedStep(
                step.name,
                step.operators,
                step.source,
                (*step.source_arguments, *(each for argv in step.arguments for each in argv)),
                mip,
                ahead,
            )
            for step in step_pipelines(parts, None, mip=mip, device_class="any")
        ]
    check_source_first(commands)
    operators = tuple(operators_of(commands))
    if not operators:
        msg = "there is no pipeline to plan; write a pipeline after plan and its options"
        raise OptionError(msg)
    argv = tuple(each for part in parts for each in part.argv)
    return [PlannedStep("line", operators, None, argv, mip, ahead)]
