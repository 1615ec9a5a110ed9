"""Declare the options of subcommands that execute a run; convert the options to worker settings."""

from __future__ import annotations

import math
import os
import socket
from typing import TYPE_CHECKING, Any

import click

from chunkflow_py.core.plain_text import is_digits
from chunkflow_py.errors import OptionError
from chunkflow_py.pipeline.terminal import option_headings

if TYPE_CHECKING:
    from collections.abc import Callable

    from chunkflow_py.run.worker.worker import WorkOptions

_SECONDS = click.FloatRange(min=0, min_open=True)
_TASK_LIMITS = {"auto": None, "none": math.inf}


class SecondsOr(click.ParamType["float | str"]):
    """Option type: a number of seconds, or a name such as ``auto``."""

    def __init__(self, *names: str) -> None:
        """Accept *names* as values, in addition to numbers of seconds."""
        self._names = names
        self.name = " or ".join(("seconds", *names))

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float | str:
        """Return the number of seconds, or *value* if it is one of the accepted names."""
        return value if value in self._names else float(_SECONDS.convert(value, param, ctx))


# fmt: off
_OPTIONS = (
    click.option("--processes", "-n", type=click.IntRange(min=1), default=1, show_default=True,
                 help="Number of worker processes; with --gpus, number per GPU."),
    click.option("--gpus", metavar="LIST",
                 help="GPUs to use: all, or numbers such as 0,1. Each process uses one GPU."),
    click.option("--threads", type=click.IntRange(min=1),
                 help="Threads that each process computes with.  [default: OMP_NUM_THREADS, else "
                      "all cores]"),
    click.option("--until-complete/--no-until-complete", default=True, show_default=True,
                 help="Stop when the run is complete, or keep waiting for tasks."),
    click.option("--max-tasks", type=click.IntRange(min=1),
                 help="Stop after this number of tasks.  [default: no limit]"),
    click.option("--walltime", type=SecondsOr("auto"),
                 help="Seconds after which this machine ends the worker; auto: remaining time of "
                      "the Slurm job. The worker starts no task that would not end in time.  "
                      "[default: no limit]"),
    click.option("--idle-exit", type=_SECONDS,
                 help="Stop after receiving no task for this many seconds.  [default: never]"),
    click.option("--max-cost", type=_SECONDS,
                 help="Stop when this worker has cost this amount of money; needs "
                      "--cost-per-hour."),
    click.option("--cost-per-hour", type=_SECONDS,
                 help="Cost of this machine per hour, in the currency of --max-cost and of the "
                      "run's budget."),
    click.option("--lease", type=click.FloatRange(min=1), default=120.0, show_default=True,
                 help="Seconds until a task of a dead worker is given to another worker."),
    click.option("--grace", type=click.FloatRange(min=0), default=90.0, show_default=True,
                 help="Seconds in which running tasks may finish after a request to stop."),
    click.option("--task-limit", type=SecondsOr("auto", "none"), default="auto", show_default=True,
                 help="Kill a task that has run for this many seconds. auto: 6 h until 8 tasks "
                      "have finished, then 20 times their median time, but at least 1 h."),
    click.option("--max-failures", type=click.IntRange(min=1), default=3, show_default=True,
                 help="Number of failed attempts after which a task is given up."),
    click.option("--no-code", is_flag=True,
                 help="Refuse runs that execute model files or plugins; built-in networks with "
                      "weight files are allowed."),
    click.option("--same-version", is_flag=True,
                 help="Refuse a run that another version of chunkflow_py has submitted, instead of "
                      "warning."),
    click.option("--worker-name", default=f"{socket.gethostname()}-{os.getpid()}",
                 help="Name of this worker in the records.  [default: host name and process id]"),
    click.option("--metrics-port", type=click.IntRange(0, 65535),
                 help="Port to serve Prometheus metrics on; 0: any free port.  [default: no "
                      "metrics]"),
    click.option("--metrics-address", default="127.0.0.1", show_default=True,
                 help="Network address to serve metrics on; 0.0.0.0 allows other machines to "
                      "connect."),
)
# fmt: on
_HEADINGS = {
    "Resources": ("processes", "gpus", "threads"),
    "When to stop": (
        "until_complete",
        "max_tasks",
        "walltime",
        "idle_exit",
        "max_cost",
        "cost_per_hour",
        "grace",
    ),
    "Failures": ("lease", "task_limit", "max_failures"),
    "Metrics": ("metrics_port", "metrics_address"),
}  # fmt: skip


def working_options() -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Declare the options of a worker; `working_from` checks the values."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(_OPTIONS):
            function = option(function)
        return option_headings(_HEADINGS)(function)

    return decorate


def working_from(options: dict[str, Any]) -> Callable[[], WorkOptions]:
    """Check the options of `working_options`, and return a function that makes the `WorkOptions`.

    Raises:
        OptionError: --max-cost is given without --cost-per-hour.
    """
    if options["max_cost"] is not None and options["cost_per_hour"] is None:
        msg = (
            f"--max-cost {options['max_cost']:g} needs the price of this machine; add "
            "--cost-per-hour PRICE"
        )
        raise OptionError(msg)
    root = click.get_current_context().find_root().params

    def make() -> WorkOptions:
        from chunkflow_py.run.worker.worker import WorkOptions
        from chunkflow_py.run.worker.worker_limits import (
            TaskLimit,
            WorkerLimits,
            WorkerSettings,
            walltime_of_job,
        )

        devices = _devices(options["gpus"])
        walltime = options["walltime"]
        settings = WorkerSettings(
            processes=options["processes"] * (len(devices) or 1),
            devices=devices,
            lease_s=options["lease"],
            max_failures=options["max_failures"],
            task_limit=TaskLimit(_TASK_LIMITS.get(limit := options["task_limit"], limit)),
            limits=WorkerLimits(
                max_tasks=options["max_tasks"],
                walltime_s=walltime_of_job() if walltime == "auto" else walltime,
                max_cost=options["max_cost"],
                cost_per_hour=options["cost_per_hour"],
                idle_exit_s=options["idle_exit"],
            ),
            grace_s=options["grace"],
            ahead=root["ahead"],
        )
        return WorkOptions(
            settings,
            options["worker_name"],
            threads=options["threads"],
            allow_code=not options["no_code"],
            until_complete=options["until_complete"],
            same_version=options["same_version"],
        )

    return make


def _devices(listed: str | None) -> tuple[str, ...]:
    """Return the GPUs that ``--gpus`` names; empty if ``--gpus`` is not given."""
    if listed is None:
        return ()
    if listed != "all":
        names = tuple(part.strip() for part in listed.split(","))
        if all(is_digits(name) for name in names):
            return names
        msg = f"--gpus {listed} names no GPUs; write --gpus all, or their numbers, such as 0,1"
        raise OptionError(msg)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        devices = tuple(filter(None, visible.split(",")))
    else:
        from chunkflow_py.run.worker.worker_limits import gpu_numbers

        devices = gpu_numbers()
    if not devices:
        msg = "--gpus all finds no GPU on this machine; leave --gpus out to use the CPU"
        raise OptionError(msg)
    return devices
