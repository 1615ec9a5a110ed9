"""Precomputed annotations: merged from those of tasks, and read by cloud-volume and by us."""

import json
from dataclasses import replace

import cloudvolume
import numpy as np
import pytest

from chunkflow_py.core.annotations import POSITIONS, Annotations, Property, Relation
from chunkflow_py.core.geometry import BoundingBox, Zyx
from chunkflow_py.errors import (
    ChunkError,
    ChunkflowError,
    OptionError,
    VolumeError,
    VolumeNotFoundError,
)
from chunkflow_py.store import open_store
from chunkflow_py.volume.precomputed import annotation_reader
from chunkflow_py.volume.precomputed.annotation_format import Schema, content_ids, sharding_for
from chunkflow_py.volume.precomputed.annotation_grid import Grid, levels_of
from chunkflow_py.volume.precomputed.annotation_merge import MergeSettings, merge_annotations
from chunkflow_py.volume.precomputed.annotation_parts import AnnotationPart, part_key
from chunkflow_py.volume.precomputed.annotation_reader import open_annotations

SIZE = Zyx(50, 100, 151)
BOUNDS = BoundingBox.from_size((10, 0, -20), SIZE)
SMALL = MergeSettings(limit=50, smallest_cell=Zyx(4, 4, 4))
COUNT = 700


def made(kind, count=COUNT, seed=0):
    """Return random annotations with properties of several types and two relations."""
    rng = np.random.default_rng(seed)
    low, high = np.array(BOUNDS.start), np.array(BOUNDS.stop)
    first = rng.uniform(low + 5, high - 5, (count, 3))
    second = first + rng.uniform(-5, 5, (count, 3))
    if kind == "ellipsoid":
        second = rng.uniform(0, 5, (count, 3))
    return Annotations(
        kind,
        np.stack([first, second][: POSITIONS[kind]], axis=1),
        (40, 8, 8),
        properties=(
            Property("colour", "rgb", rng.integers(0, 256, (count, 3))),
            Property("score", "float32", rng.random(count), "how certain"),
            Property("class", "uint16", rng.integers(0, 3, count), labels={0: "a", 1: "b", 2: "c"}),
        ),
        relations=(
            Relation.to_one("segment", rng.integers(0, 40, count)),
            Relation.to_several("partners", [range(1, 1 + k % 4) for k in range(count)]),
        ),
    )


def save(url, annotations, size=SIZE, order=None):
    """Store annotations as tasks of a size do; each belongs to the task of its first position."""
    parts = open_store(str(url))
    grid = [range(a, b, step) for a, b, step in zip(BOUNDS.start, BOUNDS.stop, size)]
    boxes = [
        BoundingBox.from_size((z, y, x), size) for z in grid[0] for y in grid[1] for x in grid[2]
    ]
    for box in boxes:
        at = annotations.geometry[:, 0]
        rows = np.flatnonzero(((at >= box.start) & (at < box.stop)).all(axis=1))
        rows = rows if order is None else order.permutation(rows)
        part = AnnotationPart(annotations.take(rows), BOUNDS, len(boxes))
        parts.put(part_key(box), part.encoded())
    return parts


def merged(folder, annotations, settings=SMALL):
    """Merge annotations that one task has stored; return the collection."""
    parts = save(folder / "parts", annotations)
    merge_annotations(parts, open_store(f"{folder}/all"), settings)
    return open_annotations(f"{folder}/all")


def files(folder):
    """Return the content of each file below a folder."""
    paths = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def ids_of(annotations):
    """Return the ids that annotations without ids get."""
    return content_ids(Schema.of(annotations).encode(annotations), annotations.relations)


def touching(annotations, box):
    """Return which annotations touch a box."""
    low, high = annotations.hull()
    return ((high >= box.start) & (low < box.stop)).all(axis=1)


