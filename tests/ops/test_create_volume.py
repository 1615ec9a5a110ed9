"""Tests of create-volume."""

import numpy as np
import pytest
from click.testing import CliRunner

from chunkflow_py.cli.main import cli
from chunkflow_py.core.geometry import BoundingBox, Zyx
from chunkflow_py.volume import create_volume, open_volume
from chunkflow_py.volume.protocol import VolumeSpec


def split(words):
    """Return what a shell would make of the words."""
    return [part for word in words for part in str(word).split()]


def run(*words, code=0):
    """Run a line and return what it printed."""
    result = CliRunner().invoke(cli, ["--quiet", *split(words)])
    assert result.exit_code == code, result.output
    return result.output


@pytest.fixture(params=["precomputed", "zarr"])
def url(request, tmp_path):
    """Return where the volume of this test goes, in each format."""
    return f"{request.param}://{tmp_path}/out"


def test_from_options(url):
    """Options alone describe a volume, with all its levels."""
    run(
        "create-volume -c 3 --kind affinity -d float32 -s 40 4 4.5 -o -8 16 0",
        "-z 128 512 500 -b 32 64 60 -f 1 2 2 -m 2 -v", url,
    )  # fmt: skip
    volume = open_volume(url)
    assert volume.bounds == BoundingBox.from_size((-8, 16, 0), (128, 512, 500))
    assert (volume.voxel_size_nm, volume.kind) == ((40, 4, 4.5), "affinity")
    assert (volume.dtype, volume.channels, volume.block_size) == (np.float32, 3, (32, 64, 60))
    assert volume.mips == (0, 1, 2)
    coarse = open_volume(url, 2)
    assert coarse.bounds == BoundingBox.from_size((-8, 4, 0), (128, 128, 125))
    assert coarse.voxel_size_nm == (40, 16, 18)


def test_like_another_volume(url, tmp_path):
    """What is not said is as in another volume; what is said stands above it."""
    bounds = BoundingBox.from_size((1, 2, 3), (20, 100, 90))
    spec = VolumeSpec(bounds, (40, 4, 4), np.dtype("u2"), None, "image", Zyx(8, 8, 8))
    create_volume(spec, f"precomputed://{tmp_path}/em")
    run("create-volume --like", tmp_path / "em", "-v", url)
    volume = open_volume(url)
    assert (volume.bounds, volume.voxel_size_nm) == (bounds, (40, 4, 4))
    assert (volume.dtype, volume.channels, volume.kind) == (np.uint16, None, "image")
    assert volume.block_size == (20, 64, 64)
    run("create-volume -d float32 -c 3 --like", tmp_path / "em", "-v", f"{url}2")
    volume = open_volume(f"{url}2")
    assert (volume.bounds, volume.dtype, volume.channels) == (bounds, np.float32, 3)
    assert volume.kind is None


def test_names_of_channels_as_in_another_volume(tmp_path):
    """The names of channels are those of the other volume, unless other ones or more are said."""
    bounds = BoundingBox.from_size((0, 0, 0), (8, 8, 8))
    spec = VolumeSpec(bounds, (40, 4, 4), np.dtype("u1"), 2, "image", Zyx(8, 8, 8))
    source, target = f"zarr://{tmp_path}/em", f"zarr://{tmp_path}/out"
    create_volume(spec, source, channel_names=["nuclei", "membranes"])
    run("create-volume --like", source, "-v", target)
    assert open_volume(target).channel_names == ("nuclei", "membranes")
    run("create-volume --channel-names a,b --like", source, "-v", f"{target}2")
    assert open_volume(f"{target}2").channel_names == ("a", "b")
    run("create-volume -c 3 --like", source, "-v", f"{target}3")
    assert "nuclei" not in open_volume(f"{target}3").channel_names
    run("create-volume --like", source, "-v", f"precomputed://{tmp_path}/other")


def test_like_the_chunk(url):
    """What is not said is as in the chunk that the line has made."""
    run("create-chunk --size 20 30 40 -d uint32 -t 1 2 3 -e 40 4 4 create-volume -v", url)
    volume = open_volume(url)
    assert volume.bounds == BoundingBox.from_size((1, 2, 3), (20, 30, 40))
    assert (volume.voxel_size_nm, volume.dtype) == ((40, 4, 4), np.uint32)


def test_shards_that_equal_tasks(url):
    """Shards are the largest that a task can write in the memory, and tasks of that size work."""
    text = run(
        "create-volume -z 64 128 256 -d uint8 -b 16 32 32 -s 9 9 9",
        "--sharded --task-memory 1MiB -v",
        url,
    )
    # 3 bytes a voxel: 2^18 voxels, 16 blocks
    assert text == f"generate-tasks --volume-path {url} --chunk-size 32 64 128\n"
    assert open_volume(url).write_unit == (32, 64, 128)
    run(text, "create-chunk --size 64 128 256 crop-margin --crop-bbox save-volume -v", url)
    assert open_volume(url).read(open_volume(url).bounds).array.any()
    line = text.replace("32 64 128", "32 64 64")
    assert "cut the write units of size (32, 64, 128)" in run(
        line, "create-chunk --size 64 128 256 crop-margin --crop-bbox save-volume -v", url, code=1
    )


def test_time_points(tmp_path):
    """A zarr volume has the time points asked for."""
    url = f"zarr://{tmp_path}/out"
    run("create-volume -z 8 8 8 -d uint8 --times 3 -v", url)
    assert open_volume(url).times == 3


