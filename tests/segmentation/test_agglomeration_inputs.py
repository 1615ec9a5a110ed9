"""What exact agglomeration refuses: one sentence each, and nothing half-written."""

from __future__ import annotations

import shlex
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from click.testing import CliRunner

from chunkflow_py import open_volume, write_volume
from chunkflow_py.cli.main import cli
from chunkflow_py.core.affinity_layout import AffinityLayout
from chunkflow_py.core.geometry import BoundingBox
from chunkflow_py.errors import ChunkError, OptionError, VolumeError
from chunkflow_py.segmentation.agglomeration.contacts import contacts_of, mean_keys
from chunkflow_py.segmentation.agglomeration.edge_affinities import (
    as_edges,
    check_sums,
    least_edge,
    least_mean,
)
from chunkflow_py.segmentation.agglomeration.graph_store import GraphSettings, GraphStore
from chunkflow_py.segmentation.agglomeration.region_merging import OpenGraph, merge_box
from chunkflow_py.store.memory_store import MemoryStore


def run(line):
    """Run a command line; return the exit code and its output."""
    result = CliRunner().invoke(cli, shlex.split(line))
    return result.exit_code, result.output


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (np.zeros((2, 3, 3, 3), np.uint8), "shape (3, z, y, x), got (2, 3, 3, 3)"),
        (np.zeros((3, 3, 3), np.uint8), "shape (3, z, y, x), got (3, 3, 3)"),
        (np.zeros((3, 3, 3, 3), np.int8), "type int8 have no known scale"),
        (np.zeros((3, 3, 3, 3), np.uint32), "type uint32 have no known scale"),
        (np.full((3, 3, 3, 3), np.nan, np.float32), "are NaN"),
        (np.full((3, 3, 3, 3), -0.5, np.float32), "range from -0.5 to -0.5"),
        (np.full((3, 3, 3, 3), 7.0, np.float16), "range from 7 to 7"),
    ],
)
def test_voxels_that_are_not_affinities(array, words):
    """The message names the shape, type or range."""
    with pytest.raises(ChunkError) as refused:
        as_edges(array)
    assert words in str(refused.value)


def test_floating_point_is_rounded_by_a_fixed_rule():
    """65535 times the affinity, halves to even; edges to nowhere may be anything."""
    values = np.zeros((3, 2, 2, 2), np.float64)
    values[0, :, :, 1] = 0.5 / 65535  # x: rounds to 0
    values[1, :, 1] = 1.5 / 65535
    values[2, 1] = 1 + 5e-4  # a rounding error of blending
    values[2, 0], values[1, :, 0], values[0, :, :, 0] = np.nan, -9, np.inf
    edges = as_edges(values)
    assert edges.dtype == np.uint16
    assert set(edges[2, :, :, 1].ravel().tolist()) == {0}
    assert set(edges[1, :, 1].ravel().tolist()) == {2}
    assert set(edges[0, 1].ravel().tolist()) == {65535}
    np.testing.assert_array_equal(as_edges(values[::-1], AffinityLayout("zyx")), edges)


def test_thresholds_are_decimal_fractions():
    """0.7 is 7/10, and comparisons with means are exact."""
    assert least_mean(0.7, "uint8") == Fraction(153, 2)
    assert least_edge(0.7, "uint8") == 179  # 178.5 and more
    assert least_edge(0.4, "uint8") == 102
    for wrong in (-0.1, 1.5):
        with pytest.raises(OptionError, match=r"in \[0, 1\]"):
            least_mean(wrong, "uint8")


def test_means_are_ordered_exactly():
    """Keys of means order like fractions, also where floating point does not."""
    rng = np.random.default_rng(0)
    count = rng.integers(1, 2**31 - 1, 3000)
    total = (rng.integers(0, 256, 3000) * count) // 3 + rng.integers(0, 3, 3000)
    total[1::2], count[1::2] = total[::2], count[::2]  # equal, or nearly equal
    total[1::4] += 1
    whole, rest = mean_keys(total, count)
    fractions = [Fraction(int(s), int(n)) for s, n in zip(total, count, strict=True)]
    keys = list(zip(whole.tolist(), rest.tolist(), strict=True))
    order = sorted(range(3000), key=fractions.__getitem__)
    for a, b in pairwise(order):
        assert (fractions[a] < fractions[b]) == (keys[a] < keys[b])
        assert (fractions[a] == fractions[b]) == (keys[a] == keys[b])


def test_volumes_whose_sums_are_not_exact():
    """Sums of uint16 affinities are proven for 4.6e13 voxels only."""
    check_sums(BoundingBox.from_size((0, 0, 0), (10**5, 10**5, 10**5)), "uint8")
    with pytest.raises(ChunkError, match="store the affinities as uint8"):
        check_sums(BoundingBox.from_size((0, 0, 0), (10**5, 10**5, 10**4)), "uint16")


@pytest.fixture
def graph():
    """A stored level of a small graph, its settings, and its box."""
    box = BoundingBox.from_size((0, 0, 0), (2, 3, 4))
    settings = GraphSettings(str(box), (2, 3, 2), "uint8", 0.9)
    edges = np.full((3, 2, 3, 4), 100, np.uint8)
    fragments = np.arange(1, 25, dtype=np.uint64).reshape(2, 3, 4)
    store = MemoryStore(f"graph-{id(edges)}")
    part = settings.grid(0)[0]
    around = part.grow((1, 1, 1)).intersection(box).slices((0, 0, 0))
    opened = OpenGraph.of_box(fragments[around], edges[(slice(None), *around)], part, box)
    GraphStore(store, settings).write_level(part, 0, *merge_box(opened, settings.least))
    return store, settings, part