@pytest.mark.parametrize("sharded", [True, False])
@pytest.mark.parametrize("kind", POSITIONS)
def test_what_is_written_is_read(kind, sharded, tmp_path):
    """By id, by segment and by place; all properties, and the segments of all relations."""
    annotations = made(kind)
    ids = ids_of(annotations)
    collection = merged(tmp_path, annotations, replace(SMALL, sharded=sharded))
    assert collection.ids().tolist() == sorted(ids.tolist())
    back = collection.get(ids)
    assert back.geometry.tobytes() == annotations.geometry.tobytes()
    assert back.voxel_size_nm == annotations.voxel_size_nm
    written = {each.name: each for each in annotations.properties}
    for each in back.properties:
        assert each.values.tobytes() == written[each.name].values.tobytes()
        assert each.description_json == written[each.name].description_json
    for each, wanted in zip(back.relations, annotations.relations, strict=True):
        assert each.counts.tolist() == wanted.counts.tolist()
        assert each.segments.tolist() == wanted.segments.tolist()
    segments = annotations.relations[0].lists()
    related = collection.related("segment", 7)
    assert set(related.ids.tolist()) == {i for i, s in zip(ids.tolist(), segments) if 7 in s}
    assert len(collection.related("segment", 0)) == len(collection.related("segment", 999)) == 0
    box = BoundingBox.parse("20-31_17-60_-20-44")
    assert set(collection.inside(box).ids.tolist()) == set(ids[touching(annotations, box)].tolist())


@pytest.mark.parametrize("kind", POSITIONS)
def test_the_bytes_do_not_depend_on_the_tasks(kind, tmp_path):
    """Neither on their size nor on the order of annotations in a task."""
    annotations = made(kind)
    for number, size in enumerate([SIZE, Zyx(20, 30, 40), Zyx(50, 10, 151)]):
        parts = save(tmp_path / f"parts{number}", annotations, size, np.random.default_rng(number))
        merge_annotations(parts, open_store(f"{tmp_path}/all{number}"), SMALL)
    assert files(tmp_path / "all0") == files(tmp_path / "all1") == files(tmp_path / "all2")


@pytest.mark.parametrize("kind", POSITIONS)
def test_levels_are_samples_that_respect_the_limit(kind, tmp_path):
    """Each annotation is in one level, in all of the cells that it touches there."""
    annotations = made(kind)
    collection = merged(tmp_path, annotations, replace(SMALL, sharded=False))
    levels = collection.info.spatial
    assert len(levels) > 2
    ids = [set(collection.level(number).ids.tolist()) for number in range(len(levels))]
    assert len(set.union(*ids)) == sum(map(len, ids)) == COUNT
    found = {number: row for row, number in enumerate(ids_of(annotations).tolist())}
    lower = np.array(collection.info.lower)
    for level, here in zip(levels, ids, strict=True):
        assert level.grid * Zyx.of([int(s) for s in level.cell]) == Zyx.of(
            [int(b - a) for a, b in zip(collection.info.lower, collection.info.upper)]
        )
        cells = {}
        low, high = annotations.hull()
        for path in (tmp_path / "all" / level.key).iterdir():
            data = path.read_bytes()
            count = int.from_bytes(data[:8], "little")
            assert count <= level.limit
            cell = np.array([int(part) for part in path.name.split("_")])[::-1]
            for number in np.frombuffer(data[-8 * count :], "<u8").tolist():
                cells.setdefault(number, set()).add(tuple(cell.tolist()))
                row, start = found[number], lower + cell * level.cell
                assert (high[row] >= start).all()
                assert (low[row] <= start + level.cell).all()
        assert set(cells) == here
        if kind == "axis_aligned_bounding_box":
            for number, its in cells.items():
                first = np.floor((low[found[number]] - lower) / level.cell)
                last = np.floor((high[found[number]] - lower) / level.cell)
                assert len(its) == (last - first + 1).prod()
    assert levels[0].limit == 50
    # a random sample has its mean near the mean of all
    sample = collection.level(0).geometry[:, 0]
    spread = annotations.geometry[:, 0].std(axis=0) / np.sqrt(len(sample))
    assert (abs(sample.mean(axis=0) - annotations.geometry[:, 0].mean(axis=0)) < 4 * spread).all()


