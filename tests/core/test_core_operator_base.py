"""Operators with hooks: marks are checked when a class is defined."""

import inspect
from dataclasses import dataclass, field
from functools import lru_cache, partial
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages

import numpy as np
import pytest

import chunkflow_py
from chunkflow_py import hooks
from chunkflow_py.core.operator_base import (
    HOOK,
    OperatorBase,
    hook,
    hook_value,
    hooks_of,
    source_hooks_of,
    with_hooks,
)
from chunkflow_py.errors import ChunkflowError
from chunkflow_py.pipeline.operator import Operator, OperatorCommand


def test_every_hook_has_a_default_and_a_docstring():
    """The base class has every hook, so that the pipeline never has to probe for one."""
    plain = hooks_of(len)
    for name in OperatorBase.hook_names - {"start", "choose_backend"}:
        attribute = vars(OperatorBase)[name]
        default = getattr(plain, name)
        if inspect.isfunction(attribute):
            arguments = [None] * (len(inspect.signature(attribute).parameters) - 1)
            default = default(*arguments)
        assert default in (None, False, True, "", 0.0, (), {}), name
        assert attribute is None or attribute.__doc__, name
    assert not plain.declared_hooks


def test_older_names_ask_for_the_hook():
    """Each older name stands for one hook; every hook of before has one."""
    named = {each.hook for each in vars(hooks).values() if isinstance(each, hooks._DeclaresHook)}
    added = {"cutout", "placement", "expected", "tells_missing", "missing_output", "margin_helps",
             "backend_is_open", "choose_backend", "is_local", "part_store", "patch_counts",
             "task_time", "separates_times", "fetched_files"}  # fmt: skip
    assert named - {"stop", "settle"} == OperatorBase.hook_names - added


def test_a_plain_object_with_the_name_of_a_hook_is_refused():
    """It would be ignored silently; the message names the class and the remedy."""

    class Smoother:
        def required_input(self, box, domain):
            return box.grow((1, 1, 1))

        def __call__(self, chunk):
            return chunk

    with pytest.raises(TypeError, match="Smoother does not inherit from OperatorBase; inherit"):
        hooks_of(Smoother())
    with pytest.raises(TypeError, match="does not inherit from SourceBase"):
        source_hooks_of(type("Tasks", (), {"boxes": ()})())
    with pytest.raises(ChunkflowError, match="declares its hooks wrongly"):
        OperatorCommand(
            "it", callback=Smoother, make=lambda name, body, *_: Operator(name, "read", body, body)
        ).main([], standalone_mode=False)


def test_functions_partials_and_compiled_functions_are_operators():
    """They have the hooks that `with_hooks` gave them, and defaults."""

    @with_hooks(keeps_voxels=True)
    def smooth(chunk, sigma):
        return chunk

    class Smoother(OperatorBase):
        thread_safe = hook_value(True)

        def __call__(self, chunk, sigma):
            return chunk

    assert hooks_of(partial(smooth, sigma=2)).keeps_voxels is True
    assert hooks_of(partial(Smoother(), sigma=2)).thread_safe is True
    assert hooks_of(with_hooks(keeps_voxels=True)(lru_cache(smooth))).keeps_voxels is True
    assert hooks_of(np.sqrt).keeps_voxels is False
    assert source_hooks_of(iter([])).boxes is None


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
    with pytest.raises(TypeError, match=rf"Odd\.{name} has the name of a hook but is not marked"):
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
                names = OperatorBase.hook_names & {*vars(kind), *inspect.get_annotations(kind)}
                if names and not issubclass(kind, OperatorBase):
                    found.append(name)
    assert found == []


def test_a_function_takes_hooks_by_name():
    """The hooks become attributes of the function; a mistyped name is refused."""

    @with_hooks(keeps_voxels=True, cut_remedy="load a margin")
    def smooth(chunk):
        return chunk

    assert isinstance(smooth, hooks.KeepsVoxels)
    assert hooks_of(smooth).cut_remedy == "load a margin"
    with pytest.raises(TypeError, match="did you mean cut_remedy"):
        with_hooks(cut_remedies="")
