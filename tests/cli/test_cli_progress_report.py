"""What a person sees of a line: a view of stages, lines of tasks, the table of times, failures."""

from __future__ import annotations

import io
import logging
import sys
import threading
from contextlib import redirect_stderr
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from rigs.terminal import Terminal, on_terminal

from chunkflow_py import BoundingBox, BoxGrid, Pipeline, Zyx
from chunkflow_py.cli.gpu_use import GpuUse, GpuWatch
from chunkflow_py.cli.logs import configure_logging, restore_logging
from chunkflow_py.cli.main import cli
from chunkflow_py.cli.progress import PipelineProgress, progress_rows, task_voxels
from chunkflow_py.cli.progress_report import PipelineReport
from chunkflow_py.core.operator_base import OperatorBase, hook_value
from chunkflow_py.core.task import Skip, Task
from chunkflow_py.errors import ChunkError
from chunkflow_py.pipeline.operator import Operator, Source, TaskSource
from chunkflow_py.run.worker.worker_pool import ProcessSnapshot, TaskSnapshot

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

GRID = BoxGrid.covering(BoundingBox.parse("0-8_0-1_0-1"), Zyx(1, 1, 1))


def make(name: str, body: Any = lambda task: task, stage: Any = "compute") -> Operator:
    """Return an operator as a command would."""
    return Operator(name, stage, body, body)


@pytest.fixture(autouse=True)
def said() -> Iterator[None]:
    """Set up logging as the command line does."""
    configure_logging(verbose=True, debug=False)
    yield
    restore_logging()


def run(
    operators: list[Operator],
    tasks: Iterable[Task] | None = None,
    *,
    ahead: int = 0,
    stream: io.StringIO | None = None,
    watch: Callable[[PipelineReport], None] | None = None,
    **settings: Any,
) -> str:
    """Run a pipeline over eight tasks, or *tasks*, and return its output."""
    body = TaskSource(GRID) if tasks is None else tasks
    with redirect_stderr(stream or Terminal()) as screen:
        report = PipelineReport(**{"show_progress": True, "show_table": False} | settings)
        if watch:
            watch(report)
        for task in Pipeline(operators, Source("s", body), ahead=ahead, listener=report).run():
            if task.failed:
                report.print_failure(task, debug=False)
                break
    assert task.failed or report.progress.is_idle, "all is forgotten"
    return screen.getvalue()


class Works(OperatorBase):
    """A body with news from inside one call, which looks at the view then."""

    on_progress: Any = hook_value(None)

    def __init__(self) -> None:
        self.report: Any = None
        self.views: list[list[str]] = []
        self.shares: list[float | None] = []

    def watch(self, report: PipelineReport) -> None:
        self.report = report

    def __call__(self, task: Task) -> Task:
        for done in (0, 1, 3):
            self.on_progress(done, 4)
            self.views.append([row.text for row in progress_rows(self.report.progress, GpuWatch())])
            self.shares.append(self.report.progress.share())
        return task


class Network(OperatorBase):
    """A body whose network has run."""

    network_seconds = hook_value(5.0)

    def __call__(self, task: Task) -> Task:
        return task


# --- the view ------------------------------------------------------------------------------------


def test_the_view_says_what_each_stage_does() -> None:
    """The view shows operator, task and progress of each stage, or that it waits."""
    body = Works()
    line = [make("load", stage="read"), make("inference", body), make("save", stage="write")]
    run(line, watch=body.watch)
    first, second = body.views[2], body.views[5]
    assert first[0].startswith("#...................   7%  0 of 8 tasks   0.0 s elapsed")
    assert first[1:] == [
        "read     waits",
        "compute  inference 0-1_0-1_0-1, 3 of 4, 0.0 s",
        "write    waits",
    ]
    assert second[0].startswith(
        "####................  20%  1 of 8 tasks   0.0 s elapsed, ends in 0."
    )
    assert second[1].endswith("voxel/s")
    assert "inference 1-2_0-1_0-1, 3 of 4" in second[3]


def test_the_view_shows_the_processes_that_run_the_tasks() -> None:
    """With several processes, each of them has a row; there are no rows of stages."""
    progress = PipelineProgress([make("load", stage="read")], 4)
    task = TaskSnapshot("0-1_0-1_0-1", "load", "read", 2.0)
    common: Any = {"device": None, "network_seconds": None, "read_bytes": 0, "memory_bytes": 0}
    progress.processes = (
        ProcessSnapshot(0, 1, seconds=3.0, tasks=(task,), **common),
        ProcessSnapshot(1, 2, seconds=None, tasks=(), **common),
    )
    rows = [row.text for row in progress_rows(progress, GpuWatch())]
    assert rows[1:] == [" 0  load 0-1_0-1_0-1, 2.0 s", " 1  starts"]


