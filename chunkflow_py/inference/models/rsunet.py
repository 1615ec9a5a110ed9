"""RSUNet: the residual symmetric 3D U-Net of Lee et al. 2017.

K. Lee, J. Zung, P. Li, V. Jain, H. S. Seung: Superhuman accuracy on the SNEMI3D connectomics
challenge. arXiv:1706.00120. The network predicts affinities between neighbouring voxels (channels
x, y, z) in images of serial-section electron microscopy. In these images, a section is much thicker
than a pixel is wide.
"""

from __future__ import annotations

import re
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from torch import nn
from torch.nn import functional

from chunkflow_py.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Triple = tuple[int, int, int]
Norm = Literal["batch", "instance", "none"]

WIDTHS = (28, 36, 48, 64, 80)
# Limits for constructor arguments that come from a weight file.
WIDEST, DEEPEST, LARGEST_KERNEL = 4096, 16, 63

VARIANTS: dict[str, dict[str, Any]] = {
    "": {"pooling": (1, 2, 2), "embedding": (1, 5, 5)},
    "isotropic": {"pooling": (2, 2, 2), "embedding": (5, 5, 5)},
}


class RSUNet(nn.Module):
    """The residual symmetric U-Net.

    ```
    image                                                                      affinities
      | embedding 1x5x5, 28                          embedding 1x5x5, 28; 1x1x1; sigmoid |
      R 28 ------------------------------- + ------------------------------------> R 28
        | pool 1x2x2                                                up 1x2x2 |
        R 36 ----------------------------- + ------------------------> R 36
          | pool 1x2x2                                    up 1x2x2 |
          R 48 --------------------------- + ------------> R 48
            | pool 1x2x2                        up 1x2x2 |
            R 64 ------------------------- + --> R 64
              | pool 1x2x2            up 1x2x2 |
              +-------------> R 80 ------------+

    R:  x = act(norm(conv x));  y = conv(act(norm(conv x)));  act(norm(x + y))     conv: 3x3x3
    ```

    R is a residual block. The numbers 28 to 80 are numbers of feature maps, and 1x5x5 is the size
    of a kernel. "norm" is a normalisation layer, "act" is the activation function ELU, and "up"
    enlarges the feature maps.

    - Skip connections are summed, not concatenated, so encoder and decoder have equally many
      feature maps at each resolution.
    - The default is for thick sections: pooling and the first and last convolution work only in
      the plane of y and x. The variant ``isotropic`` has pooling (2, 2, 2) and embedding (5, 5, 5).
    - Upsampling is linear, followed by a 1x1x1 convolution, because a transposed convolution would
      cause a checkerboard pattern.
    - BatchNorm uses stored statistics in evaluation mode, so the value of a voxel depends only on
      the voxels around it. InstanceNorm uses statistics of the whole patch, so the values of
      overlapping patches differ.

    All convolutions are padded with zeros: the output has the size of the input.

    Attributes:
        divisor: three numbers of voxels, zyx. Patch sizes must be multiples of these numbers. If
            the input is shifted by multiples of these numbers, the output is shifted by the same
            number of voxels.
    """

    def __init__(
        self,
        in_channels: int = 1,
        out_channels: int = 3,
        widths: Sequence[int] = WIDTHS,
        *,
        pooling: Triple = (1, 2, 2),
        embedding: Triple = (1, 5, 5),
        norm: Norm = "batch",
        sigmoid: bool = True,
    ) -> None:
        """Create the network with random weights.

        Args:
            in_channels: number of channels of the image.
            out_channels: number of channels of the output; 3 for affinities x, y, z.
            widths: number of feature maps at each resolution, finest first.
            pooling: factors, zyx, by which the voxel size grows from one resolution to the next.
            embedding: kernel size of the first and the last convolution, voxels, zyx; odd numbers.
            norm: kind of normalisation layers: ``batch``, ``instance`` or ``none``.
            sigmoid: apply a sigmoid at the end; if false, the network returns logits.
        """
        super().__init__()
        self.pooling: Triple = (pooling[0], pooling[1], pooling[2])
        depth = len(widths) - 1
        self.divisor: Triple = (pooling[0] ** depth, pooling[1] ** depth, pooling[2] ** depth)
        self.sigmoid = sigmoid
        self.embed_in = _Conv(in_channels, widths[0], embedding, norm)
        self.down = nn.ModuleList(
            _Residual(a, b, norm) for a, b in zip((widths[0], *widths[:-1]), widths, strict=True)
        )
        self.project = nn.ModuleList(nn.Conv3d(b, a, 1) for a, b in pairwise(widths))
        self.up = nn.ModuleList(_Residual(width, width, norm) for width in widths[:-1])
        self.embed_out = _Conv(widths[0], widths[0], embedding, norm)
        self.head = nn.Conv3d(widths[0], out_channels, 1)
        # Unit gain and halved residual branches keep the scale of the maps from layer to layer,
        # even before BatchNorm has statistics: an untrained network is well conditioned.
        for name, module in self.named_modules():
            if isinstance(module, nn.Conv3d):
                nn.init.kaiming_normal_(module.weight, nonlinearity="linear")
                if name.endswith("conv3"):
                    with torch.no_grad():
                        module.weight.mul_(0.5)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Map (n, in_channels, z, y, x) to (n, out_channels, z, y, x) of the same size.

        Raises:
            ValueError: a size is not a multiple of `divisor`.
        """
        if any(s % d for s, d in zip(image.shape[-3:], self.divisor, strict=True)):
            msg = (
                f"patch size {tuple(image.shape[-3:])} is not a multiple of {self.divisor} (zyx, "
                f"voxels); the nearest multiple is {self._nearest(image.shape[-3:])}"
            )
            raise ValueError(msg)
        maps = self.embed_in(image)
        skips = []
        for level, module in enumerate(self.down):
            if level:
                skips.append(maps)
                maps = functional.max_pool3d(maps, self.pooling)
            maps = module(maps)
        factor = [float(f) for f in self.pooling]
        for level in reversed(range(len(self.up))):
            # A 1x1x1 convolution and linear upsampling commute; the small map is cheaper.
            maps = self.project[level](maps)
            maps = functional.interpolate(
                maps, scale_factor=factor, mode="trilinear", align_corners=False
            )
            maps = self.up[level](maps.add_(skips.pop()))
        maps = self.head(self.embed_out(maps))
        return torch.sigmoid(maps) if self.sigmoid else maps

    def _nearest(self, size: Sequence[int]) -> Triple:
        z, y, x = (max(1, round(s / d)) * d for s, d in zip(size, self.divisor, strict=True))
        return z, y, x


class _Conv(nn.Module):
    """Convolution, normalisation, ELU."""

    def __init__(self, cin: int, cout: int, kernel: Triple, norm: Norm) -> None:
        super().__init__()
        padding = (kernel[0] // 2, kernel[1] // 2, kernel[2] // 2)
        self.conv = nn.Conv3d(cin, cout, kernel, padding=padding, bias=norm == "none")
        self.norm = _norm(norm, cout)

    def forward(self, maps: torch.Tensor) -> torch.Tensor:
        return functional.elu(self.norm(self.conv(maps)), inplace=True)


class _Residual(nn.Module):
    """One module R of the diagram in `RSUNet`."""

    def __init__(self, cin: int, cout: int, norm: Norm) -> None:
        super().__init__()
        self.conv1 = _Conv(cin, cout, (3, 3, 3), norm)
        self.conv2 = _Conv(cout, cout, (3, 3, 3), norm)
        self.conv3 = nn.Conv3d(cout, cout, 3, padding=1, bias=norm == "none")
        self.norm = _norm(norm, cout)

    def forward(self, maps: torch.Tensor) -> torch.Tensor:
        maps = self.conv1(maps)
        more = self.conv3(self.conv2(maps))
        return functional.elu(self.norm(more.add_(maps)), inplace=True)


def _norm(norm: Norm, width: int) -> nn.Module:
    if norm == "batch":
        return nn.BatchNorm3d(width)
    return nn.InstanceNorm3d(width, affine=True) if norm == "instance" else nn.Identity()


# --- by name, for --convnet-model rsunet --------------------------------------------------------


def create(
    variant: str,
    num_input_channels: int,
    num_output_channels: int,
    state: Mapping[str, torch.Tensor] | None,
    config: Mapping[str, Any],
) -> RSUNet:
    """Return the network in evaluation mode; see `chunkflow_py.inference.models.create_model`.

    Raises:
        ModelError: the numbers of channels in *state* are not the requested ones, or *config* is
            invalid.
    """
    settings: dict[str, Any] = {
        "in_channels": num_input_channels,
        "out_channels": num_output_channels,
    }
    settings |= VARIANTS[variant]
    if state is not None:
        settings |= inferred(state)
    settings |= config
    try:
        _check(settings)
        if state is not None:
            _check_size(settings, state)
    except ValueError as error:
        raise _unfit(settings, error) from error
    for key, option, asked in (
        ("in_channels", "--num-input-channels", num_input_channels),
        ("out_channels", "--num-output-channels", num_output_channels),
    ):
        if settings[key] != asked:
            msg = (
                f"the weights belong to an RSUNet with {key} {settings[key]}, but {option} is "
                f"{asked}; use {option} {settings[key]}"
            )
            raise ModelError(msg)
    # The same weights each time, without changing PyTorch's global random state.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        try:
            return RSUNet(**settings).eval()
        except (TypeError, ValueError, RuntimeError) as error:
            raise _unfit(settings, error) from error


def _unfit(settings: Mapping[str, Any], error: Exception) -> ModelError:
    given = str(settings)[:400]
    msg = (
        f"cannot create an RSUNet with the arguments {given}: {error}; check the entry config of "
        "the weight file"
    )
    return ModelError(msg)


def _check(settings: Mapping[str, Any]) -> None:
    one = settings.get("in_channels"), settings.get("out_channels")
    widths, norm = settings.get("widths", WIDTHS), settings.get("norm", "batch")
    pooling, embedding = settings.get("pooling"), settings.get("embedding")
    arguments: tuple[tuple[str, Any, tuple[int, int], int], ...] = (
        ("in_channels and out_channels", one, (2, 2), WIDEST),
        ("widths", widths, (1, DEEPEST), WIDEST),
        ("pooling", pooling, (3, 3), LARGEST_KERNEL),
        ("embedding", embedding, (3, 3), LARGEST_KERNEL),
    )
    for name, values, (least, longest), most in arguments:
        is_list = isinstance(values, tuple | list) and least <= len(values) <= longest
        if not is_list or not all(type(each) is int and 1 <= each <= most for each in values):
            number = longest if least == longest else f"{least} to {longest}"
            msg = f"{name} must be {number} integers from 1 to {most}"
            raise ValueError(msg)
    if norm not in get_args(Norm) or type(settings.get("sigmoid", True)) is not bool:
        msg = f"norm must be one of {', '.join(get_args(Norm))}, and sigmoid must be true or false"
        raise ValueError(msg)


def _check_size(settings: dict[str, Any], state: Mapping[str, torch.Tensor]) -> None:
    # A file with too few weights is refused before memory for the network is allocated.
    widths = tuple(settings.get("widths", WIDTHS))
    kernel = prod(settings["embedding"])
    wanted = kernel * widths[0] * (settings["in_channels"] + widths[0])
    wanted += sum(
        27 * b * (a + 2 * b) for a, b in zip((widths[0], *widths[:-1]), widths, strict=True)
    )
    wanted += sum(a * (b + 27 * 3 * a) for a, b in pairwise(widths))
    wanted += widths[0] * settings["out_channels"]
    there = sum(each.numel() for each in state.values())
    if wanted > there:
        msg = (
            f"the convolutions of the network need {wanted} weights, but the weight file contains "
            f"only {there}"
        )
        raise ValueError(msg)


def inferred(state: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """Return the constructor arguments of the RSUNet to which the weights in *state* belong.

    The result does not contain the pooling, because weights do not depend on the pooling.

    Raises:
        ModelError: *state* does not belong to an RSUNet.
    """
    levels = sorted(
        (int(match[1]), value.shape[0])
        for key, value in state.items()
        if (match := re.fullmatch(r"down\.([0-9]+)\.conv3\.weight", key))
    )
    first, last = state.get("embed_in.conv.weight"), state.get("head.weight")
    if not levels or first is None or last is None or first.ndim != 5:
        keys = ", ".join(list(state)[:3])
        msg = (
            f"the weights, with the first keys {keys}, do not belong to an RSUNet; give the Python "
            "file of the network as --convnet-model"
        )
        raise ModelError(msg)
    norm = "batch" if "embed_in.norm.running_mean" in state else "instance"
    return {
        "in_channels": first.shape[1],
        "out_channels": last.shape[0],
        "widths": tuple(width for _, width in levels),
        "norm": norm if "embed_in.norm.weight" in state else "none",
    }
