"""Run a network at the voxel size of its training, although the input has another voxel size.

```
input           |  0  |  1  |  2  |  3  |  4  |  5  |         as loaded
                      normalised, then resampled to the voxels of the network
network         |    0    |    1    |    2    |    3 |        patches, blending
                      resampled back to the voxels of the input, then activation and dtype
output          |  0  |  1  |  2  |  3  |  4  |  5  |         voxels of the input
```

The input of the network is float32, so that interpolated values are not rounded to the dtype of the
image. The float32 output of the network is resampled before activation with ``--activate after``,
conversion to uint8 and argmax.

The pipeline runs three operators one after the other: an `InputResampler`, the network, and an
`OutputResampler`. The network does not depend on the resampling.
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
from chunkflow_py.core.resampling import Resampling
from chunkflow_py.errors import OptionError
from chunkflow_py.inference.normalization import Normalizer, dtype_warning
from chunkflow_py.pipeline.operator import Operator
from chunkflow_py.pipeline.resampler import Resampler

if TYPE_CHECKING:
    from collections.abc import Callable

    from chunkflow_py.core.geometry import BoundingBox, Zyx
    from chunkflow_py.core.outline import Outline
    from chunkflow_py.core.resampling import Method
    from chunkflow_py.core.task import Task
    from chunkflow_py.inference.engine_settings import EngineSettings
    from chunkflow_py.inference.network_output import OutputKind

    Methods = Method | tuple[Method, Method, Method]
    # Bounds and voxel size of a volume -> factor, methods for the image, methods for the outputs.
    Rule = Callable[[BoundingBox, tuple[float, float, float]], tuple[Scale, Methods, Methods]]

logger = logging.getLogger(__name__)


def settings_at_network_size(settings: EngineSettings) -> EngineSettings:
    """Return the settings without the steps that are done before or after the network.

    The `InputResampler` normalises. The `OutputResampler` converts the dtype and, with
    ``--activate after``, applies the activation.

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
    if settings.activate == "before":
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
        scale: how many voxels of the chunk a voxel of the network spans, zyx; ``None`` if unknown.
        method: method that resamples outputs of the network back to this grid.
    """

    domain: BoundingBox | None = None
    voxel_size_nm: tuple[float, float, float] | None = None
    scale: Scale | None = None
    method: Methods = "linear"


@dataclass
class InputResampler(Resampler):
    """Normalises the input of a network, and resamples it to the network's voxel size.

    Attributes:
        original: name of the task's item that stores the `InputGrid`.
        settings: settings that the user gave for the network; the number of input channels and the
            normalisation are used here.
        warn_of_dtype: warn if the default normalisation divides integers of more than 8 bits by the
            maximum of their type.
        rule: function of the bounds and the voxel size of a volume. It returns the factor, the
            method for the image and the method for the outputs. A model defines such a function if
            it has its own rule for resampling. If *rule* is ``None``, *voxel_size_nm* and *method*
            are used.
    """

    original: str = ""
    settings: EngineSettings | None = None
    warn_of_dtype: bool = False
    rule: Rule | None = None
    keeps_voxels: bool = field(default=False, init=False, metadata=HOOK)
    _grid: InputGrid = field(default_factory=InputGrid, init=False, repr=False)
    _back: Methods | None = field(default=None, init=False, repr=False)

    @hook
    def prepare(self, outline: Outline) -> None:
        """Determine the factor from the voxel size of the input, and store the input's grid."""
        domain, size_nm = outline.domain, outline.voxel_size_nm
        if self.rule is not None and domain is not None and size_nm is not None:
            self._apply_rule(domain, size_nm)
        elif self.rule is not None and outline.has_tasks:
            msg = (
                "the model resamples an image according to its voxel size and bounds, but the "
                "voxel size and bounds of this image are not known before the first task; load the "
                "image with load-volume"
            )
            raise OptionError(msg)
        super().prepare(outline)
        self._grid = InputGrid(domain, size_nm, self._scale, self._method_back)

    def _apply_rule(self, domain: BoundingBox, size_nm: tuple[float, float, float]) -> None:
        if self.rule is not None:
            self.factor, self.method, self._method_back = self.rule(domain, size_nm)
            self._scale = self.factor

    @hook
    def voxels_from(self, read: Voxels) -> Voxels:
        """Return the channels and kind of the input *read*, with the dtype float32."""
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

    @property
    def _method_back(self) -> Methods:
        return self._back or self.method  # type: ignore[return-value]

    @_method_back.setter
    def _method_back(self, method: Methods) -> None:
        self._back = method

    def __call__(self, task: Task) -> Task:
        """Add the resampled chunk and the `InputGrid` to the task."""
        from chunkflow_py.inference.engine import as_channels

        source = task.chunk(self.input_name)
        self._apply_rule(source.domain, source.voxel_size_nm)
        super().__call__(task)
        scale = self.factor or Scale.between(
            self._size_nm(source.voxel_size_nm), source.voxel_size_nm
        )
        task[self.original] = InputGrid(
            source.domain, source.voxel_size_nm, scale, self._method_back
        )
        if self.settings is not None and scale != UNIT_SCALE:
            chunk = task.chunk(self.output_name)
            values = as_channels(chunk.array, self.settings.num_input_channels)
            self.settings.normalizer.clip_interpolated(values)
        return task

    def _input(self, task: Task) -> Chunk:
        from chunkflow_py.inference.engine import as_channels

        chunk = task.chunk(self.input_name)
        if self.settings is None:
            return chunk
        if self.warn_of_dtype and (warning := dtype_warning(chunk.dtype)):
            self.warn_of_dtype = False
            logger.warning(warning)
        source = as_channels(chunk.array, self.settings.num_input_channels)
        values = np.empty(source.shape, np.float32)
        self.settings.normalizer(source, values)
        return chunk.with_array(values.reshape(chunk.shape), chunk.voxel_offset)


