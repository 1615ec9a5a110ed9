"""inference --resample: networks at their own voxel size, with the output on the input's grid."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest
from click.testing import CliRunner

from chunkflow_py.cli.command_line import read_line
from chunkflow_py.cli.main import cli
from chunkflow_py.core.chunk import Chunk
from chunkflow_py.core.geometry import BoundingBox, BoxGrid, Zyx
from chunkflow_py.dask import inferencer_from
from chunkflow_py.errors import OptionError
from chunkflow_py.pipeline.operator import Operator, Source, TaskSource
from chunkflow_py.pipeline.pipeline import Pipeline
from chunkflow_py.volume import create_volume, open_volume
from chunkflow_py.volume.protocol import VolumeSpec

BOUNDS = BoundingBox((5, -3, 8), (29, 43, 58))
IMAGE = "zarr://mem://resampled-network"
NETWORK = """
import torch

torch.manual_seed(0)
InstantiatedModel = torch.nn.Conv3d(1, 2, 3, padding=1)
"""
OPTIONS = (
    "",
    "--output-dtype argmax",
    "--output-dtype uint8 --activation sigmoid",
    "--output-dtype float16 --activation softmax --activate after",
)


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    """Store an image with voxels of 8 nm, and return the path of a network."""
    spec = VolumeSpec(BOUNDS, (8, 8, 8), np.dtype("uint8"), None, "image", Zyx(8, 8, 8))
    rng = np.random.default_rng(0)
    image = Chunk(rng.integers(0, 255, BOUNDS.size, np.uint8), BOUNDS.start, (8, 8, 8), "image")
    create_volume(spec, IMAGE).write(image)
    path = tmp_path_factory.mktemp("network") / "net.py"
    path.write_text(NETWORK)
    return path


def line(network, size_nm, options=""):
    """Return the arguments of a loader and the network at its own voxel size."""
    size = " ".join(map(str, size_nm))
    return (
        f"load-volume --volume-path {IMAGE} --expand-margin-size auto "
        f"inference --convnet-model {network} --num-output-channels 2 "
        "--input-patch-size 8 16 16 --output-patch-overlap 2 4 4 "
        f"--model-voxel-size-nm {size} {options}"
    )


def run(words, boxes=None):
    """Run a pipeline; return the box and the items of each task."""
    done = []

    def collect(task):
        done.append((task.bbox, dict(task.items)))
        return task

    operators = [*read_line(words.split()), Operator("", "compute", collect, collect, ("chunk",))]
    source = None if boxes is None else Source("boxes", TaskSource(boxes))
    pipeline = Pipeline(operators, source)
    pipeline.check()
    for task in pipeline.run():
        if task.failed:
            raise task.outcome
    return done


@pytest.mark.parametrize("seed", range(12))
def test_tasks_equal_the_whole(seed, network, caplog):
    """Random voxel sizes, methods, outputs and tasks: the bytes of one task, on the input's grid.

    Parts of patches fit what other tasks expect: no task has to refuse one.
    """
    rng = random.Random(seed)
    size_nm = [rng.choice([5, 6, 8, 10, 12, 16, 20]) for _ in range(3)]
    method = rng.choice(["linear", "cubic"])
    words = line(network, size_nm, f"--resample {method} {OPTIONS[seed % len(OPTIONS)]}")
    ((_, items),) = run(words)
    whole = items["chunk"]
    assert whole.bbox == BOUNDS
    assert whole.voxel_size_nm == (8, 8, 8)
    grid = BoxGrid.covering(BOUNDS, Zyx(*(rng.randint(12, 30) for _ in range(3))))
    for box, items in run(words, grid):
        inside = box.intersection(BOUNDS)
        assert set(items) == {"chunk"}
        chunk = items["chunk"]
        assert (chunk.bbox, chunk.domain, chunk.dtype) == (inside, BOUNDS, whole.dtype)
        assert chunk.array.tobytes() == np.ascontiguousarray(whole.cut(inside).array).tobytes()
    assert "cannot be used" not in caplog.text


def test_it_is_resampling_before_and_after(network):
    """Where the volume is a whole number of the network's voxels, operators give the same bytes."""
    box = BoundingBox((0, 0, 0), (24, 36, 36))
    image = f"{IMAGE}-whole"
    spec = VolumeSpec(box, (8, 8, 8), np.dtype("float32"), None, "image", Zyx(8, 8, 8))
    array = np.random.default_rng(1).random(box.size, np.float32)
    create_volume(spec, image).write(Chunk(array, (0, 0, 0), (8, 8, 8), "image"))
    words = line(network, (16, 12, 12)).replace(f"{IMAGE} ", f"{image} ")
    ((_, ours),) = run(words + "--resample linear")
    before = "resample --voxel-size 16 12 12 inference"
    ((_, theirs),) = run(words.replace("inference", before) + "resample --voxel-size 8 8 8")
    np.testing.assert_array_equal(ours["chunk"].array, theirs["chunk"].array)


