"""Transforms of a bundle before and after the network.

| transform (also with the ending `d`, `D` or `Dict`)      | what replaces it                   |
|----------------------------------------------------------|------------------------------------|
| `LoadImage`, `EnsureChannelFirst`, `EnsureType`, ...     | nothing: the pipeline does the same|
| `Orientation`                                            | order and direction of the axes    |
| `Spacing`                                                | voxel size of the network          |
| `ScaleIntensityRange`, `ThresholdIntensity`              | a step of the normalisation        |
| `NormalizeIntensity`                                     | a step, with numbers from the      |
|                                                          | bundle or from a statistics file   |
| `ScaleIntensity`, `ScaleIntensityRangePercentiles`       | a step, with numbers from a        |
|                                                          | statistics file                    |
| `Activations`                                            | activation, after blending         |
| `AsDiscrete` with `argmax`                               | output dtype `argmax`              |
| `Invert`, `SaveImage`                                    | nothing: the pipeline does the same|

Any other transform is an error, unless the user skips the transform by name (`--skip-transforms`).
The error names an alternative.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import numpy as np

from chunkflow_py.errors import OptionError
from chunkflow_py.inference.monai_bundle.bundle_orientation import is_orientation
from chunkflow_py.inference.normalization import Normalizer, create_normalizer

if TYPE_CHECKING:
    from collections.abc import Collection

    from numpy.typing import NDArray

    from chunkflow_py.core.resampling import Method
    from chunkflow_py.inference.monai_bundle.bundle_config import ConfigField
    from chunkflow_py.inference.network_output import Activation

_MOST_TRANSFORMS = 100
_LABELS = [["L", "R"], ["P", "A"], ["I", "S"]]
_DONE_BY_PIPELINE = {
    "LoadImage", "EnsureChannelFirst", "AddChannel", "ToTensor", "ToDevice", "Identity",
    "SaveImage", "Invert", "SelectItems", "DeleteItems", "ToNumpy",
}  # fmt: skip
_ALTERNATIVES = {
    "CropForeground": "it needs the whole image, but a task loads only a chunk: choose the region "
    "to process with generate-tasks --roi-start and --roi-size",
    "Resize": "it changes the size of the whole image: resample the volume to the size that the "
    "network expects",
    "Zoom": "it changes the voxel size: resample the volume before inference",
    "ResizeWithPadOrCrop": "it needs the size of the whole image: --pad fills patches beyond the "
    "border of the volume",
    "SpatialPad": "patches beyond the border of the volume are filled by --pad",
    "BorderPad": "patches beyond the border of the volume are filled by --pad",
    "DivisiblePad": "patches beyond the border of the volume are filled by --pad",
    "KeepLargestConnectedComponent": "it needs the whole volume, but a task loads only a chunk: "
    "use connected-components, link-labels and filter-labels after inference (docs/labels.md)",
    "RemoveSmallObjects": "an object may extend over several tasks: use connected-components, "
    "link-labels and filter-labels after inference (docs/labels.md)",
    "FillHoles": "use fill-segmentation-holes after inference",
    "GaussianSmooth": "use gaussian-filter before inference",
    "MedianSmooth": "use median-filter before inference",
}  # fmt: skip


@dataclass(frozen=True)
class IntensityStep:
    """A step of the normalisation: (v - shift) / divisor * gain + offset, then clipping.

    Attributes:
        shift: one number for all channels, or a number for each channel.
        divisor: one number for all channels, or a number for each channel.
        gain: number to multiply by, or ``None`` to skip the multiplication and *offset*.
        offset: number to add.
        low: lower limit of the result, or ``None`` for no limit.
        high: upper limit of the result, or ``None`` for no limit.
        nonzero: do not change voxels that are 0.
        kept: ``(threshold, above, filling)`` for a step that replaces `ThresholdIntensity`. Such a
            step ignores all other attributes. It keeps the voxels above *threshold* (if *above* is
            true) or below *threshold* (if *above* is false), and sets the remaining voxels to
            *filling*.
    """

    shift: tuple[float, ...] = (0.0,)
    divisor: tuple[float, ...] = (1.0,)
    gain: float | None = None
    offset: float = 0.0
    low: float | None = None
    high: float | None = None
    nonzero: bool = False
    kept: tuple[float, bool, float] | None = None

    def __call__(self, values: NDArray[np.float32]) -> None:
        """Change *values*, (c, z, y, x) float32, in place."""
        if self.kept is not None:
            threshold, above, filling = self.kept
            keep = values > threshold if above else values < threshold
            np.copyto(values, np.float32(filling), where=~keep)
            return
        zeros = values == 0 if self.nonzero else None
        values -= _by_channel(self.shift)
        values /= _by_channel(self.divisor)
        if self.gain is not None:
            values *= np.float32(self.gain)
            values += np.float32(self.offset)
        if self.low is not None or self.high is not None:
            np.clip(values, self.low, self.high, out=values)
        if zeros is not None:
            values[zeros] = 0


def _by_channel(numbers: tuple[float, ...]) -> NDArray[np.float32]:
    return np.array(numbers, np.float32).reshape(-1, 1, 1, 1)


@dataclass(frozen=True)
class StepsNormalizer(Normalizer):
    """Converts voxels to float32, and applies the steps of a bundle one after the other.

    Attributes:
        steps: the steps, in order.
    """

    steps: tuple[IntensityStep, ...] = ()

    def __call__(self, source: NDArray[Any], out: NDArray[np.float32]) -> None:
        """Write the normalised voxels of *source* to *out*.

        Args:
            source: (c, z, y, x), any real dtype; not changed.
            out: (c, z, y, x) float32.
        """
        np.copyto(out, source, casting="unsafe")
        for step in self.steps:
            step(out)


@dataclass(frozen=True)
class StatisticsNeed:
    """Which statistics of the whole image the first step of a normalisation needs.

    Attributes:
        transform: name of the transform, for messages.
        method: ``zscore`` or ``percentile``.
        percentiles: for ``percentile``, the percentile that is mapped to 0 and the percentile that
            is mapped to 1.
        joint: whether all channels share one set of statistics. If false, each channel has its own.
        nonzero: whether the statistics leave out voxels that are 0.
    """

    transform: str
    method: Literal["zscore", "percentile"]
    percentiles: tuple[float, float] = (0.0, 100.0)
    joint: bool = False
    nonzero: bool = False


@dataclass(frozen=True)
class BundleNormalization:
    """Normalisation of the voxels that the network receives.

    Attributes:
        bundle: path of the bundle, for messages.
        steps: the steps, in order.
        need: statistics that the first step needs; ``None`` if it needs no statistics.
    """

    bundle: str
    steps: tuple[IntensityStep, ...] = ()
    need: StatisticsNeed | None = None

    def normalizer(
        self,
        num_channels: int,
        statistics: str | None = None,
        mean: tuple[float, ...] | None = None,
        std: tuple[float, ...] | None = None,
    ) -> Normalizer:
        """Return the normaliser of the network's input.

        Args:
            num_channels: number of channels of the image.
            statistics: path of the file with the statistics of the dataset.
            mean: mean of each channel. For ``zscore``, *mean* and *std* replace the file.
            std: standard deviation of each channel.

        Raises:
            OptionError: the bundle needs statistics, but they are missing or incomplete. Or
                statistics are given, but the bundle needs none.
        """
        need, steps = self.need, self.steps
        if need is None:
            given = {
                f"--normalize-statistics {statistics}": statistics,
                "--normalize-mean": mean,
                "--normalize-std": std,
            }
            if options := [option for option, value in given.items() if value is not None]:
                msg = (
                    f"MONAI bundle {self.bundle} needs no statistics to normalise voxels; leave "
                    f"{' and '.join(options)} out"
                )
                raise OptionError(msg)
            return StepsNormalizer("none", steps=steps)
        if statistics is None and mean is None and std is None:
            of = " of the voxels that are not 0" if need.nonzero else ""
            msg = (
                f"{need.transform} of MONAI bundle {self.bundle} needs statistics of the whole "
                f"image{of}, but a task reads only a chunk; compute the statistics with "
                "compute-statistics, and give the resulting file as --normalize-statistics FILE"
            )
            raise OptionError(msg)
        found = create_normalizer(
            need.method,
            num_channels=num_channels,
            statistics=statistics,
            mean=mean,
            std=std,
            percentiles=need.percentiles,
            joint=need.joint,
        )
        first = replace(steps[0], shift=found.shift, divisor=found.divisor)
        return StepsNormalizer("none", steps=(first, *steps[1:]))


@dataclass
class Preprocessing:
    """Settings that replace the transforms before the network.

    Attributes:
        normalization: steps of the normalisation.
        orientation: code of the orientation that the network expects, such as ``RAS``; ``None`` if
            there is no transform `Orientation`.
        spacing_mm: voxel size that the network expects, in millimetres, for each axis in the order
            that *spacing_is_oriented* says; ``None`` if there is no transform `Spacing`.
        spacing_is_oriented: whether the axes of *spacing_mm* are those after `Orientation`, not
            those of the image (x, y, z).
        spacing: field of the config with the transform `Spacing`; ``None`` if the config has no
            such transform.
        steps_before_spacing: number of steps of the normalisation that come before `Spacing`.
    """

    normalization: BundleNormalization
    orientation: str | None = None
    spacing_mm: tuple[float, ...] | None = None
    spacing_is_oriented: bool = False
    spacing: ConfigField | None = None
    steps_before_spacing: int = 0

    def normalizes_last(self) -> bool:
        """Return whether the image is normalised after `Spacing` has resampled the image.

        Raises:
            ModelError: one step of the normalisation comes before `Spacing`, and another after it.
        """
        if self.spacing is None or not self.steps_before_spacing:
            return True
        if self.steps_before_spacing < len(self.normalization.steps):
            self.spacing["_target_"].refuse(
                "--resample resamples the image either before or after all transforms that change "
                "intensities; move Spacing in front of these transforms"
            )
        return False


@dataclass
class Postprocessing:
    """Settings that replace the transforms after the network.

    Attributes:
        activation: activation that is applied to the blended output.
        argmax: whether each voxel of the result is the index of the channel with the largest value.
        inversion: field of the config with the transform `Invert`; ``None`` if the config has no
            such transform.
        activates_first: whether the activation comes before `Invert`.
        is_argmax_first: whether argmax comes before `Invert`.
    """

    activation: Activation = "none"
    argmax: bool = False
    inversion: ConfigField | None = None
    activates_first: bool = False
    is_argmax_first: bool = False

    def method(self) -> Method:
        """Return the method by which `Invert` interpolates the output.

        Raises:
            ModelError: `Invert` would interpolate labels linearly, because argmax comes first.
        """
        if self.inversion is None:
            return "hat"
        if self.inversion["nearest_interp"].boolean(default=True):
            return "nearest"
        if self.is_argmax_first:
            self.inversion["nearest_interp"].refuse(
                "it would interpolate the labels of AsDiscrete; move AsDiscrete behind Invert, or "
                "set nearest_interp to true"
            )
        return "hat"


@dataclass
class TransformList:
    """The transforms of a config, without those that the user skips by name.

    Attributes:
        names: names of all transforms, in order, as the config spells them.
        fields: the transforms that are not skipped.
    """

    names: list[str] = field(default_factory=list)
    fields: list[ConfigField] = field(default_factory=list)

    def collect(self, here: ConfigField, skipped: Collection[str], depth: int = 0) -> None:
        """Add the transforms that a field of the config contains.

        Args:
            here: field that contains a `Compose`, a list of transforms, or one transform.
            skipped: names of transforms to leave out of `fields`.
            depth: number of lists and `Compose` objects around *here*.

        Raises:
            ModelError: *here* contains something else, or too many transforms.
        """
        if depth > 8 or len(self.names) > _MOST_TRANSFORMS:
            here.refuse("there are too many transforms")
        if isinstance(here.value, list):
            for each in here:
                self.collect(each, skipped, depth + 1)
        elif here.target == "Compose":
            inside = here["transforms"]
            if not isinstance(inside.value, list):
                inside.refuse("it must be a list of transforms")
            if not here.is_disabled:
                self.collect(inside, skipped, depth + 1)
        elif here.target:
            if not here.is_disabled:
                self.names.append(here.target)
                if here.target not in skipped:
                    self.fields.append(here)
        else:
            here.refuse("it must be a transform with _target_, or a list of transforms")


def _base(here: ConfigField) -> str:
    # MONAI marks the variant of a transform for dictionaries by an ending: `LoadImaged` is the
    # variant of `LoadImage`.
    name = here.target
    for ending in ("Dict", "d", "D"):
        # Resize is no variant of a transform Resiz.
        if name.endswith(ending) and here["keys"]:
            return name.removesuffix(ending)
    return name


def _is_for_labels(here: ConfigField) -> bool:
    # Inference has no labels.
    return here["keys"].names() == ("label",)


def _refuse(here: ConfigField, why: str) -> NoReturn:
    here["_target_"].refuse(f"{why}; or leave it out with --skip-transforms {here.target}")


def _refuse_unknown(here: ConfigField) -> NoReturn:
    base = _base(here)
    if base.startswith("Rand"):
        why = "random transforms are for training: remove it"
    elif base in _ALTERNATIVES:
        why = _ALTERNATIVES[base]
    else:
        why = "this transform is not supported: do its work in an operator of the pipeline"
    _refuse(here, why)


def preprocessing(transforms: list[ConfigField], bundle: str, channels: int) -> Preprocessing:
    """Return settings of the engine that do what the transforms before the network do.

    Args:
        transforms: fields of the transforms, in order.
        bundle: path of the bundle, for messages.
        channels: number of channels of the image.

    Raises:
        ModelError: a transform is not supported; the message names the transform and an
            alternative.
    """
    found = Preprocessing(BundleNormalization(bundle))
    steps: list[IntensityStep] = []
    need = None
    for here in transforms:
        if _is_for_labels(here):
            continue
        name = _base(here)
        if name in _DONE_BY_PIPELINE:
            continue
        if name in {"EnsureType", "CastToType"}:
            _check_dtype(here)
        elif name == "Orientation":
            found.orientation = _orientation(here)
        elif name == "Spacing":
            found.spacing_mm = _spacing(here)
            found.spacing_is_oriented = found.orientation is not None
            found.spacing, found.steps_before_spacing = here, len(steps)
        elif name == "ScaleIntensityRange":
            _check_dtype(here)
            steps.append(_range_step(here))
        elif name == "ThresholdIntensity":
            kept = (
                here["threshold"].number(),
                here["above"].boolean(default=True),
                here["cval"].number(0),
            )
            steps.append(IntensityStep(kept=kept))
        elif name in {"NormalizeIntensity", "ScaleIntensity", "ScaleIntensityRangePercentiles"}:
            _check_dtype(here)
            step, own = _statistics_step(here, name, channels)
            if own is not None and steps:
                _refuse(
                    here,
                    "it needs statistics of the image after other transforms, but a statistics "
                    "file describes the image before them: write the numbers into the config",
                )
            need = need or own
            steps.append(step)
        else:
            _refuse_unknown(here)
    found.normalization = BundleNormalization(bundle, tuple(steps), need)
    return found


def postprocessing(transforms: list[ConfigField]) -> Postprocessing:
    """Return the settings that replace the transforms after the network.

    Args:
        transforms: fields of the transforms, in order.

    Raises:
        ModelError: a transform is not supported; the message names the transform and an
            alternative.
    """
    found = Postprocessing()
    for here in transforms:
        if _is_for_labels(here):
            continue
        name = _base(here)
        if name == "Invert":
            found.inversion, found.is_argmax_first = here, found.argmax
            found.activates_first = found.activation != "none"
        if name in _DONE_BY_PIPELINE:
            continue
        if name in {"EnsureType", "CastToType"}:
            _check_dtype(here)
        elif name == "Activations":
            if found.activation != "none" or found.argmax:
                _refuse(here, "only one activation, before argmax, is supported")
            _read_activation(here, found)
        elif name == "AsDiscrete":
            _read_discrete(here, found)
        else:
            _refuse_unknown(here)
    return found


def _read_activation(here: ConfigField, found: Postprocessing) -> None:
    if here["other"]:
        here["other"].refuse("only sigmoid and softmax are supported; remove it")
    sigmoid = here["sigmoid"].boolean(default=False)
    softmax = here["softmax"].boolean(default=False)
    if sigmoid and softmax:
        here["softmax"].refuse("sigmoid is true as well, and only one of them can be applied")
    found.activation = "sigmoid" if sigmoid else "softmax" if softmax else "none"


def _read_discrete(here: ConfigField, found: Postprocessing) -> None:
    if here["threshold"]:
        threshold = here["threshold"].number()
        _refuse(
            here,
            "an operator must apply the threshold: add threshold --threshold "
            f"{threshold:g} after inference",
        )
    for key in ("to_onehot", "rounding"):
        if here[key]:
            here[key].refuse("only argmax is supported; remove it")
    if here["argmax"].boolean(default=False):
        if found.argmax:
            _refuse(here, "argmax is applied twice")
        found.argmax = True


def _check_dtype(here: ConfigField) -> None:
    dtype = here["dtype"].dtype()
    if dtype not in {None, "float32", "float", "float64"}:
        here["dtype"].refuse("networks receive and return float32; change it to float32")


def _orientation(here: ConfigField) -> str:
    if here["as_closest_canonical"].boolean(default=False):
        return "RAS"
    if here["labels"] and here["labels"].value != _LABELS:
        here["labels"].refuse("only the usual names of directions are supported; remove it")
    code = here["axcodes"].text()
    if not is_orientation(code):
        here["axcodes"].refuse("it must name three directions, such as RAS")
    return code


def _spacing(here: ConfigField) -> tuple[float, ...]:
    numbers = here["pixdim"].numbers()
    numbers = numbers * 3 if len(numbers) == 1 else numbers
    if len(numbers) != 3:
        here["pixdim"].refuse("it must be one number or three, in millimetres")
    return numbers


def _range_step(here: ConfigField) -> IntensityStep:
    low, high = here["a_min"].number(), here["a_max"].number()
    if low == high:
        here["a_max"].refuse(f"it must differ from a_min, which is {low:g}")
    return _scaled(here, IntensityStep((low,), (high - low,)))


def _scaled(here: ConfigField, step: IntensityStep) -> IntensityStep:
    # b_min to b_max is the range of the result.
    low = here["b_min"].number() if here["b_min"] else None
    high = here["b_max"].number() if here["b_max"] else None
    if low is not None and high is not None:
        step = replace(step, gain=high - low, offset=low)
    if here["clip"].boolean(default=False):
        step = replace(step, low=low, high=high)
    return step


def _statistics_step(
    here: ConfigField, name: str, channels: int
) -> tuple[IntensityStep, StatisticsNeed | None]:
    joint = channels > 1 and not here["channel_wise"].boolean(default=False)
    if name == "NormalizeIntensity":
        nonzero = here["nonzero"].boolean(default=False)
        if here["subtrahend"] and here["divisor"]:
            return (
                IntensityStep(
                    _for_channels(here["subtrahend"], channels, joint=joint),
                    _for_channels(here["divisor"], channels, joint=joint, positive=True),
                    nonzero=nonzero,
                ),
                None,
            )
        for one, other in (("subtrahend", "divisor"), ("divisor", "subtrahend")):
            if here[one]:
                here[one].refuse(f"{other} is missing; give both, or neither")
        need = StatisticsNeed(here.target, "zscore", joint=joint, nonzero=nonzero)
        return IntensityStep(nonzero=nonzero), need
    if name == "ScaleIntensity":
        if here["factor"]:
            here["factor"].refuse("scaling by a factor is not supported; use ScaleIntensityRange")
        low, high = here["minv"].number(0), here["maxv"].number(1)
        need = StatisticsNeed(here.target, "percentile", joint=joint)
        return IntensityStep(gain=high - low, offset=low), need
    if here["relative"].boolean(default=False):
        here["relative"].refuse("only absolute ranges are supported; set relative to false")
    percentiles = here["lower"].number(), here["upper"].number()
    need = StatisticsNeed(here.target, "percentile", percentiles, joint=joint)
    return _scaled(here, IntensityStep()), need


def _for_channels(
    here: ConfigField, channels: int, *, joint: bool, positive: bool = False
) -> tuple[float, ...]:
    numbers = here.numbers()
    if len(numbers) != 1 and (joint or len(numbers) != channels):
        here.refuse(
            f"it must be one number; if channel_wise is true, {channels} numbers (one for each "
            "channel) are valid as well"
        )
    if positive and min(numbers) <= 0:
        here.refuse("it must be above 0")
    return numbers
