"""Fields of a description, read with errors that name the field."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, NoReturn

from chunkflow_py.errors import ModelError


class Field:
    """A value of a description and where it stands, such as ``inputs.0.axes``."""

    def __init__(self, value: Any, path: str, package: str) -> None:
        """Take a value; *path* is empty for the whole description."""
        self.value, self.path, self.package = value, path, package

    def __getitem__(self, key: str | int) -> Field:
        """Return a field inside of this one; its value is ``None`` if it is not there."""
        inside = None
        if isinstance(self.value, Mapping):
            inside = self.value.get(key)
        elif isinstance(self.value, list) and isinstance(key, int) and key < len(self.value):
            inside = self.value[key]
        return Field(inside, f"{self.path}.{key}".lstrip("."), self.package)

    def __iter__(self) -> Iterator[Field]:
        """Yield the items of a list; none if the field is not there."""
        if self.value is not None and not isinstance(self.value, list):
            self.refuse("it must be a list")
        return iter([self[i] for i in range(len(self.value or []))])

    def __bool__(self) -> bool:
        """Whether the field is there."""
        return self.value is not None

    def refuse(self, why: str) -> NoReturn:
        """Raise an error that names the field, its value and *why* it cannot be."""
        said = f"is {self.value!r}" if self else "is missing"
        msg = f"model package {self.package}: {self.path} {said}; {why}"
        raise ModelError(msg)

    def text(self) -> str:
        """Return a word; numbers are words too."""
        if not isinstance(self.value, str | int | float) or isinstance(self.value, bool):
            self.refuse("it must be a word")
        return str(self.value)

    def mapping(self) -> Mapping[str, Any]:
        """Return a mapping, empty if the field is not there."""
        if self.value is not None and not isinstance(self.value, Mapping):
            self.refuse("it must be a mapping")
        return self.value or {}

    def integer(self) -> int:
        """Return an integer."""
        if isinstance(self.value, bool) or not isinstance(self.value, int):
            self.refuse("it must be an integer")
        return self.value

    def number(self, default: float | None = None) -> float:
        """Return a number, or *default* if the field is not there.

        YAML 1.2 has numbers such as 1e-6 that YAML 1.1 reads as words.
        """
        if self.value is None and default is not None:
            return default
        found = math.nan
        if not isinstance(self.value, bool):
            with suppress(TypeError, ValueError):
                found = float(self.value)
        if math.isnan(found):
            self.refuse("it must be a number")
        return found

    def numbers(self, default: float | None = None) -> tuple[float, ...]:
        """Return one number, or each number of a list."""
        if isinstance(self.value, list) and self.value:
            return tuple(item.number() for item in self)
        return (self.number(default),)
