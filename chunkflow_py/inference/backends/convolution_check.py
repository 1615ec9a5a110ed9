"""Check that a device computes the convolutions of a network correctly.

Some versions of cuDNN silently compute wrong 3D convolutions in half precision (pytorch#163539,
cuDNN 9.8 to 9.10). The error depends on the sizes of kernel and image. Therefore, the convolutions
of a network's first batch are recorded. For each kernel size and dtype, the convolution with the
most multiplications is then computed again. The dtype, the memory layout and the sizes stay the
same, but the image and the kernel are replaced by random numbers:

```
first batch ----> SeenConvolutions --> the largest convolution for each kernel size and dtype
random numbers -> device: that convolution, in its dtype ---+
               -> CPU: float64, at a sample of voxels ------+--> is the largest error <= tolerance?
```

The exact result is computed on the CPU, without cuDNN. This takes milliseconds, because only a
sample of voxels is computed. The sample includes all corners of the image.

The random numbers are multiples of 1/64 in [-1, 1], which every dtype represents exactly. A sum of
up to 4096 products of two such numbers is also exact in float32, whatever the order of the
additions. On a correct device, results therefore differ from the exact results only by rounding to
the dtype.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from chunkflow_py.core.failpoints import corrupts
from chunkflow_py.errors import WrongArithmeticError
from chunkflow_py.inference.backends.compute_profile import describe_device

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

logger = logging.getLogger(__name__)

_STEPS = 64  # values are k / 64
_PLACES = 32, 512  # fewest and most output voxels that are compared, beside the corners
_CHANNELS = 64  # most output channels of a group that are compared
_CPU_WORK = 1 << 26  # multiplications of the compared voxels, and of a convolution on the CPU
_ROUNDINGS = 4
# Unit roundoff: half the distance of 1 to the next number. Float32 may be computed by algorithms
# whose errors are larger than those of a sum (FFT, Winograd), so it is judged like TF32.
_UNIT = {torch.float32: 2.0**-11, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
_KINDS = ("conv2d", "conv3d", "convolution", "_convolution", "_convolution_mode")


@dataclass(frozen=True)
class Convolution:
    """The sizes, the precision and the memory layout of a convolution, without the weights.

    Attributes:
        image: shape of the input, (n, c, z, y, x) or (n, c, y, x).
        kernel: shape of the kernel, (channels out, channels in / groups, z, y, x) or without z.
        stride: voxels, one number for each spatial axis.
        padding: voxels on each side, one number for each spatial axis, or ``same``.
        dilation: voxels, one number for each spatial axis.
        groups: number of groups of channels.
        dtype: dtype of the input.
        channels_last: whether the channels of a voxel are neighbours in memory.
    """

    image: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...] | str
    dilation: tuple[int, ...]
    groups: int = 1
    dtype: torch.dtype = torch.float32
    channels_last: bool = False

    @classmethod
    def plain(
        cls,
        channels: int,
        size: tuple[int, ...],
        kernel: tuple[int, ...],
        dtype: torch.dtype,
        *,
        channels_last: bool,
    ) -> Convolution:
        """Return a convolution of one image; the output has the shape of the input.

        Args:
            channels: number of channels of the input and of the output.
            size: size of the image in voxels.
            kernel: size of the kernel in voxels; all numbers must be odd.
            dtype: dtype of the input.
            channels_last: whether the channels of a voxel are neighbours in memory.
        """
        one = (1,) * len(size)
        padding = tuple(k // 2 for k in kernel)
        shapes = (1, channels, *size), (channels, channels, *kernel)
        return cls(*shapes, one, padding, one, 1, dtype, channels_last)

    @property
    def before(self) -> tuple[int, ...]:
        """Padding before the first voxel along each spatial axis."""
        if isinstance(self.padding, tuple):
            return self.padding
        return tuple(d * (k - 1) // 2 for d, k in zip(self.dilation, self.kernel[2:], strict=True))

    @property
    def output_size(self) -> tuple[int, ...]:
        """Voxels of the output along each spatial axis."""
        if not isinstance(self.padding, tuple):
            return self.image[2:]
        axes = zip(
            self.image[2:], self.kernel[2:], self.stride, self.padding, self.dilation, strict=True
        )
        return tuple((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in axes)

    @property
    def work(self) -> int:
        """Number of multiplications that the convolution needs."""
        return self.image[0] * prod(self.output_size) * prod(self.kernel)

    def tolerance(self) -> float:
        """Return the largest error that rounding can cause, relative to the largest exact value.

        The result is 4 u + K / 2^24, where u is the unit roundoff of the dtype, and K is the number
        of products that are added for a voxel. The first term allows for four roundings to the
        dtype: of the image, of the kernel, of a partial sum, and of the result. (The image and the
        kernel are rounded by algorithms that transform them first, such as Winograd.) The second
        term allows for K additions in float32. A wrong sum has a relative error of about 1.
        """
        return _ROUNDINGS * _UNIT[self.dtype] + prod(self.kernel[1:]) * 2.0**-24

    @property
    def every(self) -> int:
        """Step between the output channels that are checked; 1 means that all are checked."""
        return -(-self.kernel[0] // self.groups // _CHANNELS)

    def cropped(self, work: int) -> Convolution:
        """Return this convolution for a smaller image, to limit the multiplications to *work*.

        The batch is reduced to one image, then the longest axis is halved repeatedly. An axis is
        not halved if the kernel would no longer fit. The returned convolution can therefore need
        more than *work* multiplications.
        """
        smaller = self
        while smaller.work > work:
            if smaller.image[0] > 1:
                smaller = replace(smaller, image=(1, *smaller.image[1:]))
                continue
            least = [d * (k - 1) + 1 for d, k in zip(self.dilation, self.kernel[2:], strict=True)]
            size = list(smaller.image[2:])
            free = [axis for axis, number in enumerate(size) if number // 2 >= least[axis]]
            if not free:
                break
            size[max(free, key=size.__getitem__)] //= 2
            smaller = replace(smaller, image=(*smaller.image[:2], *size))
        return smaller

    def __str__(self) -> str:
        """Return size, channels, precision and layout, for a message."""
        kernel, size = ("x".join(map(str, axes)) for axes in (self.kernel[2:], self.image[2:]))
        layout = ", channels last" if self.channels_last else ""
        dtype = str(self.dtype).removeprefix("torch.")
        channels = f"{self.image[1]} to {self.kernel[0]} channels"
        return f"{kernel} convolution from {channels} on {size} voxels ({dtype}{layout})"


class SeenConvolutions(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the convolutions inside the ``with`` block, except transposed convolutions.

    Attributes:
        largest: for each pair (kernel size, dtype), the convolution with most multiplications.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.largest: dict[Any, Convolution] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # If this were true, PyTorch would import its compiler, which takes a second.
        return False

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        name = str(getattr(func, "overloadpacket", func)).rpartition(".")[2]
        if name in _KINDS:
            named = {each.name: each.default_value for each in func._schema.arguments}
            named |= dict(zip(named, args, strict=False)) | (kwargs or {})
            self._note(named)
        return func(*args, **(kwargs or {}))

    def _note(self, named: dict[str, Any]) -> None:
        image, kernel = named["input"], named["weight"]
        axes = kernel.ndim - 2
        if image.ndim != kernel.ndim or axes not in (2, 3) or named.get("transposed"):
            return
        padding = named["padding"]
        seen = Convolution(
            tuple(image.shape),
            tuple(kernel.shape),
            _each(named["stride"], axes),
            "same" if padding == "same" else _each(0 if padding == "valid" else padding, axes),
            _each(named["dilation"], axes),
            named["groups"],
            image.dtype,
            any(
                each.is_contiguous(memory_format=_layout(axes)) and not each.is_contiguous()
                for each in (image, kernel)
            ),
        )
        if seen.dtype not in _UNIT or min(seen.image) < 1:
            return
        key = (seen.kernel[2:], seen.dtype)
        if key not in self.largest or seen.work > self.largest[key].work:
            self.largest[key] = seen


_right: set[tuple[Convolution, torch.device, bool]] = set()


def check_convolutions(
    convolutions: Iterable[Convolution], device: torch.device, *, tf32: bool = False
) -> None:
    """Compute convolutions on a device and compare the results with exact results.

    Convolutions that this process has already checked on the device are not computed again. Call
    this function inside `compute_profile.cuda_switches`, because the CUDA settings decide which
    algorithms compute the convolutions.

    Args:
        convolutions: convolutions to compute. If *device* is the CPU, images are made smaller.
        device: device to check.
        tf32: whether the settings of the process let CUDA multiply float32 as TF32.

    Raises:
        WrongArithmeticError: the error of a convolution is larger than its `tolerance`.
    """
    for each in convolutions:
        convolution = each.cropped(_CPU_WORK) if device.type == "cpu" else each
        key = (convolution, device, tf32)
        if key in _right:
            continue
        error, tolerance = error_within_memory(convolution, device), convolution.tolerance()
        logger.debug("%s: error %.2g of at most %.2g", convolution, error, tolerance)
        if not error <= tolerance:  # also NaN
            raise WrongArithmeticError(
                wrong_convolution(describe_device(device), convolution, error)
                + f"; {remedy_for(convolution.dtype, device, tf32=tf32)}"
            )
        _right.add(key)


def wrong_convolution(device: str, convolution: Convolution, error: float) -> str:
    """Return a sentence that names a wrongly computed convolution and its error.

    The sentence also contains the versions of the libraries.

    Args:
        device: name of the device.
        convolution: convolution that the device computed wrongly.
        error: error of the convolution, as `error_of` returns it.
    """
    return (
        f"{device} computes wrong values with {describe_libraries()}: a {convolution} has a "
        f"relative error of {error:.2g}, but rounding explains at most "
        f"{convolution.tolerance():.2g}"
    )


def remedy_for(dtype: torch.dtype, device: torch.device, *, tf32: bool = False) -> str:
    """Return the advice for a user whose device computes wrong values in *dtype*."""
    another = "install another version of PyTorch"
    if device.type == "cuda":
        another += ", which brings another cuDNN"
    if dtype is not torch.float32:
        return f"{another}, or use --dtype float32"
    if tf32:
        return f"{another}, or leave --tf32 out"
    return f"{another}, or use another --device"


def describe_libraries() -> str:
    """Return the versions of PyTorch and, with CUDA, of cuDNN, such as ``PyTorch 2.9.0``."""
    cudnn_version: Callable[[], int | None] = torch.backends.cudnn.version
    number = cudnn_version() if torch.version.cuda else None
    text = f"PyTorch {torch.__version__}"
    return text if number is None else f"{text} and cuDNN {describe_cudnn(number)}"


def describe_cudnn(number: int) -> str:
    """Return a version of cuDNN as people write it: 91002 as ``9.10.2``, 8902 as ``8.9.2``."""
    major, rest = divmod(number, 10000 if number >= 90000 else 1000)
    return f"{major}.{rest // 100}.{rest % 100}"


@torch.inference_mode()
def error_of(convolution: Convolution, device: torch.device) -> float:
    """Return the relative error of a convolution that a device computes.

    Returns:
        The largest absolute difference between the computed and the exact result at a sample of
        voxels, divided by the largest absolute exact value at these voxels. NaN if the device
        returns NaN.
    """
    generator = torch.Generator(device).manual_seed(0)
    layout = _layout(len(convolution.stride))
    if not convolution.channels_last:
        layout = torch.contiguous_format
    image, kernel = (
        torch.empty(shape, dtype=convolution.dtype, device=device, memory_format=layout)
        .random_(-_STEPS, _STEPS + 1, generator=generator)
        .div_(_STEPS)
        for shape in (convolution.image, convolution.kernel)
    )
    convolve: Any = getattr(torch.nn.functional, f"conv{len(convolution.stride)}d")
    with torch.autocast(device.type, enabled=False):
        output = convolve(
            image,
            kernel,
            None,
            convolution.stride,
            convolution.padding,
            convolution.dilation,
            convolution.groups,
        )
    if corrupts("convolution"):
        output[..., -1].neg_()
    places = _places(convolution)
    index = [axis.to(device) for axis in places]
    result = output[(index[0], slice(None), *index[1:])].cpu().double()
    result = result.reshape(len(result), convolution.groups, -1)[:, :, :: convolution.every]
    expected = _expected(convolution, image, kernel, places)
    return float((result - expected).abs().max() / expected.abs().max())


def error_within_memory(convolution: Convolution, device: torch.device) -> float:
    """Return the relative error of a convolution, or of a smaller one if memory is too small.

    The error is that of `error_of`. If *convolution* does not fit into the memory of *device*, the
    image is made smaller with `Convolution.cropped` until the convolution fits.

    Raises:
        torch.OutOfMemoryError: not even the smallest image fits.
    """
    while True:
        try:
            return error_of(convolution, device)
        except torch.OutOfMemoryError:
            smaller = convolution.cropped(convolution.work // 2)
            if smaller == convolution:
                raise
            convolution = smaller


def _places(convolution: Convolution) -> list[torch.Tensor]:
    # Positions along the batch axis and each spatial axis.
    sizes = (convolution.image[0], *convolution.output_size)
    fewest, most = _PLACES
    number = min(most, max(fewest, _CPU_WORK * convolution.every // prod(convolution.kernel)))
    generator = torch.Generator().manual_seed(1)
    corners = torch.tensor(list(product(*((0, size - 1) for size in sizes))))
    others = [torch.randint(size, (number,), generator=generator) for size in sizes]
    return [torch.cat([corners[:, axis], other]) for axis, other in enumerate(others)]


def _expected(
    convolution: Convolution, image: torch.Tensor, kernel: torch.Tensor, places: list[torch.Tensor]
) -> torch.Tensor:
    # Axes of the result: (place, group, channel).
    axes = len(convolution.stride)
    inside = torch.ones((1,) * (axes + 1), dtype=torch.bool)
    index: list[Any] = [places[0].view(-1, *(1,) * axes), slice(None)]
    for axis in range(axes):
        taps = torch.arange(convolution.kernel[2 + axis]) * convolution.dilation[axis]
        first = places[1 + axis] * convolution.stride[axis] - convolution.before[axis]
        position = (first[:, None] + taps).view(
            -1, *(len(taps) if other == axis else 1 for other in range(axes))
        )
        size = convolution.image[2 + axis]
        inside = inside & (position >= 0) & (position < size)
        index.append(position.clamp(0, size - 1))
    index = [each if isinstance(each, slice) else each.to(image.device) for each in index]
    patches = image[tuple(index)].cpu().double() * inside[..., None]  # (place, taps…, channels)
    groups, out = convolution.groups, convolution.kernel[0]
    # (place, tap, group, channel) and (group, channel out, channel, tap)
    inputs = patches.reshape(len(patches), -1, groups, convolution.image[1] // groups)
    kernels = kernel.reshape(groups, out // groups, convolution.kernel[1], -1)
    kernels = kernels[:, :: convolution.every]
    return torch.einsum("ptgc,goct->pgo", inputs, kernels.cpu().double())


def _layout(axes: int) -> torch.memory_format:
    return torch.channels_last_3d if axes == 3 else torch.channels_last


def _each(value: Any, axes: int) -> tuple[int, ...]:
    values = tuple(value) if isinstance(value, (list, tuple)) else (int(value),)
    return values * axes if len(values) == 1 else values
