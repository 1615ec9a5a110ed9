"""The engine: cut patches, run the network and blend its output.

The memory of the input and of the result grows with the box. All other memory does not depend on
the size of the box along z.

```
PatchLoader        cut and normalise patches -> batches      (GPU: in another thread)
Engine (thread)    network -> Blender: sums -> complete regions
OutputWriter       mean -> output dtype -> result            (GPU: in another thread)
```

The engine works on arrays and needs no storage library:

    engine = Engine(backend, EngineSettings(PatchGeometry(...)))
    output = engine.run(array, BoundingBox.from_size((0, 0, 0), array.shape))
"""

from __future__ import annotations

import logging
from concurrent.futures import CancelledError, Future
from contextlib import closing
from math import isfinite
from threading import Event
from typing import TYPE_CHECKING, Any

import torch

from chunkflow_py.core.failpoints import reached
from chunkflow_py.core.geometry import BoundingBox
from chunkflow_py.errors import (
    ChunkError,
    GeometryError,
    ModelError,
    NonFiniteError,
    OptionError,
    OutOfMemoryError,
)
from chunkflow_py.inference.augment import augmented
from chunkflow_py.inference.blend import Blender
from chunkflow_py.inference.device_streams import Device
from chunkflow_py.inference.memory_estimate import lowered_batch, out_of_memory, smaller_batch
from chunkflow_py.inference.network_output import MEANING, activated
from chunkflow_py.inference.output_writer import OutputWriter, ResultMemory, non_finite
from chunkflow_py.inference.patch_loader import PatchLoader, PatchSource

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from chunkflow_py.inference.backends.backend_protocol import Backend
    from chunkflow_py.inference.blend import BlendedRegion
    from chunkflow_py.inference.engine_settings import EngineSettings
    from chunkflow_py.inference.patch_exchange import TaskExchange
    from chunkflow_py.inference.patch_grid import PatchGrid
    from chunkflow_py.inference.patch_loader import Batches, Step

__all__ = ["Engine"]

logger = logging.getLogger(__name__)