@dataclass
class OutputResampler(OperatorBase):
    """Resamples the outputs of a network to the grid of the input, and converts them.

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
        """Determine the factor from the voxel sizes, if they are known."""
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
        """How many voxels of the network a voxel of the result spans, zyx; ``None`` if unknown."""
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
        """Return the box of the network's output, in voxels of the network, to compute *box*."""
        if self._scale is None:
            return domain
        return Resampling(self._scale, self.grid().method).required_input(box, domain)

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
        resampling = Resampling((grid.scale or UNIT_SCALE).inverse, grid.method)
        domain = grid.domain or resampling.output_box(chunk.domain)
        if bbox is not None:
            target = (self._needed(bbox, domain) if self._needed else bbox).intersection(domain)
        elif chunk.bbox == chunk.domain:
            target = domain  # also voxels at the end whose centres lie beyond the network's voxels
        else:
            target = resampling.output_box(chunk.bbox).intersection(domain)
        array = resampling(chunk.array, chunk.bbox, target, chunk.domain)
        if settings.activate == "before" and settings.kind in ("probability", "affinity"):
            array.clip(0, 1, out=array)  # cubic interpolation exceeds the range
        values, clamped = converted(settings, torch.from_numpy(array))
        if (count := int(clamped)) and not self._has_warned:
            self._has_warned = True
            logger.warning("%d output values outside [0, 1] were clamped to that range", count)
        return Chunk(values.numpy(), target.start, size_nm, settings.kind, domain)


def resampling_around(
    settings: EngineSettings,
    voxel_size_nm: tuple[float | None, float | None, float | None],
    method: Literal["linear", "cubic"],
    names: tuple[str, str, tuple[str, ...]],
    label: str,
    *,
    warn_of_dtype: bool = False,
    rule: Rule | None = None,
) -> tuple[Operator, Operator]:
    """Return the operators that resample the input and the outputs of a network.

    Args:
        settings: settings that the user gave for the network.
        voxel_size_nm: voxel size that the network was trained with, nanometres, zyx.
        method: method of interpolation, ``linear`` or ``cubic``.
        names: name of the chunk to process, name of the resampled chunk, and names of the outputs.
        label: label of the network's operator.
        warn_of_dtype: see `InputResampler`.
        rule: see `InputResampler`; if given, *voxel_size_nm* and *method* are not used.
    """
    source, resampled, outputs = names
    original = f"{source} before it was resampled"
    size_nm, factor = (voxel_size_nm, None) if rule is None else (None, UNIT_SCALE)
    before = InputResampler(size_nm, factor, method, source, resampled)
    before.rule = rule
    before.original, before.settings, before.warn_of_dtype = original, settings, warn_of_dtype
    after = OutputResampler(settings, outputs, resampled, original, before.grid)
    return (
        Operator(f"{label} (resample)", "compute", before, before, (source,), (resampled,)),
        Operator(f"{label} (resample back)", "compute", after, after, outputs, outputs),
    )