@pytest.mark.parametrize("kind", ["line", "ellipsoid"])
def test_cells_of_lines_and_ellipsoids(kind):
    """Those that contain one of many positions on the line, or in the ellipsoid, and few more."""
    geometry = made(kind, 60).geometry
    grid = Grid(BOUNDS.start, Zyx(2, 3, 4), Zyx(25, 34, 38))
    cells = {}
    for rows, numbers in grid.pairs(kind, geometry):
        for row, number in zip(rows.tolist(), numbers.tolist()):
            cells.setdefault(row, set()).add(number)
    rng = np.random.default_rng(3)
    for row, (first, second) in enumerate(geometry.astype(float)):
        if kind == "line":
            places = first + np.linspace(0, 1, 2000)[:, None] * (second - first)
        else:
            ball = rng.normal(size=(30000, 3))
            ball *= (rng.random(30000) ** (1 / 3) / np.linalg.norm(ball, axis=1))[:, None]
            places = first + ball * second
        points = places.astype(np.float32)[:, None]
        hit = {int(n) for _, numbers in grid.pairs("point", points) for n in numbers}
        assert hit <= cells[row]
        assert len(cells[row]) <= len(hit) + 4 + 0.3 * len(hit) * (kind == "ellipsoid")


def test_huge_boxes_are_expanded_in_pieces(monkeypatch):
    """The cells of a box are complete, however few pairs are made at once."""
    from chunkflow_py.volume.precomputed import annotation_grid

    geometry = np.array([[[0, 0, 0], [9, 9, 9]]] * 3, np.float32)
    grid = Grid(Zyx(0, 0, 0), Zyx(1, 1, 1), Zyx(10, 10, 10))
    monkeypatch.setattr(annotation_grid, "_AT_ONCE", 1500)
    pieces = [rows.tolist() for rows, _ in grid.pairs("axis_aligned_bounding_box", geometry)]
    assert [len(piece) for piece in pieces] == [1000, 1000, 1000]


def test_levels_halve_the_longest_axes():
    """Cells become isotropic in nanometres, and have whole numbers of voxels."""
    grids = levels_of(BoundingBox.parse("0-100_0-1000_0-1000"), (40, 8, 8), Zyx(16, 32, 32))
    assert [tuple(grid.count) for grid in grids[:3]] == [(1, 1, 1), (1, 2, 2), (2, 4, 4)]
    sizes = {tuple(np.array(grid.cell) * grid.count) for grid in grids}
    assert sizes == {(100, 1008, 1008)}
    assert min(grids[-1].cell) >= 16


@pytest.mark.parametrize("sharded", [True, False])
def test_cloud_volume_reads_points(sharded, tmp_path):
    """All levels, boxes, segments and single annotations; it has a defect for other kinds."""
    annotations = made("point")
    collection = merged(tmp_path, annotations, replace(SMALL, sharded=sharded))
    theirs = cloudvolume.from_cloudpath(f"file://{tmp_path}/all")
    for number in range(len(collection.info.spatial)):
        ours, read = collection.level(number), theirs.get_all(mip=number)
        order = np.argsort(read.ids)
        assert read.ids[order].tolist() == ours.ids.tolist()
        assert np.array_equal(read.geometry[order], ours.geometry[:, 0, ::-1])
        for each in ours.properties:
            assert np.array_equal(read.properties[each.name][order], each.values)
    last = len(collection.info.spatial) - 1
    ours = collection.level(last)
    ours = ours.take(np.flatnonzero(touching(ours, BoundingBox.parse("20-30_10-50_0-50"))))
    read = theirs.get_by_bbox(np.s_[0:50, 10:50, 20:30], mip=last)
    assert sorted(read.ids.tolist()) == ours.ids.tolist()
    related = theirs.get_by_relationship("segment", 7)
    assert sorted(related.ids.tolist()) == collection.related("segment", 7).ids.tolist()
    number = int(related.ids[0])
    one = theirs.get_by_id(number)
    ours = collection.get([number])
    assert one.relationships["by_segment"].tolist() == [7]
    assert one.relationships["by_partners"].tolist() == ours.relations[1].segments.tolist()
    assert np.array_equal(one.geometry, ours.geometry[:, 0, ::-1])
    assert theirs.meta.properties_enum == {"class": {0: "a", 1: "b", 2: "c"}}


