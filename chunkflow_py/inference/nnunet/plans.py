"""Read plans.json and dataset.json of nnU-Net v2.

In plans.json, axes are permuted: axis k of the plan is axis ``transpose_forward[k]`` of the image
(z, y, x). The functions of this module return all values in the order z, y, x. Older and newer
versions of nnU-Net use different keys:

| part of the plan                  | older plans               | newer plans       |
|-----------------------------------|---------------------------|-------------------|
| class of the network              | `UNet_class_name`         | `architecture`    |
| features, kernels, strides        | keys of the configuration | `arch_kwargs`     |
| intensities of the foreground     | `..._by_modality`         | `..._per_channel` |
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from chunkflow_py.core.geometry import Zyx
from chunkflow_py.errors import ModelError, OptionError
from chunkflow_py.inference.nnunet.plan_resampling import PlanResampling
from chunkflow_py.inference.normalization import (
    Normalizer,
    create_normalizer,
    read_foreground,
    read_statistics,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

ARCHITECTURES = ("PlainConvUNet", "ResidualEncoderUNet")
_SCHEMES = (
    "CTNormalization", "ZScoreNormalization", "RescaleTo01Normalization", "RGBTo01Normalization",
    "NoNormalization",
)  # fmt: skip
_FROM_IMAGE = ("ZScoreNormalization", "RescaleTo01Normalization")
_SMALLEST = 1e-8  # smallest divisor of nnU-Net
_MILLIMETRE = 1e6  # nanometres; readers of medical images use millimetres
_IN_MILLIMETRES = ("SimpleITKIO", "NibabelIO", "NibabelIOWithReorient")


@dataclass(frozen=True)
class NnunetNormalization:
    """Normalisation of the image, channel by channel.

    Attributes:
        path: path of the model, for messages.
        schemes: for each channel, the name of nnU-Net's normalisation scheme, such as
            ``CTNormalization``.
        intensities: for each channel, a dict with ``mean``, ``std``, ``percentile_00_5`` and
            ``percentile_99_5`` of the foreground; empty if the scheme does not need these numbers.
        masked: for each channel, whether only voxels inside a mask are normalised. The mask
            consists of the voxels that are not 0 in at least one channel, and of the holes that
            these voxels enclose.
    """

    path: str
    schemes: tuple[str, ...]
    intensities: tuple[dict[str, float], ...]
    masked: tuple[bool, ...] = ()

    @property
    def needs_statistics(self) -> bool:
        """Whether at least one channel is normalised with statistics of the whole image."""
        return any(scheme in _FROM_IMAGE for scheme in self.schemes)

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
            statistics: path of the file with the statistics of the image.
            mean: mean of each channel. If the scheme of all channels is ``ZScoreNormalization``,
                *mean* and *std* replace the file.
            std: standard deviation of each channel.

        Raises:
            OptionError: the model needs statistics, but no statistics are given. Or statistics are
                given, but the model needs none. Or the number of channels in the file is not that
                of the model.
        """
        if mean is not None or std is not None:
            if {*self.schemes} != {"ZScoreNormalization"}:
                msg = (
                    "--normalize-mean and --normalize-std suffice only for ZScoreNormalization, "
                    f"but model {self.path} normalises with "
                    f"{', '.join(sorted(set(self.schemes)))}; leave both options out"
                )
                raise OptionError(msg)
            return create_normalizer(
                "zscore", num_channels=num_channels, statistics=statistics, mean=mean, std=std
            )
        if self.needs_statistics and statistics is None:
            names = ", ".join(name for name in _FROM_IMAGE if name in self.schemes)
            msg = (
                f"model {self.path} normalises with {names}, which needs statistics of the whole "
                "image, but a task reads only a part of the image; run compute-statistics on the "
                "image, then run chunkflow sum-statistics URL --output statistics.json, and give "
                "--normalize-statistics statistics.json"
            )
            raise OptionError(msg)
        # CTNormalization uses them, too: interpolated voxels are clipped to the image's extremes.
        uses_none = {*self.schemes} <= {"NoNormalization", "RGBTo01Normalization"}
        if uses_none and statistics is not None and read_foreground(statistics) is None:
            msg = (
                f"model {self.path} needs no statistics of the image, because it normalises with "
                f"{', '.join(sorted(set(self.schemes)))}; leave --normalize-statistics "
                f"{statistics} out"
            )
            raise OptionError(msg)
        channels = read_statistics(statistics) if statistics is not None else ()
        if statistics is not None and len(channels) != num_channels:
            msg = (
                f"{statistics} has statistics of {len(channels)} channels, but model {self.path} "
                f"takes {num_channels} channels; compute the statistics of an image with "
                f"{num_channels} channels"
            )
            raise OptionError(msg)
        shift, divisor, limits, extremes = [], [], [], []
        for index, scheme in enumerate(self.schemes):
            low, high, pair = -math.inf, math.inf, (0.0, 1.0)
            where = f"channel {index} of {statistics}"
            if scheme == "CTNormalization":
                found = self.intensities[index]
                pair = found["mean"], max(found["std"], _SMALLEST)
                low, high = (
                    _normalised(found[key], *pair) for key in ("percentile_00_5", "percentile_99_5")
                )
            elif scheme == "ZScoreNormalization":
                pair = channels[index].zscore(where)
                pair = pair[0], max(pair[1], _SMALLEST)
            elif scheme == "RescaleTo01Normalization":
                pair = channels[index].range(where, (0.0, 100.0))
            elif scheme == "RGBTo01Normalization":
                pair = 0.0, 255.0
            shift.append(pair[0])
            divisor.append(pair[1])
            limits.append((low, high))
            least, most = (
                channels[index].percentiles.get(percentile) if channels else None
                for percentile in (0.0, 100.0)
            )
            if least is not None and most is not None:
                low = max(low, min(high, _normalised(least, *pair)))
                high = min(high, max(low, _normalised(most, *pair)))
            extremes.append((low, high))
        return Normalizer(
            "zscore", tuple(shift), tuple(divisor),
            channel_limits=tuple(limits), extremes=tuple(extremes),
        )  # fmt: skip


