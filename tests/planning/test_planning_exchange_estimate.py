"""What a plan says about the exchange of patches is what tasks then exchange, gain and pay."""

import json
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from rigs.command_line import say

from chunkflow_py.cli.command_line import read_line
from chunkflow_py.cli.command_parts import operators_of
from chunkflow_py.core.geometry import BoundingBox, BoxGrid, Zyx
from chunkflow_py.inference.local_exchange_store import LocalParts
from chunkflow_py.planning.duration_estimate import Fleet, stated_duration
from chunkflow_py.planning.exchange_estimate import (
    MEASURED,
    NetworkTime,
    exchange_if_it_pays,
    exchange_of,
    gain_of,
    network_time,
    store_speed,
)
from chunkflow_py.planning.pilot import Observation
from chunkflow_py.planning.prices import exchange_cost, load_prices
from chunkflow_py.planning.task_amounts import Transfer, patches_of, writes_of
from chunkflow_py.planning.task_size_advice import better_task_size
from chunkflow_py.run.exchange_store import RunParts
from chunkflow_py.run.step_pipeline import worker_pipeline

ISSUE = (
    "generate-tasks -v zarr://huge.zarr --chunk-size 64 512 512 "
    "load-zarr --store huge.zarr -e auto inference --framework identity "
    "--input-patch-size 20 256 256 --output-patch-overlap 4 64 64 --num-output-channels 3 "
    "--output-dtype uint8 save-zarr --store out.zarr --chunk-size 64 64 64"
)
SLOW = """
import time
import numpy as np

from chunkflow_py.core.temporary_folders import temporary_folder


class PatchInferencer:
    def __init__(self, *args, **kwargs):
        temporary_folder("unpacked-")

    def __call__(self, patch):
        time.sleep(0.02)
        return np.asarray(patch, np.float32)
"""