def test_the_order_of_the_info_file(tmp_path):
    """Larger types come first, and bounds, kind and sizes are as Neuroglancer expects them."""
    merged(tmp_path, made("line"))
    info = json.loads((tmp_path / "all" / "info").read_bytes())
    assert info["@type"] == "neuroglancer_annotations_v1"
    assert info["annotation_type"] == "LINE"
    assert info["dimensions"] == {"x": [8e-9, "m"], "y": [8e-9, "m"], "z": [4e-8, "m"]}
    assert [each["id"] for each in info["properties"]] == ["score", "class", "colour"]
    assert info["lower_bound"] == [-20, 0, 10]


def test_ids_that_are_given_are_kept(tmp_path):
    """Up to the largest number of 64 bits."""
    ids = np.arange(COUNT, dtype=np.uint64)
    ids[5] = 2**64 - 1
    annotations = replace(made("point"), ids=ids)
    collection = merged(tmp_path, annotations)
    assert collection.ids().tolist() == sorted(ids.tolist())
    assert np.array_equal(collection.get([2**64 - 1]).geometry[0], annotations.geometry[5])


def test_ids_are_computed_from_all_content():
    """Annotations that differ only in a value, a segment or the order of segments differ in id."""
    same = {"geometry": np.ones((4, 1, 3)), "kind": "point"}
    plain = Annotations(**same, relations=(Relation.to_several("to", [[1, 2], [2, 1], [1], []]),))
    valued = Annotations(**same, properties=(Property("k", "uint8", np.arange(4)),))
    numbers = [*ids_of(plain).tolist(), *ids_of(valued).tolist()]
    assert len(set(numbers)) == 8
    assert len(set(ids_of(Annotations(**same)).tolist())) == 1


def test_equal_annotations_of_two_tasks_are_stored_once(tmp_path):
    """Different annotations with one id are refused, also if only their segments differ."""
    annotations = replace(made("point", 20), ids=np.arange(20))
    parts = open_store(f"{tmp_path}/parts")
    halves = [BoundingBox.parse("10-60_0-50_-20-131"), BoundingBox.parse("10-60_50-100_-20-131")]
    parts.put(part_key(halves[0]), AnnotationPart(annotations, BOUNDS, 2).encoded())
    parts.put(
        part_key(halves[1]), AnnotationPart(annotations.take(np.arange(7)), BOUNDS, 2).encoded()
    )
    merge_annotations(parts, open_store(f"{tmp_path}/all"), SMALL)
    assert open_annotations(f"{tmp_path}/all").ids().tolist() == list(range(20))
    partners = annotations.relations[1]
    for wrong in (
        replace(annotations, geometry=annotations.geometry + np.float32(0.5)),
        replace(annotations, relations=(Relation.to_one("segment", np.full(20, 41)), partners)),
        replace(annotations, relations=(
            annotations.relations[0],
            replace(partners, segments=partners.segments + np.uint64(1)),
        )),
    ):  # fmt: skip
        parts.put(part_key(halves[1]), AnnotationPart(wrong, BOUNDS, 2).encoded())
        with pytest.raises(VolumeError, match=r"two different annotations .* have the id \d+;"):
            merge_annotations(parts, open_store(f"{tmp_path}/no"), SMALL)


def test_a_second_merge_leaves_nothing_of_the_first(tmp_path):
    """Files of an earlier merge that are not written again are removed; others are kept."""
    merged(tmp_path, made("point"), replace(SMALL, sharded=False))
    (tmp_path / "all" / "notes").mkdir()
    (tmp_path / "all" / "notes" / "mine").write_text("kept")
    merged(tmp_path, made("point", 30))
    first = files(tmp_path / "all")
    assert first.pop("notes/mine") == b"kept"
    parts = open_store(f"{tmp_path}/parts")
    merge_annotations(parts, open_store(f"{tmp_path}/new"), SMALL)
    assert first == files(tmp_path / "new")


