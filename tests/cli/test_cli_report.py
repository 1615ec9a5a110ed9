"""What a person sees: progress bar, table of times, failures."""

from __future__ import annotations

import io
import logging
import re
import sys
import threading
from contextlib import redirect_stderr
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from chunkflow_py import BoundingBox, BoxGrid, Pipeline, Zyx
from chunkflow_py.cli.main import cli
from chunkflow_py.cli.report import Report, configure_logging, restore_logging
from chunkflow_py.errors import ChunkError
from chunkflow_py.stages import Operator, Source, TaskSource
from chunkflow_py.task import Skip, Task

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

GRID = BoxGrid.covering(BoundingBox.parse("0-8_0-1_0-1"), Zyx(1, 1, 1))


class Terminal(io.StringIO):
    """A stderr that is a terminal."""

    def isatty(self) -> bool:
        return True


def make(name: str, body: Any = lambda task: task, lane: Any = "compute") -> Operator:
    """Return an operator as a command would."""
    return Operator(name, lane, body, body)


def run(
    operators: list[Operator],
    tasks: Iterable[Task] | None = None,
    *,
    ahead: int = 0,
    stream: io.StringIO | None = None,
    watch: Callable[[Report], None] | None = None,
    **settings: Any,
) -> str:
    """Run a line over eight tasks, or *tasks*, and return what stands on the terminal."""
    body = TaskSource(GRID) if tasks is None else tasks
    with redirect_stderr(stream or Terminal()) as screen:
        report = Report(**{"show_progress": True, "show_table": False} | settings)
        if watch:
            watch(report)
        for task in Pipeline(operators, Source("s", body), ahead=ahead, listener=report).run():
            if task.failed:
                report.print_failure(task, debug=False)
                break
    assert report.total is None or task.failed or not report._shares, "done tasks are forgotten"
    return screen.getvalue()


class Works:
    """A body with news from inside one call."""

    on_progress: Any = None

    def __call__(self, task: Task) -> Task:
        self.on_progress(0, 0)
        self.on_progress(1, 4)
        self.on_progress(3, 4)
        return task


def spy(steps: list[float]) -> Callable[[Report], None]:
    """Collect the steps that the bar is moved by."""

    def watch(report: Report) -> None:
        started = report.run_started

        def run_started(operators: Any, tasks: Any) -> None:
            started(operators, tasks)
            update = report._bar.update

            def note(step: float) -> None:
                steps.append(step)
                update(step)

            report._bar.update = note

        report.run_started = run_started  # type: ignore[method-assign]

    return watch


# --- progress bar --------------------------------------------------------------------------------


@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_bar_counts_operators_on_tasks(ahead: int) -> None:
    """A bar ends at 100 %, whatever was skipped and in however many threads it was worked."""

    def skip(task: Task) -> Task:
        if task.bbox is not None and task.bbox.start.z % 3 == 0:
            raise Skip
        return task

    steps: list[float] = []
    line = [make("load", lane="read"), make("skip", skip), make("inference", Works())]
    text = run([*line, make("save", lane="write")], ahead=ahead, watch=spy(steps))
    assert sum(steps) == pytest.approx(8 * 4)
    assert min(steps) >= -1e-9
    assert "100%" in text


def test_bar_moves_within_an_operator() -> None:
    """An operator that reports its progress moves the bar in between, and counts as one."""
    steps: list[float] = []
    run([make("inference", Works())], [Task()], watch=spy(steps))
    assert [round(step, 2) for step in steps] == [0.0, 0.25, 0.5, 0.25, 0]


def test_bar_without_a_known_number_of_tasks() -> None:
    """A line fed by a queue shows what is at work and for how long, without a percentage."""
    text = run([make("load")], iter([Task()]))
    assert re.search(r"load +\d\d:\d\d", text)
    assert "%" not in text


def test_bar_says_what_is_at_work() -> None:
    """Beside the bar stand the operator and the task."""
    assert "load 0-1_0-1_0-1 " in run([make("load")])


@pytest.mark.parametrize(
    ("asked", "terminal_there", "shown"),
    [(None, True, True), (None, False, False), (True, False, True), (False, True, False)],
)
def test_bar_is_shown_on_a_terminal_or_when_asked(
    asked: bool | None, terminal_there: bool, shown: bool
) -> None:
    """A log file gets no bar unless it is asked for; a terminal gets one unless it is refused."""
    stream = Terminal() if terminal_there else io.StringIO()
    assert bool(run([make("load")], stream=stream, show_progress=asked)) == shown


