"""What a command of a line is: decorators, names, outlines."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import click
import numpy as np
import pytest
from click.testing import CliRunner

from chunkflow_py import BoundingBox, BoxGrid, Chunk, Region, Task, Zyx
from chunkflow_py.core.operator_base import OperatorBase, hook
from chunkflow_py.errors import ChunkflowError
from chunkflow_py.pipeline.operator import (
    Operator,
    OperatorCommand,
    Outline,
    Source,
    TaskSource,
    operator,
    source,
    transform,
)
from chunkflow_py.pipeline.params import ItemName, ItemNames

BOX = BoundingBox.parse("0-1_0-1_0-1")


def stage(command: OperatorCommand, *args: str) -> Any:
    """Return the stage that *command* makes of *args*."""
    with command.make_context(command.name, list(args)) as ctx:
        return command.invoke(ctx)


def task(**chunks: float) -> Task:
    """Return a task on `BOX` with one-voxel chunks of these values."""
    return Task(Region(BOX), {name: Chunk(np.full((1, 1, 1), v)) for name, v in chunks.items()})


@transform
@click.option("--factor", type=float, default=2.0)
def scale(factor: float) -> Any:
    """Return a body that multiplies."""
    return lambda chunk: chunk * factor


# --- transform -----------------------------------------------------------------------------------


def test_transform_reads_one_name_and_makes_another() -> None:
    """--input-name and --output-name say which chunks; the others are left alone."""
    made = stage(scale, "--factor", "3", "-i", "image", "-o", "map")
    assert isinstance(made, Operator)
    assert (made.stage, made.inputs, made.outputs) == ("compute", ("image",), ("map",))
    before = task(image=1.0, chunk=5.0)
    after = made.call(before)
    assert after is before
    assert {name: after.chunk(name).array.item() for name in after.items} == {
        "image": 1.0,
        "chunk": 5.0,
        "map": 3.0,
    }


@pytest.mark.parametrize("spelling", ["--input-name", "--input-chunk-name", "-i"])
def test_transform_has_the_older_spellings(spelling: str) -> None:
    """Old command lines name their chunks as they did."""
    assert stage(scale, spelling, "image").inputs == ("image",)


def test_transform_default_names() -> None:
    """Without names a transform replaces `chunk`."""
    made = stage(scale)
    assert (made.inputs, made.outputs) == (("chunk",), ("chunk",))
    assert made.call(task(chunk=1.0)).chunk("chunk").array.item() == 2.0


def test_transform_gives_the_box_to_who_asks() -> None:
    """A body with a parameter bbox is given the task's box."""

    @transform
    def crop() -> Any:
        return lambda chunk, bbox: chunk.with_array(chunk.array + bbox.voxels)

    assert stage(crop).call(task(chunk=1.0)).chunk("chunk").array.item() == 2.0


def test_transform_takes_compiled_functions() -> None:
    """A body that has no signature to look at is called with the chunk alone."""

    @transform
    def compiled() -> Any:
        return max

    assert stage(compiled).call(task(chunk=9.0))["chunk"].item() == 9.0


def test_transform_that_forgets_to_return_is_caught() -> None:
    """None is never stored as a chunk; the message tells how to drop a task."""

    @transform
    def forgetful() -> Any:
        return lambda chunk: None

    with pytest.raises(ChunkflowError, match="returned None, not a chunk; raise Skip"):
        stage(forgetful).call(task(chunk=1.0))


# --- operator and source -------------------------------------------------------------------------


@pytest.mark.parametrize("lane", ["read", "compute", "write"])
def test_operator_gets_the_task(lane: Any) -> None:
    """The body of an operator is called with the task itself, in its lane."""

    @operator(lane)
    @click.option("--from", "from_", type=ItemName("in"), default="a")
    @click.option("--more", type=ItemNames("in"))
    @click.option("--to", type=ItemNames("out"), default="b,c")
    def command(from_: str, more: tuple[str, ...] | None, to: tuple[str, ...]) -> Any:
        def body(one: Task) -> Task:
            one.items.update(dict.fromkeys(to, one[from_]))
            return one

        return body

    made = stage(command)
    assert (made.stage, made.inputs, made.outputs) == (lane, ("a",), ("b", "c"))
    assert stage(command, "--more", "x,y").inputs == ("a", "x", "y")
    assert set(made.call(task(a=1.0)).items) == {"a", "b", "c"}


def test_source_makes_tasks() -> None:
    """The body of a source is what the tasks come from."""

    @source
    @click.option("--count", type=int, default=2)
    def command(count: int) -> Any:
        return [Task() for _ in range(count)]

    made = stage(command, "--count", "3")
    assert isinstance(made, Source)
    assert len(list(made.body)) == 3


def test_every_command_has_a_label() -> None:
    """--name labels the stage; without it the label is the command's name."""
    assert stage(scale, "--name", "double").name == "double"
    assert stage(scale).name == scale.name


