"""Run a network at the voxel size of its training, although the input has another voxel size.

```
input           |  0  |  1  |  2  |  3  |  4  |  5  |         as loaded
                      normalised, then resampled to the voxels of the network
network         |    0    |    1    |    2    |    3 |        patches, blending
                      resampled back to the voxels of the input, then activation and dtype
output          |  0  |  1  |  2  |  3  |  4  |  5  |         voxels of the input
```

Models of nnU-Net process only the box around all voxels that are not 0. The voxels of the network
then begin at the corner of this box. The output is 0 outside of the box, and tasks outside of the
box are skipped.

The input of the network is float32, so that interpolated values are not rounded to the dtype of the
image. The float32 output of the network is resampled first. Activation (with ``--activate after``),
conversion to uint8 and argmax follow. MONAI bundles can have another order: the image is resampled
before it is normalised, or the activation is applied before the output is resampled.

The pipeline runs three operators one after the other: an `InputResampler`, the network, and an
`OutputResampler`. The operator of the network is the same as without resampling.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from chunkflow_py.core.chunk import Chunk, Voxels
from chunkflow_py.core.geometry import UNIT_SCALE, Scale
from chunkflow_py.core.host_memory import OperatorMemory
from chunkflow_py.core.operator_base import HOOK, OperatorBase, hook
from chunkflow_py.core.outline import coarser_nm
from chunkflow_py.core.resampling import NetworkGrid, Resampling
from chunkflow_py.core.task import Skip
from chunkflow_py.errors import ChunkError, OptionError
from chunkflow_py.inference.normalization import Normalizer, dtype_warning
from chunkflow_py.pipeline.operator import Operator
from chunkflow_py.pipeline.resampler import Resampler

if TYPE_CHECKING:
    from collections.abc import Callable
    from fractions import Fraction

    from chunkflow_py.core.geometry import BoundingBox, Zyx
    from chunkflow_py.core.outline import Outline
    from chunkflow_py.core.resampling import Method
    from chunkflow_py.core.task import Task
    from chunkflow_py.inference.engine_settings import EngineSettings
    from chunkflow_py.inference.network_output import OutputKind

    Methods = Method | tuple[Method, Method, Method]
    # Bounds and voxel size of an image -> the voxels of the network.
    Rule = Callable[[BoundingBox, tuple[float, float, float]], NetworkGrid]

logger = logging.getLogger(__name__)

_COARSER_LEVEL = 4  # voxels per voxel of the network from which a coarser level is certainly better


def settings_at_network_size(
    settings: EngineSettings, *, activates_first: bool = False
) -> EngineSettings:
    """Return the settings without the steps that are done before or after the network.

    The `InputResampler` normalises. The `OutputResampler` converts the dtype and, with
    ``--activate after``, applies the activation.

    Args:
        settings: settings that the user gave for the network.
        activates_first: apply the activation before the output is resampled, even with
            ``--activate after``.

    Raises:
        OptionError: an option of the network cannot be combined with ``--resample``.
    """
    if settings.mask_myelin_threshold is not None:
        msg = (
            "--mask-myelin-threshold cannot be combined with --resample; leave out "
            "--mask-myelin-threshold, and apply the operators threshold and mask to the last "
            "channel of the output"
        )
        raise OptionError(msg)
    at_size = replace(settings, output_dtype="float32", normalizer=Normalizer("none"))
    if settings.skip_empty and settings.normalizer.shift:
        msg = (
            "--skip-empty-patches skips patches of zeros, but with --resample the image is "
            "normalised before it is divided into patches, and --normalize changes zeros to other "
            "values; leave --skip-empty-patches out, or use --patch-mask"
        )
        raise OptionError(msg)
    if settings.activate == "before" or activates_first:
        return at_size
    if settings.skip_empty:
        msg = (
            "--skip-empty-patches sets the output of empty patches to zero, but with --resample "
            "and --activate after, the activation would change these zeros; use --activate before"
        )
        raise OptionError(msg)
    if settings.augment and settings.meaning in ("affinity", "vector"):
        msg = (
            f"--augment permutes the {settings.meaning} channels of each patch, which is not "
            "possible with --resample and --activate after; use --activate before"
        )
        raise OptionError(msg)
    # Before the activation, values are logits.
    outputs = tuple(output._replace(kind="logit") for output in settings.outputs)
    kind: OutputKind | None = None if outputs else "logit"
    return replace(at_size, activation="none", activate="before", outputs=outputs, output_kind=kind)


@dataclass
class InputGrid:
    """The voxel grid of a chunk before the chunk was resampled.

    Attributes:
        domain: bounds of the volume, in voxels of the chunk; ``None`` if unknown.
        voxel_size_nm: voxel size of the chunk, nanometres, zyx; ``None`` if unknown.
        scale: size of a voxel of the network, in voxels of the chunk, zyx; ``None`` if unknown.
        method: method that resamples outputs of the network back to this grid.
        processed: part of *domain* that the network processes; ``None`` if unknown.
        origin: corner at which voxel 0 of the network begins, in voxels of the chunk, zyx.
        network: bounds of *processed*, in voxels of the network (default: computed from *scale*
            and *origin*).
    """

    domain: BoundingBox | None = None
    voxel_size_nm: tuple[float, float, float] | None = None
    scale: Scale | None = None
    method: Methods = "linear"
    processed: BoundingBox | None = None
    origin: tuple[Fraction | int, Fraction | int, Fraction | int] = (0, 0, 0)
    network: BoundingBox | None = None

    @property
    def resampling(self) -> Resampling:
        """The resampling of outputs back to this grid."""
        scale, origin = Resampling(self.scale or UNIT_SCALE, origin=self.origin).inverse
        return Resampling(scale, self.method, origin)


@dataclass
class InputResampler(Resampler):
    """Normalises the input of a network, and resamples it to the network's voxel size.

    Attributes:
        original: name of the task's item that stores the `InputGrid`.
        settings: settings that the user gave for the network; the number of input channels and the
            normalisation are used here.
        warn_of_dtype: warn if the default normalisation divides integers of more than 8 bits by the
            maximum of their type.
        rule: function that takes a box of the image and the voxel size of the image (nanometres,
            zyx), and returns the voxels of the network. A model with its own rule for resampling
            defines such a function. If *rule* is ``None``, *voxel_size_nm* and *method* are used.
        processed: box of the image that the network processes (default: the whole image). If it is
            given, *rule* must be given.
        mask: name of a chunk, and one bool for each channel of the input. In channels whose bool is
            true, only voxels at which this chunk is not 0 are normalised (default: all voxels are
            normalised).
        normalizes_last: normalise after resampling instead of before.
    """

    original: str = ""
    settings: EngineSettings | None = None
    warn_of_dtype: bool = False
    rule: Rule | None = None
    processed: BoundingBox | None = None
    mask: tuple[str, tuple[bool, ...]] | None = None
    normalizes_last: bool = False
    keeps_voxels: bool = field(default=False, init=False, metadata=HOOK)
    _grid: InputGrid = field(default_factory=InputGrid, init=False, repr=False)

    @hook
    def prepare(self, outline: Outline) -> None:
        """Determine the resampling factor from the input's voxel size; store the `InputGrid`."""
        domain, size_nm = outline.domain, outline.voxel_size_nm
        if self.rule is not None and domain is not None and size_nm is not None:
            self._use(self._grid_of(domain, size_nm))
        elif self.rule is not None and outline.has_tasks:
            msg = (
                "the model resamples an image according to its voxel size and bounds, but the "
                "voxel size and bounds of this image are not known before the first task; load the "
                "image with load-volume"
            )
            raise OptionError(msg)
        super().prepare(outline)
        if self.rule is None:
            method: Methods = self.method  # type: ignore[assignment]
            self._grid = InputGrid(domain, size_nm, self._scale, method, domain)
        if size_nm is not None and self._grid.scale is not None:
            self._recommend_level(size_nm, self._grid.scale)

    def _recommend_level(self, size_nm: tuple[float, float, float], scale: Scale) -> None:
        finer = scale.z * scale.y * scale.x
        if finer < _COARSER_LEVEL:
            return
        logger.warning(
            "the network has voxels of %s nm and the image voxels of %s nm (zyx), so %.0f times as "
            "many voxels are read as the network receives; if the volume has a level whose voxels "
            "are about as large as those of the network, load this level with --mip",
            _text(coarser_nm(size_nm, scale)), _text(size_nm), finer,
        )  # fmt: skip

    def _grid_of(self, domain: BoundingBox, size_nm: tuple[float, float, float]) -> InputGrid:
        if self.rule is None:
            scale = self.factor or Scale.between(self._size_nm(size_nm), size_nm)
            return InputGrid(domain, size_nm, scale, self.method, domain)  # type: ignore[arg-type]
        box = self.processed or domain
        if not domain.contains(box):
            msg = (
                f"the statistics say that the nonzero voxels lie in {box}, but the bounds of "
                f"the image are {domain} (zyx, voxels); compute the statistics of this image"
            )
            raise OptionError(msg)
        found, back, network = self.rule(box, size_nm)
        self.method = found.methods
        return InputGrid(domain, size_nm, found.scale, back, box, found.origin, network)

    def _use(self, grid: InputGrid) -> None:
        self._grid = grid
        if self.rule is not None:
            self.factor = self._scale = grid.scale

    @hook
    def bounds(self) -> BoundingBox | None:
        """Return the bounds of the result, if they are known before the first task."""
        if self._scale is None or self._grid.processed is None:
            return None
        resampling = self._resampling(self._scale, self._voxels)
        return self._bounds_of_result(resampling, self._grid.processed)

    @hook
    def required_input(self, box: BoundingBox, domain: BoundingBox) -> BoundingBox:
        """Return the input box that the result in *box* (voxels of the result) depends on."""
        return super().required_input(box, self._grid.processed or domain)

    @hook
    def voxels_from(self, read: Voxels) -> Voxels:
        """Return the dtype float32, with the channels and kind of *read*, the input."""
        return read._replace(dtype="float32")

    @hook
    def memory(self, size: Zyx | None) -> OperatorMemory | None:
        """Return the memory for resampling a chunk of extent *size*, with its normalised copy."""
        needed = super().memory(size)
        if needed is None or size is None or self.settings is None:
            return needed
        copy = 4 * self.settings.num_input_channels * size.product()
        return replace(needed, work=needed.work + copy)

    def grid(self) -> InputGrid:
        """Return the grid of the input, as far as it is known before the first task."""
        return self._grid

    def _resampling(self, scale: Scale, voxels: Voxels | None) -> Resampling:
        return replace(super()._resampling(scale, voxels), origin=self._grid.origin)

    def _bounds_of_result(self, resampling: Resampling, domain: BoundingBox) -> BoundingBox:
        return self._grid.network or resampling.output_box(domain)

    def __call__(self, task: Task) -> Task:
        """Add the resampled chunk and the `InputGrid` to the task.

        Raises:
            Skip: the task contains no voxel that the network processes.
        """
        from chunkflow_py.inference.engine import as_channels

        source = task.chunk(self.input_name)
        self._use(self._grid_of(source.domain, source.voxel_size_nm))
        grid = self._grid
        box = source.domain if grid.processed is None else grid.processed
        if task.bbox is not None and task.bbox.intersection(box).is_empty:
            msg = f"task {task.bbox} does not intersect {box}, which contains all nonzero voxels"
            raise Skip(msg)
        super().__call__(task)
        task[self.original] = grid
        if self.settings is None:
            return task
        values = as_channels(task.chunk(self.output_name).array, self.settings.num_input_channels)
        if self.normalizes_last:
            self.settings.normalizer(values, values)
        elif grid.scale != UNIT_SCALE:
            self.settings.normalizer.clip_interpolated(values)
        return task

    def _input(self, task: Task) -> Chunk:
        from chunkflow_py.inference.engine import as_channels

        chunk = task.chunk(self.input_name)
        box = self._grid.processed
        if box is not None and box != chunk.domain:
            part = chunk.cut(chunk.bbox.intersection(box))
            chunk = Chunk(part.array, part.voxel_offset, part.voxel_size_nm, part.kind, box)
        if self.settings is None:
            return chunk
        if self.warn_of_dtype and (warning := dtype_warning(chunk.dtype)):
            self.warn_of_dtype = False
            logger.warning(warning)
        source = as_channels(chunk.array, self.settings.num_input_channels)
        values = np.empty(source.shape, np.float32)
        if self.normalizes_last:
            np.copyto(values, source, casting="unsafe")
        else:
            self.settings.normalizer(source, values)
        if self.mask is not None:
            name, masked = self.mask
            mask = task.chunk(name)
            if mask.channels != 1:
                msg = f"the mask {name} has {mask.channels} channels, but must have one"
                raise ChunkError(msg)
            outside = mask.cut(chunk.bbox).array.reshape(chunk.size) == 0
            for channel, original in zip(np.flatnonzero(masked), source[list(masked)], strict=True):
                np.copyto(values[channel], original, where=outside, casting="unsafe")
        return chunk.with_array(values.reshape(chunk.shape), chunk.voxel_offset)