def _normalised(value: float, shift: float, divisor: float) -> float:
    # nnU-Net clips voxels before it normalises them. Clipping normalised voxels to the normalised
    # limit gives the same result, because each step of the arithmetic is monotone. The arithmetic
    # is in float32, as in nnU-Net.
    return float(np.float32((np.float32(value) - np.float32(shift)) / np.float32(divisor)))


@dataclass(frozen=True)
class NnunetPlan:
    """The plan of nnU-Net for one configuration; sizes are in the axes of the image, zyx.

    Attributes:
        configuration: name of the configuration, such as ``3d_fullres``.
        axes: ``transpose_forward``; axis k of the network is axis ``axes[k]`` of the image.
        spatial_dims: 3, or 2 for a network of slices perpendicular to image axis ``axes[0]``.
        patch_size: size of the patch, voxels, zyx; for a network of slices, 1 along ``axes[0]``.
        voxel_size_nm: voxel size of the training images, nanometres, zyx; for a network of slices,
            ``None`` along ``axes[0]``. ``None`` instead of the three numbers if the plan does not
            say that sizes are in millimetres.
        channels: names of the input channels.
        divisor: three numbers of voxels, zyx. Patch sizes must be multiples of these numbers. Each
            number is the product of all strides of the network along the axis.
        output_channels: number of output channels.
        region_labels: if the output channels are overlapping regions, the label of each region. A
            voxel in several regions gets the label of the region that is last in this list. The
            list is empty if the channels are exclusive labels.
        architecture: name of the network's class.
        arguments: keyword arguments of this class, as JSON values.
        imported: keys of *arguments* whose value is the name of a class of PyTorch.
        normalization: normalisation of the image.
        resampling: resampling of images with another voxel size than the training images; ``None``
            if the voxel size of the training images is unknown.
    """

    configuration: str
    axes: tuple[int, int, int]
    spatial_dims: Literal[2, 3]
    patch_size: Zyx
    voxel_size_nm: tuple[float | None, float | None, float | None] | None
    channels: tuple[str, ...]
    divisor: Zyx
    output_channels: int
    region_labels: tuple[int, ...]
    architecture: str
    arguments: dict[str, Any]
    imported: tuple[str, ...]
    normalization: NnunetNormalization
    resampling: PlanResampling | None = None


def read_plan(
    path: str, plans: Mapping[str, Any], dataset: Mapping[str, Any], configuration: str
) -> NnunetPlan:
    """Return the plan of one configuration.

    Args:
        path: path of the model, for messages.
        plans: content of ``plans.json``.
        dataset: content of ``dataset.json``.
        configuration: name of the configuration.

    Raises:
        ModelError: the plans have an unknown format, need an unsupported feature, or contradict
            ``dataset.json``; the message names the field.
    """
    try:
        return _plan(path, plans, dataset, configuration)
    except (KeyError, TypeError, AttributeError, ValueError, IndexError) as error:
        if isinstance(error, ModelError):
            raise
        msg = (
            f"plans.json or dataset.json of model {path} is incomplete or of an unknown version "
            f"({type(error).__name__}: {error}); give a model of nnU-Net v2"
        )
        raise ModelError(msg) from error


