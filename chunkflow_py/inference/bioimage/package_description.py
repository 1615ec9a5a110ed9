"""Read a model description of format 0.4 or 0.5 of the BioImage Model Zoo.

An error names the field that is invalid. The two formats differ in these fields:

| field          | in format 0.4                            | in format 0.5                        |
|----------------|------------------------------------------|--------------------------------------|
| name of tensor | `name`                                   | `id`                                 |
| axes           | letters of `bczyx`                       | a list of `type` and `id`            |
| input size     | `shape`: numbers, or `min` and `step`    | `size`: a number, or `min`, `step`   |
| output size    | input size · `scale` + 2 · `offset`      | size of an input axis + `offset`     |
| halo           | `halo` of the tensor, on each side       | `halo` of an axis, on each side      |
| voxel size     | not stated                               | `scale` and `unit` of an axis        |
| name of a step | `name`                                   | `id`                                 |

A step is one operation of the processing before or after the network.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NoReturn

from chunkflow_py.errors import ModelError

SPACE = "zyx"
_LETTERS = {"batch": "b", "channel": "c"}
_NANOMETRES = {
    "picometer": 1e-3, "angstrom": 0.1, "nanometer": 1.0, "micrometer": 1e3, "millimeter": 1e6,
    "centimeter": 1e7, "meter": 1e9,
}  # fmt: skip


@dataclass(frozen=True)
class TensorDescription:
    """An input or output tensor of the network.

    Attributes:
        name: name of the tensor.
        axes: letters of the axes, from ``bczyx``, in the order that the network uses.
        channels: number of channels.
        dtype: for an input, the dtype that the network receives; for an output, the dtype after the
            last processing step.
        steps: processing steps, as written in the description.
        minimum: for an input, the smallest size along each axis, voxels. For an output, the size
            along each axis of fixed size, voxels; other axes are left out.
        step: for an input, the increment of the size along each axis, voxels; 0 along an axis of
            fixed size.
        growth: for an output, by how many voxels the output exceeds the input along each axis. A
            negative number means that the output is smaller. Axes of fixed size are left out.
        halo: for an output, the number of invalid voxels at each end of each axis. These voxels
            must be cropped.
        batch: largest number of samples in a batch, or ``None`` if there is no limit.
        scale: voxel size along each axis, in the units of the description.
        voxel_size_nm: voxel size along each axis, nanometres; empty if the description states no
            unit.
    """

    name: str
    axes: str
    channels: int
    dtype: str
    steps: DescriptionField
    minimum: dict[str, int] = field(default_factory=dict)
    step: dict[str, int] = field(default_factory=dict)
    growth: dict[str, int] = field(default_factory=dict)
    halo: dict[str, int] = field(default_factory=dict)
    batch: int | None = None
    scale: dict[str, float] = field(default_factory=dict)
    voxel_size_nm: dict[str, float] = field(default_factory=dict)


def tensors(root: DescriptionField) -> tuple[TensorDescription, tuple[TensorDescription, ...]]:
    """Return the input tensor and the output tensors of a description.

    Raises:
        ModelError: the format is neither 0.4 nor 0.5, or the described network is not supported;
            the message names the field.
    """
    version = root["format_version"]
    if not version or version.text().split(".")[:2] not in (["0", "4"], ["0", "5"]):
        version.refuse("supported formats are 0.4 and 0.5; convert the package to 0.5")
    if root["type"].value not in {None, "model"}:
        root["type"].refuse("only a package of type model can be run")
    read = _tensor_0_4 if version.text().startswith("0.4") else _tensor_0_5
    inputs, outputs = list(root["inputs"]), list(root["outputs"])
    if len(inputs) != 1:
        root["inputs"].refuse("the network must have exactly one input tensor")
    if not outputs:
        root["outputs"].refuse("the network must have at least one output tensor")
    first = read(inputs[0], None)
    return first, tuple(read(each, first) for each in outputs)


# --- format 0.4 -------------------------------------------------------------------------------


def _tensor_0_4(here: DescriptionField, source: TensorDescription | None) -> TensorDescription:
    axes = here["axes"].text()
    _check_axes(axes, here["axes"], source)
    shape, found = here["shape"], _Found()
    if source is None:
        ends, steps = (shape["min"], shape["step"]) if shape["min"] else (shape, None)
        for i, axis in enumerate(axes):
            found.minimum[axis] = ends[i].integer()
            found.step[axis] = steps[i].integer() if steps else 0
        channels = found.minimum.get("c", 1)
        if found.step.get("c"):
            shape["step"].refuse("the number of channels must be fixed: set its step to 0")
    elif shape["reference_tensor"]:
        if shape["reference_tensor"].text() != source.name:
            shape["reference_tensor"].refuse(f"it must be the name of the input, {source.name!r}")
        channels = 1
        for i, axis in enumerate(axes):
            scale, twice = shape["scale"][i].number(0), 2 * shape["offset"][i].number()
            if axis == "c":
                channels = int(scale * source.channels + twice)
            elif axis in SPACE and scale != 1:
                shape["scale"].refuse("the output must have the voxel size of the input")
            found.growth[axis] = int(twice)
    else:
        for i, axis in enumerate(axes):
            found.minimum[axis] = shape[i].integer()
        channels = found.minimum.get("c", 1)
    if here["halo"]:
        found.halo = {axis: here["halo"][i].integer() for i, axis in enumerate(axes)}
    steps = here["preprocessing" if source is None else "postprocessing"]
    # In 0.4 the dtype of an input is that of the image; the network always receives float32.
    dtype = "float32" if source is None else here["data_type"].text()
    return TensorDescription(
        here["name"].text(), axes, channels, dtype, steps,
        batch=None if "b" in axes else 1, **found.in_space(axes),
    )  # fmt: skip


# --- format 0.5 -------------------------------------------------------------------------------


def _tensor_0_5(here: DescriptionField, source: TensorDescription | None) -> TensorDescription:
    axes, channels, batch, found = "", 1, 1, _Found()
    if not here["axes"]:
        here["axes"].refuse("it must be a list of axes")
    for axis in here["axes"]:
        kind = axis["type"].text()
        letter = _LETTERS.get(kind) or (axis["id"].value if axis["id"] else "x")
        if kind not in {*_LETTERS, "space"} or letter not in ("b", "c", *SPACE):
            axis.refuse("its type must be batch, channel, or space with the id z, y or x")
        axes += letter
        if letter == "b":
            batch = axis["size"].integer() if axis["size"] else 0
        elif letter == "c":
            channels = len(list(axis["channel_names"]))
        else:
            _read_space(axis, letter, source, found)
    _check_axes(axes, here["axes"], source)
    steps = here["preprocessing" if source is None else "postprocessing"]
    data = here["data"]
    dtype = (data if isinstance(data.value, dict) else data[0])["type"]
    return TensorDescription(
        here["id"].text() if here["id"] else "input" if source is None else "output",
        axes, channels, dtype.value or "float32", steps, batch=batch or None,
        **found.in_space(axes),
    )  # fmt: skip


def _read_space(
    axis: DescriptionField, letter: str, source: TensorDescription | None, found: _Found
) -> None:
    size = axis["size"]
    if isinstance(size.value, int):
        found.minimum[letter], found.step[letter] = size.integer(), 0
    elif source is None:
        if not size["min"]:
            size.refuse("the size of an input must be a number, or min and step")
        found.minimum[letter] = size["min"].integer()
        found.step[letter] = size["step"].integer()
    else:
        if (size["tensor_id"].value, size["axis_id"].value) != (source.name, letter):
            size.refuse(f"it must be a number, or refer to axis {letter} of input {source.name!r}")
        found.growth[letter] = size["offset"].integer() if size["offset"] else 0
    if axis["halo"]:
        found.halo[letter] = axis["halo"].integer()
    found.scale[letter] = axis["scale"].number(1)
    if source is not None and found.growth and found.scale[letter] != source.scale[letter]:
        axis["scale"].refuse("the output must have the voxel size of the input")
    if axis["unit"]:
        unit = axis["unit"].text()
        if unit not in _NANOMETRES:
            axis["unit"].refuse(f"it must be one of {', '.join(_NANOMETRES)}")
        found.voxel_size_nm[letter] = float(f"{found.scale[letter] * _NANOMETRES[unit]:.12g}")


# --- both -------------------------------------------------------------------------------------


@dataclass
class _Found:
    minimum: dict[str, int] = field(default_factory=dict)
    step: dict[str, int] = field(default_factory=dict)
    growth: dict[str, int] = field(default_factory=dict)
    halo: dict[str, int] = field(default_factory=dict)
    scale: dict[str, float] = field(default_factory=dict)
    voxel_size_nm: dict[str, float] = field(default_factory=dict)

    def in_space(self, axes: str) -> dict[str, Any]:
        # The result is keyword arguments of `TensorDescription`.
        names = ("minimum", "step", "growth", "halo", "scale", "voxel_size_nm")
        return {
            name: {a: v for a, v in getattr(self, name).items() if a in SPACE and a in axes}
            for name in names
        }


def _check_axes(axes: str, here: DescriptionField, source: TensorDescription | None) -> None:
    space = {letter for letter in axes if letter in SPACE}
    known = set(axes) <= {*"bc", *SPACE} and len(set(axes)) == len(axes)
    if not known or not {"y", "x"} <= space:
        here.refuse("axes must contain y and x, and may contain b, c and z, each only once")
    if source is not None and space != {letter for letter in source.axes if letter in SPACE}:
        here.refuse(
            "the output must have the same spatial axes as the input, which has the axes "
            f"{source.axes}"
        )


class DescriptionField:
    """A value in a description, with the path to it, such as ``inputs.0.axes``."""

    def __init__(self, value: Any, path: str, package: str) -> None:
        """Store a value and the path to the value in the description.

        Args:
            value: the value; ``None`` if the field does not exist.
            path: names and indices that lead to the value, joined by dots; empty for the whole
                description.
            package: path of the package, for messages.
        """
        self.value, self.path, self.package = value, path, package

    def __getitem__(self, key: str | int) -> DescriptionField:
        """Return the field *key* inside this field; a missing key gives a field of ``None``."""
        inside = None
        if isinstance(self.value, Mapping):
            inside = self.value.get(key)
        elif isinstance(self.value, list) and isinstance(key, int) and key < len(self.value):
            inside = self.value[key]
        return DescriptionField(inside, f"{self.path}.{key}".lstrip("."), self.package)

    def __iter__(self) -> Iterator[DescriptionField]:
        """Yield each item of the list as a field; yield nothing if the list does not exist."""
        if self.value is not None and not isinstance(self.value, list):
            self.refuse("it must be a list")
        return iter([self[i] for i in range(len(self.value or []))])

    def __bool__(self) -> bool:
        """Whether the field exists."""
        return self.value is not None

    def refuse(self, why: str) -> NoReturn:
        """Raise a ModelError that names the field, its value, and *why* the value is invalid."""
        state = f"is {self.value!r}" if self else "is missing"
        msg = f"model package {self.package}: {self.path} {state}; {why}"
        raise ModelError(msg)

    def text(self) -> str:
        """Return the value as a string; convert a number, and refuse any other type."""
        if not isinstance(self.value, str | int | float) or isinstance(self.value, bool):
            self.refuse("it must be a string")
        return str(self.value)

    def mapping(self) -> Mapping[str, Any]:
        """Return the value as a mapping, empty if the field does not exist."""
        if self.value is not None and not isinstance(self.value, Mapping):
            self.refuse("it must be a mapping")
        return self.value or {}

    def integer(self) -> int:
        """Return the value as an integer; refuse any other type."""
        if isinstance(self.value, bool) or not isinstance(self.value, int):
            self.refuse("it must be an integer")
        return self.value

    def number(self, default: float | None = None) -> float:
        """Return the value as a float, or *default* if the field does not exist.

        Strings are converted, because YAML 1.1 reads numbers such as 1e-6 as strings.
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
        """Return the value as a tuple of floats; the value may be a number or a list of numbers."""
        if isinstance(self.value, list) and self.value:
            return tuple(item.number() for item in self)
        return (self.number(default),)
