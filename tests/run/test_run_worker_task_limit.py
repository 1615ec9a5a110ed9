"""When a task is taken to hang, where nobody has said after how many seconds."""

from __future__ import annotations

import math
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import click
import pytest
from click.testing import CliRunner
from rigs import lines
from rigs.workers import Background, Stage, wait_for

from chunkflow_py.cli.main import cli
from chunkflow_py.cli.working import working_from
from chunkflow_py.errors import VolumeUnreachableError
from chunkflow_py.run.ledger.ledger_record import Record
from chunkflow_py.run.worker.worker_limits import TaskDurations, TaskLimit

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HOUR_S = 3600.0


def test_until_eight_tasks_have_finished_only_six_hours_are_too_long() -> None:
    """Seven say too little of what a task takes; a task that hangs still ends."""
    durations = TaskDurations(TaskLimit(), list)
    for _ in range(7):
        durations.add(1.0)
    assert durations.exceeded(6 * HOUR_S) is None
    bound = durations.exceeded(6 * HOUR_S + 1)
    assert bound is not None
    assert (
        "--task-limit auto allows 21600 s per task until 8 tasks of the step have finished"
        in bound.why
    )


@pytest.mark.parametrize(("median_s", "limit_s"), [(1.0, 3600.0), (180.0, 3600.0), (900, 18000)])
def test_then_it_is_twenty_times_the_median_and_at_least_an_hour(
    median_s: float, limit_s: float
) -> None:
    """One that takes much longer than the others does not matter, and short tasks get an hour."""
    durations = TaskDurations(TaskLimit(), list)
    for _ in range(7):
        durations.add(median_s)
    durations.add(100_000.0)
    assert durations.exceeded(limit_s) is None
    bound = durations.exceeded(limit_s + 1)
    assert bound is not None
    assert bound.seconds == limit_s
    assert f"3600 s and 20 times the median run time ({median_s:g} s) of the 8 tasks" in bound.why
    assert "set --task-limit SECONDS or --task-limit none" in bound.why


def test_the_ledger_counts_where_this_worker_has_finished_too_few() -> None:
    """It is asked in a thread, only for a task that is late, and again only after a while."""
    asked = []

    def recorded() -> Iterator[float]:
        asked.append(True)
        yield from [400.0] * 9

    durations = TaskDurations(TaskLimit(), recorded)
    assert durations.exceeded(HOUR_S) is None
    assert not asked
    assert durations.exceeded(HOUR_S + 1) is None  # the answer is not there yet
    wait_for(lambda: durations.exceeded(8001.0) is not None)
    assert durations.exceeded(7999.0) is None
    assert len(asked) == 1


def test_a_ledger_that_does_not_answer_changes_nothing() -> None:
    """The limit stays what it is without it, and nothing is raised."""

    def recorded() -> list[float]:
        msg = "503"
        raise VolumeUnreachableError(msg)

    durations = TaskDurations(TaskLimit(), recorded)
    assert durations.exceeded(2 * HOUR_S) is None
    assert durations.exceeded(7 * HOUR_S) is not None


def test_seconds_and_none() -> None:
    """What is given is the limit from the first task on; none is none."""
    assert TaskDurations(TaskLimit(10.0), list).exceeded(10.0) is None
    bound = TaskDurations(TaskLimit(10.0), list).exceeded(10.5)
    assert bound is not None
    assert "--task-limit allows 10 s" in bound.why
    assert TaskDurations(TaskLimit(math.inf), list).exceeded(1e9) is None


@pytest.mark.parametrize(
    ("words", "seconds"),
    [((), None), (("auto",), None), (("none",), math.inf), (("90",), 90.0)],
)
@pytest.mark.parametrize("subcommand", ["work", "run"])
def test_the_option(subcommand: str, words: tuple[str, ...], seconds: float | None) -> None:
    """`auto` is the default of work and run; a number is in seconds."""
    command: Any = cli.get_command(None, subcommand)  # type: ignore[arg-type]
    given = ("--task-limit", *words) if words else ()
    rest = ("r",) if subcommand == "work" else ("--on", "local:1")
    parent = click.Context(cli)
    parent.params["ahead"] = None
    with command.make_context(subcommand, [*given, *rest], parent) as context:
        working = working_from(context.params)()
    assert working.settings.task_limit == TaskLimit(seconds)