def test_the_view_says_how_much_the_network_has_of_the_time(monkeypatch: Any) -> None:
    """Time outside of the network, and the GPUs if there are any."""
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    progress = PipelineProgress([make("inference", Network())], 4)
    now = 110.0
    gpu = GpuWatch()
    gpu.now = [GpuUse("0", 0.88, 12_100_000_000, 80_000_000_000), GpuUse("1", None, 0, 0)]
    assert progress_rows(progress, gpu)[1].text == (
        "50% of the time outside of the network   GPU 88% busy, 12.1 of 80 GB"
    )
    report = PipelineReport(show_progress=False, show_table=True)
    report.progress = progress
    name, _, share = report.table().splitlines()[2].rsplit(maxsplit=2)
    assert (name, share) == ("outside network", "50%")


def test_several_tasks_in_one_stage_are_counted() -> None:
    """The oldest is shown, and how many there are beside it."""
    progress = PipelineProgress([make("load", stage="read")], None)
    tasks = [Task(region) for region in map(_region, range(3))]
    for task in tasks:
        progress.operator_started("load", task)
    head, row = progress_rows(progress, GpuWatch())
    assert head.text.startswith("0 tasks   0.0 s elapsed"), "no share of what is not known"
    assert row.text == "read     load 0-1_0-1_0-1, 0.0 s, and 2 more"


def _region(z: int) -> Any:
    return next(iter(TaskSource([BoundingBox.from_size((z, 0, 0), (1, 1, 1))]))).region


@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_all_of_the_work_is_done_at_the_end(ahead: int) -> None:
    """The share ends at 1 with skipped tasks and several threads."""

    def skip(task: Task) -> Task:
        if task.bbox is not None and task.bbox.start.z % 3 == 0:
            raise Skip
        return task

    body = Works()
    line = [make("load", stage="read"), make("skip", skip), make("inference", body)]
    run([*line, make("save", stage="write")], ahead=ahead, watch=body.watch)
    progress = body.report.progress
    assert (progress.share(), progress.done, progress.skipped, progress.voxels) == (1.0, 5, 3, 8)
    known = [share for share in body.shares if share is not None]
    assert len(known) == 15
    assert max(known) < 1
    assert ahead or known == sorted(known)


def test_the_end_of_a_single_task_is_told_by_what_is_within(monkeypatch: Any) -> None:
    """Its operators are not alike, so that none of them tells for the others."""
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    progress, task = PipelineProgress([make("inference"), make("save")], 1), Task()
    progress.operator_started("inference", task)
    assert progress.left_s() is None
    now = 110.0
    progress.operator_progressed("inference", task, 2, 8)
    assert progress.left_s() == pytest.approx(30)


def test_tasks_without_a_box_have_the_voxels_of_their_chunk() -> None:
    """A pipeline over a whole file also has a speed."""
    import numpy as np

    from chunkflow_py.core.chunk import Chunk

    chunk = Chunk(np.zeros((2, 3, 4, 5), np.uint8), (0, 0, 0), (1, 1, 1))
    assert task_voxels(Task(items={"chunk": chunk, "other": 3})) == 60
    assert task_voxels(Task()) is None


def test_progress_may_come_from_several_threads() -> None:
    """Nothing is lost when stages report at the same time."""
    report = PipelineReport(show_progress=True, show_table=False)
    with redirect_stderr(Terminal()):
        report.run_started([make(name) for name in "abcd"], 1600)

        def work(label: str) -> None:
            for _ in range(400):
                task = Task()
                report.operator_started(label, task)
                for done in range(1, 5):
                    report.operator_progressed(label, task, done, 4)
                report.operator_finished(label, task, 0.5)
                report.task_finished(task)

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
        report.run_finished()
    assert report.progress.share() == 1
    assert report.progress.seconds == dict.fromkeys("abcd", 200.0)
    assert report.progress.done == 1600


@pytest.mark.parametrize(
    ("asked", "terminal_there", "view", "lines"),
    [
        (None, True, True, False),
        (None, False, False, True),
        (True, False, False, True),
        (False, True, False, False),
        (False, False, False, False),
    ],
)
def test_a_terminal_gets_a_view_and_a_log_gets_lines(
    asked: bool | None, terminal_there: bool, view: bool, lines: bool
) -> None:
    """One or the other, unless progress is refused; never a control character in a log."""
    stream = Terminal() if terminal_there else io.StringIO()
    text = run([make("load")], stream=stream, show_progress=asked)
    assert ("\x1b" in text) == view
    assert ("INFO: 7-8_0-1_0-1: done in 0.00 s (load 0.00), " in text) == lines
    assert (text.count("voxel/s\n") == 8) == lines
    assert lines or not isinstance(stream, Terminal) or stream.text == ""


def test_log_lines_stand_above_the_view() -> None:
    """A log line during a run starts on a line of its own and stays visible."""
    logger = logging.getLogger("chunkflow_py.test")

    def speak(task: Task) -> Task:
        logger.info("hello %s", task)
        return task

    screen = Terminal()
    run([make("speak", speak)], stream=screen, show_table=True)
    shown = screen.text.splitlines()
    assert shown[:8] == [f"INFO: hello {z}-{z + 1}_0-1_0-1" for z in range(8)]
    assert shown[8].split() == ["operator", "seconds", "of", "elapsed"]
    assert shown[-1].endswith("8 tasks")


