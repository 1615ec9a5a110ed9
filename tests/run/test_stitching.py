"""Stitched labels of a volume equal those of labelling it in one piece."""

import json
import random
import shutil
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from scipy import ndimage

from chunkflow_py.cli.main import cli
from chunkflow_py.core.chunk import Chunk
from chunkflow_py.core.geometry import BoundingBox, Zyx
from chunkflow_py.ops.connected_components import connected_components
from chunkflow_py.segmentation.labels.components import connected_components as at_once
from chunkflow_py.segmentation.labels.label_table import ObjectCount
from chunkflow_py.segmentation.labels.numbering import Numbering
from chunkflow_py.volume import create_volume, open_volume
from chunkflow_py.volume.protocol import VolumeSpec

BOX = BoundingBox.from_size((-3, 5, 100), (22, 27, 31))


def say(line, code=0):
    """Run a command line in this process; return its output."""
    result = CliRunner().invoke(cli, ["--quiet", *line.split()])
    assert result.exit_code == code, result.output
    return result.output


def store(array, url, kind="segmentation", block=(4, 5, 6)):
    """Store an array as a volume at BOX."""
    size = array.shape[-3:]
    channels = array.shape[0] if array.ndim == 4 else None
    box = BoundingBox.from_size(BOX.start, size)
    spec = VolumeSpec(box, (40, 4, 4), array.dtype, channels, kind, Zyx.of(block))
    create_volume(spec, url).write(Chunk(array, box.start, (40, 4, 4), kind))


def read(url):
    """Return all voxels of a volume."""
    volume = open_volume(url)
    return volume.read(volume.bounds).array


def whole(array, connectivity):
    """Return the IDs of labelling the volume in one piece."""
    chunk = Chunk(array, BOX.start)
    return connected_components(chunk, None, connectivity, Numbering(is_global=True)).array


def forget(url):
    """Remove the records of labelling, as if another program had made the labels."""
    for folder in list(Path(url).rglob("labelling")):
        shutil.rmtree(folder)


def blobs(seed, density=0.45):
    """Return a mask of winding objects and single voxels."""
    rng = np.random.default_rng(seed)
    noise = ndimage.gaussian_filter(rng.random(BOX.size), 0.7)
    return (noise > np.quantile(noise, 1 - density)).astype(np.uint8)


