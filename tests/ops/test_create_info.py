"""Tests of create-info."""

import json

import cloudvolume
import pytest
from click.testing import CliRunner

from chunkflow_py.cli.main import cli


def split(words):
    """Return what a shell would make of the words."""
    return [part for word in words for part in str(word).split()]


def run(*words, code=0):
    """Run a line and return what it printed."""
    result = CliRunner().invoke(cli, ["--quiet", *split(words)])
    assert result.exit_code == code, result.output
    return result.output


def info(tmp_path):
    """Return the content of the info file."""
    return json.loads((tmp_path / "em" / "info").read_text())


def test_from_options(tmp_path):
    """Options alone describe a volume that CloudVolume opens."""
    run(
        "create-info -c 3 -t image -d float32 -e raw -s 40 4 4.5 -o -8 16 0",
        "-z 128 512 500 -b 32 64 60 -f 1 2 2 -m 2 -v",
        f"file://{tmp_path}/em",
    )
    volume = cloudvolume.CloudVolume(f"file://{tmp_path}/em", mip=2, progress=False)
    assert tuple(volume.resolution) == (18, 16, 40)
    assert tuple(volume.voxel_offset) == (0, 4, -8)
    assert tuple(volume.volume_size) == (125, 128, 128)
    assert tuple(volume.chunk_size) == (60, 64, 32)
    assert (volume.num_channels, volume.dtype, volume.layer_type) == (3, "float32", "image")


def test_from_chunk(tmp_path):
    """What options do not say comes from the chunk."""
    run(
        "create-chunk --size 20 30 40 -d uint32 -t 1 2 3 -e 40 4 4",
        "create-info -b 16 16 16 --volume-path",
        f"file://{tmp_path}/em",
    )
    (scale,) = info(tmp_path)["scales"]
    assert scale["size"] == [40, 30, 20]
    assert scale["voxel_offset"] == [3, 2, 1]
    assert scale["resolution"] == [4, 4, 40]
    assert info(tmp_path)["data_type"] == "uint32"
    assert info(tmp_path)["num_channels"] == 1


def test_options_before_the_chunk(tmp_path):
    """What options say is taken even if there is a chunk."""
    run(
        "create-chunk --size 20 30 40 create-info -z 64 64 64 -d float32 -c 2",
        "-t segmentation -b 16 16 16 -v",
        f"file://{tmp_path}/em",
    )
    found = info(tmp_path)
    assert found["scales"][0]["size"] == [64, 64, 64]
    assert (found["data_type"], found["num_channels"]) == ("float32", 2)
    assert found["type"] == "segmentation"


def test_existing(tmp_path):
    """The same info may be written again; another one needs --overwrite."""
    line = "create-info -z 64 64 64 -d uint8 -b 16 16 16 -v"
    url = f"file://{tmp_path}/em"
    run(line, url)
    run(line, url)
    before = info(tmp_path)
    text = run(line, url, "-c", 2, code=1)
    assert "num_channels is 1, but the new volume has 2" in text
    assert "--overwrite" in text
    assert info(tmp_path) == before
    run(line, url, "-c", 2, "--overwrite")
    assert info(tmp_path)["num_channels"] == 2


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("-d uint8 -b 16 16 16", "needs --volume-size, as no chunk"),
        ("-z 64 64 64 -b 16 16 16", "needs --data-type, as no chunk"),
        ("-z 64 64 64 -d uint8 -e compressed_segmentation -b 16 16 16", "cannot store uint8"),
    ],
)
def test_not_enough(tmp_path, words, text):
    """A description that is not complete, or cannot be, is one sentence and makes nothing."""
    assert text in run("create-info", words, "-v", f"file://{tmp_path}/em", code=1)
    assert not (tmp_path / "em").exists()


def test_dry_run(tmp_path):
    """A dry run writes nothing."""
    line = "create-info -z 64 64 64 -d uint8 -b 16 16 16 -v"
    run("--dry-run", line, f"file://{tmp_path}/em")
    assert not (tmp_path / "em").exists()
