"""Settings of the inference engine; together with network and data, they decide the output."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from chunkflow_py.core.host_memory import available_host_bytes, describe_bytes
from chunkflow_py.errors import OptionError, OutOfMemoryError
from chunkflow_py.inference.blend import Bump, create_window
from chunkflow_py.inference.network_output import MEANING, NetworkOutput, OutputKind
from chunkflow_py.inference.normalization import Normalizer
from chunkflow_py.inference.patch_grid import Pad, PatchGeometry, PatchGrid

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from chunkflow_py.core.chunk import Kind
    from chunkflow_py.core.geometry import BoundingBox
    from chunkflow_py.inference.network_output import Activation

_WINDOW = 20  # bytes per voxel while a window is computed: two float64, one float32
OutputDtype = Literal["float32", "float16", "uint8", "argmax"]
PatchPrecision = Literal["float32", "float16"]


@dataclass(frozen=True)
class EngineSettings:
    """Settings of the inference engine; together with network and data, they decide the output.

    Attributes:
        geometry: patch sizes and overlap.
        num_input_channels: number of channels of the network's input.
        num_output_channels: total number of channels of all outputs of the network.
        outputs: name, number of channels and kind of each output, for a network with several
            outputs (default: one output with all channels).
        batch_size: number of patches in one forward pass. The last batch is padded, so every
            forward pass has the same shape.
        bump: name of the blending window.
        pad: how input patches are padded outside the bounds of the volume.
        keep_stride: let the last patch along an axis reach beyond the volume, into the padding
            (``--grid padded``). If false, the last patch is moved back into the volume.
        spread: spread the patches evenly over the volume, as nnU-Net does (``--grid spread``).
        normalizer: normalisation of the voxels before they enter the network.
        output_dtype: ``float32``, ``float16``, ``uint8`` or ``argmax``. With ``uint8``, a value p
            is limited to [0, 1] and stored as 255·p, rounded half to even. With ``argmax``, the
            result has one channel of uint8: the index of the channel with the largest value, or
            the label from *region_labels*.
        region_labels: label of each channel, if the channels are probabilities of overlapping
            regions. Of the channels whose value at a voxel is above 0.5, the channel with the
            highest index gives the label of the voxel. If there is no such channel, the label is 0.
        output_kind: what the values of the output are, such as ``affinity``. The kind decides how
            the outputs of flipped and transposed patches are mapped back, and whether the output of
            the first batch must be in [0, 1].
        activation: function to apply to the network's output; ``softmax`` is computed over the
            channels of each output separately.
        activate: when to apply the activation: ``before`` blending, to each patch, or ``after``
            blending, to the mean of the patches.
        patch_precision: dtype to which the output of every patch is rounded. Cropping, augmentation
            and an activation of the patch come before the rounding, and blending comes after the
            rounding. ``float32`` changes no value. ``float16`` rounds half to even to 11 bits of
            mantissa, and halves the bytes of the patches that tasks exchange.
        augment: average the output over the 16 combinations of flips and a transpose of each patch.
        mask_myelin_threshold: if given, the last channel is a myelin map. The other channels become
            zero where the map is at least this value, and the map is not stored.
        lower_batch: use smaller batches if the GPU runs out of memory. The batch size can change
            rounding, so results may differ slightly.
        skip_empty: do not run the network on patches whose input is zero everywhere; set their
            output to zero.
    """

    geometry: PatchGeometry
    num_input_channels: int = 1
    num_output_channels: int = 3
    outputs: tuple[NetworkOutput, ...] = ()
    batch_size: int = 1
    bump: Bump = "wu"
    pad: Pad = "reflect"
    keep_stride: bool = False
    spread: bool = False
    normalizer: Normalizer = field(default_factory=Normalizer)
    output_dtype: OutputDtype = "float32"
    region_labels: tuple[int, ...] = ()
    output_kind: OutputKind | None = None
    activation: Activation = "none"
    activate: Literal["before", "after"] = "before"
    patch_precision: PatchPrecision = "float32"
    augment: bool = False
    mask_myelin_threshold: float | None = None
    lower_batch: bool = False
    skip_empty: bool = False

    def __post_init__(self) -> None:
        """Check that the settings are valid and compatible.

        Raises:
            OptionError: a number of channels or the batch size is below 1, or two settings
                contradict each other.
        """
        for name in ("num_input_channels", "num_output_channels", "batch_size"):
            if getattr(self, name) < 1:
                msg = f"{name} is {getattr(self, name)}; it must be at least 1"
                raise OptionError(msg)
        size = self.geometry.input_patch_size
        if self.augment and size.y != size.x:
            msg = (
                f"--augment transposes y and x, but the input patch is {size.y} x {size.x} (y, x, "
                f"voxels); make --input-patch-size square in plane, or leave --augment out"
            )
            raise OptionError(msg)
        if self.mask_myelin_threshold is not None and self.num_output_channels < 2:
            msg = (
                "--mask-myelin-threshold uses the last channel as the myelin map, but "
                f"--num-output-channels is {self.num_output_channels}; use at least 2 channels"
            )
            raise OptionError(msg)
        if self.outputs:
            self._check_outputs()
        self._check_kind(self.output_kind, self._channels)

    def _check_outputs(self) -> None:
        total = sum(output.channels for output in self.outputs)
        if total != self.num_output_channels:
            msg = (
                f"the outputs {', '.join(o.name for o in self.outputs)} have {total} channels in "
                f"all, but --num-output-channels is {self.num_output_channels}; use "
                f"--num-output-channels {total}"
            )
            raise OptionError(msg)
        for option, given in (
            ("--augment", self.augment),
            ("--mask-myelin-threshold", self.mask_myelin_threshold is not None),
            ("--output-dtype argmax", self.output_dtype == "argmax"),
        ):
            if given:
                msg = (
                    f"{option} needs a network with one output, but --output-names lists several; "
                    f"leave {option} out"
                )
                raise OptionError(msg)
        names = [output.name for output in self.outputs]
        for name, channels, kind in self.outputs:
            if names.count(name) > 1:
                msg = (
                    f"--output-names {','.join(names)} lists {name} twice; give each output its "
                    "own name"
                )
                raise OptionError(msg)
            self._check_kind(kind, channels, f" of output {name}")

    def _check_kind(self, kind: OutputKind | None, channels: int, whose: str = "") -> None:
        if kind is not None and MEANING[kind].axes and channels != 3:
            msg = (
                f"--output-kind {kind}{whose} needs three channels (x, y, z), but the output has "
                f"{channels}; change --num-output-channels or --output-kind"
            )
            raise OptionError(msg)
        bounded = kind is None or MEANING[kind].bounded or self.activation != "none"
        if self.output_dtype == "uint8" and not bounded:
            msg = (
                "--output-dtype uint8 scales values from [0, 1] to 0-255, but values of "
                f"--output-kind {kind}{whose} are unbounded; use --output-dtype float16 or "
                "float32, or --activation sigmoid or softmax"
            )
            raise OptionError(msg)
        regions = len(self.region_labels)
        if regions and regions != channels:
            msg = (
                f"region_labels has {regions} labels, but the output has {channels} channels; "
                "give one label for each channel"
            )
            raise OptionError(msg)
        if self.output_dtype == "argmax" and not regions and not 2 <= channels <= 256:
            msg = (
                f"--output-dtype argmax needs 2 to 256 channels, but the output has {channels}; "
                "set --num-output-channels, or use another --output-dtype"
            )
            raise OptionError(msg)

    @property
    def _channels(self) -> int:
        return self.num_output_channels - (self.mask_myelin_threshold is not None)

    @property
    def affinity_channels(self) -> tuple[int, ...]:
        """For each output that consists of affinities, the index of its first channel."""
        if not self.outputs:
            return (0,) if self.meaning == "affinity" else ()
        first, found = 0, []
        for output in self.outputs:
            if output.kind == "affinity":
                found.append(first)
            first += output.channels
        return tuple(found)

    @property
    def output_channels(self) -> int:
        """Number of channels of the result: 1 with ``argmax``, else all except the myelin map."""
        return 1 if self.output_dtype == "argmax" else self._channels

    @property
    def stored_dtype(self) -> Literal["float32", "float16", "uint8"]:
        """Dtype of the voxels of the result; uint8 with ``argmax``."""
        return "uint8" if self.output_dtype == "argmax" else self.output_dtype

    @property
    def patch_itemsize(self) -> int:
        """Largest possible number of bytes of one value in a patch that tasks exchange."""
        return 2 if self.patch_precision == "float16" else 4

    @property
    def meaning(self) -> OutputKind:
        """Kind of the network's output (default: affinity for 3 channels, else probability)."""
        if self.output_kind is not None:
            return self.output_kind
        return "affinity" if self._channels == 3 else "probability"

    @cached_property
    def window(self) -> NDArray[np.float32]:
        """The blending window: the weight of each voxel of an output patch, (z, y, x).

        Raises:
            OutOfMemoryError: the window does not fit into the memory of this machine.
        """
        size = self.geometry.output_patch_size
        need, there = size.product() * _WINDOW, available_host_bytes()
        if there is not None and need > there:
            msg = (
                f"the blending weights of an output patch of {size} (zyx, voxels) need "
                f"{describe_bytes(need)} of memory, but only {describe_bytes(there)} are available "
                "to this process; lower --input-patch-size"
            )
            raise OutOfMemoryError(msg)
        return create_window(size, self.bump)

    @property
    def kind(self) -> Kind:
        """Kind of the output chunk: segmentation with ``argmax``, else the kind in `meaning`."""
        return "segmentation" if self.output_dtype == "argmax" else self.meaning

    def grid(self, domain: BoundingBox) -> PatchGrid:
        """Return the grid of the patches that cover *domain*."""
        return PatchGrid(self.geometry, domain, self.pad, self.keep_stride, self.spread)
