"""Memory is foretold: how much a network over one task holds at its peak, before anything is read.

What a whole line takes, with several tasks in flight, is told by `chunkflow_py.pipeline.forecast`.

```
host    interpreter and libraries | weights | activations | chunks | engine | batches    on the CPU
host    interpreter and libraries                         | chunks          | batches    with a GPU
device                            | weights | activations          | engine | batches
```

    expected = forecast(workload)
    print(expected.table())
    check_fits(expected)  # of chunkflow_py.inference.fit: names what would fit, if it does not
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import torch

from chunkflow_py.core.geometry import BoundingBox, Zyx
from chunkflow_py.core.memory import FIRST_USE, describe_bytes, resident_bytes
from chunkflow_py.inference.grid import PatchGeometry, PatchGrid

if TYPE_CHECKING:
    from chunkflow_py.inference.activations import Activations
    from chunkflow_py.inference.settings import EngineSettings

_FLOAT = 4  # bytes
_FEED = 3  # batches being filled, on their way and in the network; on the CPU there is one
_COPIES = 1  # the copy of a batch that the network may work on
_REGIONS = 4  # of weights, kept by the blender
_CONVERSION = 8  # bytes for a value of a region: masks, and values of another type
_STAGED = 2  # buffers between device and host

# Names of parts that the line counts for itself, where it is foretold as a whole.
LIBRARIES, WEIGHTS, INPUT, OUTPUT = (
    "interpreter and libraries", "network weights", "input chunk", "output chunk",
)  # fmt: skip

# What is taken for maps, per byte that PyTorch has alive at once. In the heap of glibc a gap
# between two buffers is rarely filled: measured 1.1 to 1.6. OpenVINO makes fewer maps and places
# them in one block: measured 0.6 to 0.7.
_SLACK = {"torch": 1.35, "cuda": 1.1, "openvino": 0.7}


@dataclass(frozen=True)
class Workload:
    """What decides how much memory a run takes.

    Attributes:
        settings: of the engine.
        activations: of the network on a batch, or ``None`` if they are not known.
        weight_bytes: of the network.
        input_size: of the largest input chunk, with its margin, voxels, zyx.
        output_size: of the largest output chunk, voxels, zyx.
        input_dtype: type of the input's voxels.
        device: where the network runs.
        backend: what runs it: ``torch``, ``openvino``, ``onnxruntime``.
        divisor: what patch sizes have to be multiples of, zyx, if that is known.
        other_bytes: what the other operators of the line take, for chunks of this size.
        resident_bytes: what the process holds now, the weights included if they are on the host.
    """

    settings: EngineSettings
    activations: Activations | None
    weight_bytes: int
    input_size: Zyx
    output_size: Zyx
    input_dtype: str = "uint8"
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    backend: str = "torch"
    divisor: Zyx | None = None
    other_bytes: int = 0
    resident_bytes: int = field(default_factory=resident_bytes)

    @property
    def margin(self) -> Zyx:
        """Voxels by which the input chunk exceeds the output chunk, on both sides together."""
        return self.input_size - self.output_size

    def with_output_size(self, size: Zyx) -> Workload:
        """Return the same with chunks of another size."""
        others = self.other_bytes * size.product() // self.output_size.product()
        return replace(self, output_size=size, input_size=size + self.margin, other_bytes=others)

    def with_batch_size(self, batch_size: int) -> Workload:
        """Return the same with batches of another size."""
        return self._with(replace(self.settings, batch_size=batch_size))

    def with_patch(self, geometry: PatchGeometry) -> Workload:
        """Return the same with other patches."""
        return self._with(replace(self.settings, geometry=geometry))

    def _with(self, settings: EngineSettings) -> Workload:
        voxels = settings.batch_size * settings.geometry.input_patch_size.product()
        found = self.activations and self.activations.scaled(voxels)
        return replace(self, settings=settings, activations=found)


@dataclass(frozen=True)
class Forecast:
    """Expected peak memory, by what takes it.

    Attributes:
        workload: what it was made for.
        host: bytes by name.
        device: bytes by name; empty on the CPU.
        complete: whether the network's activations are known; else they are left out.
    """

    workload: Workload
    host: dict[str, int]
    device: dict[str, int]
    complete: bool

    @property
    def host_bytes(self) -> int:
        """Memory of the process."""
        return sum(self.host.values())

    @property
    def device_bytes(self) -> int:
        """Memory of the GPU."""
        return sum(self.device.values())

    def __str__(self) -> str:
        """Return one line."""
        line = " and ".join(
            f"{describe_bytes(sum(parts.values()))} of {name} memory ("
            + ", ".join(f"{part} {describe_bytes(size)}" for part, size in parts.items() if size)
            + ")"
            for name, parts in (("host", self.host), ("device", self.device))
            if parts
        )
        return line if self.complete else f"at least {line}, and the network's activations"

    def table(self) -> str:
        """Return a line a part."""
        width = max(map(len, self.host))
        lines = []
        for name, parts in (("host", self.host), ("device", self.device)):
            if parts:
                lines.append(f"{name:{width + 2}} {describe_bytes(sum(parts.values())):>9}")
                lines += [
                    f"  {part:{width}} {describe_bytes(size):>9}" for part, size in parts.items()
                ]
        if not self.complete:
            lines.append(f"  {'network activations':{width}}   unknown")
        return "\n".join(lines)


def forecast(workload: Workload) -> Forecast:
    """Return the memory that *workload* takes at its peak; takes none and no time."""
    settings, device = workload.settings, workload.device
    cuda = device.type == "cuda"
    found = workload.activations
    slack = _SLACK.get("cuda" if cuda else workload.backend, 1.0)
    batch = _FLOAT * settings.batch_size * settings.num_input_channels
    batch *= settings.geometry.input_patch_size.product()
    cover = workload.input_size.high(settings.geometry.output_patch_size)
    region = _region(settings.geometry, cover)
    channels = settings.num_output_channels
    blending = engine_workspace(settings.geometry, channels, cover, channels if cuda else 1)
    if cuda:
        blending += _FLOAT * channels * region  # the means, which a copy still reads
    item = np.dtype(settings.stored_dtype).itemsize
    chunks = {
        INPUT: workload.input_size.product()
        * settings.num_input_channels
        * np.dtype(workload.input_dtype).itemsize,
        OUTPUT: workload.output_size.product() * settings.output_channels * item,
    }
    if workload.other_bytes:
        chunks["other operators"] = workload.other_bytes
    network = {
        WEIGHTS: workload.weight_bytes,
        "network activations": int(found.peak_bytes * slack) if found else 0,
    }
    converted = 0 if settings.output_dtype == "float32" else settings.num_output_channels
    work = {
        "engine workspace": blending + region * converted * _CONVERSION,
        "batches": batch * ((_FEED if cuda else 1) + _COPIES) + _augmentation(settings, batch),
    }
    libraries = max(0, workload.resident_bytes - (0 if cuda else workload.weight_bytes))
    start = {LIBRARIES: libraries + FIRST_USE}
    if not cuda:
        return Forecast(workload, start | network | chunks | work, {}, found is not None)
    staged = _STAGED * region * settings.output_channels * item
    host = start | chunks | {"batches": batch * _FEED + staged}
    return Forecast(workload, host, network | work, found is not None)


def engine_workspace(
    geometry: PatchGeometry, channels: int, cover: Zyx, at_once: int | None = None
) -> int:
    """Return the bytes that blending takes, which does not depend on the depth of a chunk.

    ```
    strip   patch height x patch length x width        sums of the row being made
    carry   planes shared by two layers x length x width
    and a patch multiplied by the window, the window, and a few regions of weights
    ```

    Args:
        geometry: of the patches.
        channels: that the network returns.
        cover: size of what the patches of a chunk cover, voxels, zyx.
        at_once: channels that are multiplied by the window at once (default: all).
    """
    at_once = channels if at_once is None else at_once
    height, length, width = geometry.output_patch_size
    starts, _, _ = PatchGrid(geometry, BoundingBox.from_size((0, 0, 0), cover)).starts
    shared = max((a + height - b for a, b in pairwise(starts)), default=0)
    strip = height * length * cover.x
    carry = max(0, shared) * cover.y * cover.x
    patch = height * length * width
    weights = patch + _REGIONS * _region(geometry, cover)
    return _FLOAT * (channels * (strip + carry) + at_once * patch + weights)


def _region(geometry: PatchGeometry, cover: Zyx) -> int:
    """Return the most voxels that one row of patches completes: all of them, in the last row."""
    return geometry.output_patch_size.z * geometry.output_patch_size.y * cover.x


def _augmentation(settings: EngineSettings, batch: int) -> int:
    """Return the bytes for a turned batch, its output turned back, and the sum of outputs."""
    if not settings.augment:
        return 0
    output = batch // settings.num_input_channels * settings.num_output_channels
    return batch + 2 * output
