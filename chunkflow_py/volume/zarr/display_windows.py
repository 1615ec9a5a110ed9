"""Compute from the voxels the contrast windows with which viewers display OME-Zarr images.

A window reaches from the 0.1th to the 99.9th percentile of a sample of the coarsest level. Example
for a uint16 image whose voxels use only a few of the possible values:

```
|  [------]                        |      [---] window
0  start  end                  65535      values of voxels
```
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from chunkflow_py.core.decoding import parse_json
from chunkflow_py.store import open_store
from chunkflow_py.volume import open_volume
from chunkflow_py.volume.location import Location
from chunkflow_py.volume.sample import sample_of
from chunkflow_py.volume.zarr.ome_metadata import fitted_channels, ome_of
from chunkflow_py.volume.zarr.zarr_metadata import GroupNode, damage, read_node

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chunkflow_py.volume.protocol import VolumeOptions

PERCENTILES = (0.1, 99.9)


def fit_windows(url: str, opening: VolumeOptions, colors: Sequence[str] = ()) -> None:
    """Compute contrast windows from the voxels; store them in the metadata of an OME-Zarr image.

    A window is replaced only if it still has the range that `create_volume` has written. Plain
    arrays, segmentations, probabilities and affinities are left unchanged. If the metadata do not
    state what the voxels mean, volumes with integers of more than 16 bits are also left unchanged,
    because such voxels usually are labels.

    Args:
        url: address of the volume; all its levels must have been written.
        opening: options for reading and writing the volume.
        colors: colour of each channel, six hexadecimal digits each, or empty for default colours.

    Raises:
        VolumeError: the voxels cannot be read, or the metadata cannot be written.
    """
    place = Location.parse(url)
    store = open_store(place.store_url, opening.access)
    node = read_node(store)
    volume = open_volume(url, opening=opening)
    labels = volume.kind is None and volume.dtype.kind in "iu" and volume.dtype.itemsize > 2
    if not isinstance(node, GroupNode) or volume.kind not in ("image", None) or labels:
        return
    unknown = [{"min": 0.0, "max": 0.0, "start": 0.0, "end": 0.0}] * (volume.channels or 1)
    if fitted_channels(ome_of(node.attributes), volume, unknown, colors) is None:
        return
    coarsest = open_volume(url, max(volume.mips), opening=opening)
    windows = [_window(values) for values in sample_of(coarsest)]

    def change(old: bytes | None) -> bytes:
        with damage(url, node.key):
            document: Any = parse_json(old or b"{}")
            attributes = document if node.key == ".zattrs" else document["attributes"]
            ome: Any = ome_of(attributes)
            channels = fitted_channels(ome, volume, windows, colors)
        if channels is None:
            return old or b""
        ome["omero"] = {**ome.get("omero", {}), "channels": channels}
        return json.dumps(document, indent=2).encode()

    store.update(node.key, change)


def _window(values: np.ndarray[Any, Any]) -> dict[str, Any]:
    """Return the window for the values of a channel."""
    values = values[np.isfinite(values)] if values.dtype.kind == "f" else values
    if not values.size:
        return {"min": 0.0, "max": 1.0, "start": 0.0, "end": 1.0}
    low, high = values.min().item(), values.max().item()
    start, end = np.percentile(values, PERCENTILES, method="nearest").astype(values.dtype).tolist()
    if start == end:
        start, end = low, high
    if values.dtype.itemsize == 1 and values.dtype.kind in "iu":
        low, high = np.iinfo(values.dtype).min, np.iinfo(values.dtype).max
    if start == end:  # all voxels are equal
        end = start + 1
    return {"min": min(low, start), "max": max(high, end), "start": start, "end": end}
