"""load-skeleton: SWC files and precomputed folders, moved if asked."""

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from chunkflow_py.cli.main import cli
from chunkflow_py.core.skeleton import Skeleton
from chunkflow_py.errors import VolumeError
from chunkflow_py.ops.load_skeleton import load_skeleton
from chunkflow_py.ops.save_swc import save_swc
from chunkflow_py.segmentation.labels.object_folder import ObjectFolder

LINE = Skeleton.of([(1, 2, 3), (4, 5, 6)], [(0, 1)], [7, 8], [2, 2])


def run(line: str):
    """Run a line and return click's result."""
    return CliRunner().invoke(cli, ["--quiet", *line.split()])


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save_swc({5: LINE, 2**50: LINE}, "swc/cell_")


def precomputed(url: str, **more) -> None:
    """Write a folder of skeletons, and a volume that names it."""
    folder = ObjectFolder(f"{url}/skeletons")
    folder.describe({"@type": "neuroglancer_skeletons", **more})
    folder.put([("7", LINE.to_precomputed()), ("7:0-1_0-1_0-1", b"a fragment")])
    ObjectFolder(url).update("info", lambda _: {"scales": [], "skeletons": "skeletons"})


def test_a_file_a_folder_and_a_volume():
    """Each gives id -> skeleton; so does a store that is no folder."""
    assert list(load_skeleton("swc/cell_5.swc")) == [5]
    assert list(load_skeleton("swc")) == [5, 2**50]
    for url in ("vol", "mem://skeletons/vol"):
        precomputed(url, vertex_attributes=[
            {"id": "radius", "data_type": "float32", "num_components": 1},
            {"id": "vertex_types", "data_type": "uint8", "num_components": 1},
        ])  # fmt: skip
        (found,) = load_skeleton(url).values()
        assert np.array_equal(found.vertices_nm, LINE.vertices_nm)
        assert np.array_equal(found.radii_nm, LINE.radii_nm)


def test_the_transform_of_the_info_is_applied():
    """Stored coordinates become nanometres: here voxels of 4, 8 and 40 nm, xyz, and a shift."""
    attributes = [
        {"id": "radius", "data_type": "float32", "num_components": 1},
        {"id": "vertex_types", "data_type": "uint8", "num_components": 1},
    ]
    transform = [4, 0, 0, 100, 0, 8, 0, 0, 0, 0, 40, 0]
    precomputed("vol", transform=transform, vertex_attributes=attributes)
    (found,) = load_skeleton("vol").values()
    assert found.vertices_nm.tolist() == [[40, 16, 112], [160, 40, 124]]


@pytest.mark.parametrize(
    "transform",
    [None, 7, {}, [], "identity", [1, 0, 0], [1e300] * 12, [10**30] * 12, [float("nan")] * 12,
     [True] * 12, [[1]] * 12, ["1"] * 12, [1] * 10**5],
)  # fmt: skip
def test_a_transform_that_is_no_matrix_is_refused(transform):
    """One sentence of limited length, whatever a stranger writes into the info file."""
    precomputed("vol", transform=transform)
    with pytest.raises(VolumeError, match="not a list of twelve numbers") as refused:
        load_skeleton("vol")
    assert len(str(refused.value)) < 400


@pytest.mark.parametrize(
    "options", ["--offset 10 20 -30.5", "-t 1 2 -3 -s 10 10 10.166666666666666"]
)
def test_coordinates_are_moved(options):
    """By nanometres, or by voxels of a size."""
    line = f"load-skeleton -p swc/cell_5.swc -o moved {options} save-swc -i moved -p out_"
    assert run(line).exit_code == 0, run(line).output
    (found,) = load_skeleton("out_5.swc").values()
    assert np.allclose(found.vertices_nm, [(11, 22, -27.5), (14, 25, -24.5)])


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        ("-p skeletons.mb", 1, "is a MapBuffer file of igneous"),
        ("-p nothing.swc", 1, "nothing.swc does not exist"),
        ("-p empty", 1, "has neither .swc files"),
        ("-p mesh", 1, "neuroglancer_legacy_mesh, but only skeletons"),
        ("-p twice", 1, "is a second file of object 3"),
        ("-p swc -t 1 2 3", 2, "give --voxel-size"),
        ("-p swc -t 1 2 3 --offset 1 2 3 -s 1 1 1", 2, "give only one"),
    ],
)
def test_what_cannot_be_loaded_is_told(options, code, words):
    """One sentence with what to change."""
    Path("empty").mkdir()
    Path("mesh").mkdir()
    Path("mesh/info").write_text(json.dumps({"@type": "neuroglancer_legacy_mesh"}))
    save_swc({3: LINE}, "twice/a")
    save_swc({3: LINE}, "twice/b")
    result = run(f"load-skeleton {options}")
    assert result.exit_code == code
    assert words in " ".join(result.stderr.split())
    assert "Traceback" not in result.stderr
