"""Exceptions of every kind that operators, plugins and their libraries can raise."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os

from chunkflow_py.core.operator_base import OperatorBase, hook, hook_value
from rigs import lines


class Panic(BaseException):
    """Like the PanicException of extensions written in Rust."""


class Unreadable(Exception):
    """Its text cannot be read."""

    def __str__(self):
        msg = "no text"
        raise SystemExit(msg)

    __repr__ = __str__


class Unpicklable(Exception):
    """It can be neither copied nor made again."""

    def __init__(self, first, second):
        super().__init__(first)
        self.second = second, lambda: None

    def __reduce__(self):
        msg = "cannot be pickled"
        raise TypeError(msg)


class UnreadablePanic(Panic):
    """The worst of two."""

    __str__ = __repr__ = Unreadable.__str__


KINDS = {
    "ValueError": lambda: ValueError("poison"),
    "SystemExit": lambda: SystemExit(0),
    "SystemExit text": lambda: SystemExit("bye"),
    "KeyboardInterrupt": KeyboardInterrupt,
    "GeneratorExit": GeneratorExit,
    "StopIteration": StopIteration,
    "CancelledError": asyncio.CancelledError,
    "CancelledError of futures": concurrent.futures.CancelledError,
    "TimeoutError": lambda: ArithmeticError("took too long"),
    "Panic": lambda: Panic("called `Option::unwrap()` on a `None` value"),
    "group": lambda: BaseExceptionGroup("two", [SystemExit(1), ValueError("x")]),
    "unreadable": Unreadable,
    "unreadable panic": UnreadablePanic,
    "unpicklable": lambda: Unpicklable(1, 2),
    "long": lambda: ValueError("x" * 3_000_000),
    "surrogate": lambda: ValueError("\ud800 \udfff"),
    "bytes": lambda: OSError(5, os.fsdecode(b"/tmp/\xff\xfe")),
    "RecursionError": RecursionError,
    "AssertionError": AssertionError,
}


class Raises(OperatorBase):
    """An operator that raises what *acts* says for the number of a task."""

    thread_safe = hook_value(False)

    def __init__(self, acts):
        self.acts = acts

    def __call__(self, task):
        if kind := self.acts.get(lines.number_of(task)):
            raise KINDS[kind]()
        return task


def line(acts, ahead, feed):
    """A line of four operators in three lanes.

    Args:
        acts: position of an operator -> number of a task -> what it raises.
        ahead: see `Pipeline`.
        feed: of tasks.
    """
    lanes = ("read", "compute", "compute", "write")
    operators = [
        lines.operator(f"{lane}-{position}", Raises(acts.get(position, {})), lane)
        for position, lane in enumerate(lanes)
    ]
    operators[0].body.thread_safe = ahead > 1
    return lines.pipeline(operators, feed, ahead)


class Enters(OperatorBase):
    """A body that raises when it is entered, or prepared."""

    def __init__(self, kind, where):
        self.kind, self.where = kind, where

    def __enter__(self):
        if self.where == "__enter__":
            raise KINDS[self.kind]()

    def __exit__(self, *_):
        if self.where == "__exit__":
            raise KINDS[self.kind]()
        return True

    @hook
    def prepare(self, outline):
        if self.where == "prepare":
            raise KINDS[self.kind]()

    def __call__(self, task):
        return task


def enters(kind, where, feed):
    """A line whose set-up raises."""
    return lines.pipeline([lines.operator("sets-up", Enters(kind, where))], feed)


class BadSkip(lines.Skip):
    """A skip whose reason cannot be read."""

    __str__ = __repr__ = Unreadable.__str__


class Stores:
    """Puts into the record of a task what cannot be sent."""

    def __call__(self, task):
        number = lines.number_of(task)
        if number == 0:
            raise BadSkip
        if number == 1:
            task.written.append(lines.Stored(lambda: None, "many", object()))
        if number == 2:
            task.written.append("no such thing")
        return task


def stores(feed):
    """A line that says odd things of what it stored."""
    return lines.pipeline([lines.operator("stores", Stores())], feed)