def _plan(
    path: str, plans: Mapping[str, Any], dataset: Mapping[str, Any], configuration: str
) -> NnunetPlan:
    if not isinstance(plans.get("configurations"), dict) or "transpose_forward" not in plans:
        msg = (
            f"plans.json of model {path} lacks 'configurations' or 'transpose_forward', so the "
            "plan was not made by nnU-Net v2; convert or retrain the model with nnU-Net v2"
        )
        raise ModelError(msg)
    found = _inherited(path, plans["configurations"], configuration)
    if found.get("previous_stage"):
        msg = (
            f"configuration {configuration} of model {path} needs the labels of configuration "
            f"{found['previous_stage']} as input (a cascade), which is not supported; use a model "
            "of another configuration"
        )
        raise ModelError(msg)
    preprocessor = found.get("preprocessor_name", "DefaultPreprocessor")
    if preprocessor != "DefaultPreprocessor":
        msg = (
            f"configuration {configuration} of model {path} uses the preprocessor {preprocessor}, "
            "but only DefaultPreprocessor is supported"
        )
        raise ModelError(msg)
    axes = tuple(int(axis) for axis in plans["transpose_forward"])
    patch = [int(size) for size in found["patch_size"]]
    if sorted(axes) != [0, 1, 2]:
        msg = (
            f"plans.json of model {path} has transpose_forward {list(axes)}, which is not a "
            "permutation of 0, 1, 2; copy plans.json again"
        )
        raise ModelError(msg)
    if len(patch) not in {2, 3} or min(patch) < 1:
        msg = (
            f"plans.json of model {path} has patch_size {patch}, but patch_size must be two or "
            "three positive sizes; copy plans.json again"
        )
        raise ModelError(msg)
    names = dataset.get("channel_names", dataset.get("modality"))
    if not isinstance(names, dict) or not names:
        msg = f"dataset.json of model {path} has no channel_names; add the names of the channels"
        raise ModelError(msg)
    output_channels, region_labels = _labels(path, dataset)
    architecture, arguments, imported = _architecture(path, found, len(patch))
    unit = str(plans.get("image_reader_writer")) in _IN_MILLIMETRES
    spacing = [float(value) * _MILLIMETRE for value in found["spacing"]]
    placed: dict[int, float] = dict(zip(axes[-len(patch) :], spacing, strict=True))
    sizes = dict(zip(axes[-len(patch) :], patch, strict=True))
    size_nm = (placed.get(0), placed.get(1), placed.get(2)) if unit else None
    return NnunetPlan(
        configuration,
        (axes[0], axes[1], axes[2]),
        3 if len(patch) == 3 else 2,
        Zyx.of(sizes.get(axis, 1) for axis in range(3)),
        size_nm,
        tuple(str(names[key]) for key in sorted(names, key=int)),
        _divisor(arguments["strides"], axes[-len(patch) :]),
        output_channels,
        region_labels,
        architecture,
        arguments,
        imported,
        _normalization(path, plans, found, len(names)),
        None if size_nm is None else PlanResampling(path, size_nm, found),
    )


def _divisor(strides: Any, axes: tuple[int, ...]) -> Zyx:
    # The product of the strides of all stages, zyx.
    steps = [[each] * len(axes) if isinstance(each, int) else list(each) for each in strides]
    products = [math.prod(axis) for axis in zip(*steps, strict=True)]
    placed = dict(zip(axes, products, strict=True))
    return Zyx.of(int(placed.get(axis, 1)) for axis in range(3))


def _inherited(path: str, every: Mapping[str, Any], name: str) -> dict[str, Any]:
    # A configuration overrides the values of the configuration that it inherits from.
    chain: list[dict[str, Any]] = []
    seen: set[str] = set()
    current: Any = name
    while current is not None:
        if current not in every:
            msg = (
                f"plans.json of model {path} lacks configuration {current!r}; the file has the "
                f"configurations {', '.join(sorted(every))}"
            )
            raise ModelError(msg)
        if current in seen:
            msg = (
                f"configuration {current!r} in plans.json of model {path} inherits from itself; "
                "copy plans.json again"
            )
            raise ModelError(msg)
        seen.add(current)
        chain.append(every[current])
        current = every[current].get("inherits_from")
    return {key: value for each in reversed(chain) for key, value in each.items()}


def _labels(path: str, dataset: Mapping[str, Any]) -> tuple[int, tuple[int, ...]]:
    labels = {name: value for name, value in dataset["labels"].items() if name != "ignore"}
    if labels.get("background") != 0:
        msg = (
            f"dataset.json of model {path} has no label background with the number 0; add this "
            "label"
        )
        raise ModelError(msg)
    if any(isinstance(value, list) and len(value) > 1 for value in labels.values()):
        regions = [value for value in labels.values() if value not in (0, [0])]
        order = dataset.get("regions_class_order")
        if (
            not isinstance(order, list)
            or len(order) != len(regions)
            or not all(type(label) is int and 0 <= label <= 255 for label in order)
        ):
            msg = (
                f"dataset.json of model {path} has {len(regions)} regions, but regions_class_order "
                f"is {order}; regions_class_order must be a list with a number from 0 to 255 for "
                "each region"
            )
            raise ModelError(msg)
        return len(regions), tuple(order)
    numbers = {int(value[0] if isinstance(value, list) else value) for value in labels.values()}
    return len(numbers), ()


