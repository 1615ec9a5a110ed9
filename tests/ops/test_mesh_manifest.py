"""mesh-manifest: lists of fragments, by prefixes of ids, here and as a stage of a run."""

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from chunkflow_py.cli.main import cli
from chunkflow_py.core.chunk import Chunk
from chunkflow_py.ops.mesh import mesh
from chunkflow_py.ops.mesh_manifest import mesh_manifest
from chunkflow_py.ops.save_h5 import save_h5
from chunkflow_py.segmentation.labels.object_folder import ObjectFolder

IDS = (1, 7, 12, 70, 120, 700, 7012, 99999999999)
BOXES = ("0-8_0-8_0-8", "0-8_0-8_8-16", "8-16_0-8_0-8")


def run(line: str):
    """Run a line and return click's result."""
    return CliRunner().invoke(cli, ["--quiet", *line.split()])


def fragments(url: str) -> dict[str, bytes]:
    """Write fragments of many objects (and files that are none), and return their manifests."""
    folder = ObjectFolder(url)
    names = [f"{label}:0:{box}" for label in IDS for box in BOXES[: 1 + label % 3]]
    folder.put([(name, name.encode()) for name in reversed(names)])
    folder.put([("7:0", b"old"), ("x:0:1-2_3-4_5-6", b"")], compress=False)
    of = {label: [n for n in names if n.startswith(f"{label}:")] for label in IDS}
    return {f"{label}:0": {"fragments": sorted(each)} for label, each in of.items()}


@pytest.mark.parametrize("digits", [1, 2, 3])
@pytest.mark.parametrize("where", ["memory", "folder"])
def test_each_object_has_its_manifest_in_one_task(digits, where, tmp_path):
    """Prefixes share the objects out, none twice, ids of fewer digits than the prefix included."""
    url = str(tmp_path) if where == "folder" else f"mem://manifests{digits}"
    expected = fragments(url)
    tasks = mesh_manifest(url, digits)
    assert len(tasks) == 10**digits
    written = [Path(s.url).name for task in tasks for s in tasks.work(task).written]
    assert sorted(written) == sorted(expected)
    found = ObjectFolder(url)
    assert {name: found.read_json(name) for name in expected} == expected


def test_one_prefix(tmp_path, monkeypatch):
    """--prefix and disBatch do one task; a number of more digits is refused with what to change."""
    expected = fragments(str(tmp_path))
    (tmp_path / "7:0").unlink()
    assert run(f"mesh-manifest -v {tmp_path} -p 12 -d 2").exit_code == 0
    there = {path.name for path in tmp_path.iterdir()} & set(expected)
    assert there == {"12:0", "120:0"}
    monkeypatch.setenv("DISBATCH_REPEAT_INDEX", "7")
    assert run(f"mesh-manifest -v {tmp_path} --disbatch -d 2").exit_code == 0
    assert {path.name for path in tmp_path.iterdir()} & set(expected) == {"12:0", "120:0", "7:0"}
    for options, words in (
        ("-p 12", "prefix 12 has more digits than --digits 1; give --digits 2"),
        ("-p 1 --disbatch", "both select a task"),
    ):
        result = run(f"mesh-manifest -v {tmp_path} {options}")
        assert result.exit_code == 2
        assert words in " ".join(result.stderr.split())


def test_a_volume_without_meshes_is_told(tmp_path):
    """The sentence says what makes the folder."""
    (tmp_path / "info").write_text(json.dumps({"scales": []}))
    result = run(f"mesh-manifest -v {tmp_path}")
    assert result.exit_code == 1
    assert "names no mesh folder; run mesh first" in result.stderr


def balls() -> Chunk:
    """Return two overlapping balls of different labels, large enough for three levels of detail."""
    z, y, x = np.ogrid[:72, :96, :96]
    array = np.zeros((72, 96, 96), np.uint32)
    array[(z - 36) ** 2 + (y - 48) ** 2 + (x - 40) ** 2 < 35**2] = 3
    array[(z - 30) ** 2 + (y - 50) ** 2 + (x - 70) ** 2 < 20**2] = 12
    return Chunk(array, (100, 200, 300), (20, 10, 10), "segmentation")


