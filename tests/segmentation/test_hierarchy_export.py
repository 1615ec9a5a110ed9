"""Exported hierarchies: what other programs read equals what brute force counts."""

from __future__ import annotations

import json
import shlex
from fractions import Fraction

import numpy as np
import pytest
from click.testing import CliRunner
from rigs.agglomeration import Volume, rows_of
from rigs.shared import built_once

from chunkflow_py import open_volume
from chunkflow_py.cli.main import cli
from chunkflow_py.core.chunk import Chunk
from chunkflow_py.core.geometry import BoundingBox, Zyx
from chunkflow_py.errors import OptionError
from chunkflow_py.segmentation.agglomeration.edge_affinities import as_edges
from chunkflow_py.segmentation.agglomeration.hierarchy_export import HierarchyExport
from chunkflow_py.segmentation.agglomeration.task_fragments import FragmentOptions
from chunkflow_py.store import open_store
from chunkflow_py.store.memory_store import MemoryStore
from chunkflow_py.store.store_protocol import checksum_of
from chunkflow_py.volume import create_volume
from chunkflow_py.volume.protocol import VolumeSpec

pytestmark = pytest.mark.slow  # the first test of each process segments a volume

BOX = BoundingBox.from_size((5, 0, -4), (6, 8, 10))
SIZE_NM = (40.0, 8.0, 8.0)
OPTIONS = "--threshold 0.6 --fragments affinity --aff-threshold-high 0.95 --block-size 3 4 5"
COLUMNS = {
    "fragments": ["fragment", "voxels", "segment"],
    "edges": ["first", "second", "sum", "count", "mean", "tie", "same_segment"],
    "merges": ["kept", "lost", "sum", "count", "mean", "tie"],
}


def run(line, code=0):
    """Run a command line, require its exit code, and return its output."""
    result = CliRunner().invoke(cli, shlex.split(line))
    assert result.exit_code == code, result.output
    return " ".join(result.output.split())


def create(url, values):
    """Write affinities, channels x, y, z."""
    spec = VolumeSpec(BOX, SIZE_NM, values.dtype, 3, "affinity", Zyx(3, 4, 5))
    create_volume(spec, f"zarr://{url}").write(Chunk(values, BOX.start, SIZE_NM, "affinity"))


def voxels(url):
    """Return all voxels of a volume."""
    volume = open_volume(url)
    assert volume.bounds == BOX
    assert volume.voxel_size_nm == SIZE_NM
    return volume.read(volume.bounds).array


def read(folder):
    """Return the index and the tables of an export, as another program would read them."""
    index = json.loads((folder / "export.json").read_text())
    tables = {}
    for name, table in index["tables"].items():
        parts = []
        for file, checksum in table["files"].items():
            assert checksum_of((folder / file).read_bytes()) == checksum
            parts.append(np.load(folder / file, allow_pickle=False))
        tables[name] = {each: np.concatenate([p[each] for p in parts]) for each in table["columns"]}
        assert {each: str(c.dtype) for each, c in tables[name].items()} == table["columns"]
        assert {len(column) for column in tables[name].values()} == {table["rows"]}
    return index, tables


def files(folder):
    """Return the content of all files below a folder by name."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with a segmentation, ``a``, and its export."""
    return built_once(tmp_path_factory, "export", segment_and_export)


def segment_and_export(folder):
    """Segment random affinities by eight tasks, and export the hierarchy."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        rng = np.random.default_rng(0)
        create("aff.zarr", rng.choice([10, 90, 140, 250], size=(3, *BOX.size)).astype(np.uint8))
        run(
            f"segment-affinity aff.zarr zarr://a.zarr --task-size 3 4 5 {OPTIONS} "
            "--supervoxels zarr://a-supervoxels.zarr"
        )
        run("export-hierarchy a.zarr.segment a --threshold 0.6")


@pytest.fixture(scope="module")
def second(folder):
    """Add ``b``: a segmentation of the same affinities by one task, and its export."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        run(f"segment-affinity aff.zarr zarr://b.zarr --task-size 6 8 10 {OPTIONS}")
        run("export-hierarchy b.zarr.segment b --threshold 0.6")
    return folder


def exported(volume, task_size, target, **options):
    """Write the export of a volume that is segmented in memory; return ``export.json``."""
    _, hierarchy, _ = volume.segmented(task_size, 0.6)
    graph = open_store(f"{hierarchy.url.removesuffix('hierarchy')}graph")
    return HierarchyExport(hierarchy, graph, target, SIZE_NM, 0.6, **options).write()


@pytest.fixture(autouse=True)
def _in_folder(request, monkeypatch):
    """Go to the folder, in tests that use it; the others need not wait for its segmentation."""
    if "folder" in request.fixturenames:
        folder = request.getfixturevalue("folder")
        monkeypatch.chdir(folder)
        monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))


