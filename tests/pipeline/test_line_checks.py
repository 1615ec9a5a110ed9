"""A line is checked as a whole: the first that is wrong is raised, or all of it is listed."""

import pytest

from chunkflow_py.core.operator_base import OperatorBase, hook
from chunkflow_py.errors import ChunkflowError, GeometryError, OptionError, VolumeError
from chunkflow_py.pipeline.operator import Operator
from chunkflow_py.pipeline.pipeline import Pipeline


class Wrong(OperatorBase):
    """A body that finds something wrong before the first task."""

    def __init__(self, prepare=None, bounds=None):
        self.errors = {"prepare": prepare, "bounds": bounds}

    def _say(self, name):
        if self.errors[name] is not None:
            raise self.errors[name]

    @hook
    def prepare(self, outline):
        self._say("prepare")

    @hook
    def bounds(self):
        self._say("bounds")

    def __call__(self, task):
        return task


def line():
    """Return a line with four faults, in three operators."""
    first = Wrong(OptionError("no such option"), VolumeError("no such volume"))
    second = Wrong(GeometryError("no such box"))
    return Pipeline(
        [
            Operator("load", "read", first, first, (), ("chunk",)),
            Operator("odd", "compute", Wrong(), Wrong(), ("nothing",), ("map",)),
            Operator("save", "write", second, second, ("map",)),
        ]
    )


def test_all_that_is_wrong_is_listed() -> None:
    """A list takes every fault, in order; what comes after one is looked at as well."""
    problems: list[ChunkflowError] = []
    line().check(problems)
    said = [str(problem) for problem in problems]
    assert said[0].startswith("odd reads 'nothing'")
    assert said[1:] == ["no such option", "no such volume", "no such box"]


def test_without_a_list_the_first_is_raised() -> None:
    """A line that runs stops at what is wrong."""
    with pytest.raises(OptionError, match="odd reads 'nothing'"):
        line().check()


def test_a_foreign_error_is_no_fault_of_the_line() -> None:
    """What is not ours names its operator, in the list as well."""
    problems: list[ChunkflowError] = []
    body = Wrong(ZeroDivisionError("division by zero"))
    Pipeline([Operator("plugin", "compute", body, body)]).check(problems)
    (problem,) = problems
    assert "plugin" in str(problem)
    assert "division by zero" in str(problem)


def test_what_operators_are_told_is_kept() -> None:
    """After a check the outline of each operator can be looked at by its name."""
    pipeline = line()
    pipeline.check([])
    assert set(pipeline.outlines) == {"load", "odd", "save"}
    assert pipeline.outlines["save"].has_tasks is False