def test_bar_may_be_moved_from_several_threads() -> None:
    """No step is lost when lanes report at the same time."""
    report = Report(show_progress=True, show_table=False)
    with redirect_stderr(Terminal()):
        report.run_started([make(name) for name in "abcd"], 400)
    bar = report._bar

    def work(label: str) -> None:
        for _ in range(400):
            task = Task()
            report.operator_started(label, task)
            for done in range(1, 5):
                report.operator_progressed(label, task, done, 4)
            report.operator_finished(label, task, 0.5)
            report.task_finished(Task(seconds=dict.fromkeys("abcd", 0.0)))

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work, args=(label,)) for label in "abcd"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert bar.n == pytest.approx(1600)
    assert report.seconds == dict.fromkeys("abcd", 200.0)
    assert report.done == 1600
    report.run_finished()


# --- table ---------------------------------------------------------------------------------------


def test_table_lists_every_operator() -> None:
    """Operators stand in the order of the line, skipped tasks are counted, columns line up."""

    def skip(task: Task) -> Task:
        raise Skip

    line = [make("load"), make("inference"), make("load"), make("skip", skip), make("save")]
    lines = run(line, show_progress=False, show_table=True).splitlines()
    names = ["operator", "load", "inference", "load#2", "skip", "save", "elapsed"]
    assert [line.split()[0] for line in lines] == names
    assert len({len(line) for line in lines[:-1]}) == 1
    assert lines[-1].endswith("8 tasks, 8 of them skipped")


@pytest.mark.parametrize(("count", "text"), [(1, "1 task"), (2, "2 tasks")])
def test_table_counts_tasks(count: int, text: str) -> None:
    """One task is a task."""
    tasks = [Task() for _ in range(count)]
    shown = run([make("a")], tasks, show_progress=False, show_table=True)
    assert shown.endswith(f"  {text}\n")


def test_no_table_when_not_asked() -> None:
    """A quiet report prints nothing."""
    assert run([make("a")], show_progress=False) == ""


# --- failure -------------------------------------------------------------------------------------


@pytest.mark.parametrize("ahead", [0, 2])
def test_failure_stands_alone(ahead: int) -> None:
    """The sentence begins a line of its own, after the bar; no bar and no table come after it."""

    def fail(task: Task) -> Task:
        if task.bbox is not None and task.bbox.start.z == 3:
            raise ChunkError("too wide")  # noqa: EM101
        return task

    line = [make("load", lane="read"), make("fail", fail), make("save", lane="write")]
    assert run(line, ahead=ahead, show_table=True).splitlines()[-2:] == [
        "Error: fail failed on task 3-4_0-1_0-1: too wide",
        "3 of 8 tasks done, 1 failed, 4 not run.",
    ]


def test_log_lines_stand_above_the_bar() -> None:
    """A log line in the middle of a run begins on a line of its own, and the bar comes after it."""
    logger = logging.getLogger("chunkflow_py.test")

    def speak(task: Task) -> Task:
        logger.info("hello")
        return task

    screen = Terminal()
    configure_logging(verbose=True, debug=False)
    try:
        text = run([make("speak", speak)], stream=screen)
    finally:
        restore_logging()
    # What a terminal shows of a line is what was written after the last return to its start.
    shown = [re.split("\r|\x1b\\[A", line)[-1].strip() for line in text.split("\n")]
    assert shown.count("INFO: hello") == 8
    assert "speak" in shown[-2] + shown[-1]


def test_what_reading_has_cost_is_told(tmp_path: Path) -> None:
    """The table ends with what each loader fetched and decoded, and how much of it was needed."""
    url = f"precomputed://{tmp_path}/em"
    made = f"create-chunk -s 8 32 64 -p random save-precomputed -v {url} --block-size 8 16 16"
    line = f"generate-tasks -v {url} -c 8 16 32 load-precomputed -v {url} --expand-margin-size"
    assert CliRunner().invoke(cli, made.split()).exit_code == 0
    aligned = CliRunner().invoke(cli, [*line.split(), "0", "0", "0"])
    said = aligned.stderr.splitlines()[-1]
    assert said.startswith("load-precomputed read ")
    assert "and decoded 16,384 bytes, 1.00 times the 16,384 bytes that were needed" in said
    one = f"load-precomputed -v {url} -s 0 0 0 -z 1 1 1".split()
    said = CliRunner().invoke(cli, one).stderr.splitlines()[-1]
    assert "and decoded 2,048 bytes, 2,048 times the 1 bytes that were needed" in said
    wide = CliRunner().invoke(cli, [*line.split(), "0", "4", "4"])
    said = wide.stderr.splitlines()[-1]
    assert float(said.split(" times ")[0].split()[-1]) < 1, "each block is decoded once"
    assert "; 0 blocks" not in said
    assert "were kept from earlier tasks" in said
    assert "missing" not in wide.stderr
    next((tmp_path / "em").rglob("*0-8*")).unlink()
    said = CliRunner().invoke(cli, [*line.split(), "0", "0", "0"]).stderr.splitlines()[-1]
    assert said.startswith("load-precomputed found no data for 1 block, which was read as ")