@pytest.mark.parametrize("word", ["0", "-1", "soon"])
def test_what_is_no_limit_is_refused(word: str) -> None:
    """Zero seconds would end every task."""
    result = CliRunner().invoke(cli, ["work", "--task-limit", word, "r"])
    assert result.exit_code == 2
    assert "--task-limit" in result.output


QUICK = TaskLimit(first_s=600.0, least_s=0.6, times=3.0, tasks=4)


def test_a_task_that_hangs_is_cut_by_what_others_took(tmp_path: Path) -> None:
    """The message says the option, the limit, whence it comes, and where the task hung."""
    stage = Stage(tmp_path, 8)
    stage.send()
    outcome = stage.work({7: "hangs"}, seconds=0.01, task_limit=QUICK, max_failures=1)
    assert outcome.state == "complete-with-failures"
    assert stage.states() == {number: "dead" if number == 7 else "done" for number in range(8)}
    (failure,) = stage.ledger.failures()
    assert "s in operator acts: --task-limit auto allows 0.6 s" in failure.reason
    assert "3 times the median run time (0.01" in failure.reason
    assert "of the 7 tasks that have finished" in failure.reason
    assert "in hangs" in failure.traceback


def test_a_task_that_hangs_is_cut_by_what_is_recorded(tmp_path: Path) -> None:
    """A worker that has finished none itself asks the ledger; skipped tasks do not count."""
    stage = Stage(tmp_path, 12)
    for number in range(11):
        state: Any = "done" if number < 4 else "skipped"
        seconds = {"acts": 0.2 if number < 4 else 0.0}
        box = str(stage.plan.region(number))
        stage.ledger.record([Record(number, box, state, "5bec", f"a{number}", "w", "", seconds)])
    stage.send([11])
    stage.work({11: "hangs"}, task_limit=QUICK, max_failures=1)
    (failure,) = stage.ledger.failures()
    assert "3 times the median run time (0.2 s) of the 4 tasks" in failure.reason


class LoadsSlowly:
    """A body that takes long to set up."""

    def __enter__(self) -> None:
        time.sleep(3600)

    def __exit__(self, *_: object) -> None:
        pass

    def __call__(self, task: Any) -> Any:
        return task


def loads_slowly(feed: Any) -> Any:
    """A line whose set-up hangs."""
    return lines.pipeline([lines.operator("loads", LoadsSlowly())], feed)


def test_a_set_up_that_hangs_is_cut(tmp_path: Path) -> None:
    """A process that is never ready for a task is killed, and the worker does not wait for ever."""
    stage = Stage(tmp_path, 1)
    stage.send()
    worker = Background(stage.supervisor(line=loads_slowly, task_limit=TaskLimit(first_s=1.0)))
    with pytest.raises(Exception, match="was not ready for a task within 1 s"):
        worker.wait()


class Stuck:
    """A pipeline's source that takes tasks and hands none on."""

    def __init__(self, feed: Any) -> None:
        self._feed = feed

    def __iter__(self) -> Any:
        for _ in self._feed:
            time.sleep(3600)
        yield


def stuck(folder: str, feed: Any) -> Any:
    """A line that is stuck the first time, before its first operator."""
    import pathlib

    marker = pathlib.Path(folder, "stuck")
    if marker.exists():
        return lines.nothing(feed)
    marker.touch()
    return lines.pipeline([lines.operator("nothing", lambda task: task)], Stuck(feed))


def test_a_process_that_begins_nothing_is_ended(tmp_path: Path) -> None:
    """Tasks that it holds without beginning one go to another; they have not failed."""
    stage = Stage(tmp_path, 3)
    stage.send()
    outcome = stage.work(line=partial(stuck, str(tmp_path)), task_limit=TaskLimit(1.0))
    assert outcome.state == "complete"
    assert not list(stage.ledger.failures())
