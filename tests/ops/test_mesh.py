"""mesh: surfaces that close across chunks, in formats that others read."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from scipy import ndimage
from zmesh import Mesher

from chunkflow_py.cli.main import cli
from chunkflow_py.core.chunk import Chunk
from chunkflow_py.core.geometry import BoundingBox, BoxGrid, Zyx
from chunkflow_py.errors import ChunkError
from chunkflow_py.ops.load_h5 import load_h5
from chunkflow_py.ops.mesh import mesh
from chunkflow_py.ops.save_h5 import save_h5
from chunkflow_py.segmentation.mesh_files import welded

EXAMPLES = Path(__file__).parents[2] / "examples"
SIZE_NM = (40.0, 4.3, 4.0)
DOMAIN = BoundingBox.from_size((7, -5, 100), (18, 22, 26))


def labels(seed: int = 0) -> Chunk:
    """Return two touching objects, in pieces that reach all faces of the domain."""
    smooth = ndimage.gaussian_filter(np.random.default_rng(seed).random(DOMAIN.size), 2)
    array = (smooth > np.median(smooth)).astype(np.uint64)
    array[smooth > np.quantile(smooth, 0.8)] = 2**40
    return Chunk(array, DOMAIN.start, SIZE_NM, "segmentation")


def run(line: str):
    """Run a line and return click's result."""
    return CliRunner().invoke(cli, ["--quiet", *line.split()])


def edges_of(mesh):
    """Return how often each edge is gone along, minus how often back; and how many sides it has."""
    ends = np.concatenate([mesh.faces[:, [k, (k + 1) % 3]] for k in range(3)]).astype(int)
    forward = ends[:, 0] < ends[:, 1]
    pairs, inverse = np.unique(np.sort(ends, axis=1), axis=0, return_inverse=True)
    balance = np.bincount(inverse.ravel(), np.where(forward, 1, -1))
    return balance, np.bincount(inverse.ravel())


def area_and_volume(mesh):
    """Return the area, and the volume inside (negative if the faces look inwards)."""
    a, b, c = mesh.vertices[mesh.faces.T].astype(float)
    across = np.cross(b - a, c - a)
    return np.linalg.norm(across, axis=1).sum() / 2, (a * across).sum() / 6


def in_tasks(whole: Chunk, size, **settings):
    """Return the meshes of all tasks, by object, with chunks that reach one voxel further."""
    parts: dict = {}
    for box in BoxGrid.covering(DOMAIN, Zyx.of(size), respect_stop=True):
        chunk = whole.cut(box.grow((0, 0, 0), (1, 1, 1)).intersection(DOMAIN))
        for label, part in mesh(chunk, box=box, **settings).items():
            parts.setdefault(label, []).append(part)
    return parts


@pytest.mark.parametrize("size", [(18, 22, 26), (9, 11, 13), (5, 8, 7)])
def test_pieces_are_the_surface_of_the_whole(size):
    """Fragments joined are the same triangles as those of the whole: no gap, no double faces."""
    chunk = labels()
    whole = mesh(chunk, simplification_factor=0)
    pieces = in_tasks(chunk, size, simplification_factor=0)
    assert sorted(whole) == sorted(pieces) == [1, 2**40]
    for label in whole:
        one, joined = welded([whole[label]]), welded(pieces[label])
        assert np.array_equal(one.vertices, joined.vertices)
        assert np.array_equal(one.faces, joined.faces)
        balance, _ = edges_of(joined)
        assert not balance.any()
        inside = (chunk.array == label).sum() * np.prod(SIZE_NM)
        assert area_and_volume(joined)[1] == pytest.approx(inside, rel=0.1)


def test_simplified_pieces_are_watertight():
    """Simplification leaves rims alone: pieces still join, every edge has two sides."""
    pieces = in_tasks(labels(), (9, 11, 13), simplification_factor=10)
    triangles = in_tasks(labels(), (9, 11, 13), simplification_factor=0)
    for label, parts in pieces.items():
        joined = welded(parts)
        balance, sides = edges_of(joined)
        assert not balance.any()
        assert not (sides % 2).any()
        assert len(joined.faces) < sum(len(p.faces) for p in triangles[label]) / 2


