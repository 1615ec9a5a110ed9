"""How far float32 sums may be from float64."""

from math import prod


def rounding(grid):
    """Return the relative error to allow: 1e-6, or what rounding makes of many patches.

    A sum of n positive float32 values is within n · 2^-24 of the exact one; n is the largest number
    of patches on a voxel, and reaches 1e-6 at 16, twice that of patches that overlap by half.
    """
    sizes = zip(grid.starts, grid.geometry.output_patch_size)
    most = prod(
        max(sum(start <= voxel < start + size for start in starts) for voxel in starts)
        for starts, size in sizes
    )
    return max(1e-6, most * 2**-24)