def test_integers_are_normalised_before_they_are_resampled(network):
    """Interpolated values are not rounded to integers: the result is that of normalised floats."""
    words = line(network, (8, 12, 10), "--resample linear")
    ((_, ours),) = run(words)
    floats = f"{IMAGE}-floats"
    image = open_volume(IMAGE).read(BOUNDS)
    spec = VolumeSpec(BOUNDS, (8, 8, 8), np.dtype("float32"), None, "image", Zyx(8, 8, 8))
    values = image.array.astype(np.float32) / np.float32(255)
    create_volume(spec, floats).write(image.with_array(values))
    ((_, theirs),) = run(words.replace(f"{IMAGE} ", f"{floats} "))
    np.testing.assert_array_equal(ours["chunk"].array, theirs["chunk"].array)


@pytest.mark.parametrize("size_nm", [(8, 12, 12), (6, 5, 8), (20, 8, 12)])
def test_output_lies_where_the_input_lies(tmp_path, size_nm):
    """A network that changes nothing returns a smooth image, at the position of the image."""
    box = BoundingBox((3, 7, 11), (35, 47, 51))
    z, y, x = np.meshgrid(*(np.arange(a, b) for a, b in zip(box.start, box.stop, strict=True)),
                          indexing="ij")  # fmt: skip
    smooth = (0.5 + 0.2 * np.sin(z / 6) + 0.2 * np.cos(y / 7) + 0.1 * np.sin(x / 5)).astype("f4")
    url = f"zarr://{tmp_path}/smooth"
    spec = VolumeSpec(box, (8, 8, 8), np.dtype("float32"), None, "image", Zyx(8, 8, 8))
    create_volume(spec, url).write(Chunk(smooth, box.start, (8, 8, 8), "image"))
    size = " ".join(map(str, size_nm))
    ((_, items),) = run(
        f"load-volume --volume-path {url} inference --framework identity --num-output-channels 1 "
        f"--input-patch-size 12 16 16 --model-voxel-size-nm {size} --resample cubic"
    )
    inner = (slice(4, -4),) * 3
    difference = items["chunk"].array[0][inner] - smooth[inner]
    assert np.abs(difference).max() < 0.02
    shifted = items["chunk"].array[0][4:-4, 5:-3, 4:-4] - smooth[inner]
    assert np.abs(shifted).max() > 0.02


def test_a_network_of_sections(tmp_path, network):
    """A 2D network at the size of the sections: each section is resampled by itself."""
    path = tmp_path / "flat.py"
    path.write_text(NETWORK.replace("Conv3d", "Conv2d"))
    words = line(path, (8, 12, 6), "--resample linear --spatial-dims 2 --patch-divisor 1 1 1")
    words = words.replace("--input-patch-size 8", "--input-patch-size 4")
    ((_, items),) = run(words)
    grid = BoxGrid.covering(BOUNDS, Zyx(7, 19, 30))
    for box, parts in run(words, grid):
        inside = box.intersection(BOUNDS)
        np.testing.assert_array_equal(parts["chunk"].array, items["chunk"].cut(inside).array)


def test_several_outputs(tmp_path, network):
    """Each output comes back to the grid of the input, with its own kind."""
    path = tmp_path / "two.py"
    path.write_text(
        "import torch\n"
        "class Two(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        "        return {'a': torch.cat([x, x, x], 1), 'b': 1 - x}\n"
        "InstantiatedModel = Two()\n"
    )
    words = line(path, (8, 12, 12), "--resample linear --output-names a,b --output-channels 3,1")
    words = words.replace("--num-output-channels 2 ", "")
    ((_, items),) = run(words)
    assert {name: (c.bbox, c.channels, c.kind) for name, c in items.items() if name != "chunk"} == {
        "a": (BOUNDS, 3, "affinity"), "b": (BOUNDS, 1, "probability")
    }  # fmt: skip
    np.testing.assert_allclose(items["a"].array[:1], 1 - items["b"].array, atol=1e-6)
    assert items["chunk"].dtype == np.uint8


