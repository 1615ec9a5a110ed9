"""Entry point of the program `chunkflow`, which runs a pipeline of operators or a subcommand.

To keep `chunkflow --help` fast, a command is imported only when it is used, and this module imports
most other modules inside functions.
"""

from __future__ import annotations

import atexit
import gc
import io
import logging
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING, Any

import click
from click.exceptions import Exit

from chunkflow_py.cli import catalog
from chunkflow_py.core.interrupts import (
    Interrupted,
    kept_signals,
    leave_within,
    restore_signals,
    starts_worker,
    stay,
)
from chunkflow_py.errors import OptionError
from chunkflow_py.pipeline.terminal import Command, echo

if TYPE_CHECKING:
    from collections.abc import Sequence

    from click.shell_completion import CompletionItem

    from chunkflow_py.cli.subcommands import Subcommand
    from chunkflow_py.pipeline.operator import Operator, Source

logger = logging.getLogger(__name__)

COMPLETE = "_CHUNKFLOW_COMPLETE"  # environment variable that a shell sets to request completions
GRACE_S = 3.0  # seconds after Ctrl-C in which running writes may finish

HELP = """Run a pipeline of operators over a volume, or act on a run.

The operators of a pipeline are applied to each task in turn:

\b
  chunkflow load-h5 --file-name raw.h5 inference ... save-h5 --file-name out.h5
  chunkflow generate-tasks --volume-path em.zarr --chunk-size 64 512 512 \\
      load-zarr --store em.zarr inference ... save-zarr --store affinity.zarr

Sizes and positions are three integers in zyx order, in voxels.
To see the options of a command, run `chunkflow COMMAND --help`.
"""


class Ahead(click.ParamType["int | None"]):
    """Option type: a number of tasks, or ``auto``, which is converted to ``None``."""

    name = "integer or auto"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> int | None:
        """Return the number of tasks, or ``None`` if *value* is ``auto``."""
        return None if value == "auto" else click.IntRange(min=0).convert(value, param, ctx)


class OperatorGroup(Command, click.Group):
    """Group of all commands; finds commands by file name, and imports only those that are used.

    click would import every operator to print the help, to complete a name, or to suggest names
    after a typing error. This class does these three things without importing operators.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments; if there are none, print the help and exit with code 0."""
        return super().parse_args(ctx, args or ["--help"])

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Return the names of all commands, including commands of other packages."""
        return [*catalog.commands(), *catalog.more()]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import the operator or subcommand; return ``None`` for an unknown name."""
        return catalog.load(cmd_name) if catalog.is_known(cmd_name) else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return name, click command and arguments of the first command in *args*.

        *args* may begin with an older name of a command; the returned name is the current name.

        For an unknown name, fail with a message that suggests similar names.
        """
        from chunkflow_py.cli import older_spellings
        from chunkflow_py.cli.command_parts import note_tail

        if args[0] == "help":  # chunkflow help COMMAND, as git has it
            if len(args) == 1:
                echo(ctx.get_help())
                ctx.exit()
            args = [args[1], "--help"]
        name = older_spellings.modern_command(ctx, args[0])
        command = self.get_command(ctx, name)
        if command is None:
            near = older_spellings.near_commands(name, self.list_commands(ctx))
            hint = f" Did you mean {' or '.join(near)}?" if near else " See chunkflow --help."
            ctx.fail(f"No such command {name!r}.{hint}")
        rest = older_spellings.modern_options(ctx, command, args[1:])
        note_tail(ctx, [name, *rest])
        return name, command, rest

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write a table of command names and summaries for each section of the help."""
        for title, entries in catalog.by_section().items():
            with formatter.section(title):
                formatter.write_dl([(entry.name, entry.summary) for entry in entries])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete command names without importing the commands."""
        from click.shell_completion import CompletionItem

        matches = [
            CompletionItem(name, help=catalog.describe(name).summary)
            for name in self.list_commands(ctx)
            if name.startswith(incomplete)
        ]
        return matches + click.Command.shell_complete(self, ctx, incomplete)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command line; convert an error into a one-sentence message and an exit code."""
        try:
            return super().invoke(ctx)
        except click.NoSuchOption as error:
            from chunkflow_py.cli.older_spellings import near_options

            raise near_options(error) from error
        except (click.MissingParameter, click.BadOptionUsage) as error:
            from chunkflow_py.cli.command_parts import last_tail
            from chunkflow_py.cli.mistyped import explained

            raise explained(error, last_tail(ctx)) from error
        except Interrupted:
            if ctx.params["log_json"]:
                raise click.Abort from None  # Interrupted would print an empty line first
            raise
        except (click.ClickException, click.Abort, Exit):
            raise
        except BaseException as error:  # includes sys.exit() in a plugin
            from chunkflow_py.cli.failed import failed

            logger.debug("traceback of the error", exc_info=True)
            if isinstance(error, OptionError):
                raise click.UsageError(str(error), ctx) from error
            raise failed(error, debug=ctx.params["debug"]) from error


