"""Tests of load-volume and save-volume, and that the older commands read and write the same."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import tensorstore
from click.testing import CliRunner

from chunkflow_py.cli import catalog
from chunkflow_py.cli.main import cli
from chunkflow_py.core.chunk import Chunk
from chunkflow_py.core.geometry import BoundingBox, Region
from chunkflow_py.core.task import Task
from chunkflow_py.errors import ChunkflowError
from chunkflow_py.pipeline.operator import Source, TaskSource
from chunkflow_py.pipeline.pipeline import Pipeline
from chunkflow_py.volume import create_volume, open_volume
from chunkflow_py.volume.protocol import VolumeSpec

BOUNDS = BoundingBox.from_size((-3, 6, 7), (10, 20, 30))
URLS = {
    "precomputed": "precomputed://file://{}/em",
    "zarr": "zarr://{}/em",
    "h5": "h5://{}/em.h5",
    "bare precomputed": "{}/em",
}


def split(words):
    """Return what a shell would make of the words."""
    return [part for word in words for part in str(word).split()]


def run(*words, code=0):
    """Run a line and return what it printed."""
    result = CliRunner().invoke(cli, ["--quiet", *split(words)])
    assert result.exit_code == code, result.output
    return result.output


def body(name, *words):
    """Return the body of a command with these options."""
    command = catalog.load(name)
    return command.invoke(command.make_context(name, split(words))).body


def image(channels=None, seed=0):
    """Return a chunk of random voxels over `BOUNDS`."""
    lead = () if channels is None else (channels,)
    array = np.random.default_rng(seed).integers(1, 255, (*lead, *BOUNDS.size), "u1")
    return Chunk(array, BOUNDS.start, (40, 4, 4.5), "image")


@pytest.mark.parametrize("key", URLS)
def test_any_format(tmp_path, key):
    """A chunk that save-volume writes is what load-volume reads, whatever the format."""
    url = URLS[key].format(tmp_path)
    if key.startswith("bare"):
        spec = VolumeSpec(BOUNDS, (40, 4, 4.5), np.dtype("u1"), None, "image", (8, 16, 16))
        create_volume(spec, f"precomputed://{url}")
    chunk = image()
    body("save-volume", "-v", url)(Task(items={"chunk": chunk}))
    again = body("load-volume", "-v", url)(Task())["chunk"]
    np.testing.assert_array_equal(again, chunk)
    assert (again.bbox, again.voxel_size_nm) == (BOUNDS, (40, 4, 4.5))
    cut = body("load-volume", "-v", url, "-s 0 10 12 --chunk-stop 3 14 17")(Task())["chunk"]
    np.testing.assert_array_equal(cut, chunk.cut(cut.bbox))
    assert cut.bbox == cut.domain == BoundingBox.from_size((0, 10, 12), (3, 4, 5))


@pytest.mark.parametrize(
    ("loader", "saver", "scheme"),
    [
        *itertools.product(
            ["load-precomputed -v", "load-volume -v"],
            ["save-precomputed -v", "save-volume -v"],
            ["precomputed://"],
        ),
        *itertools.product(
            ["load-zarr -f", "load-volume -v"], ["save-zarr -s", "save-volume -v"], ["zarr://"]
        ),
    ],
)
def test_all_spellings_mean_the_same(tmp_path, loader, saver, scheme):
    """What one command writes the others read, with cut, margin and channels."""
    url = f"{scheme}{tmp_path}/em"
    chunk = image(channels=3)
    body(*saver.split(), url)(Task(items={"chunk": chunk}))
    task = Task(Region(BoundingBox.from_size((0, 10, 12), (3, 4, 5))))
    part = body(*loader.split(), url, "-e 1 2 3 -c 2,0")(task)["chunk"]
    assert part.bbox == BoundingBox.from_size((-1, 8, 9), (5, 8, 11))
    np.testing.assert_array_equal(part.array, chunk.cut(part.bbox).array[[2, 0]])


@pytest.mark.parametrize("loader", ["load-zarr -f", "load-volume -v"])
def test_time_of_the_task_or_of_the_option(tmp_path, loader):
    """A time point is that of the task, or the one asked for; savers keep it."""
    url, copy = f"zarr://{tmp_path}/em", f"zarr://{tmp_path}/copy"
    spec = VolumeSpec(BOUNDS, (40, 4, 4), np.dtype("u1"), None, "image", (10, 16, 16), times=3)
    volume = create_volume(spec, url)
    for time in range(3):
        volume.write(image(seed=time), time=time)
    task = body(*loader.split(), url)(Task(Region(BOUNDS, 1)))
    np.testing.assert_array_equal(task["chunk"], image(seed=1))
    body("save-volume", "-v", copy, "--times 3")(task)
    np.testing.assert_array_equal(open_volume(copy).read(BOUNDS, time=1), image(seed=1))
    chosen = body(*loader.split(), url, "--time 2")(Task(Region(BOUNDS, 1)))
    np.testing.assert_array_equal(chosen["chunk"], image(seed=2))
    body("save-volume", "-v", copy, "--time 0")(chosen)
    np.testing.assert_array_equal(open_volume(copy).read(BOUNDS, time=0), image(seed=2))


def stage(name, *words):
    """Return the operator that a command makes of these options."""
    command = catalog.load(name)
    return command.invoke(command.make_context(name, split(words)))


def test_a_line_keeps_all_time_points(tmp_path):
    """Tasks that name time points give a new volume the time axis of the line's input."""
    url, copy = f"zarr://{tmp_path}/em", f"zarr://{tmp_path}/copy"
    spec = VolumeSpec(BOUNDS, (40, 4, 4), np.dtype("u1"), None, "image", (10, 16, 16), times=3)
    volume = create_volume(spec, url)
    for time in range(3):
        volume.write(image(seed=time), time=time)
    regions = [Region(BOUNDS, time) for time in (2, 0)]
    source = Source("tasks", TaskSource([BOUNDS], lambda: iter(regions)))
    line = [stage("load-volume", "-v", url), stage("save-volume", "-v", copy)]
    pipeline = Pipeline(line, source)
    pipeline.check()
    assert [task.outcome for task in pipeline.run()] == [None, None]
    made = open_volume(copy)
    assert made.times == 3
    for time, wanted in ((0, image(seed=0)), (2, image(seed=2))):
        np.testing.assert_array_equal(made.read(BOUNDS, time=time), wanted)
    assert not made.read(BOUNDS, time=1).array.any()