class Counting(LocalParts):
    """The parts of one process, and how many bytes, objects and looks there were."""

    latest = None

    def __init__(self):
        super().__init__()
        Counting.latest = self
        self.written = self.objects = self.looks = self.stored = self.peak = 0
        self.sizes = {}

    def producers(self, consumer):
        self.looks += 1
        return super().producers(consumer)

    def write(self, consumer, producer, content, size):
        self.written += size
        self.objects += 1
        self.stored += size
        self.sizes[consumer] = self.sizes.get(consumer, 0) + size
        self.peak = max(self.peak, self.stored)
        super().write(consumer, producer, content, size)

    def done(self, consumer):
        self.stored -= self.sizes.pop(consumer, 0)
        super().done(consumer)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Work in an empty folder."""
    monkeypatch.chdir(tmp_path)


def pipeline_of(line):
    """Return a line, checked."""
    source, *rest = read_line(shlex.split(line))
    pipeline = worker_pipeline(list(operators_of(rest)), source)
    pipeline.check()
    return pipeline


def estimate(pipeline, workers=1):
    """Return the numbers of patches of the network of a pipeline, and what its tasks exchange."""
    (patches,), boxes = patches_of(pipeline), pipeline.source.hooks.boxes
    return patches, exchange_of(patches, boxes, len(boxes), workers, 1.0)


@pytest.fixture
def huge():
    """Return the pipeline of the issue: 2048 x 8192 x 8192 voxels, tasks of 64 x 512 x 512."""
    say(
        "--quiet create-volume -v zarr://huge.zarr -z 2048 8192 8192 -d uint8 -s 40 4 4 -b 64 64 64"
    )
    return pipeline_of(ISSUE)


def test_a_run_exchanges_what_was_estimated():
    """The geometry of the issue, at a quarter of its size: patches, bytes and objects."""
    image = "create-chunk --size 64 256 256 --pattern random"
    say(f"--quiet {image} save-zarr --store image.zarr --chunk-size 16 64 64")
    pipeline = pipeline_of(
        "generate-tasks -v zarr://image.zarr --chunk-size 16 64 64 load-zarr --store image.zarr "
        "-e auto inference --framework identity --input-patch-size 5 32 32 "
        "--output-patch-overlap 1 8 8 --num-output-channels 3 save-zarr --store out.zarr"
    )
    patches, found = estimate(pipeline)
    pipeline.make_part_store = Counting
    network = next(each.body for each in pipeline.operators if each.name == "inference")
    engine = None
    for task in pipeline.run():
        assert task.outcome is None, task.outcome
        engine = engine or network.engine
    counted = Counting.latest
    assert engine.patches_run == found.computed == patches.ideal
    assert engine.patches_run + engine.patches_found == patches.computed
    assert found.recomputation == 1
    assert found.written_bytes == counted.written
    assert found.objects == counted.objects
    assert found.lists == counted.looks + 64
    assert found.peak_bytes == pytest.approx(counted.peak, rel=0.15)
    assert found.voxel_bytes == pytest.approx(9.5, rel=0.25)  # more of the volume is at its end


def test_the_numbers_of_the_issue(huge):
    """About 9.5 bytes are written per output voxel; the plan says so as text and as JSON."""
    patches, found = estimate(huge)
    assert found.voxel_bytes == pytest.approx(9.5, abs=0.05)
    assert found.task_bytes == pytest.approx(9.5 * 64 * 512 * 512, rel=0.01)
    assert patches.recomputation == pytest.approx(2.26, abs=0.005)
    assert found.task_objects == pytest.approx(6.4, abs=0.05)
    fleets = [estimate(huge, workers)[1] for workers in (8, 64, 256)]
    peaks = [each.peak_bytes for each in fleets]
    assert peaks == sorted(peaks)
    assert peaks[-1] < fleets[-1].written_bytes
    options = "--no-rehearse --memory 64GB --seconds-per-task 60 --price 0.5"
    output = say(f"--quiet plan {options} {ISSUE}")
    for text in (
        "2.26 times",
        "patches, 1.00 times those of a single task",
        "if tasks find all parts of inference in the exchange",
        "written and as much read: 9.52 bytes per output voxel",
        "6.4 objects a task",
        "saves 33.5 s of network time per task (assuming that the network takes all the time",
        "pays if a process writes and reads at least ",
    ):
        assert text in output


def test_the_memory_of_parts_is_that_of_a_run(huge):
    """The store of a run keeps more in memory than that of a pipeline without a run."""
    patches, found = estimate(huge)
    assert found.memory_bytes == 3 * patches.part_bytes + RunParts.most_bytes
    assert RunParts.most_bytes > LocalParts().most_bytes


def test_tasks_that_do_not_exchange_say_why():
    """Tasks smaller than a patch, and a grid for each chunk, have a reason; one task has none."""
    say("--quiet create-volume -v zarr://huge.zarr -z 64 128 128 -d uint8 -s 8 8 8 -b 8 8 8")
    tasks = "generate-tasks -v zarr://huge.zarr --chunk-size {} load-zarr --store huge.zarr -e auto"
    network = "inference --framework identity --input-patch-size 8 32 32 --num-output-channels 1"
    network += " --output-patch-overlap 2 8 8"
    save = "save-zarr --store out.zarr"

    def reason(size, options=""):
        line = f"{tasks.format(size)} {network} {options} {save}"
        (patches,) = patches_of(pipeline_of(line))
        assert patches.sharing is None
        return patches.no_exchange

    assert reason("8 16 32") == (
        "tasks of (8, 16, 32) are smaller than an output patch of (8, 32, 32) along y (zyx, voxels)"
    )
    assert reason("64 128 128") is None
    assert "corner of each chunk" in reason("16 64 64", "--grid chunk --output-crop-margin 0 0 0")
    line = f"{tasks.format('8 16 32')} {network} {save} --chunk-size 8 16 32"
    output = say(f"--quiet plan --no-rehearse {line}")
    assert "exchange     none: tasks of (8, 16, 32) are smaller" in output


@pytest.mark.parametrize(("speed", "pays"), [(1e9, True), (1e6, False), (None, None)])
def test_the_exchange_pays_if_it_saves_more_than_it_takes(huge, speed, pays):
    """Saved seconds, seconds of transfers and the verdict belong to each other."""
    patches, found = estimate(huge)
    fleet, tasks = Fleet(2, 4), 8192
    duration = stated_duration(tasks, 60.0, fleet, "stated")
    gain = gain_of([found], [patches], NetworkTime(50.0, 5.0, MEASURED), duration, fleet, speed)
    assert gain.saved_s == pytest.approx(50 * (1 - 1 / patches.recomputation))
    assert gain.transfer_bytes == 2 * found.task_bytes
    assert gain.pays is pays
    assert gain.least_bytes_per_s == pytest.approx(gain.transfer_bytes / gain.saved_s)
    takes = 0.0 if speed is None else gain.transfer_bytes / speed
    assert gain.transfer_s == (None if speed is None else takes)
    assert gain.duration.task_s == pytest.approx(60 - gain.saved_s + takes)
    assert gain.duration.seconds == pytest.approx(tasks / 8 * gain.duration.task_s)
    assert gain.hours == pytest.approx(gain.duration.seconds * 2 / 3600)
    slow = NetworkTime(50.0, 45.0, MEASURED)
    reading = gain_of([found], [patches], slow, duration, fleet, None)
    assert reading.duration.task_s == 45  # as long as reading or writing takes


def test_requests_and_storage_cost(huge):
    """An object store charges for writing, reading and listing objects, and for keeping them."""
    _, found = estimate(huge, 8)
    prices = load_prices()
    s3 = prices.stores["s3"]
    costs = exchange_cost(prices, "s3", [found], 30 * 24 * 3600)
    puts = found.objects + found.lists
    # Each object is read once; before that, the ledger is asked for its consumer.
    expected = puts * s3["put"] + 4 * found.objects * s3["get"]
    assert costs["requests of the exchange"] == pytest.approx(expected)
    stored = found.peak_bytes / 1e9 * s3["gb_month"]
    assert costs["storage of the exchange"] == pytest.approx(stored)
    assert exchange_cost(prices, "file", [found], 1.0) == {}


def observed(ends, network, seconds, *, ahead=1, stored=(0, 0, 0), written=0):
    """Return the measurements of a pilot process."""
    found = Observation()
    about = {"parts": {}, "unknown": [], "devices": ["cpu"], "device_bytes": 0}
    found.add({"event": "ready", "at": 0.0, "ahead": ahead, **about})
    for end, network_s in zip(ends, network, strict=True):
        task = {"task": "0-64_0-512_0-512", "seconds": seconds, "written": written, "objects": 1}
        traffic = {"load-zarr": stored}
        found.add({"event": "task", "at": end, "network_s": network_s, "traffic": traffic, **task})
    return found


def test_the_network_is_timed_between_tasks(huge):
    """Forward passes of the first task, and of one that is begun ahead, are not counted twice."""
    patches, _ = estimate(huge)
    stages = {"load-zarr": "read", "inference": "compute", "save-zarr": "write"}
    seconds = {"load-zarr": 3.0, "inference": 9.0, "save-zarr": 1.0}
    of_task = float(patches.of_task.product() * patches.input_voxels)
    seen = [observed((10, 20, 30), (12.0, 20.0, 28.0), seconds)]
    found = network_time(seen, [patches], of_task, stages)
    assert found.how == MEASURED
    box = patches.box
    first = box(huge.source.hooks.boxes.box((0, 0, 0)))
    share = patches.of_task.product() / (first[0] * first[1] * first[2])
    assert found.task_s == pytest.approx(8.0 * share)
    assert found.other_s == 3.0
    assert network_time([observed((9,), (0.0,), {})], [patches], of_task, stages) is None
    alone = network_time([observed((10,), (7.0,), seconds, ahead=0)], [patches], of_task, stages)
    assert (alone.task_s, alone.other_s) == (pytest.approx(7 * share), 0)


def test_the_speed_of_a_store_is_that_of_the_pilot():
    """It is known only for the store in which the output is, and after enough bytes."""
    read = Transfer("load-zarr", "image", "s3", 20_000_000, 0, 0)
    write = Transfer("save-zarr", "out", "s3", 0, 0, 0)
    seconds = {"load-zarr": 0.5, "inference": 9.0, "save-zarr": 1.5}
    stored = (30_000_000, 0, 60_000_000)  # of three tasks; the third has not ended
    seen = [observed((1, 2), (1, 2), seconds, stored=stored, written=15_000_000)]
    assert store_speed(seen, [read], [write]) == 20_000_000 / 1.0
    here = replace(read, protocol="file"), replace(write, protocol="file")
    assert store_speed(seen, [here[0]], [here[1]]) == 50_000_000 / 4.0
    assert store_speed(seen, [here[0]], [write]) is None
    few = [observed((1, 2), (1, 2), seconds, stored=(900, 0, 900), written=9)]
    assert store_speed(few, [here[0]], [here[1]]) is None


def test_smaller_tasks_are_advised_where_the_exchange_makes_them_free():
    """With the exchange, a smaller size computes no more and needs less memory."""
    say(
        "--quiet create-volume -v zarr://huge.zarr -z 2048 8192 8192 -d uint8 -s 40 4 4 -b 16 64 64"
    )
    size = "--chunk-size 256 1536 1536"
    line = ISSUE.replace("--chunk-size 64 512 512", size).replace("64 64 64", "16 64 64")
    pipeline = pipeline_of(line.replace("--output-patch-overlap 16", "--output-patch-overlap 4"))
    patches, found = estimate(pipeline)
    boxes = pipeline.source.hooks.boxes
    duration = stated_duration(len(boxes), 600.0, Fleet(), "stated")
    network = NetworkTime(600.0, 0.0, MEASURED)

    def advice(speed, memory=64 * 10**9):
        gain = gain_of([found], [patches], network, duration, Fleet(), speed)
        exchange = exchange_if_it_pays(gain, patches, len(boxes), 1) if gain.pays else None
        line_bytes = 20 * 10**9
        return better_task_size(pipeline, writes_of(pipeline), [patches], memory, line_bytes, 10**9,
                                exchange=exchange)  # fmt: skip

    smaller = advice(1e9)
    assert smaller.size.product() < 256 * 1536 * 1536 / 4
    assert smaller.memory_bytes < 15 * 10**9
    assert smaller.instead_of == patches.amplification
    volume = BoundingBox((0, 0, 0), (2048, 8192, 8192))
    tasks = BoxGrid.covering(volume, smaller.size, respect_stop=True)
    there = exchange_of(patches, tasks, len(tasks), 1, 1.0)
    assert smaller.exchanged_bytes == pytest.approx(there.voxel_bytes)
    ideal = patches.amplification * patches.ideal / patches.computed
    assert smaller.amplification == pytest.approx(ideal)
    assert not any(smaller.size % Zyx(16, 192, 192))
    larger = advice(1e6)  # too slow for an exchange: tasks that compute less twice
    assert larger.exchanged_bytes is None
    assert larger.amplification < patches.amplification


def test_a_pilot_measures_the_network(tmp_path, monkeypatch):
    """A slow network is timed by its forward passes; the plan has times with and without.

    The pilot deletes what the network has unpacked.
    """
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    image = "create-chunk --size 16 48 48 --pattern random"
    say(f"--quiet {image} save-zarr -s i.zarr --chunk-size 8 16 16")
    Path("slow.py").write_text(SLOW)
    line = (
        "generate-tasks -v zarr://i.zarr --chunk-size 8 16 16 load-zarr --store i.zarr -e auto "
        "inference -f universal -m slow.py -s 8 16 16 -v 2 4 4 -c 1 save-zarr -s o.zarr"
    )
    output = say(f"--quiet plan --json {line}")
    (stage,) = json.loads(output[output.index("{") :])["stages"]
    (exchange,), (patches,), found = stage["exchange"], stage["patches"], stage["with_exchange"]
    fewer = patches["computed"] - exchange["computed"]
    assert exchange["recomputation"] == 1
    assert found["how"] == MEASURED
    assert found["pays"] is None  # too few bytes for a speed
    assert found["saved_s"] == pytest.approx(0.022 * fewer / stage["tasks"], rel=0.35)
    assert found["duration"]["seconds"] < stage["duration"]["seconds"]
    assert not list((tmp_path / "tmp").glob("unpacked-*"))