@pytest.mark.parametrize("cut", [0, 10, 200, -1])
def test_damaged_graphs_are_named(graph, cut):
    """A truncated object is refused, with its address."""
    store, settings, part = graph
    (key,) = store.list()
    store.put(key, store.get(key)[:cut])
    with pytest.raises(VolumeError, match=r"level-0/0-2_0-3_0-2.npz is damaged"):
        GraphStore(store, settings).read_graph(part, 0)


def test_graphs_of_other_settings_are_refused(graph):
    """Objects of another threshold are not mixed with these."""
    store, settings, part = graph
    other = GraphSettings(settings.domain, settings.task_size, "uint8", 0.5)
    with pytest.raises(VolumeError, match="differ from"):
        GraphStore(store, other).read_graph(part, 0)
    with pytest.raises(VolumeError, match="is missing"):
        GraphStore(store, settings).read_graph(settings.grid(0)[1], 0)


def test_impossible_columns_are_refused(graph):
    """Counts of 0, regions without a name and wrong types are damage, not data."""
    from chunkflow_py.core.decoding import npz
    from chunkflow_py.segmentation.labels.links import encoded

    store, settings, part = graph
    (key,) = store.list()
    good = npz(store.get(key))
    for name, value in (
        ("crossing_count", good["crossing_count"] * 0),
        ("crossing_first", good["crossing_first"].astype(np.int64)),
        ("fragments", good["fragments"] + 100),
        ("face", good["face"] + 9),
        ("cut", np.zeros((1, 1), np.uint64)),
    ):
        store.put(key, encoded(**(good | {name: value})))
        with pytest.raises(VolumeError, match="is damaged"):
            GraphStore(store, settings).read_graph(part, 0)


def test_contacts_of_too_many_edges(monkeypatch):
    """A contact whose mean could not be compared exactly is refused."""
    monkeypatch.setattr("chunkflow_py.segmentation.agglomeration.contacts.MOST_EDGES", 3)
    fragments = np.repeat(np.array([1, 2], np.uint64), 4).reshape(2, 2, 2)
    box = BoundingBox.from_size((0, 0, 0), (2, 2, 2))
    with pytest.raises(ChunkError, match="share 4 voxel faces"):
        contacts_of(fragments, np.ones((3, 2, 2, 2), np.uint8), (0, 0, 0), box)


@pytest.fixture
def affinity(tmp_path, monkeypatch):
    """A volume of affinities in the working folder."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    values = rng.choice([20, 200, 250], size=(3, 6, 8, 8)).astype(np.uint8)
    write_volume(values, "zarr://affinity.zarr", voxel_size=(40, 40, 40), kind="affinity")
    return open_volume("affinity.zarr")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("", "add --task-size"),
        ("--task-size 6 8 8 --threshold 0.97", "--threshold 0.97 is above --max-threshold 0.95"),
        (
            "--task-size 6 8 8 --aff-threshold-low 0.8 --aff-threshold-high 0.6",
            "--aff-threshold-low 0.8 is above --aff-threshold-high 0.6",
        ),
        ("--task-size 6 8 8 --threshold 1.5", "1.5 is not in the range"),
        ("--task-size 3 5 8 --block-size 3 4 4", "give --task-size 3 4 8"),
        ("--from-hierarchy nothing --threshold 0.5", "has no hierarchy"),
    ],
)
def test_refused_command_lines(affinity, tmp_path, line, words):
    """The command ends before anything is written."""
    before = sorted(tmp_path.rglob("*"))
    code, output = run(f"segment-affinity affinity.zarr zarr://out.zarr {line}")
    assert code in (1, 2)
    assert words in output
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.long
def test_the_hierarchy_of_another_volume(affinity, tmp_path):
    """A hierarchy is used only for the volume from which it was made, up to its threshold."""
    code, output = run(
        "segment-affinity affinity.zarr zarr://out.zarr --task-size 3 8 8 --max-threshold 0.8"
    )
    assert code == 0, output
    write_volume(
        np.zeros((3, 4, 4, 4), np.uint8), "zarr://other.zarr", voxel_size=(40, 40, 40),
        kind="affinity",
    )  # fmt: skip
    code, output = run(
        "segment-affinity other.zarr zarr://b.zarr --from-hierarchy out.zarr.segment"
    )
    assert (code, "was made from a volume with the bounds" in output) == (2, True)
    code, output = run(
        "segment-affinity affinity.zarr zarr://b.zarr --from-hierarchy out.zarr.segment "
        "--threshold 0.9"
    )
    assert "above" in output
    assert code in (1, 2)
    assert not (tmp_path / "b.zarr").exists()
    code, output = run(
        "segment-affinity affinity.zarr zarr://b.zarr --from-hierarchy out.zarr.segment "
        "--threshold 0.6"
    )
    assert code == 0, output
    code, output = run(
        "segment-affinity affinity.zarr zarr://c.zarr --from-hierarchy out.zarr.segment "
        "--threshold 0.6"
    )
    assert code == 0, output
    one, two = open_volume("b.zarr"), open_volume("c.zarr")
    np.testing.assert_array_equal(one.read(one.bounds).array, two.read(two.bounds).array)
    code, output = run("evaluate-hierarchy out.zarr.segment b.zarr --threshold 0.6 --json")
    assert code == 0, output
    assert '"voi": 0.0' in output
    code, output = run("evaluate-hierarchy out.zarr.segment b.zarr --threshold 0.9")
    assert (code, "is above 0.8" in output) == (2, True)
