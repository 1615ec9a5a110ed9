"""Supervoxels and edges for PyChunkedGraph, compared with a slow count and with other readers."""

from itertools import product

import numpy as np
import pytest
import zstandard
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import given, settings
from hypothesis import strategies as st
from rigs.command_line import say

from chunkflow_py.core.chunk import Chunk
from chunkflow_py.core.geometry import BoundingBox, Zyx
from chunkflow_py.errors import ChunkError, GeometryError, OptionError
from chunkflow_py.segmentation.agglomeration.chunked_graph import (
    ChunkGrid,
    components_file,
    edges_file,
    edges_of_chunk,
    split_supervoxels,
)
from chunkflow_py.volume import create_volume, open_volume
from chunkflow_py.volume.protocol import VolumeSpec

START = Zyx(-3, 5, 100)


def messages():
    """Return the classes of the two messages, from their definition in PyChunkedGraph."""
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="chunk.proto", package="pcg", syntax="proto3")
    edges = file.message_type.add(name="EdgesMsg")
    for number, name in enumerate(("node_ids1", "node_ids2", "affinities", "areas"), start=1):
        edges.field.add(name=name, number=number, type=field.TYPE_BYTES, label=1)
    chunk = file.message_type.add(name="ChunkEdgesMsg")
    for number, name in enumerate(("in_chunk", "cross_chunk", "between_chunk"), start=1):
        chunk.field.add(
            name=name, number=number, type=field.TYPE_MESSAGE, type_name=".pcg.EdgesMsg", label=1
        )
    parts = file.message_type.add(name="ChunkComponentsMsg")
    parts.field.add(name="components", number=1, type=field.TYPE_UINT64, label=3)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    found = (
        message_factory.GetMessages([file], pool=pool)
        if hasattr(message_factory, "GetMessages")
        else message_factory.GetMessageClassesForFiles(["chunk.proto"], pool)
    )
    return found["pcg.ChunkEdgesMsg"], found["pcg.ChunkComponentsMsg"]


CHUNK_EDGES, COMPONENTS = messages()


def read_edges(content):
    """Return {type: [(first, second, affinity, area)]} as PyChunkedGraph parses a file."""
    message = CHUNK_EDGES()
    message.ParseFromString(zstandard.ZstdDecompressor().decompress(content))
    result = {}
    for kind in ("in_chunk", "cross_chunk", "between_chunk"):
        part = getattr(message, kind)
        columns = (
            np.frombuffer(part.node_ids1, "<u8"), np.frombuffer(part.node_ids2, "<u8"),
            np.frombuffer(part.affinities, "<f4"), np.frombuffer(part.areas, "<u8"),
        )  # fmt: skip
        result[kind] = list(zip(*(column.tolist() for column in columns), strict=True))
    return result


def read_components(content):
    """Return the segments of a file, as PyChunkedGraph parses it."""
    message = COMPONENTS()
    message.ParseFromString(content)
    numbers, result = list(message.components), []
    while numbers:
        count = numbers.pop(0)
        result.append(numbers[:count])
        del numbers[:count]
    return result


def slow_edges(supervoxels, fragments, edges, own, scale):
    """Count the edges of the supervoxels whose ids are *own*, face by face."""
    sums = {}
    for axis, place in product(range(3), np.ndindex(supervoxels.shape)):
        if place[axis] == 0:
            continue
        other = tuple(n - (a == axis) for a, n in enumerate(place))
        one, two = int(supervoxels[place]), int(supervoxels[other])
        if not one or not two or one == two:
            continue
        is_part = fragments[place] == fragments[other]
        for a, b in ((one, two), (two, one)):
            if a in own and not (b in own and a > b):
                kind = "in_chunk" if b in own else "cross_chunk" if is_part else "between_chunk"
                total, count = sums.get((kind, a, b), (0, 0))
                sums[kind, a, b] = total + int(edges[(axis, *place)]), count + 1
    result = {kind: [] for kind in ("in_chunk", "cross_chunk", "between_chunk")}
    for (kind, a, b), (total, count) in sorted(sums.items()):
        mean = float(np.float32(total / (count * scale)))
        result[kind].append(
            (a, b, *((float("inf"), 1) if kind == "cross_chunk" else (mean, count)))
        )
    return result


