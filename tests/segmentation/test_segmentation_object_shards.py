"""Shards of meshes and skeletons: what cloud-volume reads, for any division into tasks."""

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from chunkflow_py.cli.main import cli
from chunkflow_py.core.chunk import Chunk
from chunkflow_py.core.skeleton import Skeleton
from chunkflow_py.ops.load_skeleton import load_skeleton
from chunkflow_py.ops.mesh_manifest import mesh_manifest
from chunkflow_py.ops.save_h5 import save_h5
from chunkflow_py.segmentation.labels.object_folder import ObjectFolder
from chunkflow_py.segmentation.mesh_files import welded
from chunkflow_py.segmentation.mesh_folder import MeshReader, legacy_folder, read_fragments
from chunkflow_py.segmentation.skeletonize import SkeletonAggregator

LARGEST = 2**64 - 1


def run(line: str):
    """Run a line and return click's result."""
    return CliRunner().invoke(cli, ["--quiet", *line.split()])


def ok(line: str):
    """Run a line that succeeds."""
    result = run(line)
    assert result.exit_code == 0, result.output


@pytest.fixture(autouse=True)
def _labels(tmp_path, monkeypatch):
    """Store a volume with a large ball and a hundred small boxes, some of them with large ids."""
    monkeypatch.chdir(tmp_path)
    z, y, x = np.ogrid[:48, :64, :64]
    array = np.zeros((48, 64, 64), np.uint64)
    for label in range(100):
        low = np.array(np.unravel_index(label, (5, 5, 4))) * (9, 12, 15) + 1
        array[tuple(slice(a, a + 6) for a in low)] = label + 1 if label % 3 else LARGEST - label
    array[(z - 24) ** 2 + (y - 32) ** 2 + (x - 30) ** 2 < 21**2] = 3
    save_h5(Chunk(array, (100, 200, 300), (20, 10, 10), "segmentation"), "seg.h5")
    ok("load-h5 -f seg.h5 save-precomputed -v seg --create --block-size 12 16 16")


def meshes(size: str, volume="seg"):
    """Store the fragments of meshes, by tasks of a size."""
    ok(
        f"generate-tasks -v {volume} -c {size} load-precomputed -v {volume} "
        f"--expand-margin-size auto mesh -o {volume} -f 0 -e 0"
    )


def contents(folder):
    """Return the files of a folder, name -> bytes."""
    return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def test_cloud_volume_reads_the_meshes_of_the_labels(monkeypatch):
    """Each level is that of the unsharded meshes; the finest is the surface to half a step."""
    from cloudvolume import CloudVolume

    from chunkflow_py.segmentation import mesh_files

    monkeypatch.setattr(mesh_files, "_CELL_FACES", 2000)  # three levels for the ball
    meshes("24 64 32")
    fragments = legacy_folder("seg")
    names = {}
    for name in fragments.names():
        names.setdefault(name.split(":")[0], []).append(name)
    labels = sorted(int(label) for label in names if label != "info")
    assert labels[-1] == LARGEST
    ok("mesh-manifest -v seg --multires")
    ok("mesh-manifest -v seg --shards 4")
    assert sorted(contents("seg/mesh_mip_0_err_0_sharded")) == [
        "0.shard", "1.shard", "2.shard", "3.shard", "info",
    ]  # fmt: skip
    sharded = CloudVolume(f"file://{Path.cwd()}/seg", progress=False).mesh
    assert "sharding" in sharded.meta.info
    plain = CloudVolume(f"file://{Path.cwd()}/seg", mesh_dir="mesh_mip_0_err_0_multires").mesh
    for label in labels:
        levels = sharded.get_manifest(label).num_lods
        assert levels == (3 if label == 3 else 1)
        for lod in range(levels):
            one, other = sharded.get(label, lod=lod)[label], plain.get(label, lod=lod)[label]
            assert np.array_equal(one.vertices, other.vertices)
            assert np.array_equal(one.faces, other.faces)
        surface = welded(read_fragments(fragments, names[str(label)])).vertices
        found = sharded.get(label)[label].vertices
        step = np.ptp(surface, axis=0) / (2**16 - 1)  # at least that of a cell
        near = np.abs(surface[:, None] - found[None, :400]).max(axis=2).min(axis=1)
        if label != 3:
            assert near.max() <= step.max() + 0.01
        assert np.allclose(found.min(axis=0), surface.min(axis=0), atol=0.01)
        assert np.allclose(found.max(axis=0), surface.max(axis=0), atol=0.01)
        assert len(MeshReader("seg").read(label).faces)


