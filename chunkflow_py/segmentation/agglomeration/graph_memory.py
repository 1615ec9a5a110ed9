"""Estimate the memory for merging the regions of a box, before contacts of regions are counted.

The number of contacts (pairs of touching regions) depends on the imaged cells and the affinities.
The constants were measured on the FIB-25 volume, with the affinities of the shipped network,
--fragments distance and --max-threshold 0.95. In this volume, boxes of 13 x 32 x 32 to
100 x 250 x 250 voxels have 0.18 * voxels ** 0.75 contacts, within 30 %. The exponent is below 1
because a larger box has a smaller share of regions that continue outside of the box.

`make bench-segment` fills a larger volume with copies of these affinities. Cells end where two
copies meet, so a box of that volume has 1.6 to 2.3 times as many contacts as the formula gives.
"""

from __future__ import annotations

_CONTACTS = 0.18  # contacts of a box / voxels ** _GROWTH
_GROWTH = 0.75
_CONTACT_BYTES = 350  # measured peak of `merge_box`
_MERGES = 1.2e-3  # merges of all levels together, for each voxel
_INTERVAL = 0.1  # part of the merges in the fullest interval of means, see `hierarchy_store`
_MERGE_BYTES = 150  # peak of sorting an interval: its rows, its columns and the order


def graph_bytes(voxels: int) -> int:
    """Return the expected peak memory, in bytes, for merging the regions of a box.

    Args:
        voxels: number of voxels of the box.
    """
    return int(_CONTACTS * float(voxels) ** _GROWTH * _CONTACT_BYTES)


def hierarchy_bytes(voxels: int) -> int:
    """Return the expected peak memory, in bytes, for writing the hierarchy of a volume.

    The hierarchy is the sorted table of all merges of regions.

    Args:
        voxels: number of voxels of the volume.
    """
    return int(_MERGES * voxels * _INTERVAL * _MERGE_BYTES)
