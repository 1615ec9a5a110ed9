"""Recognise model scripts of cellmap-flow, and read the sizes that they declare.

Such a script is Python code. It assigns the network to ``model``, and may define these names:

| name                                 | meaning                                                  |
|--------------------------------------|----------------------------------------------------------|
| `input_voxel_size`                   | voxel size of the input, nm, zyx                         |
| `output_voxel_size`                  | voxel size of the output, nm, zyx                        |
| `read_shape`                         | size of the input patch, nm, zyx                         |
| `write_shape`                        | size of the output patch, nm, zyx                        |
| `input_size`                         | size of the input patch, voxels, zyx                     |
| `output_size`                        | size of the output patch, voxels, zyx                    |
| `output_channels`                    | number of channels of the output                         |
| `process_chunk`, `predict`           | function that reads and computes a block (not supported) |

If a size is declared both in nm and in voxels, the size in nm is used.

A script declares the sizes that the network was trained for. An option of ``inference`` whose value
differs from the declared value is therefore an error.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from chunkflow_py.core.geometry import Zyx
from chunkflow_py.errors import ModelError, OptionError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import ModuleType

_OWN_NAMES = ("InstantiatedModel", "load_model", "PatchInferencer")
_FUNCTIONS = ("process_chunk", "predict")
_LARGEST = 1 << 31  # voxels or nanometres along an axis


def is_cellmap_script(module: ModuleType) -> bool:
    """Return whether an executed model file is a model script of cellmap-flow."""
    sizes = any(hasattr(module, name) for name in ("read_shape", "input_size"))
    own = any(hasattr(module, name) for name in _OWN_NAMES)
    return sizes and hasattr(module, "input_voxel_size") and not own


@dataclass(frozen=True)
class CellmapScript:
    """The sizes that a model script of cellmap-flow declares.

    Attributes:
        path: path of the script.
        voxel_size_nm: voxel size of input and output, nanometres, zyx.
        input_size: size of the input patch, voxels, zyx.
        output_size: size of the output patch, voxels, zyx.
        output_channels: number of channels of the output; ``None`` if it is not declared.
    """

    path: str
    voxel_size_nm: tuple[float, float, float]
    input_size: Zyx
    output_size: Zyx
    output_channels: int | None

    @classmethod
    def of(cls, module: ModuleType, path: str) -> CellmapScript:
        """Return the sizes that an executed script declares, in voxels.

        Args:
            module: the executed script, for which `is_cellmap_script` is true.
            path: path of the script, for messages.

        Raises:
            ModelError: the script has no network, or has a function that reads and computes blocks.
                Or a declared value is missing or invalid, or the voxel sizes of input and output
                differ.
        """
        function = next((name for name in _FUNCTIONS if hasattr(module, name)), None)
        if function is not None or getattr(module, "model", None) is None:
            why = f"defines {function}" if function else "defines no variable model"
            msg = (
                f"the cellmap-flow script {path} {why}, but only the network of a script can be "
                "run, not a function that reads and computes blocks; assign the network to the "
                "variable model, or write a class PatchInferencer"
            )
            raise ModelError(msg)
        voxel, output_voxel = (
            _three(module, f"{what}_voxel_size", path) for what in ("input", "output")
        )
        if voxel != output_voxel:
            msg = (
                f"the cellmap-flow script {path} has input_voxel_size {_text(voxel)}, but "
                f"output_voxel_size {_text(output_voxel)} (nm, zyx); only networks that keep the "
                "voxel size can be run"
            )
            raise ModelError(msg)
        input_size = _size(module, path, voxel, "read_shape", "input_size")
        output_size = _size(module, path, voxel, "write_shape", "output_size")
        channels = getattr(module, "output_channels", None)
        number = None if channels is None else _whole(channels)
        if channels is not None and number is None:
            msg = (
                f"output_channels of {path} is {channels!r}, but output_channels must be a "
                "positive integer"
            )
            raise ModelError(msg)
        return cls(path, voxel, input_size, output_size, number)

    def check(self, input_patch_size: Zyx, output_patch_size: Zyx, output_channels: int) -> None:
        """Check that the options of ``inference`` have the values that the script declares.

        Args:
            input_patch_size: size of the input patch, voxels, zyx.
            output_patch_size: size of the output patch, voxels, zyx.
            output_channels: number of channels of the output.

        Raises:
            OptionError: a size or the number of channels differs from the declared value.
        """
        for option, given, declared in (
            ("--input-patch-size", input_patch_size, self.input_size),
            ("--output-patch-size", output_patch_size, self.output_size),
        ):
            if given != declared:
                value = " ".join(map(str, declared))
                msg = (
                    f"{option} is {given}, but the cellmap-flow script {self.path} declares "
                    f"{declared} (zyx, voxels); use {option} {value}"
                )
                raise OptionError(msg)
        if self.output_channels not in (None, output_channels):
            msg = (
                f"--num-output-channels is {output_channels}, but the cellmap-flow script "
                f"{self.path} declares output_channels {self.output_channels}; use "
                f"--num-output-channels {self.output_channels}"
            )
            raise OptionError(msg)


def _size(
    module: ModuleType, path: str, voxel: tuple[float, float, float], in_nm: str, in_voxels: str
) -> Zyx:
    # A script may declare a size in nanometres or in voxels.
    if hasattr(module, in_nm):
        extent = _three(module, in_nm, path)
        sizes = [_whole(round(a / b, 6)) for a, b in zip(extent, voxel, strict=True)]
        if None in sizes:
            msg = (
                f"{in_nm} of {path} is {_text(extent)}, but input_voxel_size is {_text(voxel)} "
                f"(nm, zyx); make {in_nm} a multiple of input_voxel_size"
            )
            raise ModelError(msg)
        return Zyx.of(size for size in sizes if size)
    declared = _three(module, in_voxels, path)
    sizes = [_whole(each) for each in declared]
    if None in sizes:
        msg = (
            f"{in_voxels} of {path} is {_text(declared)}, "
            f"but {in_voxels} must be three whole numbers of voxels"
        )
        raise ModelError(msg)
    return Zyx.of(size for size in sizes if size)


def _three(module: ModuleType, name: str, path: str) -> tuple[float, float, float]:
    value: Any = getattr(module, name, None)
    try:
        z, y, x = (float(each) for each in value)
    except (TypeError, ValueError):
        z = y = x = math.nan
    if not all(0 < each < _LARGEST for each in (z, y, x)):
        shown = "missing" if value is None else f"{value!r}"
        msg = f"{name} of the cellmap-flow script {path} is {shown}; give three positive numbers"
        raise ModelError(msg)
    return (z, y, x)


def _whole(value: Any) -> int | None:

    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if number == value and 0 < number < _LARGEST else None


def _text(values: Iterable[float]) -> str:
    return f"({', '.join(f'{value:g}' for value in values)})"