def test_tasks_without_annotations(tmp_path):
    """Some, all of a known kind, and all without a result."""
    parts = open_store(f"{tmp_path}/parts")
    parts.put(part_key(BOUNDS), AnnotationPart(None, BOUNDS, 1).encoded())
    with pytest.raises(VolumeError, match="all 1 tasks in .* have the result None"):
        merge_annotations(parts, open_store(f"{tmp_path}/all"), SMALL)
    collection = merged(tmp_path, made("line", 0))
    assert len(collection.ids()) == len(collection.inside(BOUNDS)) == 0
    half = BoundingBox.parse("60-70_0-10_0-10")
    parts.put(part_key(half), AnnotationPart(None, BOUNDS, 2).encoded())
    merge_annotations(parts, open_store(f"{tmp_path}/all"), SMALL)


def test_bounds_are_found_if_they_are_not_known(tmp_path):
    """The smallest box of voxels around all annotations."""
    annotations = Annotations("point", np.array([[[1.5, 2.5, 3.5]], [[10.5, 2.5, 90.25]]]))
    parts = open_store(f"{tmp_path}/parts")
    parts.put(part_key(BOUNDS), AnnotationPart(annotations).encoded())
    merge_annotations(parts, open_store(f"{tmp_path}/all"))
    info = open_annotations(f"{tmp_path}/all").info
    assert info.lower == (1, 2, 3)
    assert all(0 <= a - b < 4 for a, b in zip(info.upper, (11, 3, 91)))


def test_annotations_outside_the_bounds_are_refused():
    """One sentence names the annotation, its place and the bounds."""
    wrong = np.array([[[20, 20, 20]], [[20, 20, 131.5]]])
    with pytest.raises(ChunkError) as error:
        AnnotationPart(Annotations("point", wrong), BOUNDS).encoded()
    assert str(error.value).startswith(
        "annotation number 1 at (20.0, 20.0, 131.5) is outside the bounds 10-60_0-100_-20-131"
    )
    ball = Annotations("ellipsoid", np.array([[[20, 20, 20], [11, 1, 1]]]))
    with pytest.raises(ChunkError, match=r"number 0 at \(9.0, 19.0, 19.0\)-\(31.0, 21.0"):
        AnnotationPart(ball, BOUNDS).encoded()


def test_a_merge_with_a_missing_task_is_refused(tmp_path):
    """The message names the task; --allow-missing merges the others."""
    parts = save(tmp_path / "parts", made("point"), Zyx(25, 50, 151))
    (tmp_path / "parts" / "35-60_0-50_-20-131.npz").unlink()
    with pytest.raises(VolumeError, match=r"has the annotations of 3 of 4 tasks; run the missing "
                       r"tasks, for example the task that starts at \(35, 0, -20\)"):  # fmt: skip
        merge_annotations(parts, open_store(f"{tmp_path}/all"), SMALL)
    assert not (tmp_path / "all" / "info").exists()
    merge_annotations(parts, open_store(f"{tmp_path}/all"), replace(SMALL, allow_missing=True))
    assert 0 < len(open_annotations(f"{tmp_path}/all").ids()) < COUNT


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (
            lambda a: AnnotationPart(replace(a, voxel_size_nm=(1, 1, 1)), BOUNDS, 2),
            "different descriptions",
        ),
        (lambda a: AnnotationPart(replace(a, properties=()), BOUNDS, 2), "different descriptions"),
        (lambda a: AnnotationPart(replace(a, ids=np.arange(20)), BOUNDS, 2), "different ids"),
        (lambda a: AnnotationPart(a, BOUNDS.grow((1, 1, 1)), 2), "different bounds"),
    ],
)
def test_tasks_of_different_pipelines_are_not_merged(second, message, tmp_path):
    """Kind, voxel size, properties, relations and bounds must agree."""
    parts = open_store(f"{tmp_path}/parts")
    annotations = made("point", 20)
    parts.put("10-60_0-50_-20-131.npz", AnnotationPart(annotations, BOUNDS, 2).encoded())
    parts.put("10-60_50-100_-20-131.npz", second(annotations).encoded())
    with pytest.raises(VolumeError, match=message):
        merge_annotations(parts, open_store(f"{tmp_path}/all"), SMALL)