class Engine:
    """Runs a network over the patches of a box and blends its output.

    Buffers are allocated once and reused for the next box. `close` ends the threads.

    Attributes:
        device: memory, thread and stream operations of the network's device.
        patches_run: number of patches that the network has run on.
        patches_skipped: number of patches that were not computed, because they are empty or masked.
        patches_found: number of patches whose output another task had already computed.
    """

    def __init__(
        self,
        backend: Backend,
        settings: EngineSettings,
        *,
        staged: bool | None = None,
        device: Device | None = None,
    ) -> None:
        """Start the threads and allocate the buffers for batches.

        Args:
            backend: the network.
            settings: all other settings that decide the output.
            staged: copy input to the device and output to the host in separate threads (default:
                only on a GPU).
            device: memory, thread and stream operations of the device of *backend* (default:
                `Device.of` that device).

        Raises:
            OptionError: augmentation, an activation or float16 patches are requested, but the
                network returns patches that are already multiplied by the blending weights.
        """
        for option, given in (
            ("--augment", settings.augment),
            ("--activation", settings.activation != "none"),
            ("--patch-precision float16", settings.patch_precision != "float32"),
        ):
            if backend.weighted and given:
                msg = (
                    f"{option} needs values that are not yet multiplied by the blending weights, "
                    "but the PatchInferencer of the model file returns weighted values; leave "
                    f"{option} out, or use a model file that defines InstantiatedModel"
                )
                raise OptionError(msg)
        self.backend = backend
        self.settings = settings
        self.patches_run = self.patches_skipped = self.patches_found = 0
        device = Device.of(backend.device) if device is None else device
        self._clock = device.stopwatch()
        shape = (
            settings.batch_size,
            settings.num_input_channels,
            *settings.geometry.input_patch_size,
        )
        self._loader = PatchLoader(shape, device, ahead=staged)
        window = device.bring(torch.from_numpy(settings.window))
        shares = settings.activation != "none" and settings.activate == "after"
        self._window = window
        self._blender = Blender(window, settings.num_output_channels, shares=shares)
        self._writer = OutputWriter(settings, device, staged=staged)
        self._results = ResultMemory()
        self._thread = device.thread("inference")
        self._end = device.thread("inference-end")
        self._closed = Event()
        self._checked = False
        self._at_once = settings.batch_size
        self.device = device
        self._spare = torch.empty(0)

    @property
    def forward_seconds(self) -> float:
        """Total time of all forward passes in seconds; waits for the current pass to end."""
        return self._clock.seconds()

    @property
    def network_seconds(self) -> float:
        """Total time of all forward passes in seconds; does not wait for the current pass."""
        return self._clock.so_far()

    @property
    def batch_size(self) -> int:
        """Number of patches in one forward pass.

        The number is below the setting ``batch_size`` if the engine has lowered the batch size to
        save memory.
        """
        return self._at_once

    def mean_forward_s(self) -> float:
        """Return the mean time of the network for one patch, seconds; 0 before the first patch."""
        return self.network_seconds / max(1, self.patches_run)

    @property
    def voxels_clamped(self) -> int:
        """Number of output values outside [0, 1] that conversion to uint8 has clamped."""
        return self._writer.clamped

    def warm(self) -> None:
        """Run the network on zeros in the background, to compile it before the first batch."""
        if warm := getattr(self.backend, "warm", None):
            self._thread.submit(warm)

    def depends_on_batch(self) -> bool:
        """Return whether a patch's output depends on its position in the batch or on other patches.

        This is measured: one patch is run at all positions of a batch, and then at the first and
        at the last position, with zeros or noise at the other positions. The result is true if
        the outputs of this patch are not all identical, bit by bit.
        """
        return bool(self._thread.submit(self._depends_on_batch).result())

    @torch.inference_mode()
    def _depends_on_batch(self) -> bool:
        settings, noise = self.settings, torch.Generator().manual_seed(1)
        size = (settings.num_input_channels, *settings.geometry.input_patch_size)
        patch, other = (torch.rand(size, generator=noise) for _ in range(2))
        number = settings.batch_size
        if number == 1:
            return False
        zeros = torch.zeros(size)
        cases: list[tuple[torch.Tensor, Sequence[int]]] = [(patch, range(number))]
        cases += [(around, [place]) for place in (0, number - 1) for around in (zeros, other)]
        first: torch.Tensor | None = None
        for around, places in cases:
            batch = around.repeat(number, 1, 1, 1, 1)
            batch[places[0]] = patch
            # In a batch that is not full, only the first patches are used.
            used = places[-1] + 1 if around is zeros else number
            outputs = self._finished(self._fitting(self.device.bring(batch))[:used])
            for place in places:
                output = outputs[place].clone(memory_format=torch.contiguous_format)
                bits = output.view(torch.uint8)
                first = bits if first is None else first
                if not torch.equal(bits, first):
                    return True
        return False

    def close(self) -> None:
        """Stop after the current batch, and end all threads."""
        self._closed.set()
        self._thread.shutdown()
        self._end.shutdown()
        for part in (self._loader, self._writer, self._results):
            part.close()

    def run(self, array: NDArray[Any], box: BoundingBox, **options: Any) -> NDArray[Any]:
        """Compute a box and return the result; `start` explains the arguments and the errors."""
        stop = Event()
        result: Future[NDArray[Any]] = self.start(array, box, stop=stop, **options)
        try:
            return result.result()
        finally:
            stop.set()  # after an interrupt; otherwise the run is over

    def start(
        self,
        array: NDArray[Any],
        box: BoundingBox,
        *,
        output_box: BoundingBox | None = None,
        domain: BoundingBox | None = None,
        grid: PatchGrid | None = None,
        wanted: Callable[[BoundingBox], bool] | None = None,
        wrap: Callable[[NDArray[Any]], Any] | None = None,
        stop: Event | None = None,
        on_progress: Callable[[int, int], None] | None = None,
        exchange: TaskExchange | None = None,
    ) -> Future[Any]:
        """Start to compute a box, and return a future of the result.

        The caller may start the next box before this future is done.

        Args:
            array: (z, y, x) or (c, z, y, x), any real dtype; must not change until the future is
                done.
            box: box that *array* covers, global voxels.
            output_box: box to compute, global voxels (default: the box that the grid covers).
            domain: bounds of the volume that *array* was cut from (default: *box*).
            grid: patch grid to use (default: the grid of the settings on *domain*).
            wanted: function that receives the output box of a patch and returns whether to run the
                network on the patch. The output of other patches is zero.
            wrap: function to apply to the result; the future returns what this function returns.
            stop: event; if the caller sets this event, the computation stops after the current
                batch.
            on_progress: called after each batch, in another thread, with the number of patches done
                and the number of all patches.
            exchange: where tasks exchange the outputs of patches; ``None`` for no exchange.

        Returns:
            The future of an array (c, z, y, x) of the output dtype, on *output_box*. The future
            raises ModelError if the network failed or returned a wrong shape, and NonFiniteError if
            the output contains NaN or infinity.

        Raises:
            ChunkError: *array* does not have the configured number of input channels.
            GeometryError: *output_box* is not within the box that the grid covers, or *box* does
                not contain the input that *output_box* needs.
        """
        settings = self.settings
        grid = settings.grid(box if domain is None else domain) if grid is None else grid
        target = grid.cover if output_box is None else output_box
        data = as_channels(array, settings.num_input_channels)
        if tuple(data.shape[1:]) != box.size:
            msg = (
                f"an array of shape {array.shape} does not have the size {box.size} of box {box}; "
                "give an array and a box of equal size"
            )
            raise ChunkError(msg)
        self._check_required(grid, box, target)
        patches = PatchSource(
            data, box, grid, target, settings.normalizer, settings.skip_empty, wanted, exchange
        )
        job = self._thread.submit(
            self._compute, self._loader.open(patches), patches, stop or Event(), on_progress
        )
        # Not in the network's thread, which continues with the next box.
        return self._end.submit(
            _completed, job, wrap, exchange if self.device.asynchronous else None
        )

    def wait_until_idle(self) -> None:
        """Wait until the engine has no queued work, so that the caller may run the network."""
        self._thread.submit(int).result()

    @torch.inference_mode()
    def _compute(
        self,
        batches: Batches,
        patches: PatchSource,
        stop: Event,
        on_progress: Callable[[int, int], None] | None,
    ) -> tuple[NDArray[Any], list[Future[None]]]:
        # Returns the result, and the writes to the result that are not finished.
        grid, target, exchange = patches.grid, patches.target, patches.exchange
        blender, total, done = self._blender, grid.count(target).product(), 0
        writes: list[Future[None]] = []
        with closing(batches):
            shape = (self.settings.output_channels, *target.size)
            result = self._results.empty(shape, self.settings.stored_dtype)
            blender.begin(grid, target)
            for batch in batches:
                if stop.is_set() or self._closed.is_set():
                    raise CancelledError
                outputs = None if batch.tensor is None else self._forward(batch.tensor, batch.used)
                reached("mid-inference")
                for step in batch.steps:
                    for region in blender.advance(step.patch):
                        writes += self._give_out(region, target, result)
                    values = self._values(step, outputs, exchange)
                    blender.add(step.patch, values, weighted=self.backend.weighted)
                    if exchange is not None and step.key is not None and values is not None:
                        exchange.keep(step.patch, step.key, values)
                # Drop finished writes; result() raises if one failed.
                writes = [write for write in writes if not write.done() or write.result()]
                done += len(batch.steps)
                found = sum(step.part is not None for step in batch.steps)
                self.patches_run += batch.used
                self.patches_found += found
                self.patches_skipped += len(batch.steps) - batch.used - found
                if on_progress is not None:
                    on_progress(done, total)
            for region in blender.finish():
                writes += self._give_out(region, target, result)
        # On a GPU not here, where the next forward pass would wait.
        if exchange is not None and not self.device.asynchronous:
            exchange.finish()
        return result, writes

    def _values(
        self, step: Step, outputs: torch.Tensor | None, exchange: TaskExchange | None
    ) -> torch.Tensor | None:
        # Another task may have stored only a part of the output; values outside of the part are
        # arbitrary, because no voxel of this task needs them.
        part = step.part
        if part is None or exchange is None:
            return None if step.place is None or outputs is None else outputs[step.place]
        shape = (len(part.values), *self._window.shape)
        if self._spare.shape != shape or self._spare.dtype != part.values.dtype:
            self._spare = self._window.new_zeros(shape, dtype=part.values.dtype)
        target = self._spare[(slice(None), *part.box.slices(step.patch.start))]
        exchange.exchange.upload(part, target)
        return self._spare

    def _give_out(
        self, region: BlendedRegion, target: BoundingBox, result: NDArray[Any]
    ) -> list[Future[None]]:
        place = result[(slice(None), *region.box.slices(target.start))]
        write = self._writer.put(region, torch.from_numpy(place))
        return [] if write is None else [write]

    # --- input ---------------------------------------------------------------------------------

    @staticmethod
    def _check_required(grid: PatchGrid, box: BoundingBox, target: BoundingBox) -> None:
        if not grid.cover.contains(target):
            msg = (
                f"output box {target} reaches outside {grid.cover}, the box that the patches "
                f"cover; give an output box inside {grid.cover}"
            )
            raise GeometryError(msg)
        need = grid.required_input(target)
        if not box.contains(need):
            msg = (
                f"output box {target} needs input box {need}, but the chunk has only {box}; load "
                f"the chunk with a margin of {missing_margin(need, target)} (zyx, voxels)"
            )
            raise GeometryError(msg)

    # --- network -------------------------------------------------------------------------------

    def _forward(self, batch: torch.Tensor, used: int) -> torch.Tensor:
        # Only the first *used* patches of a padded batch are real.
        with self._clock.running():
            output = self._fitting(batch)
        output = self._finished(output[:used])
        if not self._checked:
            self._check_values(output)
            self._checked = True  # only now: after an error, the next box must be refused too
        return output

    def _finished(self, output: torch.Tensor) -> torch.Tensor:
        settings = self.settings
        output = self._crop(output)
        if settings.activation != "none" and settings.activate == "before":
            channels = tuple(part.channels for part in settings.outputs)
            output = activated(output, settings.activation, channels)
        # Blending multiplies by a float32 window, which converts back without an error.
        return output.to(torch.float16) if settings.patch_precision == "float16" else output

    def _fitting(self, batch: torch.Tensor) -> torch.Tensor:
        """Run the network, in smaller batches if the device runs out of memory."""
        while True:
            try:
                if self._at_once >= len(batch):
                    return self._network(batch)
                # Padded, so that all forward passes have one shape.
                whole = -(-len(batch) // self._at_once) * self._at_once
                filled = batch.new_zeros((whole, *batch.shape[1:]))
                filled[: len(batch)] = batch
                starts = range(0, whole, self._at_once)
                parts = (filled[first : first + self._at_once] for first in starts)
                return torch.cat([self._network(part).clone() for part in parts])
            except OutOfMemoryError as error:
                smaller = smaller_batch(self._at_once)
                if smaller is None or not self.settings.lower_batch:
                    msg = out_of_memory(self.backend.device, self._at_once, smaller)
                    raise OutOfMemoryError(msg) from error
                logger.warning(lowered_batch(self._at_once, smaller))
                self._at_once = smaller

    def _network(self, batch: torch.Tensor) -> torch.Tensor:
        if self.settings.augment:
            return augmented(self.backend, batch, self.settings.meaning)
        return self.backend(batch)

    def _crop(self, output: torch.Tensor) -> torch.Tensor:
        geometry = self.settings.geometry
        size = tuple(output.shape[2:])
        if output.shape[1] != self.settings.num_output_channels:
            msg = (
                f"the network returned {output.shape[1]} channels, but --num-output-channels is "
                f"{self.settings.num_output_channels}; use --num-output-channels {output.shape[1]}"
            )
            raise ModelError(msg)
        if size == geometry.output_patch_size:
            return output
        if size != geometry.input_patch_size:
            msg = (
                f"the network returned patches of size {size}, but must return patches of the "
                f"input patch size {geometry.input_patch_size} or of the output patch size "
                f"{geometry.output_patch_size} (zyx, voxels); change --output-patch-size"
            )
            raise ModelError(msg)
        inside = BoundingBox.from_size(geometry.margin, geometry.output_patch_size)
        return output[(slice(None), slice(None), *inside.slices())]

    def _check_values(self, output: torch.Tensor) -> None:
        # Only for the first batch.
        # The extremes are NaN or infinite if a value is; they need no temporary array.
        low, high = float(output.min()), float(output.max())
        if not (isfinite(low) and isfinite(high)):
            bad = int((~torch.isfinite(output)).sum())
            raise NonFiniteError(non_finite(f"{bad} values", "the first batch", self.settings))
        kind = self.settings.output_kind
        if (
            kind is None
            or not MEANING[kind].bounded
            or self.backend.weighted
            or self.settings.activate == "after"
        ):
            return
        if low < -1e-4 or high > 1 + 1e-4:
            msg = (
                f"--output-kind {kind} means values in [0, 1], but the first batch has values from "
                f"{low:.4g} to {high:.4g}; if the values are logits, add --activation sigmoid, or "
                "--activation softmax for exclusive classes; otherwise choose another --output-kind"
            )
            raise ModelError(msg)


def _completed(
    job: Future[tuple[NDArray[Any], list[Future[None]]]],
    wrap: Callable[[NDArray[Any]], Any] | None,
    exchange: TaskExchange | None,
) -> Any:
    result, writes = job.result()
    for write in writes:
        write.result()
    if exchange is not None:
        exchange.finish()
    return result if wrap is None else wrap(result)


def as_channels(array: NDArray[Any], channels: int) -> NDArray[Any]:
    """Return a (z, y, x) or (c, z, y, x) array as (c, z, y, x); check the number of channels.

    Raises:
        ChunkError: the array does not have 3 or 4 axes, or does not have *channels* channels.
    """
    data = array[None] if array.ndim == 3 else array
    if data.ndim != 4:
        msg = (
            f"the image has the shape {array.shape}, but an image must have the axes (z, y, x) or "
            "(c, z, y, x)"
        )
        raise ChunkError(msg)
    if data.shape[0] != channels:
        msg = (
            f"the image has {data.shape[0]} channel{'s' * (data.shape[0] > 1)}, but "
            f"--num-input-channels is {channels}; use --num-input-channels {data.shape[0]}, or "
            "choose channels with --channels"
        )
        raise ChunkError(msg)
    return data


def missing_margin(need: BoundingBox, box: BoundingBox) -> str:
    """Return the margin (zyx, voxels) by which *box* must grow to contain *need*, as text."""
    low, high = box.start - need.start, need.stop - box.stop
    return " ".join(str(max(0, a, b)) for a, b in zip(low, high, strict=True))
