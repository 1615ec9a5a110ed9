"""Pipelines over tasks give the same result as over the whole volume as one task.

Random chains of operators are drawn from all of chunkflow_py/ops, including scaling, transposing
and cropping. The comparison with the result for the whole volume depends on the last operator:

* voxels: equal bytes in the box of each task
* stored: equal bytes of the stored volume
* components: equal foreground; no ID in two tasks; each ID within one object of the whole
* segments: equal foreground; no ID in two tasks. Boundaries of segments depend on the input of a
  task; only save-overlap and link-labels join them
* points: each point once, with equal attributes
* counts, tables, objects: equal sums
* surfaces: equal sets of triangles

The seed identifies a chain: `pytest tests/test_chains.py -k seed-10` runs seeds 10 to 19.
"""

from __future__ import annotations

import gzip
import random
from collections import Counter
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import count
from math import lcm
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from chunkflow_py.cli import catalog
from chunkflow_py.cli.command_line import read_line
from chunkflow_py.core.chunk import Chunk
from chunkflow_py.core.geometry import BoundingBox, BoxGrid, Region, Zyx
from chunkflow_py.core.points import Points
from chunkflow_py.core.synapses import Synapses
from chunkflow_py.core.task import Task
from chunkflow_py.errors import ChunkflowError
from chunkflow_py.filters.volume_statistics import VolumeStatistics
from chunkflow_py.pipeline.operator import Operator, Source, TaskSource
from chunkflow_py.pipeline.pipeline import Pipeline
from chunkflow_py.run.coverage import outputs_of, saved_box
from chunkflow_py.segmentation.labels.contingency import read_tables
from chunkflow_py.segmentation.labels.object_measures import KIND, ObjectMeasures, summed
from chunkflow_py.store import open_store
from chunkflow_py.store.task_counts import CountStore
from chunkflow_py.volume import create_volume, open_volume
from chunkflow_py.volume.protocol import VolumeSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# Of the volumes: the second begins where no coarse voxel does.
BOUNDS = [BoundingBox.from_size(start, (18, 22, 26)) for start in ((36, -36, 72), (5, -3, 8))]
names = (f"mem://chains-{number}" for number in count())


# --- what operators do in a chain -----------------------------------------------------------------


@dataclass(frozen=True)
class Step:
    """The part of an operator in a chain.

    Attributes:
        takes: accepted states of the chunk, each with the resulting state (see `SOURCES`; ``mask``
            is a segmentation of uint8) or, if the chain ends here, the kind of comparison.
        words: function that returns the arguments, given a random generator; a URL replaces
            ``{url}``.
        ends: whether a chain ends here.
        first: whether the operator must follow the loader.
        moves: whether it moves the corners of the task's box, so that tasks do not cover the whole.
        flattens: whether it makes plateaus; peaks of tasks equal those of the whole only without.
    """

    takes: dict[str, str]
    words: Callable[[random.Random], str]
    ends: bool = False
    first: bool = False
    moves: bool = False
    flattens: bool = False


IMAGES = ("image", "map", "affinity", "many", "signed")
LABELS = ("labels", "mask")
ANY = (*IMAGES, *LABELS)


def keep(*states: str) -> dict[str, str]:
    """Return the entry for an operator that keeps the state of the chunk."""
    return {state: state for state in states}


def end(result: str, *states: str) -> dict[str, str]:
    """Return the entry for an operator that ends a chain, with the kind of comparison."""
    return dict.fromkeys(states, result)


def factor(rng: random.Random) -> str:
    """Return random downsampling factors, at least one of them above 1."""
    return " ".join(
        map(str, rng.choice([(2, 2, 2), (1, 2, 2), (2, 1, 2), (2, 1, 1), (1, 1, 3), (3, 1, 1)]))
    )


RATIOS = ("3/2 1 1", "1 1.5 2/3", "1/2 1 1", "2 3/2 1", "1 3/4 3/2", "1 2 2")


def few(rng: random.Random, least: int, most: int, number: int = 3) -> str:
    """Return a short list of random numbers."""
    return " ".join(str(rng.randint(least, most)) for _ in range(number))


