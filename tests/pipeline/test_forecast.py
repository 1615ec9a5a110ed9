"""What a line takes at its peak is told as a whole before the first read."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest

from chunkflow_py import BoxGrid, Pipeline, Task, Zyx
from chunkflow_py.core.chunk import Voxels
from chunkflow_py.core.host_memory import (
    FIRST_USE,
    OperatorMemory,
    available_host_bytes,
    resident_bytes,
)
from chunkflow_py.core.operator_base import OperatorBase, hook, hook_value
from chunkflow_py.errors import OptionError
from chunkflow_py.pipeline.forecast import estimate_memory
from chunkflow_py.pipeline.operator import Operator, Source, TaskSource
from chunkflow_py.pipeline.overlap import stages_of

SIZE = Zyx(8, 32, 32)
VOXELS = SIZE.product()
GRID = BoxGrid(Zyx(0, 0, 0), SIZE, SIZE, Zyx(12, 1, 1))
RESIDENT = "interpreter, libraries and weights"


class Alive:
    """Counts the bytes that arrays hold."""

    def __init__(self) -> None:
        self.now = self.most = 0
        self.lock = threading.Lock()

    def array(self, nbytes: int) -> Array:
        return Array(self, nbytes)

    def add(self, nbytes: int) -> None:
        with self.lock:
            self.now += nbytes
            self.most = max(self.most, self.now)


class Array:
    """Some bytes that are alive until nobody holds them."""

    def __init__(self, alive: Alive, nbytes: int) -> None:
        self.alive, self.nbytes = alive, nbytes
        alive.add(nbytes)

    def __del__(self) -> None:
        self.alive.add(-self.nbytes)


class Body(OperatorBase):
    """Makes an array of *voxels* for each task, and takes *need* meanwhile."""

    thread_safe = hook_value()

    def __init__(
        self,
        alive: Alive,
        made: Voxels | None,
        need: OperatorMemory | None = None,
        *,
        at_once: bool = False,
    ) -> None:
        self.alive, self.made, self.need, self.thread_safe = alive, made, need, at_once
        if made is None:
            del self.__dict__["made"]
        self.name = ""

    @hook
    def memory(self, size: Zyx | None) -> OperatorMemory | None:
        return self.need

    @hook
    def voxels(self) -> Any:
        return self.made if hasattr(self, "made") else {}

    def __call__(self, task: Task) -> Task:
        work = self.alive.array(self.need.work if self.need else 0)
        time.sleep(0.001 if hasattr(self, "made") else 0.01)  # so that all lanes fill
        if hasattr(self, "made"):
            size = self.need.size if self.need and self.need.size else SIZE
            item = np.dtype(self.made.dtype).itemsize * self.made.channels
            task[self.name] = self.alive.array(size.product() * item)
        del work
        return task


def line(alive: Alive, *, at_once: bool, begins: bool = False) -> list[Operator]:
    """Return a loader of a margin, a network of three channels and a saver."""
    bodies = [
        Body(
            alive,
            Voxels("uint8", 1, "image"),
            OperatorMemory(SIZE + (2, 8, 8), work=500),
            at_once=at_once,
        ),
        Body(
            alive, Voxels("float32", 3, "affinity"), OperatorMemory(SIZE, held={"workspace": 7_000})
        ),
        Body(alive, None, OperatorMemory(work=1_000), at_once=at_once),
    ]
    bodies[0].name, bodies[1].name = "image", "map"
    return [
        Operator("load", "read", bodies[0], bodies[0], (), ("image",)),
        Operator("infer", "compute", bodies[1], bodies[1], ("image",), ("map",)),
        Operator("save", "write", bodies[2], bodies[2], ("map",)),
    ]


def expected(stages: list[Operator], ahead: int, tasks: int | None = None) -> Any:
    """Return the forecast of a line."""
    voxels = {
        stage.name: dict.fromkeys(stage.outputs, stage.body.voxels() or None) for stage in stages
    }
    return estimate_memory(stages_of(stages, ahead), voxels, {"load": SIZE}, tasks)


@pytest.mark.parametrize("ahead", [0, 1, 3])
@pytest.mark.parametrize("at_once", [False, True])
def test_a_line_holds_what_was_foretold(ahead: int, at_once: bool) -> None:
    """No more than was foretold is alive at once, and not much less."""
    alive = Alive()
    stages = line(alive, at_once=at_once)
    told = expected(stages, ahead, 1 if ahead == 0 else 12).parts
    pipeline = Pipeline(stages, Source("boxes", TaskSource(GRID)), ahead=ahead)
    pipeline.check()
    for task in pipeline.run():
        assert task.outcome is None
        del task
    chunks = told["reading"] if ahead else 0
    chunks += sum(told.get(part, 0) for part in ("computing", "writing"))
    # A thread lets go of a task a moment after it has handed it over.
    assert chunks / 2 <= alive.most <= 1.02 * chunks
    assert told["workspace"] == 7_000


def test_one_task_takes_its_largest_state() -> None:
    """With one task in flight it is the largest of what it is in the lanes, not their sum."""
    told = expected(line(Alive(), at_once=False), 0, 1)
    image, result = (SIZE + (2, 8, 8)).product(), 12 * VOXELS
    assert told.parts[RESIDENT] == pytest.approx(resident_bytes() + FIRST_USE, rel=0.1)
    assert told.parts == {
        RESIDENT: told.parts[RESIDENT], "workspace": 7_000, "writing": image + result + 1_000,
    }  # fmt: skip
    assert not told.unknown
    assert "workspace" in str(told)
    assert not str(told).startswith("at least")


def test_no_more_tasks_are_counted_than_there_are() -> None:
    """Working ahead of two tasks takes no more than two tasks."""
    stages = line(Alive(), at_once=True)
    assert expected(stages, 5, 2).bytes < expected(stages, 5, 3).bytes < expected(stages, 5).bytes
    assert expected(stages, 5, 1).parts["writing"] == expected(stages, 0, 1).parts["writing"]


def test_what_is_unknown_is_said_to_be() -> None:
    """An operator that makes something unknown is named, and the sum is a lower bound."""
    odd = Operator("plugin", "compute", lambda task: task, object(), ("image",), ("odd",))
    load = line(Alive(), at_once=False)[0]
    voxels = {"load": {"image": Voxels("uint8", 1, None)}}
    told = estimate_memory(stages_of([load, odd], 0), voxels, {}, 1)
    assert told.unknown == ("plugin",)
    assert str(told).startswith("at least ")
    assert str(told).endswith("more for plugin, whose memory is unknown")


def run(ahead: int | None, share: float, caplog: Any, tasks: int = 12) -> Pipeline:
    """Run a line whose loader and saver say to take this share of the memory there is."""
    caplog.set_level("INFO")
    available = available_host_bytes()
    assert available is not None
    stages = line(Alive(), at_once=False)
    for stage in (stages[0], stages[2]):
        stage.call = lambda task: task
        stage.body.need = OperatorMemory(SIZE, work=int(share * available))
    stages[1].call = lambda task: task
    grid = BoxGrid(Zyx(0, 0, 0), SIZE, SIZE, Zyx(tasks, 1, 1))
    pipeline = Pipeline(stages, Source("boxes", TaskSource(grid)), ahead=ahead)
    pipeline.check()
    assert len(list(pipeline.run())) == tasks
    return pipeline


def test_lanes_work_ahead_by_themselves_if_it_fits(caplog: Any) -> None:
    """Automatic is 1 where the memory for it is there, and the peak is told."""
    assert run(None, 0.001, caplog).ahead == 1
    assert "expected peak: " in caplog.text
    assert "available" not in caplog.text


def test_lanes_do_not_work_ahead_if_it_does_not_fit(caplog: Any) -> None:
    """Automatic is 0 where it is not, with a note of both numbers; one task is no problem."""
    assert run(None, 0.6, caplog).ahead == 0
    (note,) = [record for record in caplog.records if "available" in record.message]
    assert note.levelname == "INFO"
    assert note.message.startswith("--ahead 1 is expected to peak at ")
    assert " GB are available: using --ahead 0" in note.message
    assert run(None, 0.6, caplog, tasks=1).ahead == 1


def test_an_explicit_number_is_obeyed(caplog: Any) -> None:
    """Who says how far to work ahead is warned, with what less would take."""
    assert run(2, 0.6, caplog).ahead == 2
    (warning,) = [record for record in caplog.records if record.levelname == "WARNING"]
    assert warning.message.startswith("--ahead 2 is expected to peak at ")
    assert "; --ahead 0 would take " in warning.message
    assert run(0, 0.001, caplog).ahead == 0


@pytest.mark.parametrize("ahead", [None, 0, 2])
def test_what_does_not_fit_at_all_is_refused(ahead: int | None, caplog: Any) -> None:
    """A line that does not fit with one task either ends before the first read."""
    with pytest.raises(OptionError, match=r"expected to peak at .* are available; make the tasks"):
        run(ahead, 1.1, caplog)


def test_a_line_that_foretells_nothing_is_run(caplog: Any) -> None:
    """Without an operator that says what it takes, nothing is told and nothing refused."""
    caplog.set_level("INFO")
    huge = BoxGrid(Zyx(0, 0, 0), Zyx(10**6, 10**6, 10**6), Zyx(1, 1, 1), Zyx(2, 1, 1))
    stage = Operator("odd", "compute", lambda task: task, object(), (), ("odd",))
    pipeline = Pipeline([stage], Source("boxes", TaskSource(huge)), ahead=None)
    pipeline.check()
    assert len(list(pipeline.run())) == 2
    assert (pipeline.ahead, caplog.text) == (1, "")