@dataclass
class OutputResampler(OperatorBase):
    """Resamples outputs of a network to the grid of the input; applies activation and dtype.

    Attributes:
        settings: settings that the user gave for the network; the activation and the dtype of the
            result are used here.
        names: names of the chunks with the network's outputs. Each chunk is replaced by the
            resampled chunk.
        resampled: name of the resampled input of the network; this chunk is removed from the task.
        original: name of the task's item that stores the `InputGrid`; this item is removed.
        grid: function that returns the `InputGrid` as far as it is known before the first task.
    """

    settings: EngineSettings
    names: tuple[str, ...]
    resampled: str
    original: str
    grid: Callable[[], InputGrid]
    is_local: bool = field(default=True, init=False, metadata=HOOK)
    _scale: Scale | None = field(default=None, init=False, repr=False)
    _needed: Callable[[BoundingBox, BoundingBox], BoundingBox] | None = field(
        default=None, init=False, repr=False
    )
    _has_warned: bool = field(default=False, init=False, repr=False)

    @hook
    def prepare(self, outline: Outline) -> None:
        """Determine the resampling factor from the voxel sizes, if these sizes are known."""
        del outline
        scale = self.grid().scale
        self._scale = None if scale is None else scale.inverse

    @hook
    def known_voxel_size_nm(self) -> tuple[float, float, float] | None:
        """Return the voxel size of the input, if it is known."""
        return self.grid().voxel_size_nm

    @hook
    def bounds(self) -> BoundingBox | None:
        """Return the bounds of the input, if they are known."""
        return self.grid().domain

    @property
    @hook
    def shrinks_by(self) -> Scale | None:
        """Number of network voxels that a result voxel spans, zyx; ``None`` if unknown."""
        return self._scale

    @property
    @hook
    def removes(self) -> tuple[str, ...]:
        """Name of the resampled input, which later operators do not need."""
        return (self.resampled,)

    @hook
    def voxels(self) -> dict[str, Voxels]:
        """Return dtype, channels and kind of each output."""
        return {
            name: Voxels(each.stored_dtype, each.output_channels, each.kind, has_channel_axis=True)
            for name, each in self._by_name().items()
        }

    @hook
    def negotiate(self, required: Callable[[BoundingBox, BoundingBox], BoundingBox]) -> None:
        """Store *required*, which maps a task's box to the box that later operators need."""
        self._needed = required

    @hook
    def required_input(self, box: BoundingBox, domain: BoundingBox) -> BoundingBox:
        """Return the box, in network voxels, of the output that the result in *box* depends on."""
        grid = self.grid()
        if self._scale is None:
            return domain
        inside = box if grid.processed is None else box.intersection(grid.processed)
        return grid.resampling.required_input(inside, domain)

    @hook
    def memory(self, size: Zyx | None) -> OperatorMemory | None:
        """Return the memory for resampling an output of the network of extent *size* (voxels)."""
        if size is None or self._scale is None:
            return None
        rows = zip(size, self._scale, strict=True)
        result = type(size)(*(int(n / factor) + 2 for n, factor in rows))
        # All channels in float32, and two steps of the interpolation of one channel.
        channels = max(each.num_output_channels for each in self._by_name().values())
        largest = size.high(result).product()
        return OperatorMemory(result, work=(4 * channels + 8) * largest)

    def __call__(self, task: Task) -> Task:
        """Replace each output of the network by an output with the voxel size of the input."""
        grid: InputGrid = task.items.pop(self.original)
        del task.items[self.resampled]
        for name, settings in self._by_name().items():
            task[name] = self._on_grid(task.chunk(name), settings, grid, task.bbox)
        return task

    def _by_name(self) -> dict[str, EngineSettings]:
        settings = self.settings
        if not settings.outputs:
            return {self.names[0]: settings}
        return {
            output.name: replace(
                settings,
                outputs=(),
                num_output_channels=output.channels,
                output_kind=output.kind,
            )
            for output in settings.outputs
        }

    def _on_grid(
        self, chunk: Chunk, settings: EngineSettings, grid: InputGrid, bbox: BoundingBox | None
    ) -> Chunk:
        import torch

        from chunkflow_py.inference.output_writer import converted

        size_nm = grid.voxel_size_nm or chunk.voxel_size_nm
        resampling = grid.resampling
        domain = grid.domain or resampling.output_box(chunk.domain)
        if bbox is not None:
            target = (self._needed(bbox, domain) if self._needed else bbox).intersection(domain)
        elif chunk.bbox == chunk.domain:
            target = domain  # also voxels at the end whose centres lie beyond the network's voxels
        else:
            target = resampling.output_box(chunk.bbox).intersection(domain)
        inside = target.intersection(grid.processed or domain)
        array = resampling(chunk.array, chunk.bbox, inside, chunk.domain)
        if settings.activate == "before" and settings.kind in ("probability", "affinity"):
            array.clip(0, 1, out=array)  # cubic interpolation exceeds the range
        values, clamped = converted(settings, torch.from_numpy(array))
        if (count := int(clamped)) and not self._has_warned:
            self._has_warned = True
            logger.warning("%d output values outside [0, 1] were clamped to that range", count)
        result = values.numpy()
        if inside != target:
            whole = np.zeros((*result.shape[:-3], *target.size), result.dtype)
            whole[(..., *inside.slices(target.start))] = result
            result = whole
        return Chunk(result, target.start, size_nm, settings.kind, domain)