@pytest.mark.long
def test_the_bytes_do_not_depend_on_the_tasks(folder, second):
    """Two task sizes give the same tables, index and supervoxels, which may be made later."""
    assert files(folder / "a") == files(folder / "b")
    run(
        f"segment-affinity aff.zarr zarr://b.zarr --task-size 6 8 10 {OPTIONS} "
        "--supervoxels zarr://b-supervoxels.zarr"
    )
    assert files(folder / "a-supervoxels.zarr/0/c") == files(folder / "b-supervoxels.zarr/0/c")
    ids = np.unique(voxels("a-supervoxels.zarr"))
    assert not np.array_equal(ids, np.unique(voxels("a.zarr.segment/fragments.zarr")))


@pytest.mark.parametrize("method", ["distance", "affinity"])
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_many_divisions_give_the_same_export(dtype, method, tmp_path):
    """Any task size, also of one voxel along an axis, gives the same files."""
    rng = np.random.default_rng(1)
    values = rng.choice([10, 90, 140, 250], size=(3, *BOX.size)) / (255 if dtype != np.uint8 else 1)
    volume = Volume(values.astype(dtype), FragmentOptions(method, 0.3, 0.5), BOX.start)
    sizes = [tuple(BOX.size), (1, 3, 4), (4, 8, 3), (2, 2, 9)]
    for number, size in enumerate(sizes):
        index = exported(volume, size, open_store(str(tmp_path / str(number))), piece=50)
        assert index["scale"] == (255 if dtype == np.uint8 else 65535)
        assert index["tables"]["edges"]["rows"] > 10
        assert files(tmp_path / "0") == files(tmp_path / str(number))


def test_tables_equal_brute_force(folder):
    """Sizes, sums, counts and ties are those of a loop over the voxels of the supervoxels."""
    index, tables = read(folder / "a")
    assert {name: list(table) for name, table in tables.items()} == COLUMNS
    supervoxels, segments = voxels("a-supervoxels.zarr"), voxels("a.zarr")
    fragments = tables["fragments"]
    ids, counts = np.unique(supervoxels[supervoxels != 0], return_counts=True)
    np.testing.assert_array_equal(fragments["fragment"], ids)
    np.testing.assert_array_equal(fragments["voxels"], counts)
    segment_of = dict(zip(supervoxels.ravel().tolist(), segments.ravel().tolist(), strict=True))
    assert fragments["segment"].tolist() == [segment_of[each] for each in ids.tolist()]
    assert index["segments"] == len(np.unique(segments[segments != 0]))

    expected = {}
    affinity = as_edges(open_volume("aff.zarr").read(BOX).array)
    for a, b, value, count, tie in rows_of(supervoxels, affinity):
        old = expected.get((min(a, b), max(a, b)), (0, 0, tie))
        expected[min(a, b), max(a, b)] = (old[0] + value, old[1] + count, min(old[2], tie))
    edges = {name: column.tolist() for name, column in tables["edges"].items()}
    pairs = list(zip(edges["first"], edges["second"], strict=True))
    assert pairs == sorted(expected)
    assert len(pairs) > 20
    assert max(edges["count"]) > 1
    rows = zip(edges["sum"], edges["count"], edges["tie"], strict=True)
    assert list(rows) == [expected[pair] for pair in pairs]
    for total, count, mean in zip(edges["sum"], edges["count"], edges["mean"], strict=True):
        assert mean == float(Fraction(total, 255 * count))
    same = [segment_of[a] == segment_of[b] for a, b in pairs]
    assert edges["same_segment"] == same
    assert 0 < sum(same) < len(same)


def cut_by_hand(tables, scale, threshold):
    """Return supervoxel -> segment: the merges of at least a mean affinity, by union-find."""
    parent = {each: each for each in tables["fragments"]["fragment"].tolist()}

    def root(each):
        while parent[each] != each:
            each = parent[each]
        return each

    merges = (tables["merges"][name].tolist() for name in ("kept", "lost", "sum", "count"))
    for kept, lost, total, count in zip(*merges, strict=True):
        if 1 - Fraction(total, count * scale) > Fraction(str(threshold)):
            break
        assert root(kept) == kept < lost == root(lost)
        parent[lost] = kept
    return {each: root(each) for each in parent} | {0: 0}