@click.group(
    cls=OperatorGroup,
    chain=True,
    help=HELP,
    context_settings={"max_content_width": 110},
)
@click.option(
    "--mip",
    "-m",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Resolution level of volumes, for commands without a --mip of their own.",
)
@click.option(
    "--dry-run/--real-run",
    default=False,
    show_default=True,
    help="Run the pipeline without saving anything, or run it completely.",
)
@click.option(
    "--in-place/--not-in-place",
    default=False,
    show_default=True,
    help="Allow a pipeline to save to the volume that it loads. Refused for runs and queues, "
    "because they may execute a task twice.",
)
@click.option(
    "--verbose/--quiet",
    default=True,
    show_default=True,
    help="Log progress and print a table of times, or log warnings and errors only.",
)
@click.option(
    "--progress/--no-progress",
    default=None,
    help="Show progress: a live view on a terminal, elsewhere one message per task.  [default: "
    "yes, unless --quiet]",
)
@click.option(
    "--log-json/--log-text",
    default=False,
    show_default=True,
    help="Format of messages on stderr: JSON lines (docs/progress.md), or text.",
)
@click.option(
    "--ahead",
    type=Ahead(),
    default="auto",
    show_default=True,
    help="Tasks to prefetch per stage (read, compute, write); 0: run all stages in one thread; "
    "auto: 1 if memory allows it, else 0.",
)
@click.option(
    "--debug/--no-debug",
    default=False,
    show_default=True,
    help="Log details, and print tracebacks of errors.",
)
@click.option(
    "--log-level",
    "-l",
    type=click.Choice(["debug", "info", "warning", "error", "critical"]),
    hidden=True,  # an option of chunkflow 1.x, like the next one
)
@click.option("--log-file", "-f", type=click.Path(dir_okay=False, writable=True), hidden=True)
@click.version_option(package_name="chunkflow_py", prog_name="chunkflow")
@click.pass_context
def cli(
    ctx: click.Context,
    /,
    verbose: bool,
    debug: bool,
    log_json: bool,
    log_level: str | None,
    log_file: str | None,
    **_: object,
) -> None:
    """Set up the memory allocator and logging; `run_pipeline` then runs the commands."""
    from chunkflow_py.cli import logs
    from chunkflow_py.core.allocator import keep_freed_memory, sleep_while_waiting

    keep_freed_memory()
    sleep_while_waiting()

    if log_level in ("warning", "error", "critical"):
        ctx.params["verbose"] = verbose = False
    ctx.call_on_close(logs.restore_logging)
    logs.configure_logging(
        verbose=verbose, debug=debug, as_json=log_json, level=log_level, log_file=log_file
    )


@cli.result_callback()
@click.pass_context
def run_pipeline(
    ctx: click.Context,
    /,
    commands: Sequence[Operator | Source | Subcommand],
    *,
    ahead: int | None,
    dry_run: bool,
    in_place: bool,
    verbose: bool,
    progress: bool | None,
    debug: bool,
    log_json: bool,
    **_: object,
) -> None:
    """Run the subcommand, or run the pipeline and exit with code 1 if a task failed."""
    from chunkflow_py.cli.command_parts import check_source_first, operators_of, parts_of

    if subcommand := _subcommand_of(commands):
        if in_place and subcommand.takes_pipeline:
            raise OptionError(_APPLIED_TWICE.format(subcommand.name, "a run"))
        subcommand.act(*([parts_of(ctx, commands)[1:]] if subcommand.takes_pipeline else []))
        return
    from chunkflow_py.cli import progress_report
    from chunkflow_py.pipeline.operator import Source
    from chunkflow_py.pipeline.pipeline import Pipeline

    check_source_first(commands)
    source = commands[0] if isinstance(commands[0], Source) else None
    if in_place and source and source.hooks.declares("settle"):
        raise OptionError(_APPLIED_TWICE.format(source.name, "a queue"))
    operators = list(operators_of(commands))
    show_progress = False if progress is None and not verbose else progress
    listener = progress_report.PipelineReport(show_progress=show_progress, show_table=verbose)
    pipeline = Pipeline(
        operators, source, ahead=ahead, dry_run=dry_run, in_place=in_place, listener=listener
    )
    pipeline.check()
    tasks = pipeline.run()
    # A queue takes back a failed task and the pipeline continues. If the task succeeds later, it no
    # longer counts as failed.
    settle = source.hooks.settle if source and source.hooks.declares("settle") else None
    failed: set[str] = set()
    try:
        for task in tasks:
            if task.failed:
                listener.print_failure(task, debug=debug)
                if settle is None:
                    ctx.exit(1)
            if task.failed:
                failed.add(str(task))
            elif failed:
                failed.discard(str(task))
            if settle is not None:
                settle(task)
            del task  # free its chunks before the next task is made
    finally:
        tasks.close()
    if failed:
        more = ", …" if len(failed) > 10 else ""
        names = ", ".join(sorted(failed)[:10]) + more
        if not log_json:  # otherwise each failure has been logged
            count = f"{len(failed)} task{'' if len(failed) == 1 else 's'}"
            echo(f"{count} failed and returned to the queue: {names}", err=True)
        ctx.exit(1)