def test_zarr_alone(tmp_path):
    """Version, channel names, order and plain arrays are those asked for."""
    line = "create-volume -z 8 16 24 -d uint8 -v"
    run(line, f"zarr://{tmp_path}/a", "--ome-version 0.4 -c 2 --channel-names nuclei,membranes")
    assert (tmp_path / "a" / ".zgroup").exists()
    assert open_volume(f"{tmp_path}/a").channel_names == ("nuclei", "membranes")
    run(line, f"zarr://{tmp_path}/b", "--plain --order xyz")
    assert open_volume(f"{tmp_path}/b").bounds.size == (8, 16, 24)


def test_existing(url):
    """The same volume may be created again; another one needs --overwrite."""
    line = "create-volume -z 64 64 64 -d uint8 -b 16 16 16 -v"
    run(line, url)
    run(line, url)
    assert "--overwrite" in run(line, url, "-c 2", code=1)
    assert open_volume(url).channels is None
    run(line, url, "-c 2 --overwrite")
    assert open_volume(url).channels == 2


@pytest.mark.parametrize("size", ["", "-o 0 0 0 -s 1 1 1 -c 1"])
def test_in_front_of_a_saver_that_creates_nothing(url, size):
    """A volume that the line itself creates first is no missing one, for --no-create too."""
    made = "-z 64 64 64 -d uint8 -b 16 32 32 -v"
    save = "create-chunk save-volume --no-create -v"
    run("create-volume", made, url, size, save, url)
    assert open_volume(url).read(BoundingBox(Zyx(0, 0, 0), Zyx(64, 64, 64))).array.any()


def test_a_plan_that_does_not_fit_creates_nothing(url, tmp_path):
    """Tasks that cut the blocks of the volume to be are refused before it is there."""
    made = "-z 64 64 64 -d uint8 -b 16 32 32 -o 0 0 0 -s 1 1 1 -c 1 -v"
    text = run(
        "generate-tasks --roi-size 64 64 64 --chunk-size 24 64 64",
        "create-volume", made, url, "create-chunk save-volume --no-create -v", url, code=1,
    )  # fmt: skip
    assert "cut the write units of size (16, 32, 32)" in text
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        ("-d uint8", 1, "needs --volume-size, as no chunk"),
        ("-z 8 8 8", 1, "needs --data-type, as no chunk"),
        ("-z 8 8 8 -d nonsense", 2, "--data-type nonsense is not"),
        ("-z 8 8 8 -d uint8 --sharded", 2, "by --sharded and --task-memory"),
        ("-z 8 8 8 -d uint8 --task-memory 1GB", 2, "by --sharded and --task-memory"),
        ("-z 8 8 8 -d uint8 --sharded --task-memory 1", 1, "more than --task-memory 1;"),
        ("-z 8 8 8 -d uint8 --sharded --task-memory x", 2, "'x' is not an amount of memory"),
        ("-z 8 8 8 -d uint8 --shard-size 4 4 4", 2, "needs a block size"),
        ("-z 8 8 8 -d uint8 -b 4 4 4 --shard-size 6 4 4", 2, "try (8, 4, 4)"),
        ("--like nowhere", 1, "nowhere does not exist"),
    ],
)
def test_bad_options(tmp_path, url, words, code, text):
    """What cannot work is one sentence and an exit code, and makes nothing."""
    output = run("create-volume", words, "-v", url, code=code)
    assert text in output
    assert "Traceback" not in output
    assert list(tmp_path.iterdir()) == []


def test_a_format_that_is_not_said(tmp_path):
    """A bare path of a new volume needs its format."""
    text = run("create-volume -z 8 8 8 -d uint8 -v", tmp_path / "out", code=1)
    assert f"use precomputed://{tmp_path}/out or zarr://" in text


@pytest.mark.parametrize("words", ["--plain", "--order xyz", "--ome-version 0.4"])
def test_options_of_another_format(tmp_path, words):
    """Options that only zarr has are refused where the address names another format."""
    line = "create-volume -z 8 8 8 -d uint8 -v"
    text = run(line, f"precomputed://{tmp_path}/out", words, code=2)
    assert f"{words.split()[0]} is only for zarr volumes, but precomputed://" in text
    assert list(tmp_path.iterdir()) == []


def test_hdf5(tmp_path):
    """A dataset of an HDF5 file is created too."""
    url = f"h5://{tmp_path}/out.h5:raw"
    run("create-volume -z 8 16 24 -d uint16 -s 40 4 4 -v", url)
    assert open_volume(url).bounds.size == (8, 16, 24)


def test_an_unknown_voxel_size(url):
    """An unknown voxel size is reported in one line."""
    warning = "the voxel size of"
    text = run("create-volume -z 8 8 8 -d uint8 -v", url)
    assert text.count(warning) == 1
    assert "--voxel-size" in text
    assert warning not in run("create-volume -z 8 8 8 -d uint8 -s 1 1 1 -v", url)
    assert warning not in run(f"create-volume --like {url} -v", f"{url}2")
    assert warning not in run("create-chunk -s 8 8 8 create-volume -v", f"{url}3")


def test_what_cannot_be_made_is_found_first(tmp_path):
    """A volume that its format cannot hold is refused before the line does anything."""
    words = f"-z 8 8 8 -s 1 1 1 -c 1 -o 0 0 0 -b 8 8 8 -v precomputed://{tmp_path}/out"
    text = run(f"create-chunk -s 8 8 8 save-h5 -f {tmp_path}/a.h5 create-volume -d float64", words,
               code=1)  # fmt: skip
    assert "cannot store float64" in text
    assert list(tmp_path.iterdir()) == []
