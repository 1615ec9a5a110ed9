"""Inferencer: the engine on chunks, with the choice between anchored and legacy patches."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any, Literal

from chunkflow_py.chunk import Chunk, Voxels
from chunkflow_py.errors import GeometryError, OptionError
from chunkflow_py.geometry import BoundingBox, Zyx
from chunkflow_py.inference.backends import create_backend
from chunkflow_py.inference.engine import Engine, EngineSettings
from chunkflow_py.inference.grid import PatchGrid, divisor_warning
from chunkflow_py.inference.models import is_built_in

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from numpy.typing import NDArray

logger = logging.getLogger(__name__)


def check_network(network: dict[str, Any]) -> None:
    """Find out before any work what would stop the network from being loaded.

    Args:
        network: arguments of `chunkflow_py.inference.backends.create_backend`.

    Raises:
        OptionError: no model is named, or a file does not exist.
    """
    model, weights = network.get("model"), network.get("weights")
    if network["framework"] != "identity" and model is None:
        msg = f"--framework {network['framework']} needs a network; give --convnet-model"
        raise OptionError(msg)
    files = {"--convnet-weight-path": weights}
    if model is not None and not is_built_in(model):
        files["--convnet-model"] = model
    for option, path in files.items():
        if path is not None and not Path(path).exists():
            msg = f"{option} {path} does not exist (looked in {Path.cwd()})"
            raise OptionError(msg)
        if path is not None and Path(path).is_dir():
            msg = f"{option} {path} is a folder; name a file in it"
            raise OptionError(msg)


GridMode = Literal["auto", "anchored", "padded", "chunk"]


@dataclass
class Inferencer:
    """A network that is called on chunks and returns chunks.

    ```
    domain    |----------------------------------------|    patches are placed here (anchored)
    chunk           |------------------|                    must hold the required input
    result              |---------|                         the task's box
    ```

    Attributes:
        settings: of the engine.
        network: arguments of `chunkflow_py.inference.backends.create_backend`.
        grid: ``anchored`` to the domain; ``padded``, the same with an unbroken stride;
            ``chunk``, counted from the chunk's corner as chunkflow 1.x did; ``auto``, anchored
            when the chunk holds the required input, else ``chunk`` with a warning.
        output_margin: voxels to compute beyond the task's box on each side.
        output_crop_margin: legacy: voxels to drop on each side of what patches cover.
        patch_num: legacy: number of patches the chunk must hold, zyx.
        mask_output_chunk: legacy: keep all that patches cover instead of dropping the overlap.
        patch_divisor: shifts to which the network is equivariant, when it does not say so itself.
        on_progress: called as (patches done, patches in all).
    """

    settings: EngineSettings
    network: dict[str, Any]
    grid: GridMode = "auto"
    output_margin: Zyx = Zyx(0, 0, 0)
    output_crop_margin: Zyx | None = None
    patch_num: Zyx | None = None
    mask_output_chunk: bool = False
    patch_divisor: Zyx | None = None
    on_progress: Callable[[int, int], None] | None = None
    engine: Engine | None = field(default=None, init=False, repr=False)
    _said: set[str] = field(default_factory=set, init=False, repr=False)
    _line: Any = field(default=None, init=False, repr=False)
    _needed: Callable[[BoundingBox, BoundingBox], BoundingBox] | None = field(
        default=None, init=False, repr=False
    )

    def __post_init__(self) -> None:
        """Check options against each other.

        Raises:
            OptionError: ``--grid padded`` with ``--pad none``.
        """
        if self.settings.keep_stride and self.settings.pad == "none":
            msg = (
                "--grid padded lets the last patch reach into the padding, and --pad none allows "
                "none; use --grid anchored, or --pad reflect"
            )
            raise OptionError(msg)

    def __enter__(self) -> Inferencer:
        """Load the network."""
        self._loaded()
        return self

    def __exit__(self, *_: object) -> None:
        """Say what the rounding to uint8 clamped, and let go of the network."""
        if self.engine is None:
            return
        if count := self.engine.voxels_clamped:
            logger.warning("in all, %d output values outside of [0, 1] were clamped", count)
        if count := self.engine.patches_skipped:
            logger.info(
                "%d of %d patches were empty and not run", count, self.engine.patches_run + count
            )
        self.engine.close()
        self.engine = None

    def _loaded(self) -> Engine:
        if self.engine is None:
            settings = self.settings
            backend = create_backend(
                input_patch_size=settings.geometry.input_patch_size,
                output_patch_size=settings.geometry.output_patch_size,
                num_input_channels=settings.num_input_channels,
                num_output_channels=settings.num_output_channels,
                window=settings.window,
                **self.network,
            )
            self.engine = Engine(backend, settings)
        return self.engine

    # --- the line ------------------------------------------------------------------------------

    def prepare(self, outline: Any) -> None:
        """Remember the boxes of all tasks (an `Outline`), to name a margin that suits them all."""
        self._line = outline

    def negotiate(self, required: Callable[[BoundingBox, BoundingBox], BoundingBox]) -> None:
        """Take what the rest of the line needs for a task's box, such as a second network."""
        self._needed = required

    def voxels(self) -> Voxels:
        """Return what the output will hold."""
        settings = self.settings
        return Voxels(settings.stored_dtype, settings.output_channels, settings.kind)

    # --- geometry ------------------------------------------------------------------------------

    def required_input(self, box: BoundingBox, domain: BoundingBox) -> BoundingBox:
        """Return the input that decides the output on *box*, for a volume with bounds *domain*."""
        if self.grid == "chunk":
            return box.grow(self._legacy_margin).intersection(domain)
        return self._anchored(domain).required_input(self._wanted(box, domain))

    @property
    def _legacy_margin(self) -> Zyx:
        return self.settings.geometry.margin + self._legacy_crop

    @property
    def _legacy_crop(self) -> Zyx:
        if self.output_crop_margin is not None:
            return self.output_crop_margin
        overlap = self.settings.geometry.output_patch_overlap
        return Zyx(0, 0, 0) if self.mask_output_chunk else overlap

    def _anchored(self, domain: BoundingBox) -> PatchGrid:
        return self.settings.grid(domain)

    def _wanted(self, box: BoundingBox, domain: BoundingBox) -> BoundingBox:
        """Return what is to be computed for a task: its box and margin, where there is output."""
        cover = self._anchored(domain).cover
        wanted = box.grow(self.output_margin).intersection(cover)
        if wanted.is_empty:
            msg = f"task {box} has no voxel in common with {cover}, where there is an output"
            raise GeometryError(msg)
        return wanted

    def _plan(self, chunk: Chunk, bbox: BoundingBox | None) -> tuple[PatchGrid, BoundingBox]:
        """Choose the patches and the output box for one chunk."""
        if self.grid == "chunk":
            return self._legacy_plan(chunk, None, self._legacy_crop)
        if bbox is None:
            bbox = self._taskless_box(chunk)
        grid = self._anchored(chunk.domain)
        # As much as later operators need, which may be more than the task's box.
        asked = bbox.hull(self._needed(bbox, chunk.domain)) if self._needed else bbox
        wanted = self._wanted(asked, chunk.domain)
        need = grid.required_input(wanted)
        if chunk.bbox.contains(need):
            if wanted == chunk.domain:
                self._check_patch_num(grid, wanted)
            return grid, wanted
        if self.grid != "auto":
            msg = f"--grid {self.grid}: {self._advice(grid, chunk, bbox, asked)}"
            raise GeometryError(msg)
        if "legacy" not in self._said:
            self._warn_once(
                "legacy",
                f"patches are counted from the chunk's corner, so the result depends on how the "
                f"volume is cut into tasks: {self._advice(grid, chunk, bbox, asked)}",
            )
        # The task's box says what to return; what --output-crop-margin would drop lies around it.
        return self._legacy_plan(chunk, wanted, None)

    def _advice(self, grid: PatchGrid, chunk: Chunk, bbox: BoundingBox, asked: BoundingBox) -> str:
        """Return what disagrees, and the margin that suits all tasks of the line."""
        wanted = self._wanted(asked, chunk.domain)
        more = (bbox.start - asked.start).high(asked.stop - bbox.stop) + self.output_margin
        known = self._line is not None and self._line.has_tasks
        # It would be no help to fail again at the next task.
        margin = grid.sufficient_margin(self._line.boxes if known else [bbox], more)
        return (
            f"chunk {chunk.bbox} does not hold {grid.required_input(wanted)}, the input that "
            f"decides the output on {wanted}; load it with --expand-margin-size auto, or with "
            f"--expand-margin-size {' '.join(map(str, margin))} (zyx, voxels)"
        )

    def _taskless_box(self, chunk: Chunk) -> BoundingBox:
        crop = self.output_crop_margin
        if crop is None:
            return chunk.domain
        if any(a <= 2 * b for a, b in zip(chunk.domain.size, crop, strict=True)):
            msg = f"--output-crop-margin {crop} leaves nothing of {chunk.domain} (zyx, voxels)"
            raise GeometryError(msg)
        return chunk.domain.grow(-crop)

    def _legacy_plan(
        self, chunk: Chunk, bbox: BoundingBox | None, crop: Zyx | None
    ) -> tuple[PatchGrid, BoundingBox]:
        """Count patches from the chunk's corner, as chunkflow 1.x did."""
        geometry = self.settings.geometry
        need = geometry.input_patch_size
        if any(a < b for a, b in zip(chunk.size, need, strict=True)):
            # Too small to do without padding: there is one patch along the short axes.
            grid = PatchGrid(geometry, chunk.bbox, self._padding)
        else:
            grid = PatchGrid(geometry, chunk.bbox, "none")
        self._check_patch_num(grid, grid.cover)
        target = grid.cover
        if crop is not None:
            if any(a <= 2 * b for a, b in zip(target.size, crop, strict=True)):
                msg = (
                    f"--output-crop-margin {crop} leaves nothing of {target}, which the patches of "
                    f"chunk {chunk.bbox} cover (zyx, voxels); lower it or load a larger chunk"
                )
                raise GeometryError(msg)
            target = target.grow(-crop)
        elif bbox is not None and not target.intersection(bbox).is_empty:
            target = target.intersection(bbox)
        return grid, target

    @property
    def _padding(self) -> Any:
        return "reflect" if self.settings.pad == "none" else self.settings.pad

    def _check_patch_num(self, grid: PatchGrid, box: BoundingBox) -> None:
        if self.patch_num is None or grid.count(box) == self.patch_num:
            return
        geometry = self.settings.geometry
        size = geometry.stride * (self.patch_num - 1) + geometry.input_patch_size
        if grid.pad != "none":
            size = size - geometry.margin * 2
        msg = (
            f"--patch-num is {self.patch_num}, but chunk {grid.domain} holds {grid.count(box)} "
            f"patches (zyx); leave --patch-num out, or make the chunk {size} voxels large"
        )
        raise OptionError(msg)

    # --- the call ------------------------------------------------------------------------------

    def __call__(self, chunk: Chunk, bbox: BoundingBox | None = None) -> Chunk:
        """Return the blended output on the task's box, or on the chunk's domain without one.

        Args:
            chunk: (z, y, x) or (c, z, y, x); integers are divided by their type's maximum.
            bbox: the task's box.

        Returns:
            (c, z, y, x) of the output dtype.

        Raises:
            GeometryError: the chunk does not hold the input needed, and ``grid`` is not ``auto``.
            ModelError: the network failed.
        """
        stop = Event()
        try:
            return self.start(chunk, bbox, stop).result()
        finally:
            stop.set()  # for an interrupt; nothing else is left to be stopped

    def start(
        self, chunk: Chunk, bbox: BoundingBox | None = None, stop: Event | None = None
    ) -> Future[Chunk]:
        """Begin to compute what a call returns; the next chunk may be started meanwhile."""
        engine = self._loaded()
        grid, target = self._plan(chunk, bbox)
        self._explain(engine, grid, target, chunk)
        return engine.start(
            chunk.array,
            chunk.bbox,
            output_box=target,
            grid=grid,
            stop=stop,
            on_progress=self.on_progress,
            wrap=partial(self._wrapped, target, chunk.voxel_size_nm, chunk.domain),
        )

    def _wrapped(
        self,
        target: BoundingBox,
        voxel_size_nm: tuple[float, float, float],
        domain: BoundingBox,
        output: NDArray[Any],
    ) -> Chunk:
        return Chunk(output, target.start, voxel_size_nm, self.settings.kind, domain)

    def _explain(self, engine: Engine, grid: PatchGrid, target: BoundingBox, chunk: Chunk) -> None:
        need = self.settings.geometry.output_patch_size
        short = [a < b for a, b in zip(grid.cover.size, need, strict=True)]
        if any(short):
            self._warn_once(
                "small",
                f"domain {grid.domain} is smaller than the patch {need} (zyx, voxels) and is "
                f"padded ({grid.pad})",
            )
        divisor = self.patch_divisor or engine.backend.divisor
        if warning := divisor_warning(grid, divisor):
            self._warn_once("divisor", warning)
        if (
            self.settings.normalize == "dtype"
            and chunk.dtype.kind in "iu"
            and chunk.dtype.itemsize > 1
        ):
            self._warn_once(
                "dtype",
                f"{chunk.dtype} voxels are divided by the maximum of their type; images that use "
                "fewer bits come out dark, so scale them or use --normalize none",
            )
        if self.settings.augment and self.settings.output_kind is None:
            self._warn_once(
                "kind",
                f"--augment takes the {self.settings.output_channels} output channels for "
                f"{self.settings.meaning}; say --output-kind affinity or probability",
            )
        if "amplification" not in self._said:
            self._said.add("amplification")
            count = grid.count(target).product()
            logger.info(
                "%d patch%s for %s: the network computes %.2f voxels per voxel of output",
                count,
                "" if count == 1 else "es",
                target,
                grid.amplification(target),
            )

    def _warn_once(self, key: str, text: str) -> None:
        if key not in self._said:
            self._said.add(key)
            logger.warning(text)
