"""Processing steps before and after the network of a package.

The description of a package lists steps before and after the network. The table says how each step
is carried out:

| step                            | before the network               | after the network          |
|---------------------------------|----------------------------------|----------------------------|
| `fixed_zero_mean_unit_variance` | shift and divisor of the input   | a step with this formula   |
| `scale_linear`                  | shift and divisor of the input   | a step with this formula   |
| `zero_mean_unit_variance`       | `zscore` with statistics         | an error                   |
| `scale_range`                   | `percentile` with statistics     | an error                   |
| `clip`                          | limits of the normalisation      | a separate step            |
| `sigmoid`, `softmax`            | a separate step                  | activation, or a step      |
| `binarize`                      | a separate step                  | an error: use `threshold`  |
| `ensure_dtype`                  | ignored if the dtype is float32  | ignored for a float dtype  |

In other tools, a step such as `scale_range` computes the statistics (mean, percentiles) of a whole
image. A chunk is only a part of an image, so chunkflow reads the statistics of the whole dataset
from a file.

After the network, a sigmoid or a softmax is the activation if no other step changes the output.
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
        method: ``none``, ``zscore`` or ``percentile``. If *shift* is empty, ``zscore`` and
            ``percentile`` need statistics of the dataset.
        shift: for each channel, the number to subtract.
        divisor: for each channel, the number to divide by after the subtraction.
        percentiles: for ``percentile``, the percentile that is mapped to 0 and the percentile that
            is mapped to 1.
        epsilon: number to add to a divisor that is computed from statistics.
        limits: smallest and largest value that the network receives; values outside are clipped.
            ``None`` for no clipping.
        joint: whether all channels are normalised with the same shift and divisor.
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
        """Whether a statistics file must be given."""
        return self.method in {"zscore", "percentile"} and not self.shift

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
            OptionError: the package needs statistics, but they are missing or incomplete; or
                statistics are given, but the package needs none.
        """
        if not self.needs_statistics:
            given = {
                f"--normalize-statistics {statistics}": statistics,
                "--normalize-mean": mean,
                "--normalize-std": std,
            }
            if options := [option for option, value in given.items() if value is not None]:
                msg = (
                    f"model package {self.package} needs no statistics to normalise voxels; "
                    f"leave {' and '.join(options)} out"
                )
                raise OptionError(msg)
            return Normalizer(self.method, self.shift, self.divisor, self.limits)
        if statistics is None and mean is None and std is None:
            low, high = self.percentiles
            what = f" with percentiles {low:g} and {high:g}" if self.method == "percentile" else ""
            msg = (
                f"model package {self.package} normalises each image with the statistics of "
                "this image, but a chunk is only a part of an image; give statistics of the whole "
                f"dataset with --normalize {self.method} --normalize-statistics FILE{what}"
            )
            raise OptionError(msg)
        return create_normalizer(
            self.method,
            num_channels=num_channels,
            statistics=statistics,
            mean=mean,
            std=std,
            percentiles=self.percentiles,
            epsilon=self.epsilon,
            limits=self.limits,
            joint=self.joint,
        )


@dataclass(frozen=True)
class ProcessingStep:
    """A processing step on tensors (n, c, ...).

    Attributes:
        name: operation on each value v, with the parameters *first* and *second*: ``affine``
            (v · first + second), ``clip`` (v limited to the range from first to second),
            ``binarize`` (1 if v is above first, else 0), ``sigmoid``, or ``softmax`` over the
            channels.
        first: first parameter of the operation: one number, or a number for each channel.
        second: second parameter of the operation: one number, or a number for each channel.
    """

    name: Literal["affine", "clip", "binarize", "sigmoid", "softmax"]
    first: tuple[float, ...] = ()
    second: tuple[float, ...] = ()

    def __call__(self, values: torch.Tensor) -> torch.Tensor:
        """Return the result of the step, (n, c, ...) float32; *values* are not changed."""
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
    """Return the normalisation of an input, and the steps between normalisation and network.

    Raises:
        ModelError: a step is not supported; the message names the step.
    """
    found = Normalization(package)
    steps: list[ProcessingStep] = []
    for index, here in enumerate(tensor.steps):
        name, kwargs = _name(here), here["kwargs"]
        if name == "ensure_dtype":
            # The first one states the dtype of the image, which does not matter here.
            if index and kwargs["dtype"].value not in _FLOATS:
                here.refuse("voxels must be float32 or float64 between steps; remove this step")
        elif name == "clip" and not steps and found.limits is None:
            found = replace(found, limits=_limits(kwargs))
        elif name in _STATISTICS and not _is_fixed(here):
            if steps or found != Normalization(package):
                here.refuse("a step that uses statistics of the image must be the first step")
            found = _from_statistics(here, tensor, package)
        else:
            step = _step(here, tensor.channels)
            if step.name == "affine" and not (steps or found.limits or found.needs_statistics):
                found = _followed(found, step, tensor.channels)
            else:
                steps.append(step)
    _check_dtype(tensor, ("float32",), "the network receives float32")
    return found, tuple(steps)


def after(tensor: TensorDescription) -> tuple[Activation, tuple[ProcessingStep, ...]]:
    """Return the activation and the other processing steps of an output.

    The activation is ``none`` unless a sigmoid or a softmax is the only step of the output.

    Raises:
        ModelError: a step is not supported; the message names the step.
    """
    steps: list[ProcessingStep] = []
    for here in tensor.steps:
        name = _name(here)
        if name == "ensure_dtype":
            continue
        if name == "binarize":
            here.refuse(
                "overlapping patches are averaged, so only the blended result can be binarised: "
                "remove this step from the description and add threshold after inference"
            )
        if name == "scale_mean_variance" or (name in _STATISTICS and not _is_fixed(here)):
            here.refuse(
                "scaling an output by its own statistics is not supported; remove this step from "
                "the description"
            )
        steps.append(_step(here, tensor.channels))
    _check_dtype(tensor, _FLOATS, "blended values are floats")
    if len(steps) == 1:
        for activation in ACTIVATIONS:
            if steps[0].name == activation:
                return activation, ()
    return "none", tuple(steps)


def _check_dtype(tensor: TensorDescription, allowed: tuple[str, ...], why: str) -> None:
    # The dtype after the last step, which is that of *tensor* unless this step sets another.
    steps = list(tensor.steps)
    last = _name(steps[-1]) if steps else ""
    dtype = steps[-1]["kwargs"]["dtype"].text() if last == "ensure_dtype" else tensor.dtype
    if dtype not in allowed and last != "binarize":
        field = steps[-1] if last == "ensure_dtype" else tensor.steps
        field.refuse(
            f"the dtype after the last step is {dtype}, but {why}; change the dtype to "
            f"{' or '.join(allowed)}, or use another package"
        )


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
        kwargs["reference_tensor"].refuse(
            f"it must be {tensor.name!r}: statistics of another tensor are not supported"
        )
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
        here.refuse("this step is not supported; remove it, or use another package")
    if kwargs["axis"] and kwargs["axis"].value not in {"channel", "c"}:
        kwargs["axis"].refuse("it must be channel: only channels may have different parameters")
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
            kwargs["gain"].refuse("it must not be 0")
        return ProcessingStep("affine", gains, _per_channel(kwargs["offset"], channels, 0))
    means, stds = _per_channel(kwargs["mean"], channels), _per_channel(kwargs["std"], channels)
    if min(stds) <= 0:
        kwargs["std"].refuse("it must be above 0")
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
    # (v - shift) / divisor, followed by v · gain + offset, is again of the first form.
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
