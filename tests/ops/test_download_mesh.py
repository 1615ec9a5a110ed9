"""download-mesh: objects as PLY and OBJ, from what is stored."""

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from chunkflow_py.cli.main import cli
from chunkflow_py.core.chunk import Chunk
from chunkflow_py.ops.download_mesh import download_mesh
from chunkflow_py.ops.mesh import mesh
from chunkflow_py.ops.save_h5 import save_h5
from chunkflow_py.segmentation.labels.object_folder import ObjectFolder
from chunkflow_py.segmentation.mesh_files import Mesh, welded


def run(line: str):
    """Run a line and return click's result."""
    return CliRunner().invoke(cli, ["--quiet", *line.split()])


def labels() -> Chunk:
    """Return three objects of 100, 300 and 50 voxels."""
    array = np.zeros((10, 10, 20), np.uint32)
    array[0:1, :, 0:10], array[2:5, :, 5:15], array[8, :5, 2:12] = 5, 17, 2
    return Chunk(array, (4, 4, 4), (30, 8, 8), "segmentation")


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    """Store the meshes of seg.h5, in eight tasks, in the folder seg."""
    monkeypatch.chdir(tmp_path)
    save_h5(labels(), "seg.h5")
    line = (
        "generate-tasks --roi-start 4 4 4 --roi-size 10 10 20 -c 5 5 10 load-h5 -f seg.h5 "
        "--expand-margin-size auto mesh -o seg -f 0"
    )
    assert run(line).exit_code == 0
    assert run("mesh-manifest -v seg").exit_code == 0


def test_fragments_become_one_surface():
    """The mesh of an object in many tasks is that of the whole; from Python and as a file."""
    for label, whole in mesh(labels(), simplification_factor=0).items():
        found = download_mesh("seg", label)
        expected = welded([whole])
        assert np.array_equal(found.vertices, expected.vertices)
        assert np.array_equal(found.faces, expected.faces)
    assert run("download-mesh -v seg -i 5,17 -o out/part_ -f obj").exit_code == 0
    assert sorted(p.name for p in Path("out").iterdir()) == ["part_17.obj", "part_5.obj"]
    text = Path("out/part_5.obj").read_text()
    assert text.count("\nv ") + 1 == len(download_mesh("seg", 5).vertices)


@pytest.mark.parametrize(
    ("front", "options", "names"),
    [
        ("", "-i 5,17,2 -s 1", ["17", "2"]),
        ("", "-i ids.txt -p 2", ["2", "5"]),
        ("load-h5 -f seg.h5 ", "-i chunk -p 2", ["17", "5"]),
        ("load-h5 -f seg.h5 ", "-i chunk -s 2", ["2"]),
    ],
)
def test_ranks_are_of_the_list(front, options, names):
    """Ids as they are written, or objects of a chunk by their size, and a part of these."""
    Path("ids.txt").write_text("5, 2\n17\n")
    Path("out").mkdir()
    assert run(f"{front}download-mesh -v seg -o out {options}").exit_code == 0
    assert sorted(path.stem for path in Path("out").iterdir()) == names


def test_other_formats_are_read_by_cloud_volume(tmp_path):
    """Levels of detail without the fragments they were made of: the finest level is saved."""
    ObjectFolder("vol").update(
        "info",
        lambda _: {
            "@type": "neuroglancer_multiscale_volume", "type": "segmentation", "num_channels": 1,
            "data_type": "uint32", "mesh": "seg_multires", "scales": [
                {"key": "8_8_30", "size": [9, 9, 9], "resolution": [8, 8, 30],
                 "voxel_offset": [0, 0, 0], "chunk_sizes": [[9, 9, 9]], "encoding": "raw"}],
        },
    )  # fmt: skip
    assert run("mesh-manifest -v seg --multires").exit_code == 0
    Path("seg_multires").rename("vol/seg_multires")
    found, expected = download_mesh(f"file://{tmp_path}/vol", 17), download_mesh("seg", 17)
    assert len(found.faces) == len(expected.faces)
    assert np.allclose(found.vertices.max(0), expected.vertices.max(0), atol=0.01)


def test_what_is_not_there_is_told():
    """An id without a mesh, and an input that is no list of ids."""
    result = run("download-mesh -v seg -i 99")
    assert result.exit_code == 1
    assert "has no mesh of object 99; check the id, or run mesh-manifest" in result.stderr
    result = run("download-mesh -v seg -i objects.txt")
    assert "--input 'objects.txt' is neither a list of ids" in result.stderr
    name = json.loads(Path("seg/17:0").read_text())["fragments"][0]
    Path(f"seg/{name}.gz").unlink()
    assert f"{name} does not exist" in run("download-mesh -v seg -i 17").stderr


TRIANGLE_OF_9 = b"\1\0\0\0" + bytes(12) + bytes([9, 0, 0, 0] * 3)


@pytest.mark.parametrize("data", [b"", b"\1\0\0\0", TRIANGLE_OF_9])
def test_damaged_fragments_are_told(data):
    """Fragments are data: lengths and indices are looked at before they are used."""
    with pytest.raises(OSError, match="fragment x .*damaged"):
        Mesh.decoded(data, "fragment x")