def test_one_voxel_is_an_octahedron_around_its_middle():
    """By hand: vertices half a voxel from the middle (k + 1/2) of voxel k, xyz, in nanometres."""
    array = np.zeros((3, 3, 3), np.uint8)
    array[1, 1, 1] = 5
    found = mesh(Chunk(array, (10, 20, 30), (40, 8, 4)), simplification_factor=0)[5]
    middle = np.array([31.5 * 4, 21.5 * 8, 11.5 * 40])
    half = np.diag([2, 4, 20])
    expected = np.concatenate([middle - half, middle + half])
    assert sorted(map(tuple, found.vertices)) == sorted(map(tuple, expected))
    area, volume = area_and_volume(found)
    assert volume == pytest.approx(4 / 3 * 2 * 4 * 20)
    bare = mesh(Chunk(array, (10, 20, 30)), voxel_size_nm=(40, 8, 4), simplification_factor=0)[5]
    assert np.array_equal(bare.vertices, found.vertices)


@pytest.mark.parametrize("box", [None, BoundingBox((2, 2, 2), (20, 28, 28))])
def test_an_object_does_not_depend_on_the_others(box):
    """Meshed with all others or by itself it is the same, to the last byte.

    That holds for surfaces with an open rim, where the box ends, and for those whose parts touch
    along an edge.
    """
    smooth = ndimage.gaussian_filter(np.random.default_rng(5).random((24, 32, 32)), 0.9)
    touching = np.ones((3, 3, 3))
    array = ndimage.label(smooth > np.quantile(smooth, 0.8), touching)[0].astype(np.uint32)
    chunk = Chunk(array, (0, 0, 0), (40, 4, 4), "segmentation")
    together = mesh(chunk, box=box)
    assert len(together) > 8
    for label, found in together.items():
        alone = mesh(chunk, box=box, ids=[label])[label]
        assert np.array_equal(alone.vertices, found.vertices)
        assert np.array_equal(alone.faces, found.faces)


def test_vertices_are_as_many_as_zmesh_leaves():
    """Each neuron has the vertices that zmesh, with the same factor and error, gives it alone.

    Where a surface begins in its array decides between equally good simplifications, so that
    numbers differ by a few percent.
    """
    box = BoundingBox.parse("124-140_64-144_64-144")
    truth = load_h5(EXAMPLES / "fib25/groundtruth.h5", bbox=box)
    chunk = Chunk(truth.array, box.start, (8, 8, 8), "segmentation")
    cells = np.pad(chunk.array, 1).T
    ours, theirs = [], []
    for label, found in mesh(chunk).items():
        mesher = Mesher((8, 8, 8))
        mesher.mesh(np.asfortranarray(cells == label).view(np.uint8))
        ours.append(len(found.vertices))
        theirs.append(len(mesher.get(1, reduction_factor=100, max_error=40).vertices))
    found, expected = np.array(ours), np.array(theirs)
    large = expected >= 20
    assert large.sum() > 8
    np.testing.assert_allclose(found[large], expected[large], rtol=0.15)
    assert (found[~large] >= 0.8 * expected[~large]).all(), "small ones keep more: none is flat"
    assert found.sum() == pytest.approx(expected.sum(), rel=0.03)


@pytest.mark.parametrize("size_nm", [(40, 4, 4), (8, 8, 8), (30, 400, 400)])
def test_small_objects_do_not_become_flat(size_nm):
    """Objects of 1 to 27 voxels keep at least half of what their surface encloses."""
    array = np.zeros((12, 60, 20), np.uint32)
    sizes = list(itertools.product((1, 2, 3), repeat=3))
    for label, (z, y, x) in enumerate(sizes, 1):
        row, column = divmod(label - 1, 14)
        at = (2 if label % 2 else 7, 1 + 4 * column, 2 + 8 * row)
        array[at[0] : at[0] + z, at[1] : at[1] + y, at[2] : at[2] + x] = label
    chunk = Chunk(array, (0, 0, 0), size_nm, "segmentation")
    whole, simple = mesh(chunk, simplification_factor=0), mesh(chunk)
    assert len(simple) == len(sizes)
    for label, found in simple.items():
        assert len(found.vertices) >= 4
        volume = area_and_volume(whole[label])[1]
        assert area_and_volume(found)[1] >= 0.499 * volume > 0
    assert sum(len(m.faces) for m in simple.values()) < sum(len(m.faces) for m in whole.values())


