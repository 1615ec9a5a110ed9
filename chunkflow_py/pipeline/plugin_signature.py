"""The signature of a plugin's ``execute``, read from the file without running the file.

A parameter with one of these annotations becomes an option of the command:

| annotation                         | option                               |
|------------------------------------|--------------------------------------|
| ``int``, ``float``, ``str``        | ``--size 3``                         |
| ``bool``                           | ``--flag/--no-flag``                 |
| ``Literal["a", "b"]``              | ``--mode a`` or ``--mode b``         |
| ``tuple[int, int, int]``, ``Zyx``  | ``--size 3 1 1``                     |
| ``list[int]``, ``tuple[int, ...]`` | ``--ids 3,1``                        |
| ``tuple``, ``list``, ``dict``      | a literal, ``--size "(3, 1, 1)"``    |
| ``T | None``, ``Optional[T]``      | as for ``T``                         |

A parameter without annotation becomes an option if it has a default. A keyword-only parameter
always becomes an option. A parameter that has none of these annotations, but a bool as its default,
becomes a flag. If the default is not a bool, the value is a Python literal or, if the text is not a
literal, a string. All other parameters receive items of the task.
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

PREFIX = "argument_"  # of the parameter names of these options in click
_PLAIN: dict[str, Any] = {"int": int, "float": float, "str": str}
_MANY = re.compile(r"(?:list|tuple|Sequence|Iterable)\[(int|float|str)(?:, \.\.\.)?\]")


class LiteralType(click.ParamType[Any]):
    """Type of an option that takes a Python literal; other text stays a string."""

    name = "value"

    def convert(self, value: Any, *_: object) -> Any:
        """Return the value of a literal without running code."""
        return literal(value) if isinstance(value, str) else value


class ListType(click.ParamType[Any]):
    """Values separated by commas."""

    def __init__(self, kind: str, make: type) -> None:
        self.name, self.kind, self.make = f"{kind},{kind},…", _PLAIN[kind], make

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Split at commas."""
        try:
            return self.make(self.kind(part) for part in value.split(","))
        except ValueError:
            self.fail(f"{value!r} is not a list such as {self.name.rstrip(',…')}", param, ctx)


@dataclass(frozen=True)
class Signature:
    """The parameters and the docstring of a plugin's ``execute``.

    Attributes:
        doc: docstring of the function or, if it has none, of the file.
        inputs: names of the parameters that receive items.
        options: click options for the other parameters. click stores their values under names that
            begin with `PREFIX`.
        takes_more: whether the function accepts arbitrary keyword arguments.
    """

    doc: str
    inputs: tuple[str, ...]
    options: tuple[click.Option, ...]
    takes_more: bool


def read_signature(path: Path) -> Signature | None:
    """Return the signature of ``execute``; ``None`` if the file does not define the function."""
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
        annotation = "" if each.annotation is None else ast.unparse(each.annotation).strip("'\"")
        settings = _settings(annotation, found[each.arg])
        is_option = settings is not None or each not in positional
        if not is_option and (annotation or found[each.arg] is None):
            inputs.append(each.arg)
        else:
            options.append(_option(each.arg, settings or {}, found[each.arg]))
    doc = ast.get_docstring(function) or ast.get_docstring(tree) or ""
    return Signature(doc, tuple(inputs), tuple(options), arguments.kwarg is not None)


def is_operator_file(path: Path) -> bool:
    """Return whether a file defines an operator: a decorated function ``command``."""
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


def _settings(annotation: str, default: ast.expr | None) -> dict[str, Any] | None:
    """Return click settings that an annotation or a default implies; ``None`` if neither does."""
    annotation = re.sub(r"^(?:typing\.)?Optional\[(.*)\]$|^(.*?) \| None$", r"\1\2", annotation)
    if annotation == "bool":
        return {"is_flag": True}
    if annotation in _PLAIN:
        return {"type": _PLAIN[annotation]}
    if annotation == "Zyx":
        return {"type": int, "nargs": 3, "metavar": "Z Y X"}
    if match := re.fullmatch(r"(?:typing\.)?Literal\[(.*)\]", annotation):
        return {"type": click.Choice([str(each) for each in _values(f"({match[1]},)")])}
    if match := _MANY.fullmatch(annotation):
        return {"type": ListType(match[1], list if annotation.startswith("list") else tuple)}
    if match := re.fullmatch(r"tuple\[(.*)\]", annotation):
        kinds = [kind.strip() for kind in match[1].split(",")]
        if len(set(kinds)) == 1 and kinds[0] in _PLAIN:
            return {"type": _PLAIN[kinds[0]], "nargs": len(kinds)}
    if default is not None:
        value = _values(ast.unparse(default))
        if isinstance(value, bool):
            return {"is_flag": True}
        if isinstance(value, tuple) and len(value) > 1:
            return {"nargs": len(value)}
    return {} if annotation in ("tuple", "list", "dict") else None


def _values(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except ValueError:
        return None


def _option(name: str, settings: dict[str, Any], default: ast.expr | None) -> click.Option:
    word = name.replace("_", "-")
    spelling = f"--{word}/--no-{word}" if settings.get("is_flag") else f"--{word}"
    help_text = "[required]" if default is None else f"[default: {ast.unparse(default)}]"
    if settings.get("metavar") == "Z Y X":
        settings["callback"] = lambda _, __, value: value if value is None else Zyx.of(value)
    if not settings.get("is_flag"):
        settings.setdefault("type", LiteralType())
    return click.Option([spelling, PREFIX + name], default=None, help=help_text, **settings)