@pytest.mark.long
@pytest.mark.parametrize("threshold", [0.3, 0.6])
def test_others_can_cut_the_hierarchy_at_any_threshold(folder, second, threshold):
    """The merges of one export give the segments of segment-affinity at other thresholds."""
    index, tables = read(folder / "a")
    segment_of = cut_by_hand(tables, index["scale"], threshold)
    supervoxels = voxels("a-supervoxels.zarr")
    cut = np.vectorize(segment_of.__getitem__, otypes=[np.uint64])(supervoxels)
    target = "a.zarr"
    if threshold != 0.6:  # the supervoxels exist, and are those of all thresholds
        target = "b-other.zarr"
        also = "--supervoxels zarr://b-supervoxels.zarr"
        run(f"segment-affinity aff.zarr zarr://b.zarr --task-size 6 8 10 {OPTIONS} {also}")
        run(
            f"segment-affinity aff.zarr zarr://{target} --from-hierarchy b.zarr.segment "
            f"--threshold {threshold} --block-size 3 4 5 {also}"
        )
        assert len(list((second / "b.zarr.segment").glob("supervoxels-*.run"))) == 1
    np.testing.assert_array_equal(cut, voxels(target))
    assert len(np.unique(cut)) > 2
    merges = tables["merges"]
    assert (np.diff(merges["mean"]) <= 0).all()
    at_threshold = merges["mean"] >= 0.4
    assert at_threshold[: index["merges_at_threshold"]].all()
    assert at_threshold.sum() == index["merges_at_threshold"]


@pytest.mark.long
def test_small_segments_are_united_as_in_the_volume(folder):
    """With --min-size, the segments of the tables are those of the volume."""
    small = "--threshold 0.5 --min-size 9 --min-affinity 0.1"
    run(f"segment-affinity aff.zarr zarr://small.zarr --from-hierarchy a.zarr.segment {small}")
    run(f"export-hierarchy a.zarr.segment small {small}")
    index, tables = read(folder / "small")
    assert (index["min_size"], index["min_affinity"]) == (9, 0.1)
    supervoxels, segments = voxels("a-supervoxels.zarr"), voxels("small.zarr")
    segment_of = dict(zip(supervoxels.ravel().tolist(), segments.ravel().tolist(), strict=True))
    fragments = tables["fragments"]
    ids = fragments["fragment"].tolist()
    assert fragments["segment"].tolist() == [segment_of[each] for each in ids]
    assert cut_by_hand(tables, 255, 0.5) != segment_of


def test_the_index_describes_the_volume(folder):
    """Bounds, voxel size, scale and thresholds are those of the volume and the command."""
    index, _ = read(folder / "a")
    del index["tables"], index["segments"], index["merges_at_threshold"]
    assert index == {
        "format": "chunkflow hierarchy export 1",
        "bounds": {"start": [5, 0, -4], "stop": [11, 8, 6]},
        "voxel_size_nm": [40.0, 8.0, 8.0],
        "scale": 255,
        "max_threshold": 0.95,
        "threshold": 0.6,
        "min_size": 0,
        "min_affinity": 0.0,
    }


def test_tables_without_rows_have_their_columns(tmp_path):
    """A volume without contacts has fragments, and empty tables with all columns."""
    volume = Volume(np.zeros((3, 2, 2, 2), np.uint8), FragmentOptions("affinity", 0.3, 0.5))
    exported(volume, (1, 2, 2), open_store(str(tmp_path / "x")))
    index, tables = read(tmp_path / "x")
    assert {name: list(table) for name, table in tables.items()} == COLUMNS
    assert index["segments"] == 0


def stores(folder):
    """Return the stores of the hierarchy and the graph."""
    return (open_store(str(folder / "a.zarr.segment" / name)) for name in ("hierarchy", "graph"))


