"""Print what other readers of OME-Zarr find: run in an environment of its own, with their packages.

Usage: python read_ome_zarr.py ome-zarr|napari FOLDER OUT.npz
"""

import contextlib
import io
import json
import sys
from pathlib import Path

import numpy as np


def by_ome_zarr(path):
    """Return layers as ome-zarr-py reads them: name, axes, transformations, channels, levels."""
    from ome_zarr.io import parse_url
    from ome_zarr.reader import Reader

    for node in Reader(parse_url(path))():
        if not node.data:  # the group of labels
            continue
        about = {
            "name": Path(node.zarr.basename()).name,
            "axes": node.metadata["axes"],
            "steps": node.metadata["coordinateTransformations"],
            "channels": node.metadata.get("channel_names"),
        }
        yield about, node.data


def by_napari(path):
    """Return layers as napari's reader does: kind, scale, units, names, levels."""
    from napari_ome_zarr._reader import napari_get_reader

    with contextlib.redirect_stdout(io.StringIO()):  # it prints what it reads
        layers = napari_get_reader(path)(path)
    for data, about, kind in layers:
        yield (
            {
                "kind": kind,
                "name": about.get("name"),
                "scale": list(about["scale"]),
                "labels": about.get("axis_labels"),
                "units": about.get("units"),
                "channel_axis": about.get("channel_axis"),
            },
            data,
        )


def main(reader, path, out):
    """Read *path*; write the voxels to *out* and print the rest."""
    layers = list({"ome-zarr": by_ome_zarr, "napari": by_napari}[reader](path))
    voxels = {
        f"{i}_{level}": np.asarray(array)
        for i, (_, data) in enumerate(layers)
        for level, array in enumerate(data)
    }
    np.savez(out, **voxels)
    sys.stdout.write(json.dumps([about for about, _ in layers]) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
