"""Time series: each operator gives what it gives for each time point alone.

The lists of operators are those of `tests/test_chains.py`, so that a new operator is tested here
without being mentioned.
"""

import json
import random
import re
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from scipy import ndimage
from test_chains import LOADERS, STEPS, Chain, add, rows_of

from chunkflow_py.cli import catalog
from chunkflow_py.cli.command_line import read_line
from chunkflow_py.cli.main import cli
from chunkflow_py.core.chunk import Chunk
from chunkflow_py.core.geometry import BoundingBox, Region, Zyx
from chunkflow_py.core.points import Points
from chunkflow_py.core.synapses import Synapses
from chunkflow_py.errors import ChunkflowError
from chunkflow_py.pipeline.operator import Operator, Source
from chunkflow_py.pipeline.pipeline import Pipeline
from chunkflow_py.volume import create_volume, open_volume
from chunkflow_py.volume.protocol import VolumeSpec

BOUNDS = BoundingBox.from_size((12, -12, 24), (12, 16, 18))
SIZE_NM = (8.0, 4.0, 4.0)
TIMES = 3  # of which the tasks cover the last two
SELECTED = range(1, TIMES)


def arrays(time):
    """Return the voxels of a time point for each state of a chunk; they differ between times."""
    rng = np.random.default_rng(time)
    size = BOUNDS.size
    blocks = rng.integers(0, 6, -(-size // 4))
    labels = blocks.repeat(4, 0).repeat(4, 1).repeat(4, 2)[: size.z, : size.y, : size.x]
    unit = rng.random((3, *size), np.float32) * np.float32(0.9) + np.float32(0.05)
    return {
        "image": (rng.integers(1, 255, size, np.uint8), "image"),
        "map": (unit[:1], "probability"),
        "affinity": (unit, "affinity"),
        "many": (unit[:2], "probability"),
        "labels": (labels.astype(np.uint32), "segmentation"),
        "mask": ((rng.random(size) > 0.3).astype(np.uint8), "segmentation"),
    }


@pytest.fixture(scope="module")
def films():
    """Store a time series of each state, and each of its time points; return their folder."""
    for state, (first, kind) in arrays(0).items():
        spec = VolumeSpec(
            BOUNDS, SIZE_NM, first.dtype, len(first) if first.ndim == 4 else None, kind,
            Zyx(6, 8, 9), times=TIMES,
        )  # fmt: skip
        film = create_volume(spec, f"zarr://mem://films/{state}")
        for time in range(TIMES):
            chunk = Chunk(arrays(time)[state][0], BOUNDS.start, SIZE_NM, kind)
            film.write(chunk, time=time)
            still = f"zarr://mem://films/{state}-{time}"
            create_volume(VolumeSpec(**{**vars(spec), "times": None}), still).write(chunk)
    return "mem://films"


def run(source, words, times="", size="12 8 18"):
    """Run a pipeline over the tasks of a volume; return the items of each task, by region."""
    tasks, *_ = read_line(f"generate-tasks -v zarr://{source} -c {size} {times}".split())
    assert isinstance(tasks, Source)
    found = {}

    def collect(task):
        found[task.region] = (dict(task.items), list(task.written))
        return task

    operators = [*read_line(words.split()), Operator("collect", "compute", collect, collect)]
    pipeline = Pipeline(operators, tasks)
    pipeline.check()
    for task in pipeline.run():
        if task.failed:
            raise task.outcome
    return found


def outcome(items):
    """Return what can be compared of the items of a task."""
    result = {}
    for name, item in items.items():
        if isinstance(item, Chunk):
            result[name] = (item.bbox, item.dtype, item.kind, item.array.tobytes())
        elif isinstance(item, Points | Synapses):
            result[name] = sorted(rows_of(item))
        elif isinstance(item, dict):
            result[name] = json.dumps(item, default=str)
    return result


@pytest.mark.parametrize("name", STEPS)
def test_a_time_point_is_computed_as_if_alone(name, films):
    """Tasks of a time series make the items that they make of a volume of one time point."""
    step = STEPS[name]
    if step.takes.keys() <= {"signed"} or "{url}" in step.words(random.Random(0)):
        pytest.skip("stores its result, or follows another operator; tested below or with it")
    for state in step.takes:
        if state == "signed":
            continue
        chain = Chain(BOUNDS)
        add(chain, random.Random(1), name, state, {"mask": f"{films}/mask-0"})
        load = f"{LOADERS['load-volume']} --expand-margin-size auto"
        line = f"{load} {chain.words[0]}"
        timed = run(f"{films}/{state}", line.format(source=f"{films}/{state}"), "--time-points 1-2")
        assert {region.time for region in timed} == set(SELECTED)
        for time in SELECTED:
            source = f"{films}/{state}-{time}"
            alone = run(source, line.format(source=source))
            assert alone
            for region, (items, _) in alone.items():
                assert outcome(timed[Region(region.bbox, time)][0]) == outcome(items), state


# What stores results, with the state that it takes. A line that tasks of several time points cannot
# have ends with the reason.
WRITERS = {
    "compute-statistics": "image compute-statistics --statistics-path {url}",
    "evaluate-segmentation": "labels copy-var --to-name groundtruth evaluate-segmentation "
                             "--table-path {url}",
    "evaluate-segmentation --json": "labels copy-var --to-name groundtruth evaluate-segmentation "
                                    "--json {url}/scores_",
    "fragment-affinity": "affinity fragment-affinity --edges-path {url}",
    "link-labels": "mask link-labels --volume-path {source} --links-path {url} --connectivity 6",
    "mark-complete": "image mark-complete --prefix {url}/",
    "measure-contacts": "affinity copy-var --to-name affinity measure-contacts --graph-path {url} "
                        "--task-size 12 16 18 # time index",
    "measure-labels": "labels measure-labels --statistics-path {url}",
    "merge-regions": "affinity merge-regions --graph-path {url} --task-size 12 16 18 --level 1 "
                     "# time index",
    "mesh": "labels mesh --output-path {url} # time index",
    "preview": "image preview --output-path {url}/",
    "save-annotations": "map detect-points save-annotations --parts-path {url} # time index",
    "save-chunk-edges": "labels copy-var --to-name supervoxels copy-var --to-name fragments "
                        "copy-var --to-name segments copy-var --to-name affinity save-chunk-edges "
                        "--graph-path {url} --graph-chunk-size 12 16 18 # time index",
    "save-h5": "image save-h5 --file-name {url}/",
    "save-h5 one file": "image crop-margin save-h5 --file-name {url}.h5 # one file",
    "save-nrrd": "image save-nrrd --file-name {url}/",
    "save-overlap": "labels save-overlap --overlap-path {url}",
    "save-pngs": "image save-pngs --output-path {url} # time index",
    "save-points": "map detect-points --output-name points save-points --input-name points "
                   "--file-path {url}/",
    "save-precomputed": "image crop-margin save-precomputed -v precomputed://{url} # time",
    "save-swc": "labels skeletonize --dust-threshold 0 --output-name skels "
                "save-swc --output-prefix {url}/",
    "save-synapses": "map detect-pre-synapses --output-name syns save-synapses --input-name syns "
                     "--file-path {url}/",
    "save-tif": "image save-tif --file-name {url}/",
    "save-volume": "image crop-margin save-volume -v zarr://{url}",
    "save-zarr": "image crop-margin save-zarr --store zarr://{url}",
    "skeletonize": "labels skeletonize --output-path {url} # time index",
}  # fmt: skip
NOT_PER_TASK = {
    "aggregate-skeleton-fragments", "cloud-watch", "create-info", "create-volume", "cut-hierarchy",
    "delete-task-in-queue", "download-mesh", "downsample-upload", "merge-annotations", "napari",
    "neuroglancer", "solve-labels", "view",
}  # fmt: skip


def test_every_operator_that_writes_is_tested():
    """A new operator of stage write is in one of the lists above."""
    writing = {n for n in catalog.names() if '"write"' in Path(catalog.path_of(n)).read_text()}
    named = {name.partition(" ")[0] for name in WRITERS}
    assert writing <= named | NOT_PER_TASK
    assert not named & NOT_PER_TASK


def stored(folder):
    """Return the content of all files below a folder, by path."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.parametrize("name", WRITERS)
def test_time_points_do_not_replace_each_other(name, films, tmp_path):
    """What tasks of two time points store is what each stores alone, or the line is refused."""
    line, _, refused = WRITERS[name].partition(" # ")
    state, _, words = line.partition(" ")
    source = f"zarr://{films}/{state}"
    margin = "2 2 2" if name == "save-overlap" else "auto"
    words = f"load-volume -v {source} --expand-margin-size {margin} {words}"
    size = "12 8 18" if name in ("save-overlap", "link-labels", "save-swc") else "12 16 18"
    found = {}
    for times in ("1-2", "1", "2"):
        folder = tmp_path / times / "out"
        folder.mkdir(parents=True)
        line = words.format(url=folder, source=source)
        if refused and times == "1-2":
            with pytest.raises(ChunkflowError, match=refused):
                run(f"{films}/{state}", line, f"--time-points {times}", size)
            assert not stored(folder)
            return
        run(f"{films}/{state}", line, f"--time-points {times}", size)
        found[times] = stored(folder)
    assert found["1"] != found["2"]
    assert found["1-2"] == found["1"] | found["2"] == found["2"] | found["1"]


def say(*words, code=0):
    """Run a command line; return what it prints."""
    done = CliRunner().invoke(cli, ["--quiet", *map(str, words)])
    assert done.exit_code == code, done.output
    return done.output


def test_a_time_series_from_tiff_to_stitched_labels(tmp_path, monkeypatch):
    """A run labels all time points of a TIFF file; verify and stitch-labels handle each time."""
    tifffile = pytest.importorskip("tifffile")
    monkeypatch.chdir(tmp_path)
    mask = np.random.default_rng(0).random((3, 2, 8, 16, 18)) > 0.6
    sizes = dict.fromkeys(("PhysicalSizeZ", "PhysicalSizeY", "PhysicalSizeX"), 0.5)
    tifffile.imwrite(
        "film.ome.tif",
        mask.astype(np.uint8) * 200,
        metadata={"axes": "TCZYX", **sizes, "Channel": {"Name": ["nuclei", "membranes"]}},
    )
    say(
        "submit", "--run", "cells.run", "generate-tasks", "-v", "film.ome.tif", "--time-points",
        "all", "--chunk-size", 8, 8, 9, "load-volume", "-v", "film.ome.tif", "select-channels",
        "-c", 0, "threshold", "--threshold", 100, "connected-components", "--connectivity", 26,
        "save-volume", "-v", "zarr://parts.zarr",
    )  # fmt: skip
    say("work", "cells.run", "--until-complete")
    assert "all 12 tasks are recorded" in say("verify", "cells.run")
    say("stitch-labels", "parts.zarr", "zarr://labels.zarr")
    say(
        "generate-tasks", "-v", "film.ome.tif", "--time-points", "all", "--chunk-size", 8, 8, 9,
        "load-volume", "-v", "film.ome.tif", "compute-statistics", "--statistics-path", "counts",
    )  # fmt: skip
    for time in (None, 0, 2):
        chosen = () if time is None else ("--time", time)
        nuclei, _ = json.loads(say("sum-statistics", "counts", "--json", *chosen))["channels"]
        counted = mask if time is None else mask[time : time + 1]
        assert nuclei["mean"] == pytest.approx(200 * counted[:, 0].mean())
    said = say("sum-statistics", "counts", "--time", 3, code=1)
    assert "time points 0 to 2, but time point 3" in said
    labels = open_volume("labels.zarr")
    assert (labels.times, labels.voxel_size_nm) == (3, (500, 500, 500))
    for time in range(3):
        found = labels.read(labels.bounds, time=time).array.squeeze()
        expected, count = ndimage.label(mask[time, 0], np.ones((3, 3, 3)))
        pairs = np.unique(np.stack([found.ravel(), expected.ravel()]), axis=1)
        assert pairs.shape[1] == count + 1 == len(np.unique(found))


@pytest.mark.parametrize(
    ("times", "numbers"),
    [("all", range(3)), ("1", [1]), ("0-1", range(2)), ("2-2", [2]), ("1-2", range(1, 3))],
)
def test_chosen_time_points(films, times, numbers):
    """all, one, or a range with both ends; tasks are counted over all of them."""
    plan = tasks_of(films, "--time-points", times).plan
    assert [plan.region(number).time for number in plan] == [t for t in numbers for _ in range(2)]
    assert list(plan.time_points) == list(numbers)
    part = tasks_of(films, "--time-points", times, "-i", 1, "-p", 2).plan
    assert [plan.region(number) for number in plan][1:2] == [part.region(n) for n in part]


def tasks_of(films, *words):
    """Return the source of generate-tasks with these options."""
    line = ["generate-tasks", "-v", f"zarr://{films}/image", "-c", "12 8 18"]
    return read_line([*" ".join([*line, *map(str, words)]).split()])[0].body


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("-v {film} -c 12 8 18 --time-points 1-3", "has the time points 0-2, but time point 3"),
        ("-v {still} -c 12 8 18 --time-points 1", "has no time axis, but time point 1"),
        ("-c 12 8 18 -z 12 8 18 --time-points all", "; give --volume-path, or .* 0-9"),
        ("-v {film} -b t1_12-24_-12-4_24-42 --time-points 1", "already gives the time point"),
        ("-v {film} -c 12 8 18 --time-points 2-1", "ends before it begins; write 1-2"),
        ("-v {film} -c 12 8 18 --time-points 1-", "neither a number, a range such as 0-9, nor"),
        ("-v {film} -c 12 8 18 --time-points -1", "neither a number, a range such as 0-9, nor"),
        ("-v {film} -c 12 8 18", "3 time points, .*--time-points all"),
    ],
)
def test_wrong_time_points(films, words, message):
    """What disagrees is named before the first task."""
    line = words.format(film=f"zarr://{films}/image", still=f"zarr://{films}/image-0")
    done = CliRunner().invoke(
        cli, f"generate-tasks {line} load-volume -v zarr://{films}/image".split()
    )
    assert done.exit_code
    assert re.search(message, done.output), done.output


def test_all_time_points_of_a_still(films):
    """A volume without a time axis has tasks without a time index."""
    done = run(f"{films}/image-0", f"load-volume -v zarr://{films}/image-0", "--time-points all")
    assert [region.time for region in done] == [None, None]