def _architecture(
    path: str, found: dict[str, Any], dims: int
) -> tuple[str, dict[str, Any], tuple[str, ...]]:
    if "architecture" in found:
        described = found["architecture"]
        name = str(described["network_class_name"]).rpartition(".")[2]
        arguments = dict(described["arch_kwargs"])
        imported = tuple(described["_kw_requires_import"])
    elif "UNet_class_name" in found:
        name = str(found["UNet_class_name"])
        arguments, imported = _older_arguments(found, name, dims)
    else:
        msg = (
            f"the configuration in plans.json of model {path} has neither 'architecture' nor "
            "'UNet_class_name', so nnU-Net v2 did not write it; give a model of nnU-Net v2"
        )
        raise ModelError(msg)
    if name not in ARCHITECTURES:
        msg = (
            f"the network of model {path} is a {name}, but only {' and '.join(ARCHITECTURES)} are "
            "supported; export the network with torch.export, and give the exported file with "
            "--framework pytorch"
        )
        raise ModelError(msg)
    return name, arguments, imported


def _older_arguments(
    found: dict[str, Any], name: str, dims: int
) -> tuple[dict[str, Any], tuple[str, ...]]:
    # As nnU-Net derives the arguments from older plans.
    stages = len(found["n_conv_per_stage_encoder"])
    blocks = "n_conv_per_stage" if name == "PlainConvUNet" else "n_blocks_per_stage"
    first, most = found["UNet_base_num_features"], found["unet_max_num_features"]
    arguments = {
        "n_stages": stages,
        "features_per_stage": [min(first * 2**stage, most) for stage in range(stages)],
        "conv_op": f"torch.nn.Conv{dims}d",
        "kernel_sizes": found["conv_kernel_sizes"],
        "strides": found["pool_op_kernel_sizes"],
        blocks: found["n_conv_per_stage_encoder"],
        "n_conv_per_stage_decoder": found["n_conv_per_stage_decoder"],
        "conv_bias": True,
        "norm_op": f"torch.nn.InstanceNorm{dims}d",
        "norm_op_kwargs": {"eps": 1e-05, "affine": True},
        "dropout_op": None,
        "dropout_op_kwargs": None,
        "nonlin": "torch.nn.LeakyReLU",
        "nonlin_kwargs": {"inplace": True},
    }
    return arguments, ("conv_op", "norm_op", "dropout_op", "nonlin")


def _normalization(
    path: str, plans: Mapping[str, Any], found: dict[str, Any], channels: int
) -> NnunetNormalization:
    schemes = tuple(str(name) for name in found["normalization_schemes"])
    if len(schemes) != channels:
        msg = (
            f"plans.json of model {path} normalises {len(schemes)} channels, but dataset.json has "
            f"{channels} channels; give the plans.json and dataset.json of the same training"
        )
        raise ModelError(msg)
    masks = found.get("use_mask_for_norm", [False] * channels)
    # Other schemes ignore the mask.
    pairs = zip(schemes, masks, strict=True)
    masked = tuple(bool(mask) and scheme == "ZScoreNormalization" for scheme, mask in pairs)
    for scheme in schemes:
        if scheme not in _SCHEMES:
            msg = (
                f"model {path} normalises with {scheme}, but only {', '.join(_SCHEMES)} are "
                "supported; change the scheme in a copy of plans.json to a supported scheme that "
                "gives the same normalised values"
            )
            raise ModelError(msg)
    key = "foreground_intensity_properties_per_channel"
    every = plans.get(key, plans.get("foreground_intensity_properties_by_modality", {}))
    intensities: list[dict[str, float]] = []
    for index, scheme in enumerate(schemes):
        needed = ("mean", "std", "percentile_00_5", "percentile_99_5")
        here = every.get(str(index), {}) if scheme == "CTNormalization" else {}
        if scheme == "CTNormalization" and any(
            not isinstance(here.get(name), int | float) or not math.isfinite(here[name])
            for name in needed
        ):
            msg = (
                f"plans.json of model {path} normalises channel {index} with {scheme}, but "
                f"{key} lacks one of {', '.join(needed)} for this channel; copy plans.json again"
            )
            raise ModelError(msg)
        intensities.append({name: float(here[name]) for name in needed if name in here})
    return NnunetNormalization(path, schemes, tuple(intensities), masked)