@settings(max_examples=40, deadline=None)
@given(
    size=st.tuples(*[st.integers(1, 7)] * 3),
    chunk=st.tuples(*[st.integers(1, 4)] * 3),
    dtype=st.sampled_from(["u1", "u2"]),
    seed=st.integers(0, 2**32 - 1),
)
def test_as_a_slow_count(size, chunk, dtype, seed):
    """Each chunk, of any size, and with background: all edges, all segments, read by protobuf."""
    rng = np.random.default_rng(seed)
    domain = BoundingBox.from_size(START, size)
    fragments = rng.integers(0, 6, size).astype(np.uint64)
    segments = np.array([0, 1, 1, 3, 4, 1], np.uint64)[fragments.astype(int)]
    edges = rng.integers(0, 255, (3, *size)).astype(dtype)
    grid = ChunkGrid.of(domain, Zyx(*chunk))
    supervoxels = split_supervoxels(fragments, domain, grid)
    assert ((supervoxels == 0) == (fragments == 0)).all()
    for place, box in grid.chunks(domain):
        around = box.grow(Zyx(1, 1, 1)).intersection(domain)
        cut = around.slices(domain.start)
        found = edges_of_chunk(
            supervoxels[cut], fragments[cut], segments[cut], edges[(slice(None), *cut)], around,
            grid, place,
        )  # fmt: skip
        own = {int(n) for n in np.unique(supervoxels[box.slices(domain.start)])} - {0}
        wanted = slow_edges(supervoxels, fragments, edges, own, np.iinfo(dtype).max)
        assert read_edges(edges_file(found)) == wanted
        partners = {edge[1] for edges_ in wanted.values() for edge in edges_}
        of = dict(zip(supervoxels.ravel().tolist(), segments.ravel().tolist(), strict=True))
        groups = {}
        for each in sorted(own | partners):
            groups.setdefault(of[each], []).append(each)
        assert read_components(components_file(found.components)) == [
            groups[each] for each in sorted(groups)
        ]


def test_ids_are_those_of_graphene():
    """cloud-volume decodes layer, chunk and number of an id, which are unique in the volume."""
    metadata = pytest.importorskip("cloudvolume.datasource.graphene.metadata")
    domain = BoundingBox.from_size(START, Zyx(20, 30, 40))
    grid = ChunkGrid.of(domain, Zyx(8, 8, 8), 10)
    graph = {"n_bits_for_layer_id": 8, "spatial_bit_masks": {"1": 10, "2": 10}, "n_layers": 5}
    meta = object.__new__(metadata.GrapheneMetadata)
    meta.info = {"graph": graph}
    labels = np.random.default_rng(0).integers(0, 9, domain.size).astype("u4")
    ids = split_supervoxels(labels, domain, grid)
    for place, box in grid.chunks(domain):
        found = np.unique(ids[box.slices(domain.start)])
        z, y, x = (int(n) for n in place)
        numbers = range(int(found[0] != 0), len(found))
        for number, each in zip(numbers, found, strict=True):
            if each:
                assert int(each) == int(meta.encode_label(1, x, y, z, number))
                assert tuple(meta.decode_chunk_position(each)) == (x, y, z)


def test_ids_do_not_depend_on_tasks():
    """The ids of a task are those of the whole volume."""
    domain = BoundingBox.from_size(START, Zyx(10, 12, 14))
    grid = ChunkGrid.of(domain, Zyx(4, 4, 4))
    labels = np.random.default_rng(1).integers(0, 2**60, domain.size).astype("u8")
    whole = split_supervoxels(labels, domain, grid)
    for _, box in ChunkGrid.of(domain, Zyx(8, 4, 12)).chunks(domain):
        where = box.slices(domain.start)
        np.testing.assert_array_equal(split_supervoxels(labels[where], box, grid), whole[where])