def test_large_tables_are_divided_into_files(folder, tmp_path):
    """Files of 7 rows hold the same tables; what an interrupted export has left is removed."""
    target = open_store(str(tmp_path / "x"))
    target.put("edges-999999.npz", b"left")
    target.put("edges-notes.npz", b"mine")
    index = HierarchyExport(*stores(folder), target, SIZE_NM, 0.6, piece=7).write()
    again, tables = read(tmp_path / "x")
    assert again == index
    assert len(index["tables"]["edges"]["files"]) == -(-index["tables"]["edges"]["rows"] // 7) > 3
    for name, table in read(folder / "a")[1].items():
        for column, values in table.items():
            np.testing.assert_array_equal(tables[name][column], values)
    kept = set(target.list())
    assert "edges-999999.npz" not in kept
    assert target.get("edges-notes.npz") == b"mine"


def test_the_index_is_written_last(folder):
    """An export whose writing fails has no index, and can be repeated."""

    class Full(MemoryStore):
        def put(self, key, data, **_):
            if key == "merges-000000.npz":
                msg = "full"
                raise OSError(msg)
            super().put(key, data)

    name = f"full-{id(folder)}"
    export = HierarchyExport(*stores(folder), Full(name), SIZE_NM, 0.6)
    with pytest.raises(OSError, match="full"):
        export.write()
    store = MemoryStore(name)
    assert "edges-000000.npz" in set(store.list())
    assert store.get("export.json") is None
    HierarchyExport(*stores(folder), store, SIZE_NM, 0.6).write()
    assert store.get("export.json") == (folder / "a/export.json").read_bytes()


@pytest.mark.long
def test_a_different_export_is_not_replaced(folder, second):
    """The same export can be repeated and repaired; another one is refused, and nothing changes."""
    before = files(folder / "a")
    (folder / "a/edges-000000.npz").write_bytes(b"damaged")
    run("export-hierarchy b.zarr.segment a --threshold 0.6 --min-affinity 0.3")  # no --min-size
    assert files(folder / "a") == before
    output = run("export-hierarchy a.zarr.segment a --threshold 0.5", 2)
    assert "already contains an export with threshold 0.6 instead of 0.5; give another" in output
    output = run("export-hierarchy a.zarr.segment a --threshold 0.6 --min-size 4", 2)
    assert "an export with min_size 0 instead of 4" in output
    assert files(folder / "a") == before
    other = Volume(np.full((3, *BOX.size), 100, np.uint8), FragmentOptions("affinity", 0.3, 0.5),
                   BOX.start)  # fmt: skip
    with pytest.raises(OptionError, match="already contains an export with segments"):
        exported(other, BOX.size, open_store(str(folder / "a")))
    assert files(folder / "a") == before
    (folder / "foreign").mkdir()
    (folder / "foreign/export.json").write_text("[]")
    output = run("export-hierarchy a.zarr.segment foreign --threshold 0.6", 1)
    assert "was not written by export-hierarchy of this version" in output


@pytest.mark.long
def test_refused_command_lines(folder, second):
    """A threshold that the hierarchy does not reach, and a missing hierarchy, write nothing."""
    assert "Missing option '--threshold'" in run("export-hierarchy a.zarr.segment new", 2)
    output = run("export-hierarchy a.zarr.segment new --threshold 0.96", 2)
    assert "--threshold 0.96 is above 0.95, the highest threshold of the hierarchy" in output
    output = run("export-hierarchy a.zarr.segment new --threshold 0.12345678911", 2)
    assert "more than nine decimal digits" in output
    assert "has no hierarchy" in run("export-hierarchy aff.zarr new --threshold 0.6", 1)
    output = run("--dry-run export-hierarchy a.zarr.segment new --threshold 0.6")
    assert "dry run" in output
    assert not (folder / "new").exists()
    (contacts,) = (folder / "b.zarr.segment/graph/contacts").glob("*.npz")
    contacts.rename("moved")
    output = run("export-hierarchy b.zarr.segment new --threshold 0.6", 1)
    assert f"{contacts.name} is missing; repeat the task that writes this file" in output
    assert not (folder / "new").exists()
    (folder / "moved").rename(contacts)


@pytest.mark.long
def test_scores_are_drawn(folder, second):
    """evaluate-hierarchy draws what it prints, replaces an old figure, and draws none if dry."""
    pytest.importorskip("matplotlib")
    line = "evaluate-hierarchy a.zarr.segment b.zarr --figure scores.svg"
    output = run(f"--dry-run {line}")
    assert "0.6 0.000 0.000 0.000" in output
    assert not (folder / "scores.svg").exists()
    (folder / "scores.svg").write_text("old")
    assert run(line) == output
    figure = (folder / "scores.svg").read_text()
    assert "<!-- best threshold: 0.6 (VOI sum 0.000 bits) -->" in figure
    assert not list(folder.glob(".tmp*"))


@pytest.mark.long
def test_show_steps_has_the_supervoxels(folder):
    """The printed steps end with that of the supervoxels, which submit accepts."""
    line = "segment-affinity aff.zarr zarr://s.zarr --supervoxels zarr://t.zarr --block-size 3 4 5"
    steps = CliRunner().invoke(cli, shlex.split(f"{line} --task-size 6 8 10 --show-steps")).output
    assert [each for each in steps.splitlines() if "--stage" in each][-2:] == [
        "then --stage relabel \\",
        "then --stage supervoxels \\",
    ]
    run(f"submit --run s.run {steps.replace(chr(92), ' ')}")
    steps = run(f"{line} --from-hierarchy a.zarr.segment --show-steps")
    assert steps.startswith("--stage cut")
    assert "save-volume --volume-path zarr://t.zarr --block-size 3 4 5" in steps
    for name in ("zarr://s.zarr", "file://aff.zarr"):
        output = run(f"{line.replace('zarr://t.zarr', name)} --task-size 6 8 10", 2)
        assert f"--supervoxels {name} is the same volume as" in output
