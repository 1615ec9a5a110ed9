"""Read values of a bundle's config; follow references, and never evaluate expressions.

| value in the config       | value that is read                                             |
|---------------------------|----------------------------------------------------------------|
| a plain value             | the plain value                                                |
| ``@name::field::0``       | a reference: item 0 of ``field`` in ``name``; may also be      |
|                           | written as ``@name#field#0``                                   |
| ``$torch.float32``        | the dtype ``float32``, in a field for a dtype                  |
| ``$expression``           | Python code: an error if the value is needed, else ignored     |
| ``%file::name``           | a macro for another file: an error if needed, else ignored     |
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any, NoReturn

from chunkflow_py.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Iterator

_REFERENCE = re.compile(r"@([A-Za-z_]\w*(?:(?:::|#)\w+)*)", re.ASCII)
_DTYPE = re.compile(r"\$?(?:torch\.|np\.|numpy\.)?(\w+)", re.ASCII)
_INDEX = re.compile(r"[0-9]{1,6}", re.ASCII)
_MOST_REFERENCES = 32
_MOST_DEPTH = 16
_MOST_VALUES = 100_000  # that are read, each time that it is: references can multiply them
# Keys that MONAI reads itself and does not pass on as arguments.
_RESERVED = ("_target_", "_desc_", "_mode_", "_disabled_", "_requires_")


class ConfigField:
    """A value of a config, with the path to it, such as ``preprocessing::transforms::0``."""

    def __init__(self, value: Any, path: str, document: ConfigDocument) -> None:
        """Store *value*, which is not a reference; ``None`` means that the field does not exist."""
        self.value, self.path, self._document = value, path, document

    def __getitem__(self, key: str | int) -> ConfigField:
        """Return the field *key* inside this field; a reference is replaced by its value."""
        inside = None
        if isinstance(self.value, dict) and isinstance(key, str):
            inside = self.value.get(key)
        elif isinstance(self.value, list) and isinstance(key, int) and key < len(self.value):
            inside = self.value[key]
        path = f"{self.path}::{key}" if self.path else str(key)
        return self._document.followed(inside, path)

    def __iter__(self) -> Iterator[ConfigField]:
        """Yield each item of the list in this field as a field; nothing if the field is missing."""
        if self.value is not None and not isinstance(self.value, list):
            self.refuse("it must be a list")
        return iter([self[i] for i in range(len(self.value or []))])

    def __bool__(self) -> bool:
        """Whether the field exists."""
        return self.value is not None

    @property
    def target(self) -> str:
        """Name of the class in ``_target_``, without modules; empty if there is no ``_target_``."""
        name = self.value.get("_target_") if isinstance(self.value, dict) else None
        return name.rpartition(".")[2] if isinstance(name, str) else ""

    @property
    def is_disabled(self) -> bool:
        """Whether ``_disabled_`` is true, which switches off the object in this field."""
        return self["_disabled_"].boolean(default=False)

    def refuse(self, why: str) -> NoReturn:
        """Raise a ModelError that names the field, its value, and *why* the value is invalid."""
        where = f"{self._document.name} of MONAI bundle {self._document.bundle}"
        if isinstance(self.value, str) and self.value[:1] in ("$", "%"):
            what = "an expression, which is Python code" if self.value[0] == "$" else "a macro"
            msg = (
                f"{where}: {self.path} is {_shown(self.value)}, {what}, but expressions and macros "
                "of bundles are never evaluated; write the resulting value into the config"
            )
        else:
            state = f"is {_shown(self.value)}" if self else "is missing"
            msg = f"{where}: {self.path} {state}; {why}"
        raise ModelError(msg)

    def text(self) -> str:
        """Return the value, a string that is not an expression."""
        if not isinstance(self.value, str) or self.value[:1] in ("$", "%"):
            self.refuse("it must be a string")
        return self.value

    def boolean(self, *, default: bool) -> bool:
        """Return the value, or *default* if the field does not exist."""
        if self.value is None:
            return default
        if not isinstance(self.value, bool):
            self.refuse("it must be true or false")
        return self.value

    def integer(self) -> int:
        """Return the value, which must be an integer."""
        if isinstance(self.value, bool) or not isinstance(self.value, int):
            self.refuse("it must be an integer")
        return self.value

    def number(self, default: float | None = None) -> float:
        """Return the value as a finite float, or *default* if the field does not exist."""
        if self.value is None and default is not None:
            return default
        if isinstance(self.value, bool) or not isinstance(self.value, int | float):
            self.refuse("it must be a number")
        try:
            found = float(self.value)
        except OverflowError:
            found = math.inf
        if not math.isfinite(found):
            self.refuse("it must be a finite number")
        return found

    def numbers(self) -> tuple[float, ...]:
        """Return the value, a number or a list of numbers, as a tuple."""
        if isinstance(self.value, list) and self.value:
            return tuple(item.number() for item in self)
        return (self.number(),)

    def names(self) -> tuple[str, ...]:
        """Return the value, one string or a list, as a tuple; empty if the field does not exist."""
        if isinstance(self.value, list):
            return tuple(item.text() for item in self)
        return (self.text(),) if self else ()

    def dtype(self) -> str | None:
        """Return the name of the dtype, such as ``float32``; ``None`` if the field is missing."""
        if self.value is None:
            return None
        found = _DTYPE.fullmatch(self.value) if isinstance(self.value, str) else None
        if found is None:
            self.refuse("it must be a dtype such as float32")
        return found[1]

    def arguments(self) -> dict[str, Any]:
        """Return the constructor arguments of the object in this field, as plain values."""
        if not isinstance(self.value, dict):
            self.refuse("it must be an object with _target_ and arguments")
        return {key: self[key].plain() for key in self.value if key not in _RESERVED}

    def plain(self, depth: int = 0) -> Any:
        """Return the value, with references replaced by the values to which they refer.

        Expressions, and objects with ``_target_``, are errors.
        """
        if depth > _MOST_DEPTH:
            self.refuse("it is nested too deeply")
        if isinstance(self.value, str):
            return self.text()
        if isinstance(self.value, list):
            return [self[i].plain(depth + 1) for i in range(len(self.value))]
        if isinstance(self.value, dict):
            if "_target_" in self.value:
                self.refuse("arguments of a network must be plain values, not objects")
            return {key: self[key].plain(depth + 1) for key in self.value}
        if self.value is not None and not isinstance(self.value, bool | int | float):
            self.refuse("it must be a number, a string, a list or an object")
        return self.value


class ConfigDocument:
    """A config file, in which references can be followed.

    Attributes:
        name: name of the config file inside the bundle.
        bundle: path of the bundle, for messages.
    """

    def __init__(
        self, content: dict[str, Any], metadata: dict[str, Any], *, name: str, bundle: str
    ) -> None:
        """Store the content of a config file.

        Args:
            content: values of the config by name.
            metadata: content of ``configs/metadata.json``, to which ``@_meta_::…`` refers.
            name: name of the config file inside the bundle.
            bundle: path of the bundle, for messages.
        """
        self.name, self.bundle = name, bundle
        self._content = {"_meta_": metadata} | content
        self._read = 0

    @property
    def root(self) -> ConfigField:
        """The whole config."""
        return ConfigField(self._content, "", self)

    def followed(self, value: Any, path: str) -> ConfigField:
        """Return a field with *value*; a reference is replaced by the value to which it refers.

        Args:
            value: value in the config.
            path: path of the value in the config.

        Raises:
            ModelError: the reference is to a value that does not exist, or references form a
                circle.
        """
        here = ConfigField(value, path, self)
        self._read += 1
        if self._read > _MOST_VALUES:
            here.refuse(f"the config has more than {_MOST_VALUES} values; simplify it")
        seen = 0
        while isinstance(here.value, str) and (found := _REFERENCE.fullmatch(here.value)):
            seen += 1
            if seen > _MOST_REFERENCES:
                here.refuse("its references lead in a circle")
            inside: Any = self._content
            for part in re.split("::|#", found[1]):
                if isinstance(inside, str) and (again := _REFERENCE.fullmatch(inside)):
                    # A reference to a part of what is itself a reference.
                    inside = self._at(again[1])
                inside = _inside(inside, part)
                if inside is None:
                    here.refuse("the config has no such value")
            here = ConfigField(inside, path, self)
        return here

    def _at(self, reference: str) -> Any:
        inside: Any = self._content
        for part in re.split("::|#", reference):
            inside = _inside(inside, part)
        return inside


def _inside(value: Any, part: str) -> Any:
    if isinstance(value, dict):
        return value.get(part)
    if isinstance(value, list) and _INDEX.fullmatch(part) and int(part) < len(value):
        return value[int(part)]
    return None


def _shown(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 80 else f"{text[:77]}..."