STEPS = {
    "downsample": Step(keep(*ANY), lambda r: f"downsample --factor {factor(r)}"),
    "resample": Step(
        keep(*IMAGES, *LABELS),
        lambda r: (
            f"resample --factor {r.choice(RATIOS)} --method {r.choice(['auto', 'nearest', 'mode'])}"
        ),
    ),
    "transpose": Step(
        keep(*ANY),
        lambda r: f"transpose --axes {r.choice(['zxy', 'yzx', 'yxz', 'xzy', 'xyz'])}",
    ),
    "crop-margin": Step(keep(*ANY), lambda r: f"crop-margin --margin-size {few(r, 0, 2, 6)}"),
    "crop-margin --crop-bbox": Step(
        end("voxels", *ANY),
        lambda r: (
            f"crop-margin --crop-bbox --margin-size {r.choice(['1 1 1 0 0 0', '0 1 0 1 0 1'])}"
            " crop-margin"
        ),
        ends=True,
        moves=True,
    ),
    "adjust-bbox": Step(
        keep(*ANY),
        lambda r: f"adjust-bbox --corner-offset {few(r, 0, 1)} {few(r, -1, 0)}",
        moves=True,
    ),
    "channel-voting": Step({"many": "mask"}, lambda _: "channel-voting"),
    "copy-var": Step(keep(*ANY), lambda _: "copy-var --to-name spare"),
    "delete-var": Step(
        keep(*ANY), lambda _: "copy-var --to-name extra delete-var --var-names extra"
    ),
    "gaussian-filter": Step(
        keep("image", "map", "many", "signed"),
        lambda r: f"gaussian-filter --sigma 0.5 --sigma-z {r.choice([0, 0.4])}",
    ),
    "inference": Step(
        {"image": "map"},
        lambda _: (
            "inference --framework identity --input-patch-size 6 6 6 --output-patch-overlap 2 2 2"
            " --num-output-channels 1 --output-kind probability"
        ),
        flattens=True,
    ),
    "inverse": Step(keep("image", "map"), lambda _: "inverse"),
    "mapto01": Step({"signed": "map"}, lambda _: "mapto01"),
    # not of affinities: where there are none, fragments depend on what a task sees
    "mask": Step(
        keep("image", "map", "many", *LABELS),
        lambda _: "mask --volume-path zarr://{mask} --mip 0",
        first=True,
    ),
    "median-filter": Step(
        keep("image", "map", "mask"),
        lambda r: f"median-filter --size 1 3 {r.choice([1, 3])}",
        flattens=True,
    ),
    "multiply": Step(
        keep("map"), lambda _: "copy-var --to-name factor multiply --multiplier-name factor"
    ),
    "nonzero-mask": Step(
        {"image": "mask", "many": "mask", "labels": "mask"},
        lambda r: f"nonzero-mask {r.choice(['', '--inverse'])}",
    ),
    "normalize-intensity": Step(
        {"image": "signed"}, lambda _: "normalize-intensity", flattens=True  # few grey values
    ),
    "print-max-id": Step(keep(*LABELS), lambda _: "print-max-id"),
    "quantize": Step({"map": "image", "affinity": "image"}, lambda _: "quantize"),
    "rescale-intensity": Step(keep("image"), lambda _: "rescale-intensity --low 20 --high 200"),
    "select-channels": Step(
        {"affinity": "map", "many": "map"},
        lambda r: f"select-channels --channels {r.choice([0, 1])}",
    ),
    "skip-all-zero": Step(keep("image"), lambda _: "skip-all-zero"),
    "skip-none": Step(keep(*ANY), lambda _: "skip-none"),
    "statistics": Step(keep("image", "labels"), lambda _: "statistics"),
    "stretch-intensity": Step(keep("image"), lambda _: "stretch-intensity --min-threshold 30"),
    "threshold": Step(
        {"image": "mask", "map": "mask", "signed": "mask"}, lambda _: "threshold --threshold {t}"
    ),
    # the ends
    "crop-margin to the box": Step(end("voxels", *ANY), lambda _: "crop-margin", ends=True),
    "connected-components": Step(
        end("components", "image", "map", *LABELS),
        lambda _: "connected-components --global-ids {-t}",
        ends=True,
    ),
    "agglomerate": Step(
        end("segments", "affinity"), lambda _: "agglomerate --global-ids", ends=True
    ),
    "detect-points": Step(
        end("points", "map"),
        lambda _: "detect-points --min-distance 1 --output-name found",
        ends=True,
    ),
    "detect-pre-synapses": Step(
        end("points", "map"),
        lambda _: "detect-pre-synapses --min-distance 1 --output-name found",
        ends=True,
    ),
    "find-tbar-object": Step(
        end("points", "map"),
        lambda _: (
            "detect-pre-synapses --min-distance 1 skip-none --input-name syns"
            " threshold --threshold {t} find-tbar-object --output-name found"
        ),
        ends=True,
    ),
    "adjust-pre": Step(
        end("points", "map"),
        lambda _: (
            "detect-pre-synapses --min-distance 1 skip-none --input-name syns"
            " adjust-pre --radius 1 --img-threshold 0.4 --output-name found"
        ),
        ends=True,
    ),
    "compute-statistics": Step(
        end("counts", "image"),
        lambda _: "compute-statistics --statistics-path {url}",
        ends=True,
    ),
    "evaluate-segmentation": Step(
        end("tables", *LABELS),
        lambda _: (
            "copy-var --to-name groundtruth evaluate-segmentation --table-path {url}"
        ),
        ends=True,
    ),
    "measure-labels": Step(
        end("objects", *LABELS),
        lambda _: (
            "copy-var --to-name image measure-labels --image-name image --statistics-path {url}"
        ),
        ends=True,
    ),
    "mesh": Step(
        end("surfaces", *LABELS),
        lambda _: "mesh --output-path {url} --simplification-factor 0",
        ends=True,
    ),
    "save-volume": Step(
        end("stored", "image", "map", "affinity", *LABELS),
        lambda _: "crop-margin save-volume --volume-path zarr://{url}",
        ends=True,
    ),
    "save-precomputed": Step(
        end("stored", "image", "map", "affinity", *LABELS),
        lambda _: "crop-margin save-precomputed --volume-path precomputed://{url}",
        ends=True,
    ),
    "save-zarr": Step(
        end("stored", "image", "map", "affinity", *LABELS),
        lambda _: "crop-margin save-zarr --store zarr://{url}",
        ends=True,
    ),
}  # fmt: skip

