"""`OperatorBase`, from which operators with hooks inherit: a mistyped hook fails at definition.

A hook is a method or attribute that the pipeline looks for on an operator, such as
``required_input``; `chunkflow_py.pipeline.hooks` documents each. A subclass marks the hooks it has:

```
class Smoother(OperatorBase):
    keeps_voxels = hook_value(True)                     # a constant
    origin: str = hook_value()                          # assigned in __init__

    @hook
    def required_input(self, box, domain): ...          # a method

    @property
    @hook
    def destination(self): ...                          # a property
```

A field of a dataclass that is a hook is declared by ``field(metadata=HOOK)``.
"""

from __future__ import annotations

import difflib
from dataclasses import Field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

HOOK = {"chunkflow_py.hook": True}  # metadata of a dataclass field
_Function = TypeVar("_Function", bound="Callable[..., Any]")

HOOKS = frozenset(
    {
        # before the run
        "prepare", "negotiate", "create_output",
        # what it does to boxes
        "required_input", "face_offsets", "order", "shrinks_by", "set_bbox", "cut_remedy",
        "margin_helps",
        # what it makes
        "bounds", "times", "known_voxel_size_nm", "any_voxel_size", "voxels", "keeps_voxels",
        "voxels_from", "labelling", "stored_type", "removes",
        # places
        "origin", "origins", "destination", "destinations", "stores", "leftovers", "kept",
        # memory
        "memory", "check_memory",
        # running
        "thread_safe", "start", "on_progress", "single_writer",
        # records of a run
        "needed_files", "code", "profile", "network_seconds", "traffic",
    }
)  # fmt: skip


class _HookValue:
    """An attribute that overrides a hook; an assignment to the object replaces its value."""

    def __init__(self, values: tuple[Any, ...]) -> None:
        self.values = values
        self.name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, owner: object, kind: type) -> Any:
        if self.values:
            return self.values[0]
        msg = f"{kind.__name__} declares the hook {self.name} and has not assigned it"
        raise AttributeError(msg)


def hook_value(*value: Any) -> Any:
    """Declare an attribute that is a hook: a constant, or one that __init__ assigns."""
    return _HookValue(value)


def hook(function: _Function) -> _Function:
    """Mark a method, or the function below ``@property``, as a hook."""
    function._is_hook = True  # type: ignore[attr-defined]
    return function


def with_hooks(**values: Any) -> Callable[[_Function], _Function]:
    """Give hooks to a function that is an operator: ``@with_hooks(keeps_voxels=True)``.

    Raises:
        TypeError: a name is not that of a hook.
    """
    _check("with_hooks", set(values), set())

    def give(function: _Function) -> _Function:
        for name, value in values.items():
            setattr(function, name, value)
        return function

    return give


def _is_marked(attribute: object) -> bool:
    if isinstance(attribute, Field):
        return "chunkflow_py.hook" in attribute.metadata
    if isinstance(attribute, property):
        attribute = attribute.fget
    elif isinstance(attribute, cached_property):
        attribute = attribute.func
    return isinstance(attribute, _HookValue) or getattr(attribute, "_is_hook", False) is True


class OperatorBase:
    """An operator whose hooks are checked when the class is defined.

    Raises:
        TypeError: a hook lacks its mark, or a name that is marked is not that of a hook.
    """

    declared_hooks: ClassVar[frozenset[str]] = frozenset()

    def __init_subclass__(cls, **settings: Any) -> None:
        """Check the class and what it inherits from classes that are not operators."""
        super().__init_subclass__(**settings)
        declared: set[str] = set()
        for base in cls.__mro__:
            if base is object or base is OperatorBase:
                continue
            if base is not cls and issubclass(base, OperatorBase):  # checked when it was defined
                declared |= base.declared_hooks
                continue
            marked = {name for name, attribute in vars(base).items() if _is_marked(attribute)}
            _check(cls.__name__, marked, {*vars(base), *vars(base).get("__annotations__", ())})
            declared |= marked
        cls.declared_hooks = frozenset(declared)

    def __setattr__(self, name: str, value: object) -> None:
        """Refuse to assign a hook that the class does not declare."""
        if name in HOOKS and name not in self.declared_hooks:
            kind = type(self).__name__
            msg = f"{kind} assigns the hook {name}; declare it: write {name} = hook_value() in it"
            raise TypeError(msg)
        object.__setattr__(self, name, value)


def _check(owner: str, marked: set[str], names: set[str]) -> None:
    for name in sorted(marked - HOOKS):
        close = difflib.get_close_matches(name, HOOKS, 1)
        hint = f"; did you mean {close[0]}?" if close else ""
        msg = f"{owner}.{name} is marked as a hook, but no hook has that name{hint}"
        raise TypeError(msg)
    for name in sorted((names & HOOKS) - marked):
        msg = (
            f"{owner}.{name} has the name of a hook without its mark: put @hook above the "
            f"function (below @property), write {name} = hook_value(...), or, for the field of a "
            "dataclass, field(metadata=HOOK); rename it if it is not a hook"
        )
        raise TypeError(msg)
