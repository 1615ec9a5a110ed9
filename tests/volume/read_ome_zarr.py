"""Print what other readers of OME-Zarr find: run in an environment of its own, with their packages.

Usage: python read_ome_zarr.py ome-zarr|napari|ngff-zarr FOLDER OUT.npz
       python read_ome_zarr.py write-ngff-zarr FOLDER IN.npz

The last form writes an image of OME-Zarr 0.6 with the voxels ``image`` of a file.
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


def by_ngff_zarr(path):
    """Return the layer that ngff-zarr reads, after it has validated version 0.6 by its schemas."""
    from ngff_zarr import from_ngff_zarr

    image = from_ngff_zarr(path, version="0.6", validate=True)
    about = {
        "axes": [axis.name for axis in image.metadata.coordinateSystems[0].axes],
        "units": image.images[0].axes_units,
        "channels": [channel.label for channel in image.metadata.omero.channels],
        "scale": [level.scale for level in image.images],
        "translation": [level.translation for level in image.images],
    }
    yield about, [level.data for level in image.images]


def write_by_ngff_zarr(path, voxels):
    """Write an image with two levels, 40 × 4.5 × 4 µm, that begins at 80, -9, 8 µm."""
    from ngff_zarr import to_multiscales, to_ngff_image, to_ngff_zarr

    image = to_ngff_image(
        voxels,
        dims=["z", "y", "x"],
        scale={"z": 40.0, "y": 4.5, "x": 4.0},
        translation={"z": 80.0, "y": -9.0, "x": 8.0},
        axes_units=dict.fromkeys("zyx", "micrometer"),
    )
    levels = to_multiscales(image, [2])
    to_ngff_zarr(path, levels, version="0.6")


def main(reader, path, out):
    """Read *path*; write the voxels to *out* and print the rest."""
    if reader == "write-ngff-zarr":
        write_by_ngff_zarr(path, np.load(out)["image"])
        return
    readers = {"ome-zarr": by_ome_zarr, "napari": by_napari, "ngff-zarr": by_ngff_zarr}
    layers = list(readers[reader](path))
    voxels = {
        f"{i}_{level}": np.asarray(array)
        for i, (_, data) in enumerate(layers)
        for level, array in enumerate(data)
    }
    np.savez(out, **voxels)
    sys.stdout.write(json.dumps([about for about, _ in layers]) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