def test_a_line_on_a_real_terminal(tmp_path: Path) -> None:
    """View, log lines and results share it; it may be resized; at the end nothing is left over."""
    slow = tmp_path / "slow.py"
    slow.write_text(
        "import time, logging, sys\n"
        "def execute(chunk):\n"
        "    time.sleep(0.3)\n"
        "    logging.getLogger('chunkflow_py.test').warning('a long ' + 'warning ' * 9)\n"
        "    print('a result')\n"
        "    time.sleep(0.3)\n"
        "    return chunk\n"
    )
    views: list[str] = []

    def watch(screen: Terminal, resize: Callable[[int], None]) -> None:
        views.append(screen.text)
        if "1 of 3 tasks" in screen.text:
            resize(46)

    line = "generate-tasks --roi-size 24 4 4 --chunk-size 8 4 4 create-chunk --size 8 4 4"
    code, screen, written = on_terminal(
        [*line.split(), "plugin", "-f", str(slow), "-i", "chunk", "-o", "chunk"], watch=watch
    )
    assert code == 0, screen.text
    assert any("compute  plugin 0-8_0-4_0-4, 0." in view for view in views)
    assert any(", ends in " in view for view in views)
    heads = [row for view in views for row in view.splitlines() if " 2 of 3 tasks" in row]
    assert {(len(row), row[-1]) for row in heads} == {(45, "…")}, "cut where the terminal ends now"
    warning = "WARNING: a long " + "warning " * 9
    shown = screen.text.replace("\n", "")
    assert shown.count(warning.rstrip()) + shown.count(warning) >= 3
    assert screen.text.count("a result") == 3
    assert "waits" not in screen.text
    assert "gone" not in screen.text
    assert screen.text.splitlines()[-1].startswith("elapsed")
    assert "?25" not in screen.modes
    assert screen.modes["?7"]
    assert not screen.modes["?2026"]


# --- table ---------------------------------------------------------------------------------------


def test_table_lists_every_operator() -> None:
    """Operators are in pipeline order, skipped tasks are counted, columns line up."""

    def skip(task: Task) -> Task:
        raise Skip

    line = [make("load"), make("inference"), make("load"), make("skip", skip), make("save")]
    text = run(line, stream=io.StringIO(), show_progress=False, show_table=True)
    lines = [each for each in text.splitlines() if not each.startswith("INFO")]
    names = ["operator", "load", "inference", "load#2", "skip", "save", "elapsed"]
    assert [line.split()[0] for line in lines] == names
    assert len({len(line) for line in lines[:-1]}) == 1
    assert lines[-1].endswith("voxel/s, 8 tasks, 8 of them skipped")


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
    """The error starts a line of its own; no view and no table follow it."""

    def fail(task: Task) -> Task:
        if task.bbox is not None and task.bbox.start.z == 3:
            raise ChunkError("too wide")  # noqa: EM101
        return task

    line = [make("load", stage="read"), make("fail", fail), make("save", stage="write")]
    screen = Terminal()
    run(line, ahead=ahead, show_table=True, stream=screen)
    assert screen.text.splitlines() == [
        "Error: fail failed on task 3-4_0-1_0-1: too wide",
        "3 of 8 tasks done, 1 failed, 4 not run.",
    ]


def test_what_reading_has_cost_is_told(tmp_path: Path) -> None:
    """The table ends with the bytes that each loader fetched, decoded and needed."""
    url = f"precomputed://{tmp_path}/em"
    made = f"create-chunk -s 8 32 64 -p random save-precomputed -v {url} --block-size 8 16 16"
    line = f"generate-tasks -v {url} -c 8 16 32 load-precomputed -v {url} --expand-margin-size"
    assert CliRunner().invoke(cli, made.split()).exit_code == 0
    aligned = CliRunner().invoke(cli, [*line.split(), "0", "0", "0"])
    said = aligned.stderr.splitlines()[-1]
    assert said.startswith("load-precomputed read ")
    assert "decoded it to 16,384 bytes, which is 1.00 times the 16,384 bytes that" in said
    one = f"load-precomputed -v {url} -s 0 0 0 -z 1 1 1".split()
    said = CliRunner().invoke(cli, one).stderr.splitlines()[-1]
    assert "decoded it to 2,048 bytes, which is 2,048 times the 1 bytes that tasks" in said
    wide = CliRunner().invoke(cli, [*line.split(), "0", "4", "4"])
    said = wide.stderr.splitlines()[-1]
    assert float(said.split(" times ")[0].split()[-1]) < 1, "each block is decoded once"
    assert "; 0 blocks" not in said
    assert "came from the cache of blocks read earlier" in said
    assert "missing" not in wide.stderr
    next((tmp_path / "em").rglob("*0-8*")).unlink()
    said = CliRunner().invoke(cli, [*line.split(), "0", "0", "0"]).stderr.splitlines()[-1]
    assert said.startswith("load-precomputed found 1 block missing in the volume and used ")