def test_objects_are_chosen():
    """Ids, those to skip, and dust; the input is as before."""
    chunk = Chunk(np.zeros((1, 4, 6, 6), np.uint16))
    chunk.array[0, 1, 1:4, 1:4], chunk.array[0, 3, 5, 5], chunk.array[0, 3, 0, 0] = 3, 9, 11
    before = chunk.array.copy()
    assert list(mesh(chunk)) == [3, 9, 11]
    assert list(mesh(chunk, ids=(9, 3, 77))) == [3, 9]
    assert list(mesh(chunk, skip_ids={3, 11})) == [9]
    assert list(mesh(chunk, dust_threshold=2)) == [3]
    assert np.array_equal(before, chunk.array)


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (np.zeros((4, 4, 4), np.float32), "1 channels of float32"),
        (np.zeros((2, 4, 4, 4), np.uint8), "2 channels of uint8"),
        (np.full((4, 4, 4), -3, np.int32), "label -3"),
    ],
)
def test_what_is_no_labels_is_refused(array, words):
    """Maps and negative labels have no surface; the sentence says what to use before."""
    with pytest.raises(ChunkError, match=words):
        mesh(Chunk(array))
    box = BoundingBox.parse("2-6_0-4_0-4")
    chunk = Chunk(np.zeros((4, 4, 4), np.uint8), domain=BoundingBox.parse("0-9_0-4_0-4"))
    with pytest.raises(ChunkError, match="0-4_0-4_0-4 .* does not contain the box 2-6_0-4_0-4"):
        mesh(chunk, box=box)


# --- in lines -------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return a folder with seg.h5 and the volume seg."""
    monkeypatch.chdir(tmp_path)
    save_h5(labels(), "seg.h5")
    line = "load-h5 -f seg.h5 save-precomputed -v seg --create --block-size 9 11 13 --encoding raw"
    assert (result := run(line)).exit_code == 0, result.output
    return tmp_path


TASKS = "generate-tasks -v seg -c 9 11 13 --respect-stop load-precomputed -v seg"


def files(folder: Path) -> dict[str, bytes]:
    """Return the files below a folder."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_cloud_volume_reads_what_is_written(folder):
    """Fragments, manifests and info files are what cloud-volume expects; any order, same bytes."""
    from cloudvolume import CloudVolume

    line = f"{TASKS} --expand-margin-size auto mesh -o seg -f 0"
    assert run(line).exit_code == 0
    assert run("mesh-manifest -v seg --digits 1").exit_code == 0
    volume = CloudVolume(f"file://{folder}/seg", progress=False)
    assert volume.info["mesh"] == "mesh_mip_0_err_40"
    whole = mesh(labels(), simplification_factor=0)
    for label, expected in whole.items():
        found = volume.mesh.get(label)
        assert len(found.vertices) == len(expected.vertices)
        assert len(found.faces) == len(expected.faces)
        assert np.array_equal(found.vertices.min(0), expected.vertices.min(0))
        assert np.array_equal(found.vertices.max(0), expected.vertices.max(0))
    first = files(folder / "seg" / "mesh_mip_0_err_40")
    names = sorted(name for name in first if name.startswith("1:0:"))
    assert names[0] == "1:0:100-113_-5-6_16-25.gz"
    manifest = json.loads(first["1:0"])["fragments"]
    assert manifest == sorted(name.removesuffix(".gz") for name in names)

    # again, the last task first, each with its manifest, from a loader that reads more
    for name in first:
        (folder / "seg" / "mesh_mip_0_err_40" / name).unlink()
    for k in reversed(range(8)):
        more = line.replace("auto", "2 2 2").replace("-c 9", f"-i {k} -p {k + 1} -c 9")
        assert run(f"{more} --manifest").exit_code == 0
    assert files(folder / "seg" / "mesh_mip_0_err_40") == first


def test_a_gap_is_said_once(folder):
    """A loader that reads the task's box alone leaves gaps; one line says what to add."""
    result = run(f"{TASKS} mesh -o out")
    assert result.exit_code == 0
    (line,) = [line for line in result.stderr.splitlines() if "gap of one voxel" in line]
    assert "--expand-margin-size auto" in line
    assert json.loads((folder / "out" / "info").read_text()) == {
        "@type": "neuroglancer_legacy_mesh"
    }


