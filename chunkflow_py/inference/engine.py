"""The engine: patches in, network, blended output out, with a workspace that does not grow.

Usable on arrays alone:

    engine = Engine(backend, EngineSettings(PatchGeometry(...)))
    output = engine.run(array, BoundingBox.from_size((0, 0, 0), array.shape))
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from itertools import islice
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from chunkflow_py.errors import ChunkError, GeometryError, ModelError, NonFiniteError, OptionError
from chunkflow_py.geometry import BoundingBox
from chunkflow_py.inference.augment import augmented
from chunkflow_py.inference.blend import SlabBlender
from chunkflow_py.inference.grid import Pad, PatchGeometry, PatchGrid
from chunkflow_py.inference.window import Bump, create_window

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from chunkflow_py.geometry import Zyx
    from chunkflow_py.inference.backends.protocol import Backend

logger = logging.getLogger(__name__)

OutputDtype = Literal["float32", "float16", "uint8"]
OutputKind = Literal["probability", "affinity"]


@dataclass(frozen=True)
class EngineSettings:
    """What decides the output besides the network and the data.

    Attributes:
        geometry: patch sizes and overlap.
        num_input_channels: channels the network takes.
        num_output_channels: channels the network gives.
        batch_size: patches in one forward; the last batch is filled up, so that every forward has
            the same shape.
        bump: name of the blending window.
        pad: what the network sees outside of the domain.
        keep_stride: let the last patch reach into the padding (``--grid padded``).
        normalize: ``dtype`` divides integer images by the maximum of their type; ``none`` does not.
        output_dtype: ``float32``, ``float16``, or ``uint8``: 255·p rounded half to even, after
            clamping p to [0, 1].
        output_kind: what the output means: decides how augmentation maps affinities back, and
            whether the first batch is checked to lie in [0, 1].
        augment: mean over 16 flips and transposes.
        mask_myelin_threshold: zero the other channels where the last one, which is dropped, is
            not below this.
    """

    geometry: PatchGeometry
    num_input_channels: int = 1
    num_output_channels: int = 3
    batch_size: int = 1
    bump: Bump = "wu"
    pad: Pad = "reflect"
    keep_stride: bool = False
    normalize: Literal["dtype", "none"] = "dtype"
    output_dtype: OutputDtype = "float32"
    output_kind: OutputKind | None = None
    augment: bool = False
    mask_myelin_threshold: float | None = None

    def __post_init__(self) -> None:
        """Check what must fit together.

        Raises:
            OptionError: a count is below 1, or options contradict each other.
        """
        for name in ("num_input_channels", "num_output_channels", "batch_size"):
            if getattr(self, name) < 1:
                msg = f"{name} is {getattr(self, name)}; it must be at least 1"
                raise OptionError(msg)
        size = self.geometry.input_patch_size
        if self.augment and size.y != size.x:
            msg = (
                f"--augment transposes y and x, so patches must be square in plane; the input "
                f"patch is {size.y} x {size.x} (y, x, voxels)"
            )
            raise OptionError(msg)
        if self.mask_myelin_threshold is not None and self.num_output_channels < 2:
            msg = (
                "--mask-myelin-threshold takes the last channel as the myelin map, so it needs "
                f"--num-output-channels of at least 2, not {self.num_output_channels}"
            )
            raise OptionError(msg)
        if self.output_kind == "affinity" and self.output_channels != 3:
            msg = (
                "--output-kind affinity means three channels (x, y, z), but the output has "
                f"{self.output_channels}; change --num-output-channels or --output-kind"
            )
            raise OptionError(msg)

    @property
    def output_channels(self) -> int:
        """Channels of the output, without the myelin map."""
        return self.num_output_channels - (self.mask_myelin_threshold is not None)

    @property
    def meaning(self) -> OutputKind:
        """What the output means: as said, else affinities if it has three channels."""
        if self.output_kind is not None:
            return self.output_kind
        return "affinity" if self.output_channels == 3 else "probability"

    @property
    def window(self) -> NDArray[np.float32]:
        """The blending window of an output patch."""
        return create_window(self.geometry.output_patch_size, self.bump)

    def grid(self, domain: BoundingBox) -> PatchGrid:
        """Return the patches that cover *domain*."""
        return PatchGrid(self.geometry, domain, self.pad, self.keep_stride)


class Engine:
    """Runs a network over the patches of a box and blends them.

    Attributes:
        forward_seconds: time spent inside the network so far.
        patches_run: number of patches computed so far.
        voxels_clamped: output values outside of [0, 1] that the uint8 rule clamped so far.
    """

    def __init__(self, backend: Backend, settings: EngineSettings) -> None:
        """Keep the network and the settings; buffers are made when they are first needed.

        Raises:
            OptionError: augmentation of a network whose patches come weighted.
        """
        if settings.augment and backend.weighted:
            msg = (
                "--augment averages the network's own values, but a PatchInferencer returns them "
                "multiplied by the window already; use a model with InstantiatedModel"
            )
            raise OptionError(msg)
        self.backend = backend
        self.settings = settings
        self.forward_seconds = 0.0
        self.patches_run = 0
        self.voxels_clamped = 0
        self._window = torch.from_numpy(settings.window)
        self._batch: torch.Tensor | None = None
        self._checked = False

    @torch.inference_mode()
    def run(
        self,
        array: NDArray[Any],
        box: BoundingBox,
        *,
        output_box: BoundingBox | None = None,
        domain: BoundingBox | None = None,
        grid: PatchGrid | None = None,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> NDArray[Any]:
        """Return the network's output on *output_box*.

        Args:
            array: (z, y, x) or (c, z, y, x), any real dtype; not changed.
            box: where *array* lies, global voxels.
            output_box: what to compute (default: the domain, where the grid covers it).
            domain: bounds of the volume that *array* was cut from (default: *box*).
            grid: patches to use instead of those of the settings on *domain*.
            on_progress: called as (patches done, patches in all).

        Returns:
            (c, z, y, x) of the output dtype, on *output_box*.

        Raises:
            ChunkError: *array* has not the number of input channels.
            GeometryError: *output_box* reaches outside of what the grid covers, or *box* does not
                hold its required input.
            ModelError: the network failed or returned the wrong shape.
            NonFiniteError: the network returned NaN or infinity.
        """
        settings = self.settings
        grid = settings.grid(box if domain is None else domain) if grid is None else grid
        target = grid.cover if output_box is None else output_box
        data = self._checked_input(array, box)
        self._check_required(grid, box, target)
        channels = settings.output_channels
        result = np.empty((channels, *target.size), dtype=settings.output_dtype)
        device = self.backend.device
        blender = SlabBlender(target, settings.num_output_channels, self._window, device)
        total = grid.count(target).product()
        done = 0
        patches = grid.patches(target)
        row = None
        while batch := list(islice(patches, settings.batch_size)):
            outputs = self._forward(self._gather(data, box, grid, batch), len(batch))
            for patch, output in zip(batch, outputs, strict=False):
                if row is not None and patch.start.z != row:
                    self._give_out(blender, patch.start.z, target, result)
                row = patch.start.z
                blender.add(patch, output, weighted=self.backend.weighted)
            done += len(batch)
            self.patches_run += len(batch)
            if on_progress is not None:
                on_progress(done, total)
        self._give_out(blender, target.stop.z, target, result)
        return result

    # --- input ---------------------------------------------------------------------------------

    def _checked_input(self, array: NDArray[Any], box: BoundingBox) -> NDArray[Any]:
        data = array[None] if array.ndim == 3 else array
        if data.ndim != 4 or tuple(data.shape[1:]) != box.size:
            msg = f"an array of shape {array.shape} does not fill box {box} of size {box.size}"
            raise ChunkError(msg)
        if data.shape[0] != self.settings.num_input_channels:
            msg = (
                f"the image has {data.shape[0]} channel{'s' * (data.shape[0] > 1)}, but "
                f"--num-input-channels is {self.settings.num_input_channels}; say "
                f"--num-input-channels {data.shape[0]}, or choose channels with --channels"
            )
            raise ChunkError(msg)
        return data

    @staticmethod
    def _check_required(grid: PatchGrid, box: BoundingBox, target: BoundingBox) -> None:
        if not grid.cover.contains(target):
            msg = f"output {target} reaches outside of {grid.cover}, where there is an output"
            raise GeometryError(msg)
        need = grid.required_input(target)
        if not box.contains(need):
            msg = (
                f"output {target} needs input {need}, but there is only {box}; load a margin of "
                f"{missing_margin(need, target)} (zyx, voxels)"
            )
            raise GeometryError(msg)

    def _gather(
        self, data: NDArray[Any], box: BoundingBox, grid: PatchGrid, batch: list[BoundingBox]
    ) -> torch.Tensor:
        """Fill the batch buffer with input patches, scaled; unused places are zero."""
        settings = self.settings
        if self._batch is None:
            size = settings.geometry.input_patch_size
            shape = (settings.batch_size, settings.num_input_channels, *size)
            self._batch = torch.zeros(shape, dtype=torch.float32)
        buffer = self._batch.numpy()
        divisor = 1.0
        if settings.normalize == "dtype" and data.dtype.kind in "iu":
            divisor = float(np.iinfo(data.dtype).max)
        for place, patch in zip(buffer, batch, strict=False):
            wanted = grid.input_box(patch)
            if box.contains(wanted):
                source = data[(slice(None), *wanted.slices(box.start))]
                np.divide(source, np.float32(divisor), out=place, casting="unsafe")
                continue
            index = [
                grid.source_indices(wanted.start[axis], wanted.stop[axis], axis)
                for axis in range(3)
            ]
            # Voxels of the zero padding point one before the domain: read anything, then clear.
            outside = [i < first for i, first in zip(index, grid.domain.start, strict=True)]
            local = [np.clip(i - first, 0, None) for i, first in zip(index, box.start, strict=True)]
            source = data[:, local[0][:, None, None], local[1][:, None], local[2]]
            np.divide(source, np.float32(divisor), out=place, casting="unsafe")
            for axis, mask in enumerate(outside):
                place[(slice(None),) * (axis + 1) + (mask,)] = 0
        buffer[len(batch) :] = 0
        return self._batch

    # --- network -------------------------------------------------------------------------------

    def _forward(self, batch: torch.Tensor, used: int) -> torch.Tensor:
        """Return (n, c, z, y, x) float32 of the output patch size for the patches in use."""
        settings = self.settings
        start = perf_counter()
        batch = batch.to(self.backend.device)
        if settings.augment:
            output = augmented(self.backend, batch, settings.meaning)
        else:
            output = self.backend(batch)
        output = output[:used]
        if output.device.type == "cuda":
            torch.cuda.synchronize(output.device)
        self.forward_seconds += perf_counter() - start
        output = self._crop(output).to(torch.float32)
        self._check_values(output)
        return output

    def _crop(self, output: torch.Tensor) -> torch.Tensor:
        geometry = self.settings.geometry
        size = tuple(output.shape[2:])
        if output.shape[1] != self.settings.num_output_channels:
            msg = (
                f"the network returned {output.shape[1]} channels, but --num-output-channels is "
                f"{self.settings.num_output_channels}; set it to {output.shape[1]}"
            )
            raise ModelError(msg)
        if size == geometry.output_patch_size:
            return output
        if size != geometry.input_patch_size:
            msg = (
                f"the network returned patches of {size}; expected the input patch size "
                f"{geometry.input_patch_size} or the output patch size "
                f"{geometry.output_patch_size} (zyx, voxels)"
            )
            raise ModelError(msg)
        inside = BoundingBox.from_size(geometry.margin, geometry.output_patch_size)
        return output[(slice(None), slice(None), *inside.slices())]

    def _check_values(self, output: torch.Tensor) -> None:
        # A sum is not finite if one of its terms is not, and is far cheaper than a mask; it may
        # also overflow by itself, so only then look at every value.
        if not bool(torch.isfinite(output.sum())) and not bool(torch.isfinite(output).all()):
            bad = int((~torch.isfinite(output)).sum())
            msg = (
                f"the network returned {bad} values that are NaN or infinite in one batch "
                f"(patch {self.patches_run} and on); check weights, --normalize and --dtype"
            )
            raise NonFiniteError(msg)
        if self._checked:
            return
        self._checked = True
        if self.settings.output_kind is None or self.backend.weighted:
            return
        low, high = float(output.min()), float(output.max())
        if low < -1e-4 or high > 1 + 1e-4:
            msg = (
                f"--output-kind {self.settings.output_kind} means values in [0, 1], but the first "
                f"batch holds {low:.4g} to {high:.4g}; add the activation to the network or leave "
                "--output-kind out"
            )
            raise ModelError(msg)

    # --- output --------------------------------------------------------------------------------

    def _give_out(
        self, blender: SlabBlender, stop: int, target: BoundingBox, result: NDArray[Any]
    ) -> None:
        for first, last, values in blender.finish(stop):
            rows = slice(first - target.start.z, last - target.start.z)
            # By torch, because it copies with all threads; to fresh memory that is what is slow.
            torch.from_numpy(result)[:, rows].copy_(self._converted(values))

    def _converted(self, values: torch.Tensor) -> torch.Tensor:
        """Mask and convert (c, z, y, x) float32, which may be overwritten."""
        settings = self.settings
        if settings.mask_myelin_threshold is not None:
            keep = values[-1:] < settings.mask_myelin_threshold
            values = values[:-1].mul_(keep)
        if settings.output_dtype == "float16":
            return values.to(torch.float16)
        if settings.output_dtype == "uint8":
            clamped = int(((values < 0) | (values > 1)).sum())
            if clamped and not self.voxels_clamped:
                logger.warning("%d output values outside of [0, 1] were clamped", clamped)
            self.voxels_clamped += clamped
            # round() of torch rounds half to even.
            return values.clamp_(0, 1).mul_(255).round_().to(torch.uint8)
        return values


def missing_margin(need: BoundingBox, box: BoundingBox) -> str:
    """Return the margin (zyx) that makes *box* hold *need*, as it is typed on a command line."""
    low, high = box.start - need.start, need.stop - box.stop
    return " ".join(str(max(0, a, b)) for a, b in zip(low, high, strict=True))


def divisor_warning(grid: PatchGrid, divisor: Zyx | None) -> str | None:
    """Return what to say when patches are shifted against each other by no multiple of *divisor*.

    Args:
        grid: the patches.
        divisor: shifts to which the network is equivariant, zyx, or ``None`` if unknown.
    """
    if divisor is None or not grid.breaks_congruence(divisor):
        return None
    stride = grid.geometry.stride
    if any(stride % divisor):
        overlap = grid.geometry.output_patch_size - stride // divisor * divisor
        size = grid.geometry.output_patch_size
        near = overlap if min(size - overlap) > 0 else size - divisor
        remedy = f"--output-patch-overlap {' '.join(str(v) for v in near)}"
        if not grid.keep_stride:
            remedy += " with --grid padded"
    else:
        remedy = "--grid padded"
    return (
        f"patches are shifted against each other by steps that are not multiples of the network's "
        f"divisor {divisor} (zyx, voxels), so overlapping patches disagree a little more than they "
        f"need to; {remedy} keeps them congruent"
    )
