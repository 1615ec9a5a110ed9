"""Inferencer: the operator that runs a network on chunks."""

from __future__ import annotations

import hashlib
import json
import logging
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

from chunkflow_py.core.chunk import Chunk, Voxels
from chunkflow_py.core.host_memory import OperatorMemory, describe_bytes
from chunkflow_py.core.operator_base import HOOK, OperatorBase, hook
from chunkflow_py.core.outline import BoxIndex
from chunkflow_py.errors import GeometryError, OptionError
from chunkflow_py.inference.backend_comparison import compare
from chunkflow_py.inference.backend_factory import create_backend
from chunkflow_py.inference.backends.compute_profile import describe_profile
from chunkflow_py.inference.engine import Engine, as_channels
from chunkflow_py.inference.memory_estimate import (
    INPUT,
    LIBRARIES,
    OUTPUT,
    WEIGHTS,
    Workload,
    check_fits,
    estimate_memory,
)
from chunkflow_py.inference.network_memory import Activations, NetworkMemory
from chunkflow_py.inference.network_source import network_code, network_files
from chunkflow_py.inference.normalization import dtype_warning
from chunkflow_py.inference.patch_exchange import PatchExchange, digest_of
from chunkflow_py.inference.patch_grid import divisor_warning
from chunkflow_py.inference.patch_loader import PatchSource, sample
from chunkflow_py.inference.shared_patches import part_memory, part_voxel_bytes, too_small
from chunkflow_py.inference.voxel_size import check_voxel_size
from chunkflow_py.store.store_address import public

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future

    import torch
    from numpy.typing import NDArray

    from chunkflow_py.core.geometry import BoundingBox, Zyx
    from chunkflow_py.inference.backends.backend_protocol import Backend
    from chunkflow_py.inference.engine_settings import EngineSettings
    from chunkflow_py.inference.memory_estimate import MemoryEstimate
    from chunkflow_py.inference.patch_exchange import PartStore, TaskExchange
    from chunkflow_py.inference.patch_grid import PatchGrid
    from chunkflow_py.inference.placement import Placement

    Mask = Callable[[BoundingBox, tuple[float, float, float]], Callable[[BoundingBox], bool]]

logger = logging.getLogger(__name__)


