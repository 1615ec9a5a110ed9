"""Resample an image to the voxel size of an nnU-Net plan, and the logits back to the image.

```
image      37 voxels of 1 mm      |-|-|-|-|-|-|-|- …
network    25 voxels of 1.48 mm   |--|--|--|--|-- …       plan: 1.5 mm; round(37 · 1 / 1.5) = 25
```

The number of voxels is rounded, so the ratio of the voxel sizes is 37 / 25, not 1.5. The image is
normalised first, and then interpolated by cubic splines. Logits are interpolated linearly. Neither
the image nor the logits are smoothed. If voxels are much longer along one axis than along the
others, each slice perpendicular to this axis is resampled in 2D. Along this axis, no values are
interpolated: the nearest slice is used. The function `resample_data_or_seg_to_shape` of nnU-Net 2.8
does the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from chunkflow_py.core.geometry import Scale
from chunkflow_py.core.resampling import NetworkGrid, Resampling
from chunkflow_py.errors import ModelError, OptionError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from chunkflow_py.core.geometry import BoundingBox
    from chunkflow_py.core.resampling import Method

_FUNCTION = "resample_data_or_seg_to_shape"
_METHODS: dict[Any, Method] = {0: "nearest", 1: "hat", 3: "spline"}  # by order of the spline
_ANISOTROPY = 3  # ratio of edges above which sections are resampled separately
_LARGEST = 32  # ratio of voxel sizes above which one of them is certainly wrong


@dataclass(frozen=True)
class PlanResampling:
    """The resampling that a plan describes.

    Attributes:
        path: path of the model, for messages.
        voxel_size_nm: voxel size of the training images, nanometres, zyx; ``None`` along an axis
            that is not resampled.
        entries: the configuration in ``plans.json``, which names resampling functions and
            the orders of splines.
    """

    path: str = field(compare=False)
    voxel_size_nm: tuple[float | None, float | None, float | None]
    entries: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, domain: BoundingBox, size_nm: tuple[float, float, float]) -> NetworkGrid:
        """Return the grid of voxels to which an image is resampled for the network.

        Args:
            domain: box to process, in voxels of the image. The first resampled voxel begins at the
                corner of this box.
            size_nm: voxel size of the image, nanometres, zyx.

        Raises:
            OptionError: the voxel sizes of image and plan differ by more than a factor of 32.
            ModelError: the plan names a resampling method that is not supported.
        """
        pairs = zip(self.voxel_size_nm, size_nm, strict=True)
        wanted = [own if size is None else size for size, own in pairs]
        for want, have in zip(wanted, size_nm, strict=True):
            if not 1 / _LARGEST <= want / have <= _LARGEST:
                msg = (
                    f"the voxel size of the image, {_text(size_nm)} nm, and the voxel size of the "
                    f"training images of model {self.path}, {_text(wanted)} nm (zyx), differ by "
                    f"more than a factor of {_LARGEST} along an axis; give the voxel size of the "
                    "image with --voxel-size"
                )
                raise OptionError(msg)
        rows = zip(domain.size, size_nm, wanted, strict=True)
        shape = tuple(max(1, round(have / want * count)) for count, have, want in rows)
        there: tuple[Method, Method, Method] = ("nearest", "nearest", "nearest")
        back = there
        if shape != domain.size:
            there = self._methods("data", size_nm, wanted)
            back = self._methods("probabilities", wanted, size_nm)
        scale = Scale.of(Fraction(a, b) for a, b in zip(domain.size, shape, strict=True))
        resampling = Resampling.at_corner(scale, domain, there)
        return NetworkGrid(resampling, back, resampling.output_box(domain))

    def _methods(
        self, what: str, have: Sequence[float], want: Sequence[float]
    ) -> tuple[Method, Method, Method]:
        # *what* is ``data`` (the image) or ``probabilities`` (the logits).
        name = self.entries.get(f"resampling_fn_{what}")
        options = self.entries.get(f"resampling_fn_{what}_kwargs")
        remedy = f"resample the image to {_text(self.voxel_size_nm)} nm before inference"
        if name != _FUNCTION or not isinstance(options, dict):
            msg = (
                f"model {self.path} resamples {what} with {name}, but only {_FUNCTION} is "
                f"supported; {remedy}"
            )
            raise ModelError(msg)
        axis = _separate_axis(options.get("force_separate_z", False), have, want)
        orders = [options.get("order", 3)] * 3
        if axis is not None:
            orders[axis] = options.get("order_z", 0)
        for order in orders:
            if order not in _METHODS:
                msg = (
                    f"model {self.path} resamples {what} by splines of order {order}, but only "
                    f"the orders {', '.join(map(str, _METHODS))} are supported; {remedy}"
                )
                raise ModelError(msg)
        z, y, x = (_METHODS[order] for order in orders)
        return z, y, x


def _separate_axis(force: Any, have: Sequence[float], want: Sequence[float]) -> int | None:
    # The axis along which voxels are much longer, if there is one.
    if force is True or (force is None and max(have) / min(have) > _ANISOTROPY):
        spacing = have
    elif force is None and max(want) / min(want) > _ANISOTROPY:
        spacing = want
    else:
        return None
    longest = [axis for axis in range(3) if spacing[axis] == max(spacing)]
    return longest[0] if len(longest) == 1 else None


def _text(size_nm: Sequence[float | None]) -> str:
    return " ".join("any" if nm is None else f"{nm:g}" for nm in size_nm)
