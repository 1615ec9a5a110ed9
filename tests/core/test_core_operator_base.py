"""Operators with hooks: marks are checked when a class is defined."""

import inspect
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages

import pytest

import chunkflow_py
from chunkflow_py.core.operator_base import HOOK, HOOKS, OperatorBase, hook, hook_value, with_hooks
from chunkflow_py.pipeline import hooks


def test_hooks_are_those_that_the_pipeline_asks_for():
    """The list of hooks names each method and attribute of the protocols, and nothing else."""
    protocols = [
        each
        for each in vars(hooks).values()
        if getattr(each, "_is_protocol", False) and each.__module__ == hooks.__name__
    ]
    asked = set()
    for each in protocols:
        if each.__name__ in {"WritersByPlace", "HasStop", "HasSettle"}:  # of tasks and sources
            continue
        asked |= {name for name in vars(each) if not name.startswith("_")}
        asked |= set(inspect.get_annotations(each))
    assert asked == HOOKS


def test_marked_hooks_are_found_with_their_values():
    """Methods, properties, constants, assigned attributes and fields of dataclasses are hooks."""

    @dataclass
    class Moves(OperatorBase):
        order: tuple[int, ...] = field(metadata=HOOK)
        keeps_voxels = hook_value(True)
        origin: str = field(default="here", metadata=HOOK)

        @hook
        def bounds(self):
            return "bounds"

        @property
        @hook
        def destination(self):
            return "there"

    class Assigns(OperatorBase):
        removes = hook_value()

        def __init__(self):
            self.removes = ("chunk",)

    moves = Moves((2, 1, 0))
    assert (moves.order, moves.origin, moves.bounds()) == ((2, 1, 0), "here", "bounds")
    assert isinstance(moves, hooks.KeepsVoxels)
    assert moves.keeps_voxels is True
    assert moves.destination == "there"
    assert not isinstance(moves, hooks.HasPrepare)
    assert Assigns().removes == ("chunk",)
    assert Moves.declared_hooks == {"order", "keeps_voxels", "origin", "bounds", "destination"}


@pytest.mark.parametrize(
    "body",
    [
        {"prepare": lambda _self, _outline: None},
        {"thread_safe": True},
        {"origin": property(lambda _self: "here")},
        {"__annotations__": {"order": "tuple[int, ...]"}},
    ],
    ids=["method", "attribute", "property", "field"],
)
def test_a_hook_without_its_mark_is_refused(body):
    """Each kind of attribute that has the name of a hook needs a mark; the message names it."""
    name = next(iter(body.get("__annotations__", body)))
    with pytest.raises(TypeError, match=rf"Odd\.{name} has the name of a hook without its mark"):
        type("Odd", (OperatorBase,), body)


def test_a_mistyped_hook_is_refused():
    """The message suggests the hook that was meant."""
    with pytest.raises(TypeError, match="did you mean required_input"):
        type("Odd", (OperatorBase,), {"requires_input": hook(lambda _self: None)})
    with pytest.raises(TypeError, match="did you mean keeps_voxels"):
        type("Odd", (OperatorBase,), {"keep_voxels": hook_value(True)})


def test_inherited_classes_are_checked():
    """A subclass marks its override again; a class that it is mixed with is checked as well."""

    class Loads(OperatorBase):
        @hook
        def bounds(self):
            return None

    class Mixed:
        def prepare(self, outline):
            """Have the name of a hook."""

    assert type("Fine", (Loads,), {}).declared_hooks == {"bounds"}
    with pytest.raises(TypeError, match="bounds has the name of a hook"):
        type("Odd", (Loads,), {"bounds": lambda _self: None})
    with pytest.raises(TypeError, match="prepare has the name of a hook"):
        type("Odd", (Mixed, OperatorBase), {})


def test_a_hook_that_is_not_declared_cannot_be_assigned():
    """An attribute that only an object has would be a hook that the class does not show."""

    class Plain(OperatorBase):
        def __init__(self):
            self.thread_safe = True

    with pytest.raises(TypeError, match="Plain assigns the hook thread_safe"):
        Plain()

    class Late(OperatorBase):
        origin = hook_value()

    with pytest.raises(AttributeError, match="Late declares the hook origin"):
        _ = Late().origin


def test_operators_with_hooks_inherit_from_the_base():
    """Every class that an operator file defines and that has names of hooks inherits them."""
    found = []
    folder = Path(chunkflow_py.__file__).parent / "ops"
    for module in walk_packages([str(folder)], "chunkflow_py.ops."):
        if module.ispkg or module.name.count(".") > 2:
            continue
        for name, kind in vars(import_module(module.name)).items():
            is_own = inspect.isclass(kind) and kind.__module__ == module.name
            if is_own and hasattr(kind, "__call__"):  # noqa: B004
                names = HOOKS & {*vars(kind), *inspect.get_annotations(kind)}
                if names and not issubclass(kind, OperatorBase):
                    found.append(name)
    assert found == []


def test_a_function_takes_hooks_by_name():
    """The hooks become attributes of the function; a mistyped name is refused."""

    @with_hooks(keeps_voxels=True, cut_remedy="load a margin")
    def smooth(chunk):
        return chunk

    assert isinstance(smooth, hooks.KeepsVoxels)
    assert (smooth.keeps_voxels, smooth.cut_remedy) == (True, "load a margin")
    with pytest.raises(TypeError, match="did you mean cut_remedy"):
        with_hooks(cut_remedies="")