def by_voxel_size(
    voxel_size_nm: tuple[float | None, float | None, float | None] | None,
    method: Literal["linear", "cubic"],
) -> Rule:
    """Return a rule for `InputResampler` that resamples every image to the same voxel size.

    Args:
        voxel_size_nm: voxel size of the network, nanometres, zyx. Along an axis with ``None``, the
            voxel size of the image is kept; a single ``None`` keeps it along all axes.
        method: method for the image and for the outputs.
    """

    def rule(box: BoundingBox, size_nm: tuple[float, float, float]) -> NetworkGrid:
        wanted = voxel_size_nm or size_nm
        pairs = zip(wanted, size_nm, strict=True)
        scale = Scale.between([b if a is None else a for a, b in pairs], size_nm)
        resampling = Resampling.at_corner(scale, box, method)
        return NetworkGrid(resampling, (method,) * 3, resampling.output_box(box))

    return rule


def resampling_around(
    settings: EngineSettings,
    voxel_size_nm: tuple[float | None, float | None, float | None],
    method: Literal["linear", "cubic"],
    names: tuple[str, str, tuple[str, ...]],
    label: str,
    *,
    warn_of_dtype: bool = False,
    rule: Rule | None = None,
    processed: BoundingBox | None = None,
    mask: tuple[str, tuple[bool, ...]] | None = None,
    normalizes_last: bool = False,
    activates_first: bool = False,
) -> tuple[Operator, Operator]:
    """Return the operators that resample the input and the outputs of a network.

    Args:
        settings: settings that the user gave for the network.
        voxel_size_nm: voxel size that the network was trained with, nanometres, zyx.
        method: method of interpolation, ``linear`` or ``cubic``.
        names: name of the chunk to process, name of the resampled chunk, and names of the outputs.
        label: label of the network's operator.
        warn_of_dtype: warn if the default normalisation divides integers of more than 8 bits by the
            maximum of their type.
        rule: function that returns the voxels of the network for an image; see `InputResampler`. If
            given, *voxel_size_nm* and *method* are not used.
        processed: box of the image that the network processes (default: the whole image).
        mask: name of a chunk that selects the voxels to normalise, and one bool for each channel
            of the input; see `InputResampler`.
        normalizes_last: normalise after resampling instead of before.
        activates_first: apply the activation before the output is resampled, even with
            ``--activate after``.
    """
    source, resampled, outputs = names
    original = f"{source} before it was resampled"
    inputs = (source,) if mask is None else (source, mask[0])
    size_nm, factor = (voxel_size_nm, None) if rule is None else (None, UNIT_SCALE)
    before = InputResampler(size_nm, factor, method, source, resampled)
    before.rule, before.processed, before.mask = rule, processed, mask
    before.normalizes_last = normalizes_last
    before.original, before.settings, before.warn_of_dtype = original, settings, warn_of_dtype
    if activates_first:
        settings = replace(settings, activation="none", activate="before")
    after = OutputResampler(settings, outputs, resampled, original, before.grid)
    return (
        Operator(f"{label} (resample)", "compute", before, before, inputs, (resampled,)),
        Operator(f"{label} (resample back)", "compute", after, after, outputs, outputs),
    )


def _text(size_nm: tuple[float, float, float]) -> str:
    return " ".join(f"{nm:g}" for nm in size_nm)
