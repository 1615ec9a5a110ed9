"""Task: one region of the volume and what is known about it."""

from __future__ import annotations

import numpy as np
import pytest

from chunkflow_py import Chunk, Region, Task
from chunkflow_py.core.points import Points
from chunkflow_py.core.synapses import Synapses
from chunkflow_py.core.task import Skip
from chunkflow_py.errors import MissingChunkError, OperatorError


def test_task_has_the_box_of_its_region() -> None:
    """A task prints its region; a task without a region has no box."""
    task = Task(Region.parse("t3_0-1_0-2_0-3"))
    assert str(task) == "t3_0-1_0-2_0-3"
    assert str(task.bbox) == "0-1_0-2_0-3"
    assert Task().bbox is None
    assert str(Task()) == "task"


def test_items_are_kept_by_name() -> None:
    """An item is returned under the name it was stored with."""
    task, chunk = Task(), Chunk(np.zeros((1, 1, 1)))
    task["a"] = chunk
    assert task["a"] is task.chunk("a") is chunk


def test_missing_name_lists_what_there_is() -> None:
    """The message names the item, the items so far, and what to change, without a repr's quotes."""
    task = Task(items={"b": 1, "a": 2})
    with pytest.raises(MissingChunkError) as caught:
        task["img"]
    assert str(caught.value) == (
        "no chunk named 'img' (chunks so far: a, b); change --input-name, or add "
        "an operator that makes this chunk earlier in the pipeline"
    )
    with pytest.raises(KeyError, match="chunks so far: none"):
        Task()["img"]


def test_item_of_another_type_is_no_chunk() -> None:
    """Asking for a chunk and finding something else says what it is."""
    with pytest.raises(MissingChunkError, match="item 'a' is a list, not a chunk"):
        Task(items={"a": []}).chunk("a")


def test_items_have_types() -> None:
    """An item of the requested type is returned; otherwise the message names both types."""
    points = Points(np.zeros((1, 3), int))
    task = Task(items={"p": points, "none": None, "c": Chunk(np.zeros((1, 1, 1)))})
    assert task.item("p", Points) is points
    with pytest.raises(MissingChunkError, match=r"item 'p' is Points, not Synapses; change --in"):
        task.item("p", Synapses)
    with pytest.raises(MissingChunkError, match="item 'c' is a chunk, not Points"):
        task.item("c", Points)
    with pytest.raises(MissingChunkError, match="'none' is None .* put skip-none -i none"):
        task.item("none", Synapses)


def test_only_an_error_is_a_failure() -> None:
    """A skipped task has not failed, nor has one that is still under way."""
    assert not Task().failed
    assert not Task(outcome=Skip("all zero")).failed
    assert Task(outcome=OperatorError("a", None, ValueError())).failed


def test_tasks_share_nothing() -> None:
    """Two tasks have dictionaries of their own."""
    first, second = Task(), Task()
    first["a"] = 1
    first.seconds["a"] = 1.0
    assert not second.items
    assert not second.seconds