def test_what_is_refused():
    """Tasks that divide chunks, too few bits, supervoxels of another grid, other fragments."""
    domain = BoundingBox.from_size(START, Zyx(10, 12, 14))
    grid = ChunkGrid.of(domain, Zyx(4, 4, 4))
    with pytest.raises(GeometryError, match="divides chunks of size .* along x; .*whole chunks"):
        list(grid.chunks(BoundingBox.from_size(START, Zyx(4, 4, 5))))
    with pytest.raises(OptionError, match="--spatial-bits 1 is too small for .* give at least 2"):
        ChunkGrid.of(domain, Zyx(4, 4, 4), 1)
    with pytest.raises(OptionError, match="18 spatial bits leave 2 bits for the supervoxels"):
        ChunkGrid.of(domain, Zyx(4, 4, 4), 18)
    labels = np.ones(domain.size, np.uint64)
    edges = np.full((3, *domain.size), 9, np.uint8)
    place = Zyx(0, 0, 0)
    other = split_supervoxels(labels, domain, ChunkGrid.of(domain, Zyx(2, 2, 2)))
    with pytest.raises(ChunkError, match="in chunk 0_0_0 .*has the id of another chunk"):
        edges_of_chunk(other, labels, labels, edges, domain, grid, place)
    mine = split_supervoxels(labels, domain, grid)
    background = labels * 0
    message = r"background \(0\) in the supervoxels, but not in the segments"
    with pytest.raises(ChunkError, match=message):
        edges_of_chunk(mine, labels, background, edges, domain, grid, place)


def test_a_whole_volume_by_tasks(tmp_path, monkeypatch):
    """From affinities to files, with one task and with many: the same bytes, and each edge once."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(2)
    box = BoundingBox.from_size(Zyx(0, 0, 0), Zyx(8, 16, 16))
    spec = VolumeSpec(box, (40, 4, 4), np.dtype("u1"), 3, "affinity", Zyx(4, 8, 8))
    create_volume(spec, "zarr://affinity.zarr").write(
        Chunk(rng.integers(0, 256, (3, *box.size)).astype("u1"), box.start)
    )
    say("segment-affinity affinity.zarr zarr://segments.zarr --task-size 4 8 8 --block-size 4 8 8 "
        "--threshold 0.6 --supervoxels zarr://supervoxels.zarr")  # fmt: skip
    read = "load-volume --volume-path {} --expand-margin-size auto --output-name {}"
    volumes = (("split.zarr", "supervoxels"), ("supervoxels.zarr", "fragments"),
               ("segments.zarr", "segments"), ("affinity.zarr", "affinity"))  # fmt: skip
    contents = {}
    for name, size in (("one", "8 16 16"), ("many", "4 8 8")):
        tasks = f"generate-tasks --volume-path supervoxels.zarr --chunk-size {size} --respect-stop"
        say(f"{tasks} load-volume --volume-path supervoxels.zarr split-supervoxels "
            f"--graph-chunk-size 4 8 8 save-volume --volume-path zarr://{name}-split.zarr "
            "--block-size 4 8 8")  # fmt: skip
        loaders = " ".join(read.format(*each) for each in volumes)
        say(f"{tasks} {loaders.replace('split.zarr', f'{name}-split.zarr', 1)} save-chunk-edges "
            f"--graph-chunk-size 4 8 8 --graph-path {name}-graph")  # fmt: skip
        root = tmp_path / f"{name}-graph"
        contents[name] = {
            str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*.proto*")
        }
    assert contents["one"] == contents["many"]
    assert len(contents["one"]) == 2 * 8
    split = open_volume("one-split.zarr")
    ids = split.read(split.bounds).array
    edges = [read_edges(data) for key, data in contents["one"].items() if "edges_" in key]
    inside = [edge for each in edges for edge in each["in_chunk"]]
    assert len({edge[:2] for edge in inside}) == len(inside)
    across = {
        edge for each in edges for kind in ("cross_chunk", "between_chunk") for edge in each[kind]
    }
    assert {(b, a, *rest) for a, b, *rest in across} == across  # in the files of both chunks
    assert {n for edge in (*inside, *across) for n in edge[:2]} <= set(np.unique(ids).tolist())
    # Connecting what is active gives the segments.
    members = [read_components(data) for key, data in contents["one"].items() if "comp" in key]
    parent = {int(n): int(n) for n in np.unique(ids) if n}

    def root_of(n):
        while parent[n] != n:
            n = parent[n]
        return n

    for groups in members:
        for group in groups:
            for each in group[1:]:
                parent[root_of(each)] = root_of(group[0])
    for edge in across:
        if edge[2] == float("inf"):
            parent[root_of(edge[0])] = root_of(edge[1])
    segments = open_volume("segments.zarr").read(split.bounds).array
    pairs = {
        (root_of(int(a)), int(b))
        for a, b in zip(ids.ravel().tolist(), segments.ravel().tolist(), strict=True)
        if a
    }
    assert len(pairs) == len({a for a, _ in pairs}) == len({b for _, b in pairs})