@pytest.mark.parametrize("kind", ["ply", "obj"])
def test_files_of_other_programs(folder, kind):
    """PLY and OBJ hold the same surface; a task that is part of the volume has its box in names."""
    assert run(f"load-h5 -f seg.h5 mesh -o out -t {kind} -f 0").exit_code == 0
    expected = mesh(labels(), simplification_factor=0)[1]
    data = (folder / "out" / f"1.{kind}").read_bytes()
    if kind == "obj":
        rows = [line.split() for line in data.decode().splitlines()]
        vertices = np.array([row[1:] for row in rows if row[0] == "v"], np.float32)
        faces = np.array([row[1:] for row in rows if row[0] == "f"], int) - 1
    else:
        head, _, body = data.partition(b"end_header\n")
        assert head.startswith(b"ply\nformat binary_little_endian 1.0\n")
        assert f"element vertex {len(expected.vertices)}\n".encode() in head
        end = 12 * len(expected.vertices)
        vertices = np.frombuffer(body[:end], "<f4").reshape(-1, 3)
        rows = np.frombuffer(body[end:], [("n", "u1"), ("v", "<i4", 3)])
        assert set(rows["n"]) == {3}
        faces = rows["v"]
    assert np.array_equal(vertices, expected.vertices)
    assert np.array_equal(faces, expected.faces)
    assert (
        run(f"create-bbox -s 7 -5 100 -z 9 9 9 load-h5 -f seg.h5 mesh -o part -t {kind}").exit_code
        == 0
    )
    assert sorted(files(folder / "part"))[0] == f"1099511627776_7-16_-5-4_100-109.{kind}"


def test_voxel_sizes_that_disagree_are_refused(folder):
    """Of chunk and volume: both are said; a chunk without one takes that of the volume."""
    line = "create-chunk -s 8 8 8 --dtype uint8 {} threshold -t 100 mesh -o seg {}"
    result = run(line.format("-e 10 10 10", "--mip 0"))
    assert result.exit_code == 1
    assert "voxels of (10.0, 10.0, 10.0) nm (zyx), but mip 0" in result.stderr
    assert "(40.0, 4.3, 4.0) nm" in result.stderr
    assert "has no mip 3; its mips are 0" in run(line.format("", "--mip 3")).stderr
    assert run(line.format("", "")).exit_code == 0
    assert (folder / "seg" / "mesh_mip_0_err_40").is_dir()


@pytest.mark.parametrize(
    ("options", "words"),
    [("--shard", "mesh-manifest --multires"), ("--manifest -t ply", "the format is ply")],
)
def test_options_that_cannot_work(options, words):
    """Exit 2 with what to use instead."""
    result = run(f"create-chunk mesh {options}")
    assert result.exit_code == 2
    assert words in " ".join(result.stderr.split())


def test_a_dry_run_writes_nothing(folder):
    """Not even the info file."""
    before = files(folder)
    result = CliRunner().invoke(cli, ["--quiet", "--dry-run", *f"{TASKS} mesh -o seg".split()])
    assert result.exit_code == 0
    assert files(folder) == before


def test_welding_does_not_depend_on_the_order():
    """All orders of the pieces give the same mesh; none gives an empty one."""
    pieces = in_tasks(labels(), (9, 22, 13), simplification_factor=0)[1]
    first = welded(pieces)
    for order in itertools.islice(itertools.permutations(pieces), 4):
        again = welded(order)
        assert np.array_equal(first.vertices, again.vertices)
        assert np.array_equal(first.faces, again.faces)
    assert welded([]).is_empty


def test_no_voxels_have_no_surface():
    """An empty chunk is no error, with a box of its task or without."""
    empty = Chunk(np.zeros((0, 3, 4), np.uint8), (1, 2, 3))
    assert mesh(empty) == mesh(empty, box=empty.bbox) == {}
