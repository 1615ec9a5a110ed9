r"""Find the fastest inference on this machine.

tune measures combinations of backend, precision, compilation, batch size and patch size on this
machine, each in a separate process. It prints a table of speed, memory and error, and the inference
command of the best combination. The error is the difference from the output of PyTorch in float32
on the same patches, in units of the output.

Example: chunkflow tune --convnet-model net.py --convnet-weight-path net.pt \
  --input-patch-size 20 256 256 --volume-size 1000 8192 8192
"""

from __future__ import annotations

import logging
import re
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from chunkflow_py.cli.shared_options import json_option
from chunkflow_py.cli.subcommands import subcommand
from chunkflow_py.ops.options.network_options import (
    fetched_networks,
    network_options,
    patch_size_options,
)
from chunkflow_py.pipeline.params import zyx_option
from chunkflow_py.pipeline.terminal import echo, option_headings

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    from chunkflow_py.core.geometry import Zyx
    from chunkflow_py.planning.tune import Measurement, Tuning

logger = logging.getLogger(__name__)

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY_UNITS = {"ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}


class MemoryType(click.ParamType[int]):
    """Option type: an amount of memory, such as 16GB (10^9), 16GiB (2^30) or a number of bytes."""

    name = "memory"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the amount of memory in bytes."""
        if isinstance(value, int):
            return value
        match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([kmgt]?i?)b?", value.strip().lower())
        amount = match and float(match[1]) * (_UNITS | _BINARY_UNITS).get(match[2], 0)
        if not amount:
            self.fail(
                f"{value!r} is not an amount of memory; write a number with a unit, such as 16GB "
                "or 16GiB",
                param,
                ctx,
            )
        return int(amount)


# fmt: off
@subcommand
@option_headings(
    {
        "Network": (
            "convnet_model", "convnet_weight_path", "framework", "num_input_channels",
            "num_output_channels", "spatial_dims", "trust_weights",
        ),
        "Patches": ("input_patch_size", "output_patch_size", "output_patch_overlap"),
        "Measurement": ("device", "memory", "tolerance", "seconds", "image"),
    }
)
@network_options()
@patch_size_options(default="default: try several, if the network allows it")
@click.option("--memory", type=MemoryType(), metavar="SIZE",
              help="Largest amount of GPU memory that inference may use, such as 16GB; with "
                   "--device cpu, of host memory.  [default: all memory]")
@click.option("--tolerance", type=click.FloatRange(min=0), default=0.02, show_default=True,
              help="Largest 99.9th percentile of the errors that the best combination may have, in "
                   "units of the output.")
@click.option("--seconds", type=click.FloatRange(min=0, min_open=True), default=600,
              show_default=True, help="Time limit of all measurements, seconds.")
@click.option("--image", help="File or volume to cut patches from, for measuring the error.  "
                              "[default: synthetic patches]")
@zyx_option("--volume-size", minimum=1,
            help="Size of a volume, voxels, zyx; adds the estimated hours of inference on this "
                 "volume to the table.")
@json_option("Print JSON instead of a table.")
def command(*, as_json: bool, volume_size: Zyx | None, **options: Any) -> Callable[[], None]:
    """Return the function that measures the combinations and prints the results."""
    # fmt: on
    same = ("framework", "num_input_channels", "num_output_channels", "device", "trust_weights")
    network = {name: options[name] for name in same}
    network |= {"model": options["convnet_model"], "weights": options["convnet_weight_path"]}
    network["spatial_dims"] = int(options["spatial_dims"])
    sizes = ("input_patch_size", "output_patch_size", "output_patch_overlap")

    def act() -> None:
        from chunkflow_py.planning.tune import tune

        local, _ = fetched_networks(options)
        tuning = tune(
            network | {"model": local["convnet_model"], "weights": local["convnet_weight_path"]},
            **{name: options[name] for name in sizes},
            memory_bytes=options["memory"],
            tolerance=options["tolerance"],
            seconds=options["seconds"],
            image=_read(options["image"]) if options["image"] else None,
            on_measured=lambda done: logger.info("%s: %s", done.candidate, _speed_text(done)),
        )
        line = _best_command(tuning, tuning.best, network) if tuning.best else None
        print_result = _print_json if as_json else _print_table
        print_result(tuning, line, volume_size)

    return act


def _read(place: str) -> NDArray[np.float32]:
    """Return the middle of a file or volume as (c, z, y, x) float32, at most 64 x 768 x 768 voxels.

    Integers are divided by the maximum of their type.
    """
    from pathlib import Path

    import numpy as np

    from chunkflow_py.core.geometry import BoundingBox, Zyx
    from chunkflow_py.errors import OptionError
    from chunkflow_py.volume import open_volume

    path, most = Path(place), Zyx(64, 768, 768)
    volume: Any
    if path.suffix in {".h5", ".hdf5", ".hdf"}:
        from chunkflow_py.volume.files.hdf5 import open_hdf5

        volume = open_hdf5(path)
    elif path.suffix == ".npy":
        from chunkflow_py.volume.files.npy import open_npy

        volume = open_npy(path)
    elif path.suffix in {".tif", ".tiff"}:
        from chunkflow_py.volume.files.tiff import open_tiff

        volume = open_tiff(path)
    else:
        volume = open_volume(place)
    if volume is None:
        msg = f"--image {place} contains no image; give a file or volume that contains an image"
        raise OptionError(msg)
    size = volume.bounds.size.low(most)
    start = volume.bounds.start + (volume.bounds.size - size) // 2
    array = volume.read(BoundingBox.from_size(start, size)).array
    scale = np.iinfo(array.dtype).max if array.dtype.kind in "iu" else 1
    scaled: NDArray[np.float32] = np.divide(array, np.float32(scale), dtype=np.float32)
    return scaled[None] if scaled.ndim == 3 else scaled


# --- output ---------------------------------------------------------------------------------------


def _best_command(tuning: Tuning, best: Measurement, network: dict[str, Any]) -> str:
    import shlex

    from chunkflow_py.store.fetched_files import shown_address

    candidate = best.candidate
    argv: list[Any] = ["inference", "--framework", network["framework"]]
    for option, name in (("--convnet-model", "model"), ("--convnet-weight-path", "weights")):
        if network[name] is not None:
            argv += [option, shown_address(network[name])]
    argv += ["--trust-weights"] if network["trust_weights"] else []
    argv += ["--num-input-channels", network["num_input_channels"]]
    argv += ["--num-output-channels", network["num_output_channels"]]
    argv += ["--input-patch-size", *candidate.input_patch_size]
    if candidate.output_patch_size != candidate.input_patch_size:
        argv += ["--output-patch-size", *candidate.output_patch_size]
    argv += ["--output-patch-overlap", *best.overlap]
    argv += ["--batch-size", candidate.batch_size, "--device", network["device"]]
    argv += ["--spatial-dims", 2] if network["spatial_dims"] == 2 else []
    if tuning.framework == "pytorch":  # the only one with these options
        argv += ["--backend", candidate.backend, "--dtype", candidate.dtype]
        argv += ["--compile"] if candidate.compile else []
        argv += ["--tf32"] if candidate.tf32 else []
    return shlex.join(map(str, argv))


def _speed_text(measured: Measurement) -> str:
    if measured.seconds is None:
        return str(measured.failure)
    speed = f"{measured.voxels_per_second / 1e6:.3g} Mvoxel/s"
    return f"{speed}; {measured.failure}" if measured.failure else speed


def _print_json(tuning: Tuning, line: str | None, volume_size: Zyx | None) -> None:
    import json

    def row(measured: Measurement | None) -> dict[str, Any] | None:
        if measured is None:
            return None
        result = asdict(measured)
        result = {**result.pop("candidate"), **result}
        result["voxels_per_second"] = measured.voxels_per_second or None
        result["hours"] = measured.hours(volume_size) if volume_size else None
        return result

    result = {
        "device": tuning.device,
        "device_name": tuning.device_name,
        "memory_bytes": tuning.memory_bytes,
        "tolerance": tuning.tolerance,
        "whole_patch": tuning.whole_patch,
        "volume_size": volume_size,
        "measurements": [row(measured) for measured in tuning.measurements],
        "complete": tuning.complete,
        "best": row(tuning.best),
        "line": line,
    }
    echo(json.dumps(result, indent=2))


def _print_table(tuning: Tuning, line: str | None, volume_size: Zyx | None) -> None:
    head = ["backend", "dtype", "batch", "patch", "Mvoxel/s", "GB", "largest", "99.9 %", "mean"]
    rows = [[*head, "hours"] if volume_size else head]
    for measured in sorted(tuning.measurements, key=lambda m: -m.voxels_per_second):
        candidate = measured.candidate
        row = [
            candidate.runner,
            candidate.precision,
            str(candidate.batch_size),
            "x".join(map(str, candidate.input_patch_size)),
            _number(measured.voxels_per_second or None, 1e6),
            _number(measured.memory_bytes, 1e9),
            *(_number(e) for e in (measured.largest, measured.percentile_999, measured.mean)),
        ]
        row += [_number(measured.hours(volume_size))] if volume_size else []
        rows.append([*row, measured.failure or ("<- best" if measured == tuning.best else "")])
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        echo("  ".join(cells + row[len(widths) :]).rstrip())
    echo()
    for note in _notes(tuning):
        echo(note)
    echo(
        line
        or "No combination stays within the memory limit and the tolerance; raise --memory or "
        "--tolerance."
    )


def _notes(tuning: Tuning) -> list[str]:
    notes = [
        f"Measured on {tuning.device_name}. Mvoxel/s counts output voxels; a voxel in several "
        "overlapping patches counts once."
    ]
    if tuning.whole_patch:
        notes.append(
            f"The network uses {', '.join(tuning.whole_patch)}, so each output voxel depends on "
            "the whole patch; therefore only the given patch size was measured."
        )
    if fastest := tuning.fastest:
        notes.append(
            f"A faster combination exceeds the tolerance of {tuning.tolerance:g} or the memory "
            f"limit of {tuning.memory_bytes / 1e9:.1f} GB: {fastest.candidate}, "
            f"{_speed_text(fastest)}."
        )
    if not tuning.complete:
        notes.append(
            "The time limit was reached before all combinations were measured; raise --seconds."
        )
    return notes


def _number(value: float | None, unit: float = 1.0) -> str:
    return "-" if value is None else f"{value / unit:.3g}"
