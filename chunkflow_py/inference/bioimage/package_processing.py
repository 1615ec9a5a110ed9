"""Processing steps that a package asks for before and after its network.

| step                            | before the network             | after it                     |
|---------------------------------|--------------------------------|------------------------------|
| `fixed_zero_mean_unit_variance` | normalisation                  | the same formula             |
| `scale_linear`                  | normalisation                  | the same formula             |
| `zero_mean_unit_variance`       | needs statistics: zscore       | refused                      |
| `scale_range`                   | needs statistics: percentile   | refused                      |
| `clip`                          | limits, or a step              | a step                       |
| `sigmoid`, `softmax`            | a step                         | alone: the activation        |
| `binarize`                      | a step                         | refused: `threshold` does it |
| `ensure_dtype`                  | nothing, if float32            | nothing, if float32          |

There, the statistics of a sample are those of the whole image. A chunk is only a part of it, so
here they come from a file for the whole dataset.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import torch

from chunkflow_py.errors import OptionError
from chunkflow_py.inference.network_output import ACTIVATIONS, Activation, activated
from chunkflow_py.inference.normalization import Method, Normalizer, create_normalizer

if TYPE_CHECKING:
    from chunkflow_py.inference.bioimage.package_description import (
        DescriptionField,
        TensorDescription,
    )

_FLOATS = ("float32", "float64")
_STEPS = (
    "binarize", "clip", "fixed_zero_mean_unit_variance", "scale_linear", "sigmoid", "softmax",
    "zero_mean_unit_variance",
)  # fmt: skip
_STATISTICS = ("zero_mean_unit_variance", "scale_range")


@dataclass(frozen=True)
class Normalization:
    """Normalisation of the voxels that the network receives.

    Attributes:
        package: path of the package, for messages.
        method: ``none``; ``zscore`` and ``percentile`` with fixed values, or with statistics of
            the dataset, where *shift* is empty.
        shift: to subtract, of each channel.
        divisor: to divide by, of each channel.
        percentiles: which become 0 and 1, with ``percentile``.
        epsilon: added to divisors that come from statistics.
        limits: what the network sees is clipped to these, if given.
        joint: the channels are normalised together.
    """

    package: str
    method: Method = "none"
    shift: tuple[float, ...] = ()
    divisor: tuple[float, ...] = ()
    percentiles: tuple[float, float] = (0.0, 100.0)
    epsilon: float = 0.0
    limits: tuple[float, float] | None = None
    joint: bool = False

    @property
    def needs_statistics(self) -> bool:
        """Whether a statistics file has to be given."""
        return self.method in {"zscore", "percentile"} and not self.shift

    def normalizer(self, num_channels: int, statistics: str | None = None) -> Normalizer:
        """Return the function that fills the network's input.

        Args:
            num_channels: of the image.
            statistics: path of the statistics file of the dataset, where it is needed.

        Raises:
            OptionError: a file is needed and not given, or given and not needed, or it does not
                hold what is needed.
        """
        if not self.needs_statistics:
            if statistics is not None:
                msg = (
                    f"model package {self.package} normalises voxels without "
                    f"statistics; leave --normalize-statistics {statistics} out"
                )
                raise OptionError(msg)
            return Normalizer(self.method, self.shift, self.divisor, self.limits)
        if statistics is None:
            low, high = self.percentiles
            what = f" with percentiles {low:g} and {high:g}" if self.method == "percentile" else ""
            msg = (
                f"model package {self.package} normalises each image by its own statistics, which "
                "would be those of a chunk here; give those of the whole dataset with --normalize "
                f"{self.method} --normalize-statistics FILE{what}"
            )
            raise OptionError(msg)
        return create_normalizer(
            self.method,
            num_channels=num_channels,
            statistics=statistics,
            percentiles=self.percentiles,
            epsilon=self.epsilon,
            limits=self.limits,
            joint=self.joint,
        )


@dataclass(frozen=True)
class ProcessingStep:
    """An elementwise step on tensors (n, c, ...), one value or one for each channel.

    Attributes:
        name: ``affine``: value · first + second; ``clip``: between first and second;
            ``binarize``: 1 above first, else 0; ``sigmoid``; ``softmax`` over the channels.
        first: see *name*.
        second: see *name*.
    """

    name: Literal["affine", "clip", "binarize", "sigmoid", "softmax"]
    first: tuple[float, ...] = ()
    second: tuple[float, ...] = ()

    def __call__(self, values: torch.Tensor) -> torch.Tensor:
        """Return (n, c, ...) float32 after the step; *values* are not changed."""
        if self.name == "clip":
            return values.clamp(self.first[0], self.second[0])
        if self.name == "affine":
            return values * _by_channel(self.first, values) + _by_channel(self.second, values)
        if self.name == "binarize":
            return (values > _by_channel(self.first, values)).to(torch.float32)
        flat = values.unsqueeze(2) if values.ndim == 4 else values
        return activated(flat, self.name).reshape(values.shape)


def _by_channel(numbers: tuple[float, ...], values: torch.Tensor) -> torch.Tensor:
    shape = (1, len(numbers), *[1] * (values.ndim - 2))
    return torch.tensor(numbers, dtype=torch.float32, device=values.device).reshape(shape)


def before(
    tensor: TensorDescription, package: str
) -> tuple[Normalization, tuple[ProcessingStep, ...]]:
    """Return the normalisation of an input, and the steps between it and the network.

    Raises:
        ModelError: a step cannot be done here; names it.
    """
    found = Normalization(package)
    steps: list[ProcessingStep] = []
    for index, here in enumerate(tensor.steps):
        name, kwargs = _name(here), here["kwargs"]
        if name == "ensure_dtype":
            # The first one states the type of the image, which does not matter here.
            if index and kwargs["dtype"].value not in _FLOATS:
                here.refuse("voxels are float32 between steps")
        elif name == "clip" and not steps and found.limits is None:
            found = replace(found, limits=_limits(kwargs))
        elif name in _STATISTICS and not _is_fixed(here):
            if steps or found != Normalization(package):
                here.refuse("statistics are those of the image, so this has to come first")
            found = _from_statistics(here, tensor, package)
        else:
            step = _step(here, tensor.channels)
            if step.name == "affine" and not (steps or found.limits or found.needs_statistics):
                found = _followed(found, step, tensor.channels)
            else:
                steps.append(step)
    _check_dtype(tensor, ("float32",), "a network is given float32; use its other weights, or one")
    return found, tuple(steps)


def after(tensor: TensorDescription) -> tuple[Activation, tuple[ProcessingStep, ...]]:
    """Return the activation of an output, if that is all there is to do, or else all steps.

    Raises:
        ModelError: a step cannot be done here; names it.
    """
    steps: list[ProcessingStep] = []
    for here in tensor.steps:
        name = _name(here)
        if name == "ensure_dtype":
            continue
        if name == "binarize":
            here.refuse(
                "patches are averaged where they overlap, so binarise the result: take this step "
                "out of the description and let threshold follow inference"
            )
        if name == "scale_mean_variance" or (name in _STATISTICS and not _is_fixed(here)):
            here.refuse("an output is not scaled by its own statistics; take this step out")
        steps.append(_step(here, tensor.channels))
    _check_dtype(tensor, _FLOATS, "blended values are floats; take this type out, or let another")
    if len(steps) == 1:
        for activation in ACTIVATIONS:
            if steps[0].name == activation:
                return activation, ()
    return "none", tuple(steps)


def _check_dtype(tensor: TensorDescription, allowed: tuple[str, ...], remedy: str) -> None:
    """Check the type after the last step: that of the step, or else that of the tensor."""
    steps = list(tensor.steps)
    last = _name(steps[-1]) if steps else ""
    dtype = steps[-1]["kwargs"]["dtype"].text() if last == "ensure_dtype" else tensor.dtype
    if dtype not in allowed and last != "binarize":
        field = steps[-1] if last == "ensure_dtype" else tensor.steps
        field.refuse(f"it ends with {dtype} voxels, but {remedy} of float32 be described")


def _name(here: DescriptionField) -> str:
    return (here["id"] if here["id"] else here["name"]).text()


def _is_fixed(here: DescriptionField) -> bool:
    kwargs = here["kwargs"]
    mode = kwargs["mode"].value or ("fixed" if kwargs["mean"] else "per_sample")
    return _name(here) != "scale_range" and mode == "fixed"


def _from_statistics(
    here: DescriptionField, tensor: TensorDescription, package: str
) -> Normalization:
    kwargs = here["kwargs"]
    if kwargs["reference_tensor"].value not in {None, tensor.name}:
        kwargs["reference_tensor"].refuse(f"only {tensor.name!r} itself is known")
    axes = kwargs["axes"].value
    joint = tensor.channels > 1 and (axes is None or "c" in axes or "channel" in axes)
    epsilon = kwargs["eps"].number(1e-6)
    if _name(here) == "zero_mean_unit_variance":
        return Normalization(package, "zscore", epsilon=epsilon, joint=joint)
    percentiles = kwargs["min_percentile"].number(0), kwargs["max_percentile"].number(100)
    return Normalization(
        package, "percentile", percentiles=percentiles, epsilon=epsilon, joint=joint
    )


def _step(here: DescriptionField, channels: int) -> ProcessingStep:
    name, kwargs = _name(here), here["kwargs"]
    if name not in _STEPS:
        here.refuse("this step is not known here; take it out, or use another package")
    if kwargs["axis"] and kwargs["axis"].value not in {"channel", "c"}:
        kwargs["axis"].refuse("values may differ along the channels only")
    if name == "sigmoid":
        return ProcessingStep("sigmoid")
    if name == "softmax":
        return ProcessingStep("softmax")
    if name == "clip":
        low, high = _limits(kwargs)
        return ProcessingStep("clip", (low,), (high,))
    if name == "binarize":
        return ProcessingStep("binarize", _per_channel(kwargs["threshold"], channels))
    if name == "scale_linear":
        gains = _per_channel(kwargs["gain"], channels, 1)
        if 0 in gains:
            kwargs["gain"].refuse("nothing would be left of the voxels")
        return ProcessingStep("affine", gains, _per_channel(kwargs["offset"], channels, 0))
    means, stds = _per_channel(kwargs["mean"], channels), _per_channel(kwargs["std"], channels)
    if min(stds) <= 0:
        kwargs["std"].refuse("a standard deviation is above 0")
    pairs = list(zip(_all_of(means, channels), _all_of(stds, channels), strict=True))
    return ProcessingStep(
        "affine", tuple(1 / std for _, std in pairs), tuple(-m / std for m, std in pairs)
    )


def _all_of(numbers: tuple[float, ...], channels: int) -> tuple[float, ...]:
    return numbers * channels if len(numbers) == 1 else numbers


def _per_channel(
    field: DescriptionField, channels: int, default: float | None = None
) -> tuple[float, ...]:
    numbers = field.numbers(default)
    if len(numbers) not in {1, channels}:
        field.refuse(f"it must be one number, or one for each of {channels} channels")
    return numbers


def _limits(kwargs: DescriptionField) -> tuple[float, float]:
    infinity = float("inf")
    return kwargs["min"].number(-infinity), kwargs["max"].number(infinity)


def _followed(found: Normalization, step: ProcessingStep, channels: int) -> Normalization:
    """Return (v - shift) / divisor, followed by value · gain + offset, as one such formula."""
    rows = zip(
        found.shift or (0.0,) * channels,
        found.divisor or (1.0,) * channels,
        _all_of(step.first, channels),
        _all_of(step.second, channels),
        strict=True,
    )
    pairs = [(s - offset * d / gain, d / gain) for s, d, gain, offset in rows]
    shift, divisor = zip(*pairs, strict=True)
    return replace(found, method="zscore", shift=shift, divisor=divisor)