@pytest.mark.parametrize("given", [(False, True), (True, False)])
def test_the_message_says_which_tasks_give_ids(given, tmp_path):
    """It names the tasks in the order in which they are read."""
    parts, names = open_store(f"{tmp_path}/parts"), ("0-50", "50-100")
    for name, has_ids in zip(names, given, strict=True):
        annotations = replace(made("point", 20), ids=np.arange(20) if has_ids else None)
        parts.put(f"10-60_{name}_-20-131.npz", AnnotationPart(annotations, BOUNDS, 2).encoded())
    first, second = ("given" if has_ids else "not given" for has_ids in given)
    with pytest.raises(VolumeError, match=f"different ids, {first} and {second}; remove"):
        merge_annotations(parts, open_store(f"{tmp_path}/all"), SMALL)


def test_damaged_and_wrong_parts_are_refused(tmp_path):
    """No parts, overlapping tasks, and files that are no parts."""
    parts = open_store(f"{tmp_path}/parts")
    target = open_store(f"{tmp_path}/all")
    with pytest.raises(VolumeError, match="has no annotations of tasks; run save-annotations"):
        merge_annotations(parts, target)
    save(tmp_path / "parts", made("point", 20), Zyx(50, 50, 151))
    parts.put("10-60_20-30_-20-131.npz", AnnotationPart(None, BOUNDS, 2).encoded())
    with pytest.raises(VolumeError, match="tasks whose boxes overlap"):
        merge_annotations(parts, target)
    (tmp_path / "parts" / "10-60_20-30_-20-131.npz").unlink()
    whole = (tmp_path / "parts" / "10-60_50-100_-20-131.npz").read_bytes()
    for data in (whole[:-30], b"", whole[:50] + b"\xff" * 20 + whole[70:]):
        parts.put("10-60_50-100_-20-131.npz", data)
        with pytest.raises(VolumeError, match="is damaged .*; repeat the task"):
            merge_annotations(parts, target)


def test_wrong_questions_and_damaged_collections(tmp_path):
    """Each has a sentence that names the collection."""
    with pytest.raises(VolumeNotFoundError, match="has no info file"):
        open_annotations(f"{tmp_path}/all")
    collection = merged(tmp_path, made("point"))
    with pytest.raises(OptionError, match="has no relation 'axon'; its relations are: segment"):
        collection.related("axon", 1)
    with pytest.raises(VolumeNotFoundError, match="has no annotation with the id 5"):
        collection.get([5])
    with pytest.raises(ChunkError, match="is 18446744073709551616, but ids have 64 bits"):
        collection.get([2**64])
    shard = tmp_path / "all" / "by_id" / "0.shard"
    shard.write_bytes(shard.read_bytes()[:40])
    with pytest.raises(VolumeError, match="is damaged: .*; run merge-annotations again"):
        collection.ids()
    info = json.loads((tmp_path / "all" / "info").read_bytes())
    for change in ({"@type": "x"}, {"annotation_type": "POLYLINE"}, {"dimensions": {"t": [1, "s"]}},
                   {"spatial": 7}):  # fmt: skip
        (tmp_path / "all" / "info").write_text(json.dumps(info | change))
        with pytest.raises(VolumeError, match="is damaged or describes annotations that are not"):
            open_annotations(f"{tmp_path}/all")


def test_properties_in_the_order_of_another_program(tmp_path):
    """Values are stored with larger types first, in whatever order the info file names them."""
    found = made("point")
    expected = merged(tmp_path, found).get(ids_of(found)).properties
    path = tmp_path / "all" / "info"
    info = json.loads(path.read_bytes())
    path.write_text(json.dumps(info | {"properties": info["properties"][::-1]}))
    collection = open_annotations(f"{tmp_path}/all")
    values = {each.name: each.values for each in collection.get(ids_of(found)).properties}
    assert len(values) == 3
    for each in expected:
        assert np.array_equal(values[each.name], each.values)


WRONG = [
    None, "x", -1, 0, 1e300, 10**30, 2**62, 0.5, float("nan"), True, [], {}, [1, 2], {"a": 1},
    "../..",
]  # fmt: skip


def places(document, path=()):
    """Yield the path of each value in a JSON document."""
    items = document.items() if isinstance(document, dict) else enumerate(document)
    for key, value in items:
        yield (*path, key)
        if isinstance(value, dict | list):
            yield from places(value, (*path, key))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("sharded", [True, False])
