"""A voxel size that nothing says is 1 nm, and a warning says so, once a line and loader."""

import h5py
import mrcfile
import numpy as np
import pytest
import tifffile
import zarr
from click.testing import CliRunner
from PIL import Image

from chunkflow_py.cli import catalog
from chunkflow_py.cli.main import cli

ARRAY = np.arange(2 * 4 * 5, dtype=np.uint8).reshape(2, 4, 5)


def _hdf5(path):
    with h5py.File(path, "w") as file:
        file["main"] = ARRAY


def _mrc(path):
    with mrcfile.new(path) as file:
        file.set_data(ARRAY)


def _png(path):
    path.mkdir()
    for z, section in enumerate(ARRAY):
        Image.fromarray(section).save(path / f"{z:05d}.png")


def _nrrd(path):
    head = "NRRD0004\ntype: uint8\ndimension: 3\nsizes: 5 4 2\nencoding: raw\n\n"
    path.write_bytes(head.encode() + ARRAY.tobytes())


def _n5(path):
    folder = path / "0" / "0"
    folder.mkdir(parents=True)
    (path / "attributes.json").write_text(
        '{"dimensions": [5, 4, 2], "blockSize": [5, 4, 2], "dataType": "uint8", '
        '"compression": {"type": "raw"}}'
    )


LOADERS = {
    "load-h5": ("a.h5", "-f", "-x", _hdf5),
    "load-mrc": ("a.mrc", "-f", "-s", _mrc),
    "load-n5": ("a.n5", "-f", None, _n5),
    "load-npy": ("a.npy", "-f", "-s", lambda path: np.save(path, ARRAY)),
    "load-nrrd": ("a.nrrd", "-f", "-s", _nrrd),
    "load-png": ("pngs", "-p", "-x", _png),
    "load-tif": ("a.tif", "-f", "-s", lambda path: tifffile.imwrite(path, ARRAY)),
    "load-volume": ("a.h5", "-v", None, _hdf5),
    "load-zarr": ("a.zarr", "--store", None, lambda path: zarr.save_array(str(path), ARRAY)),
}
# Whose formats always say a size, or that load no voxels.
OTHERS = {
    "load-annotations", "load-json", "load-precomputed", "load-skeleton", "load-synapses",
    "load-tensorstore",
}  # fmt: skip


def test_every_loader_is_tried():
    """A new loader says in this file whether its format always says a voxel size."""
    assert {name for name in catalog.names() if name.startswith("load-")} == set(LOADERS) | OTHERS


@pytest.mark.parametrize("name", LOADERS)
def test_an_assumed_size_is_warned_of(tmp_path, monkeypatch, name):
    """Once for two tasks; not where --voxel-size says it, though it be 1 nm."""
    monkeypatch.chdir(tmp_path)
    path, option, size, make = LOADERS[name]
    make(tmp_path / path)
    line = f"generate-tasks --roi-size 2 4 5 -c 1 4 5 {name} {option} {path}"
    result = CliRunner().invoke(cli, line.split())
    assert result.exit_code == 0, result.output
    assert result.output.count("has no voxel size, so 1 1 1 nm is assumed") == 1
    if size is not None:
        result = CliRunner().invoke(cli, [*line.split(), size, "1", "1", "1"])
        assert result.exit_code == 0, result.output
        assert "assumed" not in result.output
