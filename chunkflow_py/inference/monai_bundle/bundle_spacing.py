"""The resampling that the transform `Spacing` of a MONAI bundle describes.

```
image      7 voxels of 2 mm     0   1   2   3   4   5   6      centres of the voxels
network    5 voxels of 3 mm     0     1     2     3     4      round(6 · 2 / 3 + 1) = 5
```

The centres of the first voxels of both grids coincide. In the network's grid, neighbouring centres
are one voxel size of the network apart. Along an axis that `Orientation` has flipped before, the
centres of the last voxels coincide instead. The image is interpolated linearly and not smoothed,
and the voxels at its bounds are repeated. `Spacing` of MONAI 1.6 does the same with its default
options.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from chunkflow_py.core.geometry import BoundingBox, Scale, Zyx
from chunkflow_py.core.resampling import NetworkGrid, Resampling

if TYPE_CHECKING:
    from chunkflow_py.core.resampling import Method
    from chunkflow_py.inference.monai_bundle.bundle_config import ConfigField

_METHODS: dict[object, Method] = {None: "hat", "bilinear": "hat", "nearest": "nearest"}
# Options of `Spacing` that are supported only with these values.
_SUPPORTED = {
    "padding_mode": (None, "border"),
    "diagonal": (None, False),
    "scale_extent": (None, False),
    "recompute_affine": (None, False),
    "min_pixdim": (None,),
    "max_pixdim": (None,),
}
_SAME_NM = 1000  # MONAI keeps a voxel size that differs by at most 1e-3 mm
_SAME = 1e-3  # MONAI keeps an image whose ratio of voxel sizes differs from 1 by at most this
_LARGEST_DENOMINATOR = 100_000  # rounds the ratio by at most 1e-10


@dataclass(frozen=True)
class BundleSpacing:
    """Computes the grid of voxels to which an image is resampled for the network of a bundle.

    Attributes:
        voxel_size_nm: voxel size of the network, nanometres, zyx; ``None`` along an axis that is
            not resampled.
        flipped: for each axis, zyx, whether the directions of the network's axis and of the image's
            axis are opposite.
        method: method to interpolate the image.
        output_method: method to interpolate the output of the network.
    """

    voxel_size_nm: tuple[float | None, float | None, float | None]
    flipped: tuple[bool, bool, bool] = (False, False, False)
    method: Method = "hat"
    output_method: Method = "hat"

    def __call__(self, domain: BoundingBox, size_nm: tuple[float, float, float]) -> NetworkGrid:
        """Return the grid of voxels to which an image is resampled for the network.

        Args:
            domain: bounds of the image, in voxels of the image.
            size_nm: voxel size of the image, nanometres, zyx.
        """
        factors = [
            Fraction(1)
            if want is None or abs(want - have) <= _SAME_NM
            else (Fraction(repr(want)) / Fraction(repr(have))).limit_denominator(
                _LARGEST_DENOMINATOR
            )
            for want, have in zip(self.voxel_size_nm, size_nm, strict=True)
        ]
        # round() rounds half to even, as MONAI does.
        shape = [
            round((count - 1) / factor + 1)
            for count, factor in zip(domain.size, factors, strict=True)
        ]
        if all(abs(factor - 1) <= _SAME for factor in factors) and tuple(shape) == domain.size:
            factors = [Fraction(1)] * 3
        scale = Scale.of(factors)
        first = scale.coarser(domain).start
        half = Fraction(1, 2)
        origin: list[Fraction] = []
        for axis, factor in enumerate(factors):
            aligned, image = first[axis], domain.start[axis]
            if self.flipped[axis]:
                aligned, image = aligned + shape[axis] - 1, domain.stop[axis] - 1
            # The centres of network voxel *aligned* and image voxel *image* coincide.
            origin.append(image + half - (aligned + half) * factor)
        z, y, x = origin
        resampling = Resampling(scale, self.method, (z, y, x))
        network = BoundingBox.from_size(first, Zyx.of(shape))
        return NetworkGrid(resampling, (self.output_method,) * 3, network)


def image_method(here: ConfigField) -> Method:
    """Return the method by which the transform `Spacing` in the field *here* interpolates.

    Raises:
        ModelError: an option of the transform is not supported.
    """
    remedy = "leave --resample out and load an image with the voxel size of the network"
    for key, values in _SUPPORTED.items():
        if _of_image(here, key).value not in values:
            here[key].refuse(f"--resample does not support this option; remove it, or {remedy}")
    mode = _of_image(here, "mode").value
    if not isinstance(mode, str | None) or mode not in _METHODS:
        here["mode"].refuse(f"--resample supports only bilinear and nearest; {remedy}")
    return _METHODS[mode]


def _of_image(here: ConfigField, key: str) -> ConfigField:
    # An option can be a list with one item for each of `keys`, such as image and label.
    found, keys = here[key], here["keys"].names()
    if not isinstance(found.value, list) or len(found.value) != len(keys):
        return found
    return found[next((i for i, name in enumerate(keys) if name != "label"), 0)]