def test_no_info_file_raises_another_error(sharded, tmp_path):
    """A value that is replaced or removed is read, or refused with an error of this package."""
    merged(tmp_path, made("point"), replace(SMALL, sharded=sharded))
    path = tmp_path / "all" / "info"
    info = path.read_text()
    random = np.random.default_rng(7)
    paths, refused = list(places(json.loads(info))), 0
    for _ in range(250):
        found = json.loads(info)
        *above, last = paths[random.integers(len(paths))]
        entry = found
        for key in above:
            entry = entry[key]
        choice = random.integers(len(WRONG) + 1)
        if choice == len(WRONG):
            del entry[last]
        else:
            entry[last] = WRONG[choice]
        path.write_text(json.dumps(found))
        try:
            collection = open_annotations(f"{tmp_path}/all")
            collection.get(collection.ids()[:2])
            collection.inside(BoundingBox.parse("0-9_0-9_0-9"))
            collection.level(0)
            for name in collection.schema.relations:
                collection.related(name, 3)
        except ChunkflowError:
            refused += 1
    assert refused > 50


@pytest.mark.parametrize("folder", ["by_id", "by_segment", "spatial0"])
def test_no_damaged_shard_raises_another_error(folder, tmp_path):
    """Bytes that are changed or cut off are read, or refused with an error of this package."""
    collection = merged(tmp_path, made("point"))
    wanted = collection.ids()[:2]
    (path, *_) = sorted((tmp_path / "all" / folder).iterdir())
    content = path.read_bytes()
    random = np.random.default_rng(8)
    refused = 0
    for number in range(150):
        changed = bytearray(content)
        for at in random.integers(0, len(changed), 3):
            changed[at] = random.integers(256)
        path.write_bytes(changed[: random.integers(len(changed))] if number % 3 == 0 else changed)
        try:
            collection.ids()
            collection.get(wanted)
            collection.level(0)
            collection.related("segment", 3)
        except ChunkflowError:
            refused += 1
    assert refused > 20


def test_a_box_of_too_many_cells_is_refused(tmp_path, monkeypatch):
    """A grid of tiny cells, which a stranger declares, does not fill the memory."""
    monkeypatch.setattr(annotation_reader, "_MOST_CELLS", 3)
    collection = merged(tmp_path, made("point"))
    with pytest.raises(
        VolumeError, match=r"touches .* cells of spatial[0-9] .* give a smaller box"
    ):
        collection.inside(BOUNDS)


def test_shards_have_a_limited_size():
    """Ten million annotations make a number of shards, each with a number of minishards."""
    assert sharding_for(100, 4000) == sharding_for(100, 1 << 20)
    many = sharding_for(10**7, 10**7 * 40)
    assert 10**7 * 40 / (1 << many.shard_bits) <= 1 << 24
    assert 10**7 / (1 << (many.shard_bits + many.minishard_bits)) <= 1024


@pytest.mark.slow
def test_memory_does_not_grow_with_annotations(tmp_path):
    """Merging ten times as many annotations takes little more memory."""
    import subprocess
    import sys

    code = (
        "import sys, resource; from chunkflow_py.ops.merge_annotations import merge_annotations\n"
        "merge_annotations(sys.argv[1], sys.argv[2])\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )
    peaks = []
    for tasks in (20, 200):
        parts = open_store(f"{tmp_path}/parts{tasks}")
        for task in range(tasks):
            places = np.random.default_rng(task).uniform(0, 500, (10_000, 1, 3))
            places[..., 0] += 500 * task
            region = BoundingBox.from_size((500 * task, 0, 0), Zyx(500, 500, 500))
            parts.put(
                part_key(region),
                AnnotationPart(Annotations("point", places), None, tasks).encoded(),
            )
        done = subprocess.run(
            [sys.executable, "-c", code, parts.url, f"{tmp_path}/all{tasks}"],
            capture_output=True, check=True, text=True,
        )  # fmt: skip
        peaks.append(int(done.stdout) / 1024)
    assert peaks[1] < peaks[0] + 80, peaks