def test_a_run_of_two_stages(tmp_path, monkeypatch):
    """mesh, then mesh-manifest, by workers; levels of detail; cloud-volume reads all of it."""
    monkeypatch.chdir(tmp_path)
    save_h5(balls(), "seg.h5")
    line = "save-precomputed -v seg --create --block-size 36 96 96"
    assert run(f"load-h5 -f seg.h5 {line} --encoding compressed_segmentation").exit_code == 0
    result = run(
        "submit --run m.run generate-tasks -v seg -c 36 96 96 "
        "load-precomputed -v seg --expand-margin-size auto mesh -o seg -f 0 "
        "then mesh-manifest -v seg"
    )
    assert result.exit_code == 0, result.output
    result = run("work m.run --threads 1")
    assert result.exit_code == 0, result.output
    result = run("verify m.run")
    assert result.exit_code == 0, result.output
    mesh_names = {path.name for path in Path("seg/mesh_mip_0_err_40").iterdir()}
    assert {"3:0", "12:0", "3:0:300-396_200-296_100-136.gz"} < mesh_names
    assert run("mesh-manifest -v seg --multires").exit_code == 0
    info = json.loads(Path("seg/info").read_text())
    assert info["mesh"] == "mesh_mip_0_err_40_multires"
    _check_levels(tmp_path)
    assert run("mesh-manifest -v seg").exit_code == 0  # of the fragments, as before


def _check_levels(folder):
    """What cloud-volume reads of each level is the surface; cells are where the format wants."""
    from cloudvolume import CloudVolume

    source = CloudVolume(f"file://{folder}/seg", progress=False).mesh
    expected = mesh(balls(), simplification_factor=0)
    for label, one in expected.items():
        manifest = source.get_manifest(label)
        assert manifest.num_lods == (2 if label == 3 else 1)
        for lod in range(manifest.num_lods):
            cells = [tuple(cell) for cell in manifest.fragment_positions[lod]]
            assert len(set(cells)) == len(cells)
            assert max(max(cell) for cell in cells) < 2 ** (manifest.num_lods - 1 - lod)
            found = source.get(label, lod=lod)[label]
            # half a step of 16 bits in the finest cell; coarser levels move by about a voxel
            allowed = 0.02 if lod == 0 else 10
            assert np.allclose(found.vertices.min(0), one.vertices.min(0), atol=allowed)
            assert np.allclose(found.vertices.max(0), one.vertices.max(0), atol=allowed)
            assert _area(found) == pytest.approx(_area(one), rel=1e-4 if lod == 0 else 0.05)


def _area(mesh):
    a, b, c = np.asarray(mesh.vertices, float)[np.asarray(mesh.faces).T]
    return np.linalg.norm(np.cross(b - a, c - a), axis=1).sum() / 2


def test_a_place_without_fragments(tmp_path, monkeypatch):
    """A misspelled path is an error and makes no folder; a prefix without objects is none."""
    monkeypatch.chdir(tmp_path)
    told = run("mesh-manifest -v misspelled")
    assert told.exit_code == 1
    assert "misspelled has no fragments made by mesh; check the URL" in told.stderr
    assert not Path("misspelled").exists()
    ObjectFolder("meshes").put([(f"7:0:{BOXES[0]}", b"")])
    assert run("mesh-manifest -v meshes").exit_code == 0
    assert "7:0" in ObjectFolder("meshes").names()


@pytest.mark.aws
def test_a_bucket(s3, tmp_path, monkeypatch):
    """Fragments, manifests and files in a bucket: the same names, without endings."""
    monkeypatch.chdir(tmp_path)
    array = np.zeros((8, 8, 8), np.uint8)
    array[2:6, 2:6, 2:6] = 70
    save_h5(Chunk(array, voxel_size_nm=(8, 8, 8)), "seg.h5")
    tasks = "generate-tasks --roi-size 8 8 8 -c 4 8 8 load-h5 -f seg.h5 --expand-margin-size auto"
    assert run(f"{tasks} mesh -o {s3.url}/mesh -f 0").exit_code == 0
    assert run(f"mesh-manifest -v {s3.url}/mesh -p 70 -d 2").exit_code == 0
    assert ObjectFolder(f"{s3.url}/mesh").names() == [
        "70:0", "70:0:0-8_0-8_0-4", "70:0:0-8_0-8_4-8", "info",
    ]  # fmt: skip
    assert run(f"download-mesh -v {s3.url}/mesh -i 70 -o {s3.url}/ply/").exit_code == 0
    data = ObjectFolder(f"{s3.url}/ply").get("70.ply")
    assert data is not None
    assert data.startswith(b"ply\n")
    assert ObjectFolder(f"{s3.url}/ply").names() == ["70.ply"]