# The other operators begin chains, or take no part, for a reason.
LOADERS = {
    "load-volume": "load-volume --volume-path zarr://{source}",
    "load-zarr": "load-zarr --store zarr://{source}",
    "load-precomputed": "load-precomputed --volume-path precomputed://{source}-p",
}
WHOLE = "looks at all of the chunk, and warns of chunks that are a part of a volume"
OBJECTS = "works on the objects of a chunk, which tasks cut; warns or says so in its help"
ONE_FILE = "the part that a task needs is cut by Cutout, as in load-volume, which takes part"
AS_IT_IS = "stores or shows what it is given as it is, under the name of the task"
NO_VOXELS = "has nothing to do with voxels or boxes"
SOURCE = "makes the tasks; here they are made by the test"
STORED = "asks what is stored under the name of the task, or below a volume, not what it is given"
LATER = "works on what the tasks of an earlier run have stored"

EXCLUDED = {
    "aggregate-skeleton-fragments": LATER,
    "clahe": WHOLE,
    "cleanup": NO_VOXELS,
    "cloud-watch": NO_VOXELS,
    "create-bbox": SOURCE,
    "create-chunk": "makes a chunk of its own, which is the same for all tasks",
    "create-info": NO_VOXELS,
    "create-volume": NO_VOXELS,
    "cut-hierarchy": NO_VOXELS,
    "debug": NO_VOXELS,
    "delete-task-in-queue": NO_VOXELS,
    "detect-duplicate-post": "looks for duplicates among the synapses of one task",
    "detect-post-synapses": "T-bars that a task reaches are those of the file it has loaded",
    "download-mesh": LATER,
    "downsample-upload": "needs a volume with levels; tests/volume/test_volume_pyramid.py",
    "fetch-task-from-file": SOURCE,
    "fetch-task-from-sqs": SOURCE,
    "fill-segmentation-holes": OBJECTS,
    "fragment-affinity": "its ids are final only after link-labels; tests/segmentation",
    "generate-tasks": SOURCE,
    "link-labels": LATER,
    "load-annotations": LATER,
    "load-h5": ONE_FILE,
    "load-json": NO_VOXELS,
    "load-mrc": ONE_FILE,
    "load-n5": "is load-zarr for another format",
    "load-npy": ONE_FILE,
    "load-nrrd": ONE_FILE,
    "load-png": ONE_FILE,
    "load-skeleton": LATER,
    "load-synapses": LATER,
    "load-tensorstore": "is load-volume for what TensorStore opens",
    "load-tif": ONE_FILE,
    "log-summary": NO_VOXELS,
    "mark-complete": AS_IT_IS,
    "mask-out-objects": OBJECTS,
    "measure-contacts": LATER,
    "merge-annotations": LATER,
    "merge-regions": NO_VOXELS,
    "mesh-manifest": SOURCE,
    "napari": AS_IT_IS,
    "neuroglancer": AS_IT_IS,
    "normalize-contrast": WHOLE,
    "normalize-section-shang": WHOLE,
    "plugin": "runs a file of the user; test_a_plugin_is_given_the_box_of_its_input",
    "preview": AS_IT_IS,
    "relabel": LATER,
    "save-annotations": "test_volume_annotations compares tasks of several sizes",
    "save-chunk-edges": LATER,
    "save-h5": AS_IT_IS,
    "save-nrrd": AS_IT_IS,
    "save-overlap": "test_overlaps_are_those_of_the_stored_result",
    "save-pngs": AS_IT_IS,
    "save-points": AS_IT_IS,
    "save-swc": AS_IT_IS,
    "save-synapses": AS_IT_IS,
    "save-tif": AS_IT_IS,
    "setup-env": SOURCE,
    "skeletonize": "the lines of an object depend on how much of it the task sees",
    "skip-task-by-blocks-in-volume": STORED,
    "skip-task-by-file": STORED,
    "solve-labels": LATER,
    "split-supervoxels": "tasks must be whole chunks of the graph; tests/segmentation",
    "view": AS_IT_IS,
}