@pytest.mark.parametrize("scheme", ["precomputed", "zarr"])
def test_checks_of_any_format(tmp_path, scheme):
    """Bad sections are set to 0 and coarser levels compared, in every format."""
    url = f"{scheme}://{tmp_path}/em"
    spec = VolumeSpec(BOUNDS, (40, 4, 4), np.dtype("u1"), None, "image", (8, 16, 16), max_mip=1)
    create_volume(spec, url).write(image())
    (tmp_path / "em" / "blackout_section_ids.json").write_text('{"section_ids": [0]}')
    black = body("load-volume", "-v", url, "--blackout-sections")(Task())["chunk"]
    assert [z for z in range(-3, 7) if not black.array[z + 3].any()] == [0]
    assert "does not match the coarser level" in run(
        "load-volume -v", url, "--validate-mip 1 threshold -t 1", code=1
    )


@pytest.mark.parametrize(
    "loader", ["load-zarr --driver n5 -f", "load-zarr -f", "load-volume -v", "load-volume -v n5://"]
)
def test_n5(tmp_path, loader):
    """N5 arrays are read, whether they are named or found."""
    array = np.random.default_rng(0).integers(0, 99, (4, 5, 6), "u1")
    spec = {"driver": "n5", "kvstore": f"file://{tmp_path}/em.n5/"}
    store = tensorstore.open(spec, create=True, dtype="uint8", shape=(6, 5, 4)).result()
    store[...] = array.T  # x, y, z
    command, *words = loader.split()
    words[-1:] = [f"{words[-1]}{tmp_path}/em.n5"] if words[-1].endswith("//") else [
        words[-1], f"{tmp_path}/em.n5",
    ]  # fmt: skip
    np.testing.assert_array_equal(body(command, *words)(Task())["chunk"], array)


def test_voxel_size(tmp_path):
    """The voxel size may be said where the volume has it wrong."""
    url = f"zarr://{tmp_path}/em"
    body("save-volume", "-v", url)(Task(items={"chunk": image()}))
    chunk = body("load-volume", "-v", url, "--voxel-size 30 8 8")(Task())["chunk"]
    assert chunk.voxel_size_nm == (30, 8, 8)


def test_descriptions_of_a_new_volume(tmp_path):
    """Blocks, shards, encoding, type and factor of a new volume are those asked for."""
    url = f"zarr://{tmp_path}/em"
    run(
        "create-chunk --size 32 32 32 save-volume -b 8 16 16 --shard-size 16 32 32",
        "--encoding blosc --dtype uint16 -v", url,
    )  # fmt: skip
    volume = open_volume(url)
    assert (volume.dtype, volume.block_size, volume.write_unit) == (
        np.uint16, (8, 16, 16), (16, 32, 32),
    )  # fmt: skip