_APPLIED_TWICE = (
    "{0} cannot be combined with --in-place: a task of {1} may be executed twice, and the second "
    "execution would read the output of the first; leave --in-place out and save to another volume "
    "or mip, or start the pipeline with generate-tasks and without {1}"
)


def _subcommand_of(commands: Sequence[Operator | Source | Subcommand]) -> Subcommand | None:
    """Return the subcommand of a command line, or ``None`` if the line has only operators.

    Raises:
        OptionError: the subcommand does not come first, or operators follow a subcommand that takes
            no pipeline.
    """
    from chunkflow_py.cli.subcommands import Subcommand

    subcommand = next((each for each in commands if isinstance(each, Subcommand)), None)
    if (
        subcommand is None
        or len(commands) == 1
        or (subcommand.takes_pipeline and commands[0] is subcommand)
    ):
        return subcommand
    others = " ".join(each.name for each in commands if each is not subcommand)
    if subcommand.takes_pipeline:
        msg = f"{subcommand.name} must come first; move {subcommand.name} in front of {others}"
    else:
        msg = (
            f"{subcommand.name} cannot be part of a pipeline; remove {others} or {subcommand.name}"
        )
    raise OptionError(msg)


class _Ending:
    """End the process `GRACE_S` seconds after Ctrl-C or SIGTERM, or at once after a second signal.

    An interrupted pipeline waits for the threads of its stages, and Python waits for all threads at
    exit. A forward pass or a slow download in such a thread must not delay the exit.

    Args:
        log_json: whether the message ``Interrupted.`` is written as a JSON line.

    Attributes:
        code: exit code of the process if it is interrupted: 130, or 143 after SIGTERM.
    """

    def __init__(self, *, log_json: bool) -> None:
        self.code, self._log_json = 130, log_json
        self._before: dict[int, Any] = {}
        self._is_ending = False

    def __enter__(self) -> _Ending:
        if threading.current_thread() is threading.main_thread():  # only it can handle signals
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._interrupt)
        return self

    def __exit__(self, *_: object) -> None:
        if not self._is_ending:  # otherwise further signals must end the process until it exits
            restore_signals(self._before)

    def stay(self) -> None:
        """Cancel the scheduled end of the process, and restore the signal handlers."""
        stay()
        restore_signals(self._before)

    def _interrupt(self, number: int, _: object) -> None:
        self.code = 128 + number
        self._is_ending = True
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, lambda *_: self._leave())
            # At exit Python removes its handlers after all threads have ended. Another signal at
            # that moment would change the exit code.
            atexit.register(signal.signal, each, signal.SIG_IGN)
        leave_within(GRACE_S, self._leave)
        raise Interrupted

    def _leave(self) -> None:
        if screen := sys.modules.get("chunkflow_py.cli.screen"):
            screen.erase_view()
        os.write(2, f"{_last_line(self.code, 'Interrupted.', self._log_json)}\n".encode())
        if folders := sys.modules.get("chunkflow_py.core.temporary_folders"):
            folders.end_process(self.code)
        os._exit(self.code)


def _keep_modules() -> None:
    """Collect garbage once, and exclude all remaining objects from later collections.

    Otherwise, Python examines all objects several times when it unloads its modules at exit. If
    PyTorch is loaded, this takes about a second.
    """
    gc.collect()
    gc.freeze()


def _last_line(code: int, error: str | None, log_json: bool) -> str | None:
    if not log_json:
        return error
    from chunkflow_py.cli import logs

    return logs.exit_line(code, error)


def main(args: Sequence[str] | None = None) -> None:
    """Run a command line and exit.

    The exit code is 0 after success, 1 if a task failed, 2 after a usage error, 130 after Ctrl-C,
    and 143 after SIGTERM. `work` and `run` also exit with 70 and 75, which their help explains.

    Args:
        args: command line without the program name (default: the arguments of this process). A
            program that passes *args* may catch SystemExit and continue.
    """
    if COMPLETE in os.environ:
        from chunkflow_py.cli import completing

        completing.register()
    if args is None:
        atexit.register(_keep_modules)
    arguments = sys.argv[1:] if args is None else args
    log_json = "--log-json" in arguments
    ending = _Ending(log_json=log_json)
    message: str | None = None
    try:
        with kept_signals() if starts_worker(arguments) else ending:
            ended = cli.main(args, prog_name="chunkflow", standalone_mode=False)
        code = ended if isinstance(ended, int) else 0
    except click.Abort:
        code, message = ending.code, "Interrupted."
    except click.ClickException as error:
        code = error.exit_code
        if log_json:
            message = error.format_message()
        else:
            shown = io.StringIO()
            error.show(shown)
            echo(shown.getvalue().removesuffix("\n"), err=True)
    finally:
        if args is not None:
            ending.stay()
    if last := _last_line(code, message, log_json):
        echo(last, err=True)
    sys.exit(code)
