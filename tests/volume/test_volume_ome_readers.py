"""OME-Zarr of ours, read by ome-zarr-py and by napari's reader, in an environment of their own."""

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rigs.variants import gate_runs

from chunkflow_py.core.chunk import Chunk
from chunkflow_py.core.geometry import BoundingBox, Zyx
from chunkflow_py.volume import create_volume, open_volume
from chunkflow_py.volume.protocol import VolumeSpec

FOLDER = os.environ.get("CHUNKFLOW_TEST_READERS", Path(__file__).parents[2] / ".rigs" / "readers")
PYTHON = Path(FOLDER) / "bin" / "python"
SCRIPT = Path(__file__).with_name("read_ome_zarr.py")

pytestmark = pytest.mark.skipif(
    not PYTHON.is_file(), reason=f"{PYTHON} is missing; make rigs makes it"
)

BOUNDS = BoundingBox(Zyx(-3, 7, 101), Zyx(18, 40, 134))
SPEC = VolumeSpec(BOUNDS, (40.0, 4.5, 4.0), np.dtype("u2"), 2, "image", Zyx(8, 16, 16), max_mip=1)
LABELS = replace(SPEC, kind="segmentation", channels=None, dtype=np.dtype("u4"), max_mip=0)
KINDS = {
    "0.4": {"scheme": "zarr2"},
    "0.5": {"scheme": "zarr"},
    "sharded": {"scheme": "zarr", "shard_size": Zyx(16, 32, 32)},
}


def read(reader, path, tmp_path):
    """Return what *reader* finds: a description and the voxels of the levels, a layer each."""
    out = tmp_path / "out.npz"
    run = [PYTHON, SCRIPT, reader, path, out]
    done = subprocess.run(run, check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    found = np.load(out)
    layers = json.loads(done.stdout.splitlines()[-1])
    return [
        (about, [found[name] for name in found.files if name.startswith(f"{number}_")])
        for number, about in enumerate(layers)
    ]


@pytest.fixture(params=gate_runs(KINDS, "0.5"))
def image(request, tmp_path):
    """Return path and voxels of an image with two levels and labels."""
    more = dict(KINDS[request.param])
    url = f"{more.pop('scheme')}://{tmp_path}/em"
    volume = create_volume(replace(SPEC, **more), url, channel_names=("DAPI", "GFP"))
    rng = np.random.default_rng(0)
    voxels = rng.integers(0, 9999, (2, *BOUNDS.size)).astype("u2")
    volume.write(Chunk(voxels, BOUNDS.start))
    cells = rng.integers(0, 9, BOUNDS.size).astype("u4")
    create_volume(replace(LABELS, **more), f"{url}/labels/cells").write(Chunk(cells, BOUNDS.start))
    return str(tmp_path / "em"), voxels, cells


def test_ome_zarr_py(image, tmp_path):
    """ome-zarr-py finds axes, units, scale, translation, channels, levels, labels and voxels."""
    path, voxels, cells = image
    layers = {about["name"]: (about, levels) for about, levels in read("ome-zarr", path, tmp_path)}
    about, levels = layers["em"]
    assert [axis["name"] for axis in about["axes"]] == ["c", "z", "y", "x"]
    assert [axis.get("unit") for axis in about["axes"]] == [None] + ["nanometer"] * 3
    assert about["channels"] == ["DAPI", "GFP"]
    assert about["steps"] == [
        [
            {"type": "scale", "scale": [1, 40, 4.5, 4]},
            {"type": "translation", "translation": [0, -120, 31.5, 404]},
        ],
        [
            {"type": "scale", "scale": [1, 80, 9, 8]},
            {"type": "translation", "translation": [0, -140, 29.25, 402]},
        ],
    ]
    np.testing.assert_array_equal(levels[0], voxels)
    assert levels[1].shape == (2, 11, 17, 17)
    about, levels = layers["cells"]
    assert [axis["name"] for axis in about["axes"]] == ["z", "y", "x"]
    np.testing.assert_array_equal(levels[0], cells)


def test_napari(image, tmp_path):
    """The reader of napari finds both layers with scale, units, channels, levels and voxels.

    It takes the first transformation of a level only, which is the scale.
    """
    path, voxels, cells = image
    (about, levels), (labels, label_levels) = read("napari", path, tmp_path)
    assert (about["kind"], about["channel_axis"]) == ("image", 0)
    assert about["name"] == ["em: DAPI", "em: GFP"]
    assert about["scale"] == [40, 4.5, 4]
    assert about["labels"] == ["z", "y", "x"]
    assert about["units"] == ["nanometer"] * 3
    np.testing.assert_array_equal(levels[0], voxels)
    assert levels[1].shape == (2, 11, 17, 17)
    assert (labels["kind"], labels["scale"]) == ("labels", [40, 4.5, 4])
    np.testing.assert_array_equal(label_levels[0], cells)


def test_ngff_zarr(tmp_path):
    """ngff-zarr validates our OME-Zarr 0.6, and finds axes, units, positions, names and voxels."""
    volume = create_volume(
        SPEC, f"zarr://{tmp_path}/em", channel_names=("DAPI", "GFP"), ome_version="0.6"
    )
    voxels = np.random.default_rng(0).integers(0, 9999, (2, *BOUNDS.size)).astype("u2")
    volume.write(Chunk(voxels, BOUNDS.start))
    ((about, levels),) = read("ngff-zarr", str(tmp_path / "em"), tmp_path)
    assert about["axes"] == ["c", "z", "y", "x"]
    assert about["units"] == {"c": None, **dict.fromkeys("zyx", "nanometer")}
    assert about["channels"] == ["DAPI", "GFP"]
    assert about["scale"][0] == {"c": 1, "z": 40, "y": 4.5, "x": 4}
    assert about["translation"][0] == {"c": 0, "z": -120, "y": 31.5, "x": 404}
    assert about["translation"][1] == {"c": 0, "z": -140, "y": 29.25, "x": 402}
    np.testing.assert_array_equal(levels[0], voxels)
    assert levels[1].shape == (2, 11, 17, 17)


def test_written_by_ngff_zarr(tmp_path):
    """An OME-Zarr 0.6 of ngff-zarr is read with its positions, levels and voxels."""
    voxels = np.random.default_rng(0).integers(0, 9999, (8, 20, 30)).astype("u2")
    np.savez(tmp_path / "in.npz", image=voxels)
    path = tmp_path / "theirs.ome.zarr"
    run = [PYTHON, SCRIPT, "write-ngff-zarr", path, tmp_path / "in.npz"]
    done = subprocess.run(run, check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert json.loads((path / "zarr.json").read_text())["attributes"]["ome"]["version"] == "0.6"
    volume = open_volume(str(path))
    assert volume.voxel_size_nm == (40000, 4500, 4000)
    assert volume.bounds == BoundingBox.from_size(Zyx(2, -2, 2), Zyx(8, 20, 30))
    np.testing.assert_array_equal(volume.read(volume.bounds), voxels)
    coarse = open_volume(str(path), 1)
    assert (coarse.voxel_size_nm, coarse.bounds.size) == ((80000, 9000, 8000), (4, 10, 15))
