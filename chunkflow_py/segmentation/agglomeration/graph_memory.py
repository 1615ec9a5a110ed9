"""Expected memory for the graph of a box, before the graph exists.

The number of contacts depends on the cells and on the affinities. These are measurements of the
FIB-25 volume (affinities of the shipped network, --fragments distance, --max-threshold 0.95), whose
boxes of 13 x 32 x 32 to 100 x 250 x 250 voxels have 0.18 * voxels ** 0.75 contacts, within 30 %:
the larger a box is, the smaller is the part of its regions that is open. Affinities that are
repeated to a larger volume, so that cells end at every seam, have 1.6 to 2.3 times as many
(`make bench-segment`).
"""

from __future__ import annotations

_CONTACTS = 0.18  # contacts of a box / voxels ** _GROWTH
_GROWTH = 0.75
_CONTACT_BYTES = 350  # measured peak of `merge_box`
_MERGES = 1.2e-3  # merges of all levels together, for each voxel
_INTERVAL = 0.1  # part of the merges in the fullest interval of means, see `hierarchy_store`
_MERGE_BYTES = 150  # peak of sorting an interval: its rows, its columns and the order


def graph_bytes(voxels: int) -> int:
    """Return the expected peak of memory for merging the regions of a box of *voxels*."""
    return int(_CONTACTS * float(voxels) ** _GROWTH * _CONTACT_BYTES)


def hierarchy_bytes(voxels: int) -> int:
    """Return the expected peak of memory for writing the hierarchy of a volume of *voxels*."""
    return int(_MERGES * voxels * _INTERVAL * _MERGE_BYTES)