def label(size, source, target, more=""):
    """Label a volume with tasks of one size, in random order, by several pipelines."""
    z, y, x = size
    grid = [-(-n // s) for n, s in zip(BOX.size, size)]
    numbers = list(range(int(np.prod(grid))))
    random.Random(str(size)).shuffle(numbers)
    say(f"create-volume -v {target} --like {source} -d uint64 -b {z} {y} {x}")
    tasks = f"generate-tasks -v {source} -c {z} {y} {x} --respect-stop --order hilbert"
    cut = sorted(random.Random(1).sample(numbers, 2))
    parts = [(0, cut[0]), (cut[0], cut[1]), (cut[1], len(numbers))]
    random.Random(str(size)).shuffle(parts)
    for first, end in parts:
        if first < end:
            say(
                f"{tasks} -i {first} -p {end} load-volume -v {source} connected-components "
                f"--global-ids {more} save-volume -v {target}"
            )
    return len(numbers)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Change to a new folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("connectivity", "size", "density"),
    [
        (6, (4, 7, 8), 0.5),
        pytest.param(18, (6, 5, 8), 0.3, marks=pytest.mark.long),
        pytest.param(26, (5, 7, 7), 0.15, marks=pytest.mark.long),
        (26, (22, 3, 2), 0.2),
    ],
)
def test_stitched_is_labelled_at_once(connectivity, size, density):
    """For any task size and order, IDs equal those of the whole, and objects those of cc3d."""
    mask = blobs(connectivity, density)
    store(mask, "zarr://mask.zarr")
    count = label(size, "mask.zarr", "zarr://parts.zarr", f"-c {connectivity}")
    assert count >= 64
    chunk_size = " ".join(map(str, size))
    say(
        f"stitch-labels -v parts.zarr -o precomputed://labels -s {chunk_size} -c {connectivity} "
        "-b 8 9 10 --task-size 16 18 20"
    )
    labels = read("labels").reshape(BOX.size)
    np.testing.assert_array_equal(labels, whole(mask, connectivity))
    assert len(np.unique(read("parts.zarr"))) > len(np.unique(labels)), "nothing was cut"
    pieces = at_once(mask, connectivity=connectivity)
    pairs = np.unique(np.stack((labels.ravel(), pieces.ravel())), axis=1)
    assert pairs.shape[1] == len(np.unique(labels)) == pieces.max() + 1


def test_values_of_a_segmentation_keep_neighbours_apart():
    """Labels made without a threshold are linked only between equal values."""
    values = blobs(1, 0.6) * np.random.default_rng(1).integers(1, 4, BOX.size, np.uint8)
    store(values, "zarr://values.zarr")
    label((6, 6, 8), "values.zarr", "zarr://parts.zarr")
    line = "stitch-labels -v parts.zarr -s 6 6 8 -o zarr://labels.zarr"
    assert "--values-path" in say(line, code=1), "neighbours of different values touch"
    say(f"{line} --values-path values.zarr --overwrite")
    np.testing.assert_array_equal(read("labels.zarr"), whole(values, 6))


def test_tasks_of_another_size_are_refused():
    """Tasks of another size than those of labelling are refused, by records or by voxels.

    This includes larger tasks whose boundaries divide no object.
    """
    mask = blobs(2)
    store(mask, "zarr://mask.zarr")
    label((6, 6, 8), "mask.zarr", "zarr://parts.zarr")
    for size in ("12 12 8", "22 27 31", "64 64 64", "5 6 8"):
        line = f"stitch-labels parts.zarr zarr://labels.zarr -s {size}"
        assert "use tasks of size (6, 6, 8)" in say(line, code=1)
    line = "stitch-labels parts.zarr zarr://labels.zarr -c 18"
    assert "labelled with --connectivity 6, not 18" in say(line, code=1)
    line = "stitch-labels parts.zarr zarr://labels.zarr"
    forget("parts.zarr")
    assert "add --chunk-size Z Y X with the box size of these tasks" in say(line, code=2)
    for more in ("-s 12 12 8", "-s 22 27 31", "-s 64 64 64", "-s 6 6 8 -c 18"):
        assert "touch inside task" in say(f"{line} {more} --overwrite", code=1)
    assert not Path("labels.zarr").exists()
    say(f"{line} -s 6 6 8 --overwrite")
    np.testing.assert_array_equal(read("labels.zarr"), whole(mask, 6))


@pytest.mark.parametrize("url", ["precomputed://parts", "zarr://parts.zarr"])
def test_the_labels_say_how_they_were_made(url):
    """Boxes and connectivity of all labelling tasks are stored beside the labels.

    A region that no task has labelled stays empty, and a lost record is detected.
    """
    mask = blobs(7, 0.3)
    mask[:6, 20:] = 0
    store(mask, "zarr://mask.zarr")
    say(f"create-volume -v {url} --like mask.zarr -d uint64 -b 2 5 31")
    for region in ("-3 5 100 -z 6 20 31 -c 6 10 31", "3 5 100 -z 16 27 31 -c 8 15 31"):
        say(
            f"generate-tasks -s {region} --respect-stop load-volume -v mask.zarr "
            f"connected-components -c 26 save-volume -v {url}"
        )
    say(f"stitch-labels {url} zarr://labels.zarr")
    np.testing.assert_array_equal(read("labels.zarr"), whole(mask, 26))
    records = sorted(Path(url.partition("://")[2]).rglob("labelling/*.json"))
    assert len(records) == 2 + 2 * 2
    records[-1].unlink()
    assert "but no record of the task" in say(f"stitch-labels {url} zarr://other.zarr", code=1)


def test_labels_of_tasks_of_several_sizes_are_refused():
    """A volume that was labelled again with another task size is refused."""
    store(blobs(2), "zarr://mask.zarr")
    line = "load-volume -v mask.zarr connected-components save-volume -v zarr://parts.zarr"
    say(f"generate-tasks -v mask.zarr -c 11 27 31 {line} -b 1 27 31")
    say(f"generate-tasks -v mask.zarr -c 2 27 31 {line}")
    for more in ("", " -s 2 27 31"):
        told = say(f"stitch-labels parts.zarr zarr://labels.zarr{more}", code=1)
        assert "by tasks of different sizes" in told


@pytest.mark.parametrize(
    "seed", [1, *(pytest.param(n, marks=pytest.mark.long) for n in range(2, 20))]
)
def test_stitching_is_right_or_refused(seed):
    """Any sizes and connectivities, recorded or not: the result is right or refused."""
    rng = random.Random(seed)
    size = [rng.choice((7, 11, 16)) for _ in range(3)]
    connectivity = rng.choice((6, 18, 26))
    mask = blobs(seed, rng.uniform(0.1, 0.5))
    store(mask, "zarr://mask.zarr")
    label(size, "mask.zarr", "zarr://parts.zarr", f"-c {connectivity}")
    expected, refused = whole(mask, connectivity), 0
    for number in range(3):
        other = [rng.choice((n, n, 2 * n, 5, 31)) for n in size]
        c = rng.choice((connectivity, 6, 18, 26))
        line = f"stitch-labels parts.zarr zarr://labels-{number}.zarr"
        more = ("", f" -s {other[0]} {other[1]} {other[2]}", f" -c {c}")[number]
        result = CliRunner().invoke(cli, ["--quiet", *(line + more).split()])
        if result.exit_code:
            refused += 1
            assert "parts.zarr was labelled" in result.output
        else:
            np.testing.assert_array_equal(read(f"labels-{number}.zarr"), expected)
    assert refused < 3, "what is recorded was refused"


def test_parts_of_the_tasks_that_have_labelled():
    """Smaller tasks than those of labelling may find the links."""
    mask = blobs(3)
    store(mask, "zarr://mask.zarr")
    label((12, 12, 16), "mask.zarr", "zarr://parts.zarr", "--connectivity 26")
    say("stitch-labels -v parts.zarr -o zarr://labels.zarr -s 6 6 8 --connectivity 26")
    np.testing.assert_array_equal(read("labels.zarr"), whole(mask, 26))


def test_ids_that_several_tasks_have_used_are_refused():
    """Labels without --global-ids are refused, because they would join separate objects."""
    store(blobs(2), "zarr://mask.zarr")
    say(
        "generate-tasks -v mask.zarr -c 12 12 16 --respect-stop load-volume -v mask.zarr "
        "--expand-margin-size 2 2 2 connected-components --chunk-ids save-overlap -p over "
        "crop-margin --crop-bbox save-volume -v zarr://parts.zarr"
    )
    for name, more in (("touch", ""), ("over", " -p over")):
        told = say(f"stitch-labels -v parts.zarr -o zarr://{name}.zarr -s 12 12 16{more}", code=1)
        assert "two tasks must not use the same id; label with --global-ids" in told
        assert not Path(f"{name}.zarr").exists()


def test_it_goes_on_where_it_stopped_and_with_nothing_else():
    """Stored links are kept and lost ones made again; another task size needs --overwrite."""
    mask = blobs(3)
    store(mask, "zarr://mask.zarr")
    label((6, 6, 8), "mask.zarr", "zarr://parts.zarr")
    line = "stitch-labels -v parts.zarr -o zarr://labels.zarr -s 6 6 8"
    say(line)
    links = sorted(Path("labels.zarr.stitch/links").iterdir())
    assert len(links) == 4 * 5 * 4
    kept, lost = links[0].stat().st_mtime_ns, links[1].read_bytes()
    links[1].unlink()
    index = json.loads(Path("labels.zarr.stitch/table/table.json").read_text())
    assert index["entries"] > 0
    block = next(p for p in Path("labels.zarr").rglob("c/*/*/*") if p.is_file())
    block.unlink()
    say(line)
    assert links[0].stat().st_mtime_ns == kept
    assert links[1].read_bytes() == lost
    np.testing.assert_array_equal(read("labels.zarr"), whole(mask, 6))
    forget("parts.zarr")
    store(blobs(4), "zarr://others.zarr")
    say(
        "generate-tasks -v others.zarr -c 6 6 8 --respect-stop load-volume -v others.zarr "
        "connected-components save-volume -v parts.zarr"
    )
    assert "a different copy, with table" in say(f"{line} -w other", code=1)
    forget("parts.zarr")
    label((6, 6, 8), "mask.zarr", "zarr://parts.zarr")
    say(f"{line} -w again")
    forget("parts.zarr")
    assert "chunk size" in say(line.replace("6 6 8", "6 6 4"), code=2)
    say(
        line.replace("6 6 8", "6 6 4 --overwrite")
    )  # smaller tasks have the same boundaries, and more
    np.testing.assert_array_equal(read("labels.zarr"), whole(mask, 6))


def test_objects_are_counted():
    """The number of objects is logged, unless only a part of the tasks was relabelled."""
    mask = blobs(3)
    count = len(np.unique(whole(mask, 6))) - 1
    store(mask, "zarr://mask.zarr")
    label((6, 6, 8), "mask.zarr", "zarr://parts.zarr")

    def stitched(more=""):
        line = f"stitch-labels parts.zarr zarr://labels.zarr --task-size 12 12 16 {more}"
        return CliRunner().invoke(cli, line.split()).output

    assert f"zarr://labels.zarr: {count} objects\n" in stitched()
    assert len(np.unique(read("parts.zarr"))) - 1 > count
    next(p for p in Path("labels.zarr").rglob("c/*/*/*") if p.is_file()).unlink()
    resumed = stitched()
    assert f"{count} objects\n" not in resumed
    assert "objects were not counted, because " in resumed
    assert f"zarr://labels.zarr: {count} objects\n" in stitched("--overwrite")


def test_objects_of_many_tasks_count_once():
    """Each ID counts once per time point; 0 is not an object."""
    rng = np.random.default_rng(0)
    tasks = [np.unique(rng.integers(0, 150_000, 20_000).astype(np.uint64)) for _ in range(8)]
    objects = ObjectCount()
    for number, ids in enumerate(tasks):
        objects.add(number % 2, ids)
        objects.add(number % 2, ids)
    even, odd = (np.unique(np.concatenate(tasks[half::2])) for half in (0, 1))
    assert objects.total() == np.count_nonzero(even) + np.count_nonzero(odd)


def test_time_points_are_volumes_of_their_own():
    """Each time point has separate IDs, links and tables."""
    masks = [blobs(4), blobs(5)]
    say(
        "create-volume -v zarr://parts.zarr -z 22 27 31 -o -3 5 100 -s 40 4 4 -d uint64 -b 6 6 8 "
        "-t segmentation --times 2"
    )
    for time, mask in enumerate(masks):
        store(mask, f"zarr://mask{time}.zarr")
        say(
            f"generate-tasks -v mask{time}.zarr -c 6 6 8 --respect-stop load-volume -v "
            f"mask{time}.zarr connected-components --global-ids save-volume -v parts.zarr "
            f"--time {time}"
        )
    say("stitch-labels -v parts.zarr -o zarr://labels.zarr -s 6 6 8")
    volume = open_volume("labels.zarr")
    for time, mask in enumerate(masks):
        found = volume.read(volume.bounds, time=time).array
        np.testing.assert_array_equal(found.reshape(BOX.size), whole(mask, 6))


def cells():
    """Return labels of cells that fill the volume, and affinities (x, y, z), 0 between cells."""
    rng = np.random.default_rng(6)
    seeds = np.zeros(BOX.size, np.int32)
    places = rng.choice(seeds.size, 25, replace=False)
    seeds.ravel()[places] = np.arange(1, 26)
    _, nearest = ndimage.distance_transform_edt(seeds == 0, return_indices=True)
    labels = seeds[tuple(nearest)]
    affinity = np.zeros((3, *BOX.size), np.float32)
    for axis in range(3):
        inside = tuple(slice(1, None) if a == axis else slice(None) for a in range(3))
        affinity[2 - axis][inside] = 0.99 * (np.diff(labels, axis=axis) == 0)
    return labels, affinity


def test_segments_are_linked_where_tasks_overlap():
    """Cells that are divided among up to eight tasks are joined again."""
    labels, affinity = cells()
    store(affinity, "zarr://aff.zarr", "affinity")
    say(
        "generate-tasks -v aff.zarr -c 11 14 16 --respect-stop load-volume -v aff.zarr "
        "--expand-margin-size 2 3 3 agglomerate --global-ids save-overlap -p over "
        "crop-margin --crop-bbox save-volume -v zarr://parts.zarr"
    )
    say("stitch-labels -v parts.zarr -o zarr://labels.zarr -s 11 14 16 -p over")
    found = read("labels.zarr")
    pairs = np.unique(np.stack((labels.ravel(), found.ravel())), axis=1)
    pairs = pairs[:, pairs[1] > 0]
    assert pairs.shape[1] == 25 == len(np.unique(pairs[1]))
    assert len(np.unique(read("parts.zarr"))) > 40, "cells were cut"


def test_overlaps_need_a_margin():
    """A task without a margin shares no voxel with others, and is refused."""
    store(blobs(7), "zarr://mask.zarr")
    told = say(
        "generate-tasks -v mask.zarr -c 11 9 12 load-volume -v mask.zarr connected-components "
        "--global-ids save-overlap -p over",
        code=1,
    )
    assert "--expand-margin-size" in told


def test_ids_of_the_volume_need_the_volume():
    """A pipeline that loads one file per task does not know the volume, and is refused."""
    say("create-chunk -s 4 8 8 save-h5 -f in_0-4_0-8_0-8.h5")
    tasks = "generate-tasks --roi-size 4 8 16 -c 4 8 8 load-h5 -f in_"
    told = say(f"{tasks} connected-components --global-ids", code=2)
    assert "--domain" in told
    told = say(f"{tasks} connected-components --global-ids --domain 0-4_0-8_0-8", code=2)
    assert "give --domain 0-4_0-8_0-16" in told


@pytest.mark.slow
@pytest.mark.long
def test_a_run_records_and_keeps_how_it_labelled():
    """Both verify and repair know the labelling records; another run finds and deletes them."""
    mask = blobs(3)
    store(mask, "zarr://mask.zarr")
    end = "load-volume -v mask.zarr connected-components save-volume -v"
    tasks = "generate-tasks -v mask.zarr --respect-stop -c"
    say(f"submit --run r {tasks} 11 14 16 {end} zarr://parts.zarr")
    say("work r --threads 1")
    say("verify r")
    lost, *others = sorted(Path("parts.zarr").rglob("labelling/*.json"))
    assert len(others) == 2 * 2 * 2 - 1
    content = lost.read_bytes()
    lost.unlink()
    assert lost.name in say("verify r", code=1)
    say("repair r")
    say("work r --threads 1")
    say("verify r")
    assert lost.read_bytes() == content
    say("stitch-labels parts.zarr zarr://labels.zarr")
    np.testing.assert_array_equal(read("labels.zarr"), whole(mask, 6))
    line = f"{tasks} 11 27 31 {end} parts.zarr"
    assert "already exist where tasks of this run will write" in say(
        f"submit --run s {line}", code=2
    )
    say(f"submit --run s --clear-output {line}")
    assert not list(Path("parts.zarr").rglob("labelling/*.json"))


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ("-c 12 12 8 link-labels", "use tasks of size (6, 14, 16)"),
        ("-c 6 14 16 link-labels -c 18", "give --connectivity 6"),
        ("-c 6 14 16 link-labels", None),
        ("-c 3 7 16 link-labels", None),  # parts of the tasks
    ],
)
def test_link_labels_compares_its_tasks_with_the_labels(more, told):
    """The step must have the tasks and the connectivity of the labelling, else it is refused."""
    store(blobs(2), "zarr://mask.zarr")
    label((6, 14, 16), "mask.zarr", "zarr://parts.zarr")
    line = f"generate-tasks -v parts.zarr --respect-stop {more} -v parts.zarr -l links"
    said = say(line, code=0 if told is None else 1)
    assert told is None or told in said


def test_segments_are_not_linked_by_touch():
    """Agglomerated segments touch one another, so linking them by touch is refused."""
    _, affinity = cells()
    store(affinity, "zarr://aff.zarr", "affinity")
    say(
        "generate-tasks -v aff.zarr -c 22 14 31 --respect-stop load-volume -v aff.zarr "
        "--expand-margin-size 2 3 3 agglomerate crop-margin --crop-bbox "
        "save-volume -v zarr://parts.zarr"
    )
    told = say("stitch-labels parts.zarr zarr://labels.zarr", code=2)
    assert "come from agglomerate" in told
    assert "--overlap-path" in told