def test_a_run_with_workers(tmp_path, network):
    """submit, work and verify know the grid of the input; plan estimates the patches."""
    out, directory = f"zarr://{tmp_path}/out", f"{tmp_path}/run"
    image = f"zarr://{tmp_path}/image"
    whole = open_volume(IMAGE).read(BOUNDS)
    create_volume(
        VolumeSpec(BOUNDS, (8, 8, 8), whole.dtype, None, "image", Zyx(8, 16, 16)), image
    ).write(whole)
    pipeline = [
        *("generate-tasks", "--volume-path", image, "--chunk-size", "16", "32", "32"),
        *line(network, (8, 12, 10), "--resample linear").replace(IMAGE, image).split(),
        *("save-volume", "--volume-path", out, "--block-size", "16", "16", "16"),
    ]

    def command(*arguments):
        done = CliRunner().invoke(cli, arguments)
        assert done.exit_code == 0, done.output
        return done.stdout

    (step,) = json.loads(command("plan", "--no-rehearse", "--json", *pipeline))["stages"]
    assert step["tasks"] == 8
    command("submit", "--run", directory, "--no-rehearse", *pipeline)
    command("work", directory, "--processes", "1")
    assert "present" in command("verify", directory)
    ((_, items),) = run(line(network, (8, 12, 10), "--resample linear"))
    np.testing.assert_array_equal(open_volume(out).read(BOUNDS).array, items["chunk"].array)


def test_tasks_exchange_patches(network, caplog):
    """The network runs once for each patch of the grid in the network's voxels."""
    caplog.set_level("INFO")
    words = line(network, (8, 12, 10), "--resample linear")
    run(words, BoxGrid.covering(BOUNDS, Zyx(12, 24, 24)))
    assert "patches were computed by another task" in caplog.text


def test_refusals(network):
    """What cannot be resampled says so, with what to do instead."""
    whole = line(network, (8, 12, 12), "--resample linear ")
    for options, message in (
        ("--output-margin 1 1 1", "--output-margin cannot be combined with --resample"),
        ("--patch-num 1 1 1", "--patch-num cannot be combined with --resample"),
        ("--grid chunk", "--grid chunk cannot be combined with --resample"),
        ("--mask-myelin-threshold 0.5", "--mask-myelin-threshold cannot be combined"),
        ("--activation sigmoid --activate after --skip-empty-patches", "use --activate before"),
    ):
        with pytest.raises(OptionError, match=message):
            read_line((whole + options).split())
    without = whole.replace("--model-voxel-size-nm 8 12 12 ", "")
    with pytest.raises(OptionError, match="needs the voxel size that the network was trained"):
        read_line(without.split())
    with pytest.raises(OptionError, match="trained on voxels of 8 12 12 nm .* --resample linear"):
        run(line(network, (8, 12, 12)))
    options = line(network, (8, 12, 12), "--resample linear").partition("inference ")[2]
    with pytest.raises(OptionError, match="--resample"):
        inferencer_from(options)


def test_a_much_finer_image_is_named(network, caplog):
    """A coarser level of the pyramid would be read faster; the warning gives both voxel sizes."""
    run(line(network, (16, 16, 10), "--resample linear"))
    assert "times as many voxels" in caplog.text
    assert "voxels of 16 16 10 nm and the image voxels of 8 8 8 nm (zyx), so 5 times" in caplog.text
    caplog.clear()
    run(line(network, (8, 16, 12), "--resample linear"))
    assert "times as many voxels" not in caplog.text


def test_a_coarser_level_is_read_and_the_finest_written(network):
    """From the level that is nearest to the network to voxels of the finest, by any tasks."""
    words = line(network, (10, 10, 10), "--resample linear --output-dtype float16")
    words += " resample --voxel-size 4 4 4"
    ((_, items),) = run(words)
    whole = items["chunk"]
    assert whole.bbox == BoundingBox(BOUNDS.start * 2, BOUNDS.stop * 2)
    for _, items in run(words, BoxGrid.covering(BOUNDS, Zyx(12, 24, 25))):
        chunk = items["chunk"]
        part = np.ascontiguousarray(whole.cut(chunk.bbox).array)
        assert chunk.array.tobytes() == part.tobytes()