@pytest.mark.parametrize("saver", ["save-precomputed -v", "save-zarr -s", "save-volume -v"])
def test_logs_and_thumbnails_of_every_saver(tmp_path, saver):
    """--upload-log and --create-thumbnail are there for every saver of volumes."""
    scheme = "zarr" if "zarr" in saver else "precomputed"
    url = f"{scheme}://{tmp_path}/em"
    run("create-chunk --size 8 64 64", saver, url, "--upload-log --create-thumbnail")
    assert (tmp_path / "em" / "log" / "0-8_0-64_0-64.json").exists()
    small = open_volume(f"precomputed://{tmp_path}/em/thumbnail", mip=6)
    assert small.bounds.size == (8, 1, 1)


def test_two_logs_in_one_place(tmp_path):
    """Two savers that would write the same logs are refused before the first task."""
    url = f"zarr://{tmp_path}/em"
    text = run(
        "create-chunk copy-var --to-name copy --deep-copy save-volume --upload-log -v", url,
        "save-volume --upload-log --mip 1 -i copy -v", url, code=2,
    )  # fmt: skip
    assert f"{tmp_path}/em/log" in text
    assert not (tmp_path / "em").exists()


@pytest.mark.parametrize("scheme", ["precomputed", "zarr", "h5"])
def test_a_volume_that_the_line_rewrites(scheme, tmp_path, monkeypatch):
    """What a line reads it does not write, however the two addresses are spelled."""
    monkeypatch.chdir(tmp_path)
    name = "em.h5" if scheme == "h5" else "em"
    (tmp_path / "here").symlink_to(tmp_path)
    spec = VolumeSpec(BOUNDS, (40, 4, 4), np.dtype("u1"), None, "image", (8, 16, 16))
    create_volume(spec, f"{scheme}://{name}")
    other = f"h5://here/{name}:main" if scheme == "h5" else f"file://{tmp_path}/here/{name}"
    for one, two in ((f"{scheme}://{name}", other), (other, f"{scheme}://{name}")):
        text = run("load-volume -v", one, "save-volume -v", two, code=2)
        assert "which load-volume reads" in text
        assert "write to another volume or mip" in text


def test_other_levels_and_datasets_are_other_places(tmp_path):
    """A line may read one level, or one dataset of a file, and write another."""
    spec = VolumeSpec(BOUNDS, (40, 4, 4), np.dtype("u1"), None, "image", (8, 16, 16), max_mip=1)
    em = f"{tmp_path}/em"
    create_volume(spec, f"zarr://{em}")
    chunk = ("create-chunk -s", *BOUNDS.size, "-t", *BOUNDS.start)
    run("load-volume -m 1 -v", em, *chunk, "save-volume -v", em)
    create_volume(replace(spec, max_mip=0), f"h5://{em}.h5:raw")
    run(f"load-volume -v h5://{em}.h5:raw save-volume -v h5://{em}.h5:copy")
    assert open_volume(f"zarr://{em}").read(BOUNDS).array.any()
    assert open_volume(f"h5://{em}.h5:copy").bounds == BOUNDS


@pytest.mark.parametrize("scheme", ["precomputed", "zarr"])
@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("--validate-mip 4", "has no mip 4"),
        ("--blackout-sections", "has no file blackout_section_ids.json"),
        ("--time 2", "no time axis, but --time is 2; change or leave out --time"),
    ],
)
def test_what_is_missing_is_found_first(tmp_path, scheme, words, text):
    """What the checks need, and the time index, are looked for before the first task."""
    url = f"{scheme}://{tmp_path}/em"
    spec = VolumeSpec(BOUNDS, (40, 4, 4), np.dtype("u1"), None, "image", (8, 16, 16), max_mip=1)
    create_volume(spec, url)
    line = Pipeline([stage("load-volume", "-v", url, words)])
    with pytest.raises(ChunkflowError, match=text):
        line.check()


def test_a_time_index_that_is_not_there(tmp_path):
    """The time indices that the volume has are named."""
    spec = VolumeSpec(BOUNDS, (40, 4, 4), np.dtype("u1"), None, None, (10, 16, 16), times=2)
    create_volume(spec, f"zarr://{tmp_path}/em")
    text = run(f"load-volume --time 2 -v zarr://{tmp_path}/em", code=1)
    assert "has the time indices 0 to 1, but --time is 2" in text


def test_files_that_are_none(tmp_path, monkeypatch):
    """Messages on HDF5 name no option that load-volume does not have."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "em").mkdir()
    (tmp_path / "text").write_text("no HDF5")
    spec = VolumeSpec(BOUNDS, (40, 4, 4), np.dtype("u1"), None, "image", (8, 16, 16))
    create_volume(spec, "h5://raw.h5")
    for url, said in (
        ("h5://em", "is a folder, not an HDF5 file; name a file"),
        ("h5://text", "is not an HDF5 file; check the path"),
        ("raw.h5:nothing", "has no dataset 'nothing', only /main"),
    ):
        text = run("load-volume -v", url, code=1)
        assert said in text
        assert "--" not in text
