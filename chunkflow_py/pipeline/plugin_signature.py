"""What the file of a plugin says of its ``execute``, read without running it.

Parameters of these types are options, as are those without a type that have a default; the others
are given items:

| annotation                    | option                                      |
|-------------------------------|---------------------------------------------|
| ``int``, ``float``, ``str``   | ``--size 3``                                |
| ``bool``                      | ``--flag/--no-flag``                        |
| ``Literal["a", "b"]``         | one of these                                |
| ``tuple[int, int, int]``      | ``--size 3 1 1``; ``Zyx`` likewise          |
| ``list[int]``, ``tuple[int, ...]`` | ``--ids 3,1``                          |
| ``tuple``, ``list``, ``dict`` | a literal, ``--size "(3, 1, 1)"``        |
| ``T | None``, ``Optional[T]`` | as ``T``                                    |
| none                          | a Python literal, or else a text            |
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from chunkflow_py.core.geometry import Zyx
from chunkflow_py.pipeline.plugin import literal

if TYPE_CHECKING:
    from pathlib import Path

PREFIX = "argument_"  # of the names by which click knows the options
_PLAIN: dict[str, Any] = {"int": int, "float": float, "str": str}
_MANY = re.compile(r"(?:list|tuple|Sequence|Iterable)\[(int|float|str)(?:, \.\.\.)?\]")


class LiteralType(click.ParamType[Any]):
    """A Python literal, or else a text."""

    name = "value"

    def convert(self, value: Any, *_: object) -> Any:
        """Read the literal; nothing is evaluated."""
        return literal(value) if isinstance(value, str) else value


class ListType(click.ParamType[Any]):
    """Values separated by commas."""

    def __init__(self, kind: str, make: type) -> None:
        """Remember the type of the values and that of all of them."""
        self.name, self.kind, self.make = f"{kind},{kind},…", _PLAIN[kind], make

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Split at commas."""
        try:
            return self.make(self.kind(part) for part in value.split(","))
        except ValueError:
            self.fail(f"{value!r} is no list such as {self.name.rstrip(',…')}", param, ctx)


@dataclass(frozen=True)
class Signature:
    """What is known of a plugin's ``execute``.

    Attributes:
        doc: docstring of the function, else of the file.
        inputs: names of the parameters that are no options: the items it is given.
        options: the others, by the names of the parameters with `PREFIX`.
        takes_more: whether it takes any keyword.
    """

    doc: str
    inputs: tuple[str, ...]
    options: tuple[click.Option, ...]
    takes_more: bool


def read_signature(path: Path) -> Signature | None:
    """Return what the file says of its function ``execute``, or ``None`` if it has none to read."""
    tree = parse(path)
    function = None if tree is None else _function(tree, "execute")
    if tree is None or function is None:
        return None
    arguments = function.args
    positional = [*arguments.posonlyargs, *arguments.args]
    found: dict[str, ast.expr | None] = dict.fromkeys(each.arg for each in positional)
    for each, default in zip(reversed(positional), reversed(arguments.defaults), strict=False):
        found[each.arg] = default
    found |= {
        each.arg: default
        for each, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    }
    inputs, options = [], []
    for each in (*positional, *arguments.kwonlyargs):
        told = "" if each.annotation is None else ast.unparse(each.annotation).strip("'\"")
        settings = _settings(told, found[each.arg])
        is_option = settings is not None or each not in positional
        if not is_option and (told or found[each.arg] is None):
            inputs.append(each.arg)
        else:
            options.append(_option(each.arg, settings or {}, found[each.arg]))
    doc = ast.get_docstring(function) or ast.get_docstring(tree) or ""
    return Signature(doc, tuple(inputs), tuple(options), arguments.kwarg is not None)


def is_operator_file(path: Path) -> bool:
    """Tell whether a file holds an operator: a function ``command`` under a decorator."""
    tree = parse(path)
    function = None if tree is None else _function(tree, "command")
    return function is not None and bool(function.decorator_list)


def parse(path: Path) -> ast.Module | None:
    """Return the syntax tree of a file, or ``None`` if it is not Python."""
    try:
        return ast.parse(path.read_text(encoding="utf-8"))
    except (SyntaxError, ValueError):
        return None


def _function(tree: ast.Module, name: str) -> ast.FunctionDef | None:
    return next(
        (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name),
        None,
    )


def _settings(told: str, default: ast.expr | None) -> dict[str, Any] | None:
    """Return what click needs to know of an annotation, or ``None`` if it does not say."""
    told = re.sub(r"^(?:typing\.)?Optional\[(.*)\]$|^(.*?) \| None$", r"\1\2", told)
    if told == "bool":
        return {"is_flag": True}
    if told in _PLAIN:
        return {"type": _PLAIN[told]}
    if told == "Zyx":
        return {"type": int, "nargs": 3, "metavar": "Z Y X"}
    if match := re.fullmatch(r"(?:typing\.)?Literal\[(.*)\]", told):
        return {"type": click.Choice([str(each) for each in _values(f"({match[1]},)")])}
    if match := _MANY.fullmatch(told):
        return {"type": ListType(match[1], list if told.startswith("list") else tuple)}
    if match := re.fullmatch(r"tuple\[(.*)\]", told):
        kinds = [kind.strip() for kind in match[1].split(",")]
        if len(set(kinds)) == 1 and kinds[0] in _PLAIN:
            return {"type": _PLAIN[kinds[0]], "nargs": len(kinds)}
    if default is not None:
        value = _values(ast.unparse(default))
        if isinstance(value, bool):
            return {"is_flag": True}
        if isinstance(value, tuple) and len(value) > 1:
            return {"nargs": len(value)}
    return {} if told in ("tuple", "list", "dict") else None


def _values(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except ValueError:
        return None


def _option(name: str, settings: dict[str, Any], default: ast.expr | None) -> click.Option:
    word = name.replace("_", "-")
    spelling = f"--{word}/--no-{word}" if settings.get("is_flag") else f"--{word}"
    told = "[required]" if default is None else f"[default: {ast.unparse(default)}]"
    if settings.get("metavar") == "Z Y X":
        settings["callback"] = lambda _, __, value: value if value is None else Zyx.of(value)
    if not settings.get("is_flag"):
        settings.setdefault("type", LiteralType())
    return click.Option([spelling, PREFIX + name], default=None, help=told, **settings)