@dataclass
class Inferencer(OperatorBase):
    """The operator that runs a network on chunks and returns the blended output as chunks.

    Attributes:
        placement: chooses the patches and the output box of a chunk; contains the engine settings.
        network: arguments of `chunkflow_py.inference.backend_factory.create_backend`.
        patch_divisor: three numbers of voxels, zyx. Patch sizes and steps between patches should be
            multiples of these numbers (default: `Backend.divisor` of the network).
        mask: function that receives the box and the voxel size of a chunk, and returns a filter of
            patches. The filter is a function that receives the output box of a patch and returns
            whether to run the network on the patch. The output of other patches is zero.
        warn_of_dtype: warn if the default normalisation divides integers of more than 8 bits by the
            largest integer of their dtype.
        model_voxel_size_nm: voxel size that the network was trained with, nanometres, zyx (default:
            the voxel size that the model declares). A chunk whose voxel size differs by more than
            10 % is an error.
        statistics: path of the file with statistics for the normalisation; ``None`` if no file is
            used.
        fetched_files: dict from the address of a network file (such as a URL, as the user typed it)
            to the path of the local copy.
        origins: addresses that the operator reads in addition to the chunks. The pipeline must not
            write to these addresses.
        report_precision: log the compute profile (machine properties and settings that can change
            the output) when the first chunk is processed. Also log how much the output differs from
            that of PyTorch in float32 without TF32 and without compilation. The difference is not
            logged if the network itself runs in this way.
        on_progress: function that is called with the number of patches done and the number of all
            patches.
        part_store: where tasks exchange outputs of patches; ``None`` if each task computes all its
            patches.
        task_time: time index of the current task, assigned by the pipeline.
    """

    placement: Placement = field(metadata=HOOK)
    network: dict[str, Any]
    patch_divisor: Zyx | None = None
    mask: Mask | None = None
    warn_of_dtype: bool = False
    model_voxel_size_nm: tuple[float, float, float] | None = None
    statistics: str | None = None
    fetched_files: dict[str, str] = field(default_factory=dict, metadata=HOOK)
    origins: tuple[str, ...] = field(default=(), metadata=HOOK)
    report_precision: bool = True
    on_progress: Callable[[int, int], None] | None = field(default=None, metadata=HOOK)
    part_store: PartStore | None = field(default=None, metadata=HOOK)
    task_time: int | None = field(default=None, metadata=HOOK)
    engine: Engine | None = field(default=None, init=False, repr=False)
    _exchange: PatchExchange | None = field(default=None, init=False, repr=False)
    _tasks: BoxIndex | None = field(default=None, init=False, repr=False)
    _identities: dict[int, bytes] = field(default_factory=dict, init=False, repr=False)
    _workload: Workload | None = field(default=None, init=False, repr=False)

    @property
    def settings(self) -> EngineSettings:
        """Engine settings of the attribute `placement`."""
        return self.placement.settings

    @property
    @hook
    def is_local(self) -> bool:
        """Whether the positions of patches depend on the volume only, not on the chunks."""
        return self.placement.grid != "chunk" and self.placement.patch_num is None

    @property
    @hook
    def needed_files(self) -> dict[str, str]:
        """Files that a worker needs: dict from each path to ``code`` (can run code) or ``data``.

        A path is spelled as the user typed it.

        Raises:
            OptionError: the network consists of several files, but a run can store only one.
        """
        read = {} if self.statistics is None else {self.statistics: "data"}
        typed = {path: address for address, path in self.fetched_files.items()}
        files = network_files(self.network)
        return {typed.get(path, path): role for path, role in files.items()} | read

    @property
    @hook
    def code(self) -> tuple[str, ...]:
        """Phrases for a warning, one for each file that is executed as code."""
        code = network_code(self.network)
        for address, path in self.fetched_files.items():
            shown = public(address.partition("#")[0])
            code = tuple(phrase.replace(path, shown) for phrase in code)
        return code

    @property
    @hook
    def profile(self) -> dict[str, str] | None:
        """Machine properties and settings that can change the output; ``None`` before loading."""
        if self.engine is None:
            return None
        self.engine.wait_until_idle()  # until then it may be compiled, which changes the profile
        return dict(self.engine.backend.profile)

    @property
    @hook
    def network_seconds(self) -> float:
        """Total time of the finished forward passes in seconds."""
        return 0.0 if self.engine is None else self.engine.network_seconds

    @property
    @hook
    def patch_counts(self) -> dict[str, int]:
        """Counts of patches and of exchanged bytes, by name; counts that are 0 are left out."""
        engine, exchange, store = self.engine, self._exchange, self.part_store
        if engine is None or store is None:
            return {}
        counts = {"computed": engine.patches_run, "found": engine.patches_found}
        if exchange is not None:
            counts["read_bytes"] = exchange.reads.bytes
            counts["written_bytes"] = store.writes.bytes
            counts |= exchange.counts.refused
        return {name: count for name, count in counts.items() if count}

    def __enter__(self) -> Inferencer:
        """Load the network; compile it in the background while the first chunk is read."""
        if self.network.get("backend") != "auto":  # auto chooses with patches of the first chunk
            engine = self._loaded()
            self._estimate_memory(engine)
            if self.network.get("compile") or engine.backend.device.type == "cuda":
                engine.warm()
        return self

    def __exit__(self, *_: object) -> None:
        """Log the number of clamped values and of skipped patches; release the network."""
        if self.engine is None:
            return
        if count := self.engine.voxels_clamped:
            logger.warning("in total, %d output values outside [0, 1] were clamped", count)
        if self.settings.skip_empty or self.mask is not None:
            count = self.engine.patches_skipped
            total = self.engine.patches_run + count
            logger.info(
                "%d of %d patches were not computed, because they are empty or masked", count, total
            )
        if found := self.engine.patches_found:
            total = self.engine.patches_run + found
            logger.info("%d of %d patches were computed by another task", found, total)
        self.engine.close()
        self.engine = None
        if self._exchange is not None:
            self._exchange.close()
            self._exchange = None
            self._identities.clear()

    @property
    @hook
    def backend_is_open(self) -> bool:
        """Whether ``--backend auto`` still has to choose a backend."""
        return bool(self.network.get("backend") == "auto")

    @hook
    def choose_backend(self) -> str:
        """Time the backends on synthetic patches; select the fastest and return its name."""
        self.network["backend"] = self._backend().profile["backend"]
        return str(self.network["backend"])

    def _loaded(self, source: PatchSource | None = None) -> Engine:
        if self.engine is None:
            patches: Sequence[torch.Tensor] = ()
            if source is not None and self.network.get("backend") == "auto":
                patches = sample(source, self.settings.batch_size)
            self.engine = Engine(self._backend(patches=patches), self.settings)
            self._take_voxel_size(getattr(self.engine.backend, "voxel_size_nm", None))
        return self.engine

    def _take_voxel_size(self, declared: tuple[float, float, float] | None) -> None:
        given = self.model_voxel_size_nm
        if declared is None:
            return
        if given is None:
            self.model_voxel_size_nm = declared
            self._check_voxel_size()
        elif tuple(given) != declared:
            option, value = (" ".join(f"{v:g}" for v in size) for size in (given, declared))
            msg = (
                f"--model-voxel-size-nm is {option}, but model {self.network['model']} declares "
                f"{value} (nm, zyx); leave --model-voxel-size-nm out"
            )
            raise OptionError(msg)

    def _backend(self, **changes: Any) -> Backend:
        settings = self.settings
        options: dict[str, Any] = {
            "input_patch_size": settings.geometry.input_patch_size,
            "output_patch_size": settings.geometry.output_patch_size,
            "num_input_channels": settings.num_input_channels,
            "num_output_channels": settings.num_output_channels,
            "outputs": tuple(output.name for output in settings.outputs),
            "output_channels": tuple(output.channels for output in settings.outputs),
            "affinity_channels": settings.affinity_channels,
            "batch_size": settings.batch_size,
            "window": settings.window,
        }
        return create_backend(**options | self.network | changes)

    def _estimate_memory(self, engine: Engine) -> None:
        sizes = self.placement.largest_task()
        memory = getattr(engine.backend, "memory", None)
        if sizes is None or (memory is None and engine.backend.weighted):
            return
        found = NetworkMemory(Activations(0, 1), 0) if memory is None else memory()
        outline = self.placement.outline
        self._workload = Workload(
            self.settings,
            found.activations,
            found.weight_bytes,
            input_size=sizes[0],
            output_size=sizes[1],
            input_dtype=outline.voxels.dtype if outline.voxels else "uint8",
            device=engine.backend.device,
            backend=self.network.get("backend", "torch"),
            divisor=self.patch_divisor or engine.backend.divisor,
        )
        expected = estimate_memory(self._workload)
        if expected.device:
            logger.info("expected peak on the device: %s", describe_bytes(expected.device_bytes))
        check_fits(expected)

    @property
    @hook
    def expected(self) -> MemoryEstimate | None:
        """Estimated memory of a task on host and device; ``None`` before the network is loaded."""
        return None if self._workload is None else estimate_memory(self._workload)

    @hook
    def memory(self, _: Zyx | None) -> OperatorMemory | None:
        """Return the memory that a task needs; ``None`` if unknown.

        Input and output chunks, weights and libraries are not counted.
        """
        if self._workload is None:
            return None
        expected = estimate_memory(self._workload)
        # The pipeline counts these itself; the weights are already loaded.
        own = (LIBRARIES, WEIGHTS, INPUT, OUTPUT)
        held = {part: size for part, size in expected.host.items() if part not in own}
        if self.part_store is not None and (size := self._part_bytes()):
            tasks, store = len(self.placement.outline.boxes), self.part_store
            held["parts of patches"] = part_memory(
                size, tasks, store.most_bytes, writes_later=store.connections > 0
            )
        return OperatorMemory(self._workload.output_size, held=held, complete=expected.complete)

    @hook
    def check_memory(self, line_bytes: int) -> None:
        """Refuse a pipeline that does not fit into memory.

        Args:
            line_bytes: estimated memory of the whole pipeline, including this operator.

        Raises:
            OptionError: the pipeline does not fit; the message names sizes that would fit.
        """
        if self._workload is not None:
            others = max(0, line_bytes - estimate_memory(self._workload).host_bytes)
            check_fits(estimate_memory(replace(self._workload, other_bytes=others)))

    # --- hooks of the pipeline ------------------------------------------------------------------

    @hook
    def prepare(self, outline: Any) -> None:
        """Store the outline (boxes of all tasks, volume, voxel size), and check the voxel size.

        If a task later fails because its margin is too small, the error message suggests a margin
        that suffices for all tasks. This margin is computed from the outline
        (`chunkflow_py.core.outline.Outline`).
        """
        self.placement.outline = outline
        self._check_voxel_size()

    def _check_voxel_size(self) -> None:
        outline = self.placement.outline
        data_nm = None if outline is None else outline.voxel_size_nm
        if self.model_voxel_size_nm is not None and data_nm is not None:
            check_voxel_size(self.model_voxel_size_nm, data_nm)

    @hook
    def negotiate(self, required: Callable[[BoundingBox, BoundingBox], BoundingBox]) -> None:
        """Store *required*, which this operator calls to find the box to compute for a task.

        Args:
            required: function that receives the box of a task and the bounds of the volume, and
                returns the box that the next operator needs.
        """
        self.placement.needed = required

    @hook
    def required_input(self, box: BoundingBox, domain: BoundingBox) -> BoundingBox:
        """Return the box of the input that is needed to compute the output for a task's box.

        Args:
            box: box of the task, global voxels.
            domain: bounds of the volume.
        """
        return self.placement.required_input(box, domain)

    @hook
    def voxels(self) -> Voxels | dict[str, Voxels]:
        """Return dtype, channels and kind of the output; for several outputs, a dict by name."""
        settings = self.settings
        if settings.outputs:
            dtype = settings.stored_dtype
            return {o.name: Voxels(dtype, o.channels, o.kind, True) for o in settings.outputs}
        channels = settings.output_channels
        return Voxels(settings.stored_dtype, channels, settings.kind, has_channel_axis=True)

    # --- the call ------------------------------------------------------------------------------

    def __call__(self, chunk: Chunk, bbox: BoundingBox | None = None) -> Chunk | dict[str, Chunk]:
        """Return the blended output of the network on a task's box.

        Args:
            chunk: (z, y, x) or (c, z, y, x), not yet normalised.
            bbox: box of the task (default: `Chunk.domain`, the bounds of the volume).

        Returns:
            (c, z, y, x) of the output dtype. If the network has several outputs, a dict from the
            name of each output to such a chunk.

        Raises:
            GeometryError: the chunk does not contain the required input, and ``--grid`` is not
                ``auto``.
            ModelError: the network failed.
        """
        stop = Event()
        try:
            return self.start(chunk, bbox, stop).result()
        finally:
            stop.set()  # after an interrupt; otherwise the call is over

    @hook
    def start(
        self, chunk: Chunk, bbox: BoundingBox | None = None, stop: Event | None = None
    ) -> Future[Chunk | dict[str, Chunk]]:
        """Do the same as `__call__` in the background; return a future of the result.

        The caller may start the next chunk before this future is done.

        Args:
            chunk: (z, y, x) or (c, z, y, x), not yet normalised.
            bbox: box of the task (default: `Chunk.domain`, the bounds of the volume).
            stop: event; if the caller sets this event, the computation stops after the current
                batch.
        """
        grid, target = self.placement.plan(chunk, bbox)
        data = as_channels(chunk.array, self.settings.num_input_channels)
        source = PatchSource(data, chunk.bbox, grid, target, self.settings.normalizer)
        engine = self._loaded(source)
        if self.model_voxel_size_nm is not None:
            check_voxel_size(self.model_voxel_size_nm, chunk.voxel_size_nm)
        self._explain(engine, grid, target, chunk)
        if self.report_precision:
            self.report_precision = False
            self._report_precision(engine, source)
        return engine.start(
            chunk.array,
            chunk.bbox,
            output_box=target,
            grid=grid,
            wanted=self._wanted(target, chunk.voxel_size_nm),
            stop=stop,
            on_progress=self.on_progress,
            exchange=self._task_exchange(engine, grid, target, chunk.domain, bbox),
            wrap=partial(self._wrapped, target, chunk.voxel_size_nm, chunk.domain),
        )

    # --- the exchange of patches ------------------------------------------------------------------

    def _task_exchange(
        self,
        engine: Engine,
        grid: PatchGrid,
        target: BoundingBox,
        domain: BoundingBox,
        bbox: BoundingBox | None,
    ) -> TaskExchange | None:
        # ``None`` if this task shares no patch with another task.
        placement, store = self.placement, self.part_store
        boxes = placement.outline.boxes if placement.outline is not None else None
        if store is None or bbox is None or boxes is None:
            return None
        size = engine.batch_size
        if reason := self._why_separately(engine, size, grid, domain):
            logger.info("tasks do not exchange patches, because %s", reason)
            self.part_store = None
            return None
        if self._exchange is not None and self._exchange.has_ended:
            return None
        if self._tasks is None:
            self._tasks = BoxIndex(boxes)
        number = self._tasks.number(bbox)
        if number is None:
            return None
        # Boxes that tasks compute may be larger than their own boxes, by at most as much as here:
        # along each axis, at least one side of this box is not at the end of the volume.
        reach = (bbox.start - target.start).high(target.stop - bbox.stop).high((0, 0, 0))
        neighbours = {}
        for other, box in self._tasks.touching(grid.hull(target).grow(reach)):
            if other != number:
                with suppress(GeometryError):  # it computes nothing
                    neighbours[self._name(other)] = placement.target(box, domain)
        if not neighbours:
            return None
        if self._exchange is None:
            settings = self.settings
            geometry = (settings.geometry.output_patch_size, settings.num_output_channels)
            device = engine.device
            self._exchange = PatchExchange(store, geometry, device, forward_s=engine.mean_forward_s)
        return self._exchange.task(
            self._name(number),
            target,
            self._identity(engine, size, store),
            neighbours,
            grid,
            # --lower-batch may change the batch size, and so the compute profile, in any task.
            is_current=lambda: engine.batch_size == size,
        )

    def _why_separately(
        self, engine: Engine, batch_size: int, grid: PatchGrid, domain: BoundingBox
    ) -> str:
        # A part of a sentence for the log, or "" if tasks exchange patches.
        if not self.is_local or grid != self.placement.patches(domain):
            return (
                "patches start at the corner of each chunk; --grid anchored with "
                "--expand-margin-size auto avoids this"
            )
        if self._tasks is None and (small := self._small_tasks):
            return f"{small}; tasks at least as large as an output patch avoid this"
        if batch_size not in self._identities and engine.depends_on_batch():
            return (
                "the output of a patch depends on the other patches of its batch; --batch-size 1 "
                "avoids this"
            )
        return ""

    @property
    def _small_tasks(self) -> str:
        patch = self.settings.geometry.output_patch_size
        return too_small(self.placement.outline.boxes, patch)

    def _part_bytes(self) -> int:
        # Of a task in the middle of the volume: it shares patches with tasks on all sides.
        outline = self.placement.outline
        if outline is None or not outline.boxes or outline.domain is None or not self.is_local:
            return 0
        if self._small_tasks:
            return 0
        box = outline.boxes[len(outline.boxes) // 2].intersection(outline.domain)
        if box.is_empty:
            return 0
        grid, target = self.placement.patches(outline.domain), box
        with suppress(GeometryError):
            target = self.placement.target(box, outline.domain)
        settings = self.settings
        voxel = part_voxel_bytes(settings.num_output_channels, settings.patch_itemsize)
        return grid.voxels_outside(target) * voxel

    def _name(self, position: int) -> str:
        return str(position + (self.task_time or 0) * len(self.placement.outline.boxes))

    def _identity(self, engine: Engine, batch_size: int, store: PartStore) -> bytes:
        # A digest of all that decides the output of a patch, except the input.
        if batch_size in self._identities:
            return self._identities[batch_size]
        engine.wait_until_idle()  # until then it may be compiled, which changes the profile
        network = {key: str(value) for key, value in self.network.items() if key != "device"}
        settings = self.settings
        values = (
            store.identity, network | self._contents(), engine.backend.profile, batch_size,
            settings.augment, settings.meaning, settings.activate, settings.activation,
            settings.outputs, settings.geometry, settings.num_input_channels,
            settings.num_output_channels, settings.patch_precision, settings.bump,
        )  # fmt: skip
        found = digest_of(json.dumps(values, default=str, sort_keys=True).encode())
        return self._identities.setdefault(batch_size, found)

    def _contents(self) -> dict[str, str]:
        # Digests of model and weights, because their paths may differ between machines.
        contents = {}
        # A network of several files, which a run cannot have, is known by its paths.
        with suppress(OptionError, OSError):
            files = network_files(self.network)
            for name in ("model", "weights"):
                if (path := self.network.get(name)) in files:
                    with Path(path).open("rb") as file:
                        contents[name] = hashlib.file_digest(file, "blake2b").hexdigest()
        return contents

    def _wanted(
        self, target: BoundingBox, voxel_size_nm: tuple[float, float, float]
    ) -> Callable[[BoundingBox], bool] | None:
        if self.mask is None:
            return None
        # A patch reaches beyond the box by less than its size: one read of the mask is enough.
        return self.mask(target.grow(self.settings.geometry.output_patch_size), voxel_size_nm)

    def _wrapped(
        self,
        target: BoundingBox,
        voxel_size_nm: tuple[float, float, float],
        domain: BoundingBox,
        values: NDArray[Any],
    ) -> Chunk | dict[str, Chunk]:
        settings, place = self.settings, (target.start, voxel_size_nm)
        if not settings.outputs:
            return Chunk(values, *place, settings.kind, domain)
        chunks, first = {}, 0
        for output in settings.outputs:
            part = values[first : first + output.channels]
            first += output.channels
            chunks[output.name] = Chunk(part, *place, output.kind, domain)
        return chunks

    def _explain(self, engine: Engine, grid: PatchGrid, target: BoundingBox, chunk: Chunk) -> None:
        need = self.settings.geometry.output_patch_size
        short = [a < b for a, b in zip(grid.cover.size, need, strict=True)]
        if any(short):
            self.placement.warn_once(
                "small",
                f"image box {grid.domain} is smaller than the patch {need} (zyx, voxels) and is "
                f"padded ({grid.pad})",
            )
        divisor = self.patch_divisor or engine.backend.divisor
        if warning := divisor_warning(grid, divisor):
            self.placement.warn_once("divisor", warning)
        if self.warn_of_dtype and (warning := dtype_warning(chunk.dtype)):
            self.placement.warn_once("dtype", warning)
        if self.settings.augment and self.settings.output_kind is None:
            self.placement.warn_once(
                "kind",
                f"--augment treats the {self.settings.output_channels} output channels as "
                f"{self.settings.meaning}; set --output-kind to confirm or change this",
            )
        if "amplification" not in self.placement.reported:
            self.placement.reported.add("amplification")
            count = grid.count(target).product()
            logger.info(
                "%d patch%s for %s: the network computes %.2f voxels per voxel of output",
                count,
                "" if count == 1 else "es",
                target,
                grid.amplification(target),
            )

    def _report_precision(self, engine: Engine, source: PatchSource) -> None:
        engine.wait_until_idle()  # until then it may be compiled, which changes the profile
        exact = {"backend": "torch", "dtype": "float32", "compile": False, "tf32": False}
        if any(self.network.get(key, value) != value for key, value in exact.items()):
            batches = sample(source, self.settings.batch_size)
            error = "not measured, because the sampled patches are empty"
            if batches:
                device = str(engine.backend.device)
                reference = self._backend(**exact, device=device, cuda_graphs=False)
                error = f"{compare(engine.backend, reference, batches)}, on a few patches"
            logger.info("error against float32: %s", error)
        logger.info("compute profile: %s", describe_profile(engine.backend.profile))