def test_every_operator_takes_part_or_has_a_reason():
    """Each module of chunkflow_py/ops is in random chains, or has a reason not to be."""
    taking = {name.split(" ")[0] for name in (*STEPS, *LOADERS)}
    assert not taking & EXCLUDED.keys()
    assert taking | EXCLUDED.keys() == set(catalog.names())
    assert all(EXCLUDED.values())


# --- chains ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sources() -> list[dict[str, str]]:
    """Store a volume for each state of a chunk, on each of `BOUNDS`; return their URLs."""
    return [stored_sources(bounds) for bounds in BOUNDS]


def stored_sources(bounds: BoundingBox) -> dict[str, str]:
    """Store a volume for each state of a chunk, and a mask; return their URLs."""
    rng = np.random.default_rng(3)
    size = bounds.size
    coarse = -(-size // 4)
    blocks = rng.integers(0, 6, coarse)
    labels = blocks.repeat(4, 0).repeat(4, 1).repeat(4, 2)[: size.z, : size.y, : size.x]
    unit = rng.random((3, *size), np.float32) * np.float32(0.9) + np.float32(0.05)
    arrays: dict[str, tuple[Any, Any]] = {
        "image": (rng.integers(1, 255, size, np.uint8), "image"),
        "map": (unit[:1], "probability"),
        "affinity": (unit, "affinity"),
        "many": (unit[:2], "probability"),
        "labels": (labels.astype(np.uint32), "segmentation"),
        "mask": ((rng.random(size) > 0.3).astype(np.uint8), "segmentation"),
    }
    urls = {}
    for state, (array, kind) in arrays.items():
        urls[state] = next(names)
        spec = {"bounds": bounds, "dtype": array.dtype, "voxel_size_nm": (8.0, 4.0, 4.0),
                "kind": kind, "channels": len(array) if array.ndim == 4 else None,
                "block_size": Zyx(6, 8, 8)}  # fmt: skip
        chunk = Chunk(array, bounds.start, (8, 4, 4), kind)
        for url in (f"zarr://{urls[state]}", f"precomputed://{urls[state]}-p"):
            volume = create_volume(VolumeSpec(**spec), url)
            volume.write(chunk)
    return urls


@dataclass
class Chain:
    """A random chain.

    Attributes:
        words: arguments of the pipeline, without URLs.
        result: kind of comparison.
        scale: a number of voxels whose multiples cut no coarse voxel along any axis.
        moves: whether tasks do not cover the whole at the end.
        flat: whether the voxels may have plateaus at their peaks.
        bounds: bounds of the loaded volume.
    """

    bounds: BoundingBox
    words: list[str] = field(default_factory=list)
    result: str = ""
    scale: int = 1
    moves: bool = False
    flat: bool = False
    is_whole: bool = True  # whether all factors are whole, so that corners can move


def draw(rng: random.Random, all_sources: list[dict[str, str]]) -> Chain:
    """Return a random chain of one to five operators and an end."""
    number = rng.randrange(len(all_sources))
    chain, sources = Chain(BOUNDS[number]), all_sources[number]
    state = rng.choice([state for state in sources if state != "mask"])
    loader = rng.choice(list(LOADERS.values()))
    chain.words = [loader.format(source=sources[state]), "--expand-margin-size auto"]
    for number in range(rng.randint(1, 5)):
        name = rng.choice(
            [n for n, s in STEPS.items() if state in s.takes and not s.ends
             and (number == 0 or not s.first)
             and not (s.moves and (chain.moves or not chain.is_whole))
                and (n != "inference" or chain.scale < 4)  # a patch would be larger than the volume
               ]
            # what turns and scales voxels is what this is about
            + ["downsample"] * 4 + ["resample"] * 3 + ["transpose"] * 2
        )  # fmt: skip
        if name in ("downsample", "resample") and chain.scale > 3:
            name = "transpose"
        add(chain, rng, name, state, sources)
        state = STEPS[name].takes[state]
    ends = {
        n: s for n, s in STEPS.items()
        if s.ends and state in s.takes and (chain.is_whole or not s.moves)
        # where faces have moved, there are gaps between tasks, or they share coarse voxels
        and not (chain.flat and s.takes[state] == "points")
        and (not chain.moves or s.takes[state] == "voxels")
        and (chain.bounds == BOUNDS[0] or s.takes[state] != "stored")
    }  # fmt: skip
    chain.result = rng.choice(sorted({step.takes[state] for step in ends.values()}))
    fitting = [name for name, step in ends.items() if step.takes[state] == chain.result]
    add(chain, rng, rng.choice(fitting), state, sources)
    return chain


def add(chain: Chain, rng: random.Random, name: str, state: str, sources: dict[str, str]) -> None:
    """Add an operator to a chain."""
    step = STEPS[name]
    level = {"image": "120", "map": "0.5"}.get(state, "0")
    words = step.words(rng).replace("{t}", level).replace("{mask}", sources["mask"])
    words = words.replace("{-t}", "" if state in LABELS else f"--threshold {level}")
    chain.words.append(words)
    chain.moves |= step.moves
    chain.flat |= step.flattens
    if name == "downsample":
        chain.scale *= lcm(*map(int, words.split()[-3:]))
    elif name == "resample":
        factors = [Fraction(each) for each in words.split()[2:5]]
        chain.scale *= lcm(*(each.numerator for each in factors))
        chain.is_whole &= all(each.denominator == 1 for each in factors)


# --- running --------------------------------------------------------------------------------------


@dataclass
class Done:
    """The result of a chain: per task, its box at the last operator, and its items."""

    url: str
    tasks: list[tuple[BoundingBox, dict[str, Any]]]


def run(chain: Chain, boxes: Any) -> Done:
    """Run a chain over tasks."""
    done = Done(next(names), [])
    words = " ".join(chain.words).replace("{url}", done.url).split()

    def collect(task: Any) -> Any:
        done.tasks.append((task.bbox, dict(task.items)))
        return task

    operators = [*read_line(words), Operator("collect", "compute", collect, collect, ("chunk",))]
    pipeline = Pipeline(operators, Source("boxes", TaskSource(boxes)))  # type: ignore[arg-type]
    pipeline.check()
    for task in pipeline.run():
        if task.failed:
            raise task.outcome  # type: ignore[misc]
    return done


def cuts(chain: Chain, rng: random.Random) -> tuple[BoxGrid, list[BoundingBox]]:
    """Return a grid of tasks and one task that covers it, both in whole coarse voxels."""
    unit = chain.scale
    if chain.result == "voxels" and rng.random() < 0.5:
        unit = 1  # tasks may share coarse voxels, of which each must make the same
    region = chain.bounds.aligned_outward((unit,) * 3)
    size = Zyx(*(-(-rng.randint(9, 15) // unit) * unit for _ in range(3)))
    if chain.moves:  # of a small rest of the volume nothing would be left
        half = -(-chain.bounds.size // 2)
        size = half if 2 * chain.scale < min(half) else chain.bounds.size
        region = chain.bounds
    grid = BoxGrid.covering(region, size)
    return grid, [grid.bounds]


def compare(chain: Chain, tasks: Done, whole: Done) -> None:
    """Compare the result of tasks with that of the whole volume as one task."""
    if chain.result in {"voxels", "components", "segments"}:
        compare_chunks(chain, tasks, whole)
    elif chain.result == "points":
        rows = [sorted(row for _, items in each.tasks for row in rows_of(items.get("found")))
                for each in (tasks, whole)]  # fmt: skip
        assert rows[0] == rows[1]
    elif chain.result == "counts":
        a, b = (VolumeStatistics(each.url).whole()[0] for each in (tasks, whole))
        assert a.statistics() == b.statistics()
    elif chain.result == "tables":
        a, b = (sorted(map(tuple, table_below(each.url))) for each in (tasks, whole))
        assert a == b
    elif chain.result == "objects":
        a, b = (objects_below(each.url) for each in (tasks, whole))
        assert a == b
    elif chain.result == "stored":
        a, b = (stored_below(each.url) for each in (tasks, whole))
        assert a.bbox == b.bbox
        np.testing.assert_array_equal(a.array, b.array)
    else:
        a, b = (triangles_below(each.url) for each in (tasks, whole))
        assert a == b


def compare_chunks(chain: Chain, tasks: Done, whole: Done) -> None:
    """Compare the voxels in the boxes of tasks with those of the whole."""
    ((_, items),) = whole.tasks
    everything: Chunk = items["chunk"]
    seen: dict[int, int] = {}
    objects: dict[int, int] = {}
    covered = np.zeros(everything.size, bool)
    for number, (box, items) in enumerate(tasks.tasks):
        inside = box.intersection(everything.bbox)
        assert items["chunk"].bbox.contains(inside), f"{items['chunk'].bbox} lacks {inside}"
        ours, theirs = items["chunk"].cut(inside), everything.cut(inside)
        assert (ours.dtype, ours.kind, ours.voxel_size_nm) == (
            theirs.dtype, theirs.kind, theirs.voxel_size_nm)  # fmt: skip
        covered[inside.slices(everything.voxel_offset)] = True
        if chain.result == "voxels":
            np.testing.assert_array_equal(ours.array, theirs.array, err_msg=str(box))
            continue
        np.testing.assert_array_equal(ours.array > 0, theirs.array > 0, err_msg=str(box))
        for label, other in np.unique(
            np.stack([ours.array.ravel(), theirs.array.ravel()]), axis=1
        ).T.tolist():
            if label:
                assert seen.setdefault(label, number) == number, "two tasks have the same id"
                if chain.result == "components":
                    assert objects.setdefault(label, other) == other, "two objects have one id"
    assert chain.moves or covered.all()


def rows_of(found: Any) -> Iterator[tuple[Any, ...]]:
    """Yield each point with all its attributes."""
    if isinstance(found, Points):
        columns = [found.positions, found.confidences]
    elif isinstance(found, Synapses):
        columns = [found.pre, found.pre_confidence, found.object_ids]
    else:
        assert found is None, "a task without a result"
        return
    for row in zip(*(c.tolist() for c in columns if c is not None), strict=True):
        yield (tuple(row[0]), *row[1:])


def table_below(url: str) -> Any:
    """Return the sum of the overlaps that tasks have stored."""
    table, _ = read_tables(url)
    return np.stack([table.segments, table.bodies, table.voxels], axis=1).tolist()


def objects_below(url: str) -> dict[str, bytes]:
    """Return the bytes of all measures of objects, summed over tasks."""
    parts = CountStore(url, KIND).read()
    measures = summed(ObjectMeasures(**part.arrays) for part in parts)  # type: ignore[arg-type]
    assert measures is not None
    return {name: array.tobytes() for name, array in measures.arrays().items()}


def stored_below(url: str) -> Chunk:
    """Return all voxels of a volume."""
    keys = open_store(url).list()
    scheme = "precomputed" if "info" in keys else "zarr"
    volume = open_volume(f"{scheme}://{url}")
    return volume.read(volume.bounds)


def triangles_below(url: str) -> Counter[Any]:
    """Return the number of each triangle, by object and corners."""
    store = open_store(url)
    found: Counter[Any] = Counter()
    for key in store.list():
        name = key.rpartition("/")[2]
        if name == "info":
            continue
        data = store.get(key)
        assert data is not None
        data = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
        number = int(np.frombuffer(data, "<u4", 1)[0])
        corners = np.frombuffer(data, "<f4", 3 * number, 4).reshape(-1, 3)
        faces = np.frombuffer(data, "<u4", offset=4 + 12 * number).reshape(-1, 3)
        for face in corners[faces].tolist():
            found[name.split(":")[0], tuple(sorted(map(tuple, face)))] += 1
    return found


def check(seed: int, sources: list[dict[str, str]], caplog: Any) -> Chain:
    """Draw a chain, run it over tasks and as one task, and compare the results."""
    rng = random.Random(seed)
    chain = draw(rng, sources)
    grid, one = cuts(chain, rng)
    print(f"seed {seed}: {' '.join(chain.words)}  # {len(grid)} tasks of {grid.size}")  # noqa: T201
    tasks = run(chain, grid)
    warnings = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    # Where segments end does depend on the division, of which agglomerate warns.
    assert all(each.startswith("agglomerate uses the whole chunk") for each in warnings)
    compare(chain, tasks, run(chain, one))
    return chain


def in_ten(first: int, last: int) -> Any:
    """Return parameters for seeds, ten seeds per test."""
    return [pytest.param(range(k, min(k + 10, last)), id=f"seed-{k}")
            for k in range(first, last, 10)]  # fmt: skip


@pytest.mark.parametrize("seeds", in_ten(0, 10))
def test_tasks_give_what_the_whole_gives(seeds, sources, caplog):
    """A sample of random chains; `make drills` runs all of them."""
    for seed in seeds:
        check(seed, sources, caplog)


def chain_of_one(line: str, state: str, sources: dict[str, str], name: str = "") -> Chain:
    """Return a chain of a loader, one operator and its requirements, to compare voxels."""
    # nothing is stored in the state that normalize-intensity makes
    before = " normalize-intensity" if state == "signed" else ""
    loader = LOADERS["load-zarr"].format(source=sources["image" if before else state])
    chain = Chain(BOUNDS[0], [f"{loader} --expand-margin-size auto{before}"], "voxels")
    if name:
        add(chain, random.Random(1), name, state, sources)
    else:
        chain.words.append(line)
    return chain


def check_alone(chain: Chain) -> None:
    """Compare random tasks of a chain with the whole, without further operators."""
    for seed in range(2):
        grid, one = cuts(chain, random.Random(seed))
        compare(chain, run(chain, grid), run(chain, one))


@pytest.mark.parametrize(
    "name", [name for name, step in STEPS.items() if not step.ends and name != "statistics"]
)
def test_local_operators_do_not_depend_on_the_division(name, sources):
    """Each operator of a chain declares that it is local, and makes what it makes of the whole.

    Statistics are an exception, because their item describes the whole chunk.
    """
    for state in STEPS[name].takes:
        chain = chain_of_one("", state, sources[0], name)
        operators = read_line(" ".join(chain.words).split())
        assert [each.name for each in operators if not each.is_local] == []
        check_alone(chain)


# local with these options, and not with their defaults
OPTIONS = {
    "rescale-intensity": ("image", "--low 20 --high 200"),
    "mask-out-objects": ("labels", "--selected-obj-ids 2,3"),
}
NOT_LOCAL = [name for name, reason in EXCLUDED.items() if reason in (WHOLE, OBJECTS)]


@pytest.mark.parametrize("name", sorted({*NOT_LOCAL, *OPTIONS}))
def test_operators_of_whole_chunks_are_not_local(name, sources):
    """Operators that use the whole chunk or objects are not local, but for some options."""
    default = "--dust-size-threshold 3" if name == "mask-out-objects" else ""
    (operator,) = read_line(f"{name} {default}".split())
    assert operator.hooks.cut_remedy
    assert not operator.is_local
    if name in OPTIONS:
        state, options = OPTIONS[name]
        chain = chain_of_one(f"{name} {options}", state, sources[0])
        assert read_line(f"{name} {options}".split())[0].is_local
        check_alone(chain)


def test_an_operator_that_is_not_local_is_noticed(sources):
    """The comparison fails for an operator whose voxels depend on all of its chunk."""
    with pytest.raises(AssertionError):
        check_alone(chain_of_one("normalize-section-shang", "image", sources[0]))


@pytest.mark.parametrize(
    ("state", "end"),
    [("labels", "connected-components"), ("affinity", "agglomerate"), ("map", "detect-points"),
     ("labels", "mesh")],
)  # fmt: skip
def test_boxes_in_voxels_of_the_input_are_noticed(state, end, sources, monkeypatch):
    """With the box of a task in voxels of the pipeline's input, the comparison fails."""
    rng = random.Random(1)
    words = [LOADERS["load-zarr"].format(source=sources[0][state]), "--expand-margin-size auto"]
    chain = Chain(BOUNDS[0], words, STEPS[end].takes[state])
    chain.words.append("downsample --factor 2 2 2")
    add(chain, rng, end, state, sources[0])
    grid = BoxGrid.covering(BOUNDS[0], Zyx(12, 12, 14))
    whole = run(chain, [grid.bounds])
    compare(chain, run(chain, grid), whole)
    monkeypatch.setattr(Task, "bbox", property(lambda task: task.region.bbox))
    with pytest.raises((AssertionError, ChunkflowError)):
        compare(chain, run(chain, grid), whole)


@pytest.mark.parametrize("crop", ["crop-margin", "crop-margin --crop-bbox -m 0 0 0 0 1 1"])
def test_a_record_has_to_name_the_box_that_is_saved(sources, crop):
    """The objects that verify expects of each task are the stored ones, in coarse voxels."""
    line = (
        f"{LOADERS['load-zarr']} downsample --factor 1 2 2 {crop} save-zarr --store zarr://{{out}}"
    )
    words = line.format(source=sources[0]["map"], out=next(names)).split()
    grid = BoxGrid.covering(BOUNDS[0], Zyx(18, 11, 13) if "bbox" in crop else Zyx(9, 12, 12))
    pipeline = Pipeline(read_line(words), Source("boxes", TaskSource(grid)))
    pipeline.dry_run = "bbox" in crop  # it leaves gaps between blocks
    pipeline.check()
    (output,) = outputs_of(pipeline)
    for box, task in zip(grid, pipeline.run(), strict=True):
        assert not task.failed, task.outcome
        assert saved_box(output, Region(box)) == task["chunk"].bbox


def test_a_plugin_is_given_the_box_of_its_input(sources, tmp_path, monkeypatch):
    """After downsample, ``bbox`` is in coarse voxels: chunk[bbox] is the task's own part."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text("def execute(bbox, chunk):\n    return chunk[bbox]\n")
    line = (
        f"{LOADERS['load-zarr']} downsample plugin --name own --file own.py -i bbox,chunk -o chunk"
    )
    chain = Chain(BOUNDS[0], [line.format(source=sources[0]["map"])], "voxels")
    grid = BoxGrid.covering(BOUNDS[0], Zyx(18, 12, 26), respect_stop=True)
    for box, items in run(chain, grid).tasks:
        assert items["chunk"].bbox == box.intersection(items["chunk"].domain)


def test_overlaps_are_those_of_the_stored_result(sources):
    """save-overlap after downsample equals save-overlap of coarse labels in coarse tasks."""
    image, coarse, urls = sources[0]["image"], next(names), [next(names), next(names)]
    grid = BoxGrid.covering(BOUNDS[0], Zyx(12, 12, 12))
    whole = Chain(BOUNDS[0], [LOADERS["load-zarr"].format(source=image), "downsample"], "voxels")
    whole.words.append(f"save-zarr --store zarr://{coarse} --block-size 3 3 3")
    run(whole, [grid.bounds])
    end = "connected-components --threshold 120 --global-ids save-overlap --overlap-path {url}"
    for source, shrink, boxes, url in (
        (image, "downsample", grid, urls[0]),
        (coarse, "", [box.coarser((2, 2, 2)) for box in grid], urls[1]),
    ):
        margin = "4 4 4" if shrink else "2 2 2"
        words = [LOADERS["load-zarr"].format(source=source), f"--expand-margin-size {margin}"]
        run(Chain(BOUNDS[0], [*words, shrink, end.replace("{url}", url)], "voxels"), boxes)
    found = [{key: open_store(url).get(key) for key in open_store(url).list()} for url in urls]
    assert found[0] == found[1] != {}


@pytest.mark.long
@pytest.mark.parametrize("seeds", in_ten(10, 450))
def test_tasks_give_what_the_whole_gives_in_many_chains(seeds, sources, caplog):
    """400 more random chains."""
    for seed in seeds:
        check(seed, sources, caplog)
