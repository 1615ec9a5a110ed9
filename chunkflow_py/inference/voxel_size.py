"""Check that the data have the voxel size that a network was trained with.

A network recognises structures by their size in voxels. If data have another voxel size, the
network finds fewer structures, without an error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from chunkflow_py.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

TOLERANCE = 0.1

_HALVINGS = 6  # levels to try above and below the current one, if their sizes are unknown
# Usual factors of pyramids: 2 in plane, or 2 along all axes.
_FACTORS = ((1, 2, 2), (2, 2, 2))


def check_voxel_size(
    model_nm: Sequence[float | None],
    data_nm: Sequence[float],
    mip: int | None = None,
    levels: Iterable[tuple[int, Sequence[float]]] = (),
    tolerance: float = TOLERANCE,
) -> None:
    """Raise an error if the data have another voxel size than the network was trained with.

    The error message names the mip to load instead, if a mip has a suitable voxel size.

    Args:
        model_nm: voxel size that the network was trained with, nanometres, zyx. ``None`` along an
            axis accepts any voxel size, for example along z if the network takes single slices.
        data_nm: voxel size of the data, nanometres, zyx.
        mip: mip level of the data, if the data come from a pyramid.
        levels: for each mip level of the volume, a pair of its number and its voxel size
            (nanometres, zyx); empty if unknown.
        tolerance: largest accepted difference along an axis, as a fraction of the network's voxel
            size.

    Raises:
        OptionError: the voxel sizes differ along an axis by more than *tolerance*, or *model_nm*
            is not three positive numbers.
    """
    if len(model_nm) != 3 or not all(v is None or 0 < v < float("inf") for v in model_nm):
        msg = (
            f"--model-voxel-size-nm {_text(model_nm)} must be three positive numbers "
            "(nanometres, zyx)"
        )
        raise OptionError(msg)
    if _fits(model_nm, data_nm, tolerance):
        return
    off = "; ".join(
        f"{axis} {data:g} instead of {model:g}"
        for axis, data, model in zip("zyx", data_nm, model_nm, strict=True)
        if model is not None and abs(data - model) > tolerance * model
    )
    at = "" if mip is None else f" (mip {mip})"
    msg = (
        f"the network was trained on voxels of {_text(model_nm)} nm (zyx), but the voxels of the "
        f"data{at} are {_text(data_nm)} nm, which differs by more than {tolerance:.0%} ({off}); "
        f"{_remedy(model_nm, data_nm, mip, list(levels), tolerance)}"
    )
    raise OptionError(msg)


def _fits(model_nm: Sequence[float | None], data_nm: Sequence[float], tolerance: float) -> bool:
    # Slightly more than the tolerance, or rounding alone would put 36 nm too far from 40 nm.
    allowed = tolerance * (1 + 1e-9)
    pairs = zip(data_nm, model_nm, strict=True)
    return all(model is None or abs(data - model) <= allowed * model for data, model in pairs)


def _remedy(
    model_nm: Sequence[float | None],
    data_nm: Sequence[float],
    mip: int | None,
    levels: list[tuple[int, Sequence[float]]],
    tolerance: float,
) -> str:
    if levels:
        for level, size in levels:
            if _fits(model_nm, size, tolerance):
                return f"load the data with --mip {level}"
        listed = ", ".join(f"mip {level} {_text(size)}" for level, size in levels)
        return (
            f"no mip of the volume fits ({listed} nm); add --resample linear, or use a network "
            "that was trained with one of these voxel sizes"
        )
    for factors in _FACTORS:
        for steps in range(-_HALVINGS, _HALVINGS + 1):
            size = [v * f**steps for v, f in zip(data_nm, factors, strict=True)]
            if not _fits(model_nm, size, tolerance) or not steps:
                continue
            made = "in plane" if factors[0] == 1 else "along all axes"
            if mip is None:
                finer = "finer" if steps < 0 else "coarser"
                return f"load a mip that is {2 ** abs(steps)} times {finer} {made}"
            if mip + steps >= 0:
                option = f"--mip {mip + steps}"
                return f"load the data with {option}, if each mip doubles the voxel size {made}"
    return (
        "no mip would fit if each mip doubles the voxel size; add --resample linear, use another "
        "network, or correct --model-voxel-size-nm or the voxel size of the data (--voxel-size)"
    )


def _text(size_nm: Iterable[float | None]) -> str:
    return " ".join("any" if v is None else f"{v:g}" for v in size_nm)