def test_the_shards_do_not_depend_on_the_tasks_of_the_meshes():
    """Tasks of other sizes, and shards in any order, give the same bytes."""
    meshes("24 64 32")
    ok("mesh-manifest -v seg --shards 8")
    first = contents("seg/mesh_mip_0_err_0_sharded")
    shutil.rmtree("seg/mesh_mip_0_err_0")
    shutil.rmtree("seg/mesh_mip_0_err_0_sharded")
    meshes("12 32 64")
    for shard in reversed(range(8)):
        ok(f"mesh-manifest -v seg --shards 8 --prefix {shard}")
    assert contents("seg/mesh_mip_0_err_0_sharded") == first
    assert json.loads(Path("seg/info").read_text())["mesh"] == "mesh_mip_0_err_0_sharded"


def test_a_run_is_killed_damaged_and_repaired():
    """A worker is killed in the merge; verify names a damaged shard, and repair makes it again."""
    meshes("48 64 64")
    ok("mesh-manifest -v seg --shards 4")
    expected = contents("seg/mesh_mip_0_err_0_sharded")
    shutil.rmtree("seg/mesh_mip_0_err_0_sharded")
    ok("submit --run m.run mesh-manifest -v seg --shards 4")
    program = (
        "import os, signal\n"
        "from chunkflow_py.segmentation.labels.object_shards import ObjectShards\n"
        "write = ObjectShards.write\n"
        "def killed(self, shard, entries):\n"
        "    stored = write(self, shard, entries)\n"
        "    if shard == 2:\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return stored\n"
        "ObjectShards.write = killed\n"
        "for task in (tasks := __import__('chunkflow_py.ops.mesh_manifest', fromlist=['x'])"
        ".mesh_manifest('seg', shards=4)):\n"
        "    tasks.work(task)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    ok("work m.run --threads 1")
    ok("verify m.run")
    assert contents("seg/mesh_mip_0_err_0_sharded") == expected
    shard = Path("seg/mesh_mip_0_err_0_sharded/1.shard")
    shard.write_bytes(shard.read_bytes()[:-1] + b"?")
    Path("seg/mesh_mip_0_err_0_sharded/3.shard").unlink()
    result = run("verify m.run")
    assert result.exit_code == 1
    assert "1.shard" in result.output
    assert "3.shard" in result.output
    run("repair m.run")
    ok("work m.run --threads 1")
    ok("verify m.run")
    assert contents("seg/mesh_mip_0_err_0_sharded") == expected


def test_an_object_that_vanished_is_in_no_shard():
    """A shard without objects is removed when it is written again."""
    meshes("48 64 64")
    ok("mesh-manifest -v seg --shards 1")
    for path in Path("seg/mesh_mip_0_err_0").glob("*:0:*"):
        path.unlink()
    ok("mesh-manifest -v seg --shards 1")
    assert sorted(contents("seg/mesh_mip_0_err_0_sharded")) == ["info"]
    result = run("load-precomputed -v seg download-mesh -v seg -i 3")
    assert result.exit_code == 1
    assert "cannot read the mesh of object 3" in result.stderr


@pytest.mark.parametrize(
    ("line", "code", "message"),
    [
        ("mesh-manifest -v seg --shards 12", 2, "a power of two up to 1048576; give --shards 16"),
        ("mesh-manifest -v seg --shards 4 -p 4", 2, "no shard 4; with --shards 4, give 0 to 3"),
        ("mesh-manifest -v seg --shards 2", 1, "was made with 4 shards, not with 2 shards"),
        ("mesh-manifest -v nothing --shards 2", 1, "nothing has no fragments made by mesh; check"),
        ("aggregate-skeleton-fragments -f seg --shards 3", 2, "give --shards 4"),
        ("aggregate-skeleton-fragments -f seg --shards 4 --digits 1", 2, "give --shards alone"),
        ("create-bbox -s 9 0 0 -z 1 1 1 aggregate-skeleton-fragments -f parts --shards 4", 1,
         "with --shards 4, give boxes from 0-1_0-1_0-1"),
    ],
)  # fmt: skip
def test_what_is_refused(line, code, message):
    """One sentence says what disagrees and what to change."""
    meshes("48 64 64")
    ok("mesh-manifest -v seg --shards 4")
    ObjectFolder("parts").put([("1:0-1_0-1_0-1", b"")])
    result = run(line)
    assert result.exit_code == code, result.output
    assert message in " ".join(result.stderr.split())
    assert not Path("nothing").exists()


def test_an_id_of_65_bits_and_a_fragment_that_is_damaged():
    """Both are errors that name the file; no shard is written."""
    ObjectFolder("meshes").put([(f"{2**64}:0:0-1_0-1_0-1", b"")])
    result = run("mesh-manifest -v meshes --shards 2")
    assert result.exit_code == 1
    assert f"{2**64}:0:0-1_0-1_0-1 names object {2**64}, but ids must be less than 2^64" in (
        result.stderr
    )
    assert not list(Path("meshes_sharded").glob("*.shard"))
    Path("meshes").joinpath(f"{2**64}:0:0-1_0-1_0-1.gz").unlink()
    ObjectFolder("meshes").put([("7:0:0-1_0-1_0-1", b"12345")])
    result = run("mesh-manifest -v meshes --shards 2")
    assert result.exit_code == 1
    assert "7:0:0-1_0-1_0-1 is damaged" in result.stderr


def test_a_mesh_without_triangles_is_left_out():
    """An object of which nothing is left in its fragments has no entry."""
    box = np.zeros((4, 4, 4), np.uint8)
    box[1:3, 1:3, 1:3] = 5
    save_h5(Chunk(box, voxel_size_nm=(1, 1, 1)), "box.h5")
    ok("load-h5 -f box.h5 mesh -o some -f 0")
    ObjectFolder("some").put([("8:0:0-4_0-4_0-4", bytes(4))])
    tasks = mesh_manifest("some", shards=1)
    for task in tasks:
        assert [Path(stored.url).name for stored in tasks.work(task).written] == ["0.shard"]
    assert 5 in {label for label, _ in shards_of("some_sharded")}
    assert 8 not in {label for label, _ in shards_of("some_sharded")}


def shards_of(folder):
    """Return ids and contents of the objects in a folder of shards."""
    from chunkflow_py.segmentation.labels.object_shards import read_shards

    place = ObjectFolder(folder)
    return list(read_shards(place, place.read_json("info")["sharding"]))


def line_of(*points) -> Skeleton:
    """Return the line through some points."""
    return Skeleton.of(points, [(k, k + 1) for k in range(len(points) - 1)])


def test_cloud_volume_reads_the_skeletons_of_a_run(monkeypatch):
    """A run of two steps; ids of up to 64 bits; the same skeletons as without shards."""
    from cloudvolume import CloudVolume

    pytest.importorskip("kimimaro")
    ids = [int(i) for i in np.random.default_rng(0).integers(1, LARGEST, 300, np.uint64)]
    ids = sorted({*ids, 1, 2**32, LARGEST})
    info = json.loads(Path("seg/info").read_text())
    Path("seg/info").write_text(json.dumps({**info, "skeletons": "skeletons_mip_0"}))
    pieces = [line_of((0, 0, 0), (0, 0, 4000)), line_of((0, 0, 4000), (0, 9, 9000))]
    pieces[0].types[:] = 1
    pieces[0].radii_nm[:] = 7.5
    ObjectFolder("seg/skeletons_mip_0").put(
        (f"{label}:{k}-{k + 1}_0-1_0-1", piece.moved((0, 0, label % 97)).to_precomputed())
        for label in ids
        for k, piece in enumerate(pieces)
    )
    ok(
        "submit --run s.run generate-tasks --roi-size 4 1 1 -c 1 1 1 "
        "aggregate-skeleton-fragments -f seg --shards 4"
    )
    ok("work s.run --threads 1")
    ok("verify s.run")
    first = contents("seg/skeletons_mip_0_sharded")
    assert sorted(first) == ["0.shard", "1.shard", "2.shard", "3.shard", "info"]
    SkeletonAggregator("seg", shards=4)(create_task())
    assert contents("seg/skeletons_mip_0_sharded") == first
    SkeletonAggregator("seg")(create_task())
    expected = load_skeleton("seg/skeletons_mip_0")
    found = load_skeleton("seg")
    source = CloudVolume(f"file://{Path.cwd()}/seg", progress=False).skeleton
    assert "sharding" in source.meta.info
    assert sorted(found) == ids
    for label in ids:
        theirs = source.get(label)
        assert found[label].types.tolist() == expected[label].types.tolist() == [1, 1, 0]
        assert theirs.vertex_types.tolist() == [1, 1, 0]
        assert np.array_equal(theirs.radii, expected[label].radii_nm)
        for vertices, edges in (
            (found[label].vertices_nm, found[label].edges),
            (theirs.vertices[:, ::-1], theirs.edges),
        ):
            assert np.array_equal(vertices, expected[label].vertices_nm)
            assert np.array_equal(edges, expected[label].edges)
    shard = Path("seg/skeletons_mip_0_sharded/2.shard")
    shard.write_bytes(shard.read_bytes()[:-40])
    result = run("load-skeleton --path seg")
    assert result.exit_code == 1
    assert "2.shard is damaged" in result.stderr


def create_task():
    """Return a task without a box."""
    from chunkflow_py.core.task import Task

    return Task()