def test_command_is_named_and_described_by_its_file() -> None:
    """The file name is the command name, and the docstring is the help, its example unwrapped."""
    from chunkflow_py.ops.create_chunk import command

    assert command.name == "create-chunk"
    text = CliRunner().invoke(command, ["--help"], terminal_width=60).output
    assert "Create a synthetic chunk: sine pattern" in text
    assert (
        "Example: chunkflow create-chunk --size 36 448 448 --pattern random save-h5 --file-name"
        in text
    )


def test_command_that_returns_nothing_is_an_error() -> None:
    """A command must return what runs on a task."""

    @operator("read")
    def command() -> Any:
        return None

    with pytest.raises(ChunkflowError, match="returned None; it must return an operator"):
        stage(command)


# --- outline and task source ---------------------------------------------------------------------


def test_task_source_yields_a_task_for_each_box() -> None:
    """Boxes of a grid become tasks in order, and their number is known."""
    grid = BoxGrid.covering(BoundingBox.parse("0-2_0-1_0-2"), Zyx(1, 1, 1))
    tasks = TaskSource(grid)
    assert len(tasks) == 4
    assert [one.bbox for one in tasks] == list(grid)
    assert [one.bbox for one in tasks] == list(grid), "a source can be run again"


def test_task_source_with_other_regions() -> None:
    """Where the regions are not the boxes, the tasks are those of the regions."""
    tasks = TaskSource([BOX], lambda: [Region(BOX, 0), Region(BOX, 1)])
    assert [str(one) for one in tasks] == ["t0_0-1_0-1_0-1", "t1_0-1_0-1_0-1"]


def test_outline_of_grid_and_list_agree() -> None:
    """The region is the hull of all boxes, from a grid's corners or from a list."""
    grid = BoxGrid.covering(BoundingBox.parse("-3-4_0-5_0-6"), Zyx(2, 2, 2))
    assert Outline(grid).region == Outline(list(grid)).region == grid.bounds
    assert Outline().region is None
    assert Outline([]).region is None


def test_outline_bounds_hold_domain_and_tasks() -> None:
    """A new volume has to hold what is read and what is asked for, as far as they are known."""
    other = BoundingBox.parse("5-6_0-1_0-1")
    assert Outline([BOX], other).bounds == BOX.hull(other)
    assert Outline([BOX]).bounds == BOX
    assert Outline(None, other).bounds == other
    assert Outline().bounds is None


# --- several chunks, and beginning ahead ---------------------------------------------------------


@transform
@click.option("--parts", type=ItemNames("out"))
def split(parts: tuple[str, ...] | None) -> Any:
    """Return a body that makes a chunk for each name."""
    return lambda chunk: {name: chunk * n for n, name in enumerate(parts)} if parts else chunk


@pytest.mark.parametrize("parts", ["a,b", "b,chunk", "chunk"])
def test_a_body_that_names_its_chunks_makes_those_alone(parts: str) -> None:
    """What a later command may read are the names that are made, not --output-name besides."""
    names = tuple(parts.split(","))
    made = stage(split, "--parts", parts, "-i", "image")
    assert made.outputs == names
    after = made.call(task(image=3.0))
    assert {name: after.chunk(name).array.item() for name in names} == {
        name: 3.0 * n for n, name in enumerate(names)
    }
    assert stage(split).outputs == ("chunk",)
    assert stage(split, "-o", "map").outputs == ("map",)


class Starts(OperatorBase):
    """A body that can begin ahead, and tells what it was given."""

    def __init__(self) -> None:
        self.given: list[Any] = []

    def __call__(self, chunk: Chunk, bbox: BoundingBox | None = None) -> Chunk:
        return chunk * 2

    @hook
    def start(self, chunk: Chunk, bbox: BoundingBox | None = None) -> Future[Any]:
        self.given.append((chunk.array.item(), bbox))
        future: Future[Any] = Future()
        future.set_result(self(chunk, bbox))
        return future


def test_a_body_with_start_is_given_chunk_and_box_and_finishes_as_a_call_does() -> None:
    """`start` and `finish` together do to a task what `call` does."""
    body = Starts()

    @transform
    def double() -> Any:
        """Return the body."""
        return body

    made = stage(double, "-i", "image", "-o", "map")
    assert made.start is not None
    assert made.finish is not None
    ahead, called = task(image=4.0), made.call(task(image=4.0))
    made.finish(ahead, made.start(ahead).result())
    assert body.given == [(4.0, BOX)]
    assert ahead.items.keys() == called.items.keys() == {"image", "map"}
    assert ahead.chunk("map").array.item() == called.chunk("map").array.item() == 8.0
    with pytest.raises(ChunkflowError, match="returned None"):
        made.finish(ahead, None)
    with pytest.raises(ChunkflowError, match="no chunk named"):
        made.start(task(other=1.0))
    assert stage(scale).start is None
