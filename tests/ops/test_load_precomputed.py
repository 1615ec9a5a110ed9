"""Tests of load-precomputed."""

import json

import numpy as np
import pytest
from click.testing import CliRunner

from chunkflow_py.cli.main import cli
from chunkflow_py.core.chunk import Chunk
from chunkflow_py.core.geometry import BoundingBox, Region, Zyx
from chunkflow_py.core.task import Task
from chunkflow_py.errors import ChunkError, VolumeError
from chunkflow_py.ops.load_precomputed import command
from chunkflow_py.pipeline.operator import Outline
from chunkflow_py.volume import create_volume, open_volume
from chunkflow_py.volume.protocol import VolumeSpec

BOUNDS = BoundingBox(Zyx(3, 10, 5), Zyx(11, 42, 53))


def split(words):
    """Return what a shell would make of the words."""
    return [part for word in words for part in str(word).split()]


def loader(*words):
    """Return the body of the command with these options."""
    context = command.make_context("load-precomputed", split(words))
    return command.invoke(context).body


def load(body, box=None, time=None):
    """Return the chunk that a task with this box gets."""
    return body(Task(None if box is None else Region(box, time)))["chunk"]


@pytest.fixture
def em(tmp_path):
    """Write a volume with a coarser level made by averaging, and return its address."""
    url = f"file://{tmp_path}/em"
    rng = np.random.default_rng(0)
    array = rng.integers(1, 255, BOUNDS.size, "u1")
    spec = VolumeSpec(
        BOUNDS, (40, 4, 4), np.dtype("u1"), None, "image", Zyx(8, 16, 16),
        factor=Zyx(1, 2, 2), max_mip=1,
    )  # fmt: skip
    create_volume(spec, f"precomputed://{url}").write(Chunk(array, BOUNDS.start))
    coarse = open_volume(url, mip=1, mode="r+")
    # a coarse voxel is the mean of the voxels 2k and 2k + 1 that exist
    padded = np.pad(array.astype("f4"), ((0, 0), (0, 0), (1, 1)), constant_values=np.nan)
    mean = np.nanmean(padded.reshape(8, 16, 2, 25, 2), axis=(2, 4)).astype("u1")
    coarse.write(Chunk(mean, coarse.bounds.start))
    return url


def test_whole(em):
    """Without a task and a cut, the whole volume is loaded."""
    chunk = load(loader("-v", em))
    assert chunk.bbox == chunk.domain == BOUNDS
    assert (chunk.kind, chunk.voxel_size_nm) == ("image", (40, 4, 4))


@pytest.mark.parametrize(
    "words", ["-s 4 12 6 -z 2 3 4", "--chunk-start 4 12 6 --chunk-stop 6 15 10"]
)
def test_cut(em, words):
    """A cut asked for is loaded, and is its own domain."""
    body = loader("-v", em, words)
    box = BoundingBox.from_size((4, 12, 6), (2, 3, 4))
    assert body.bounds() == box
    chunk = load(body)
    assert chunk.bbox == chunk.domain == box
    np.testing.assert_array_equal(chunk, load(loader("-v", em)).cut(box))


@pytest.mark.parametrize("has_tasks", [True, False])
def test_the_domain_of_a_cut_is_told_before_the_run(em, has_tasks):
    """A cut is its own domain only where tasks have no boxes, and the check knows that."""
    body = loader("-v", em, "-s 4 12 6 -z 2 3 4")
    body.prepare(Outline(has_tasks=has_tasks))
    box = BoundingBox.from_size((4, 12, 6), (2, 3, 4))
    assert body.bounds() == load(body, box if has_tasks else None).domain


def test_task_with_margin(em):
    """A task's box is loaded with its margin, cut off at the bounds, which are the domain."""
    chunk = load(loader("-v", em, "-e", 1, 2, 3), BoundingBox.from_size((3, 20, 20), (2, 4, 4)))
    assert chunk.bbox == BoundingBox(Zyx(3, 18, 17), Zyx(6, 26, 27))
    assert chunk.domain == BOUNDS


def test_auto_margin(em):
    """The margin auto is what the rest of the line says."""
    body = loader("-v", em, "--expand-margin-size", "auto")
    body.negotiate(lambda box, domain: box.grow(Zyx(0, 5, 1)))
    chunk = load(body, BoundingBox.from_size((3, 20, 20), (2, 4, 4)))
    assert chunk.bbox == BoundingBox(Zyx(3, 15, 19), Zyx(5, 29, 25))


def test_channels(tmp_path):
    """--channels takes those named, in that order; one that does not exist is refused."""
    url = f"precomputed://file://{tmp_path}/em"
    spec = VolumeSpec(BOUNDS, (1, 1, 1), np.dtype("f4"), 3, "affinity", Zyx(8, 16, 16))
    voxels = np.random.default_rng(0).random((3, *BOUNDS.size), "f4")
    create_volume(spec, url).write(Chunk(voxels, BOUNDS.start))
    np.testing.assert_array_equal(load(loader("-v", url, "--channels", "2,0")), voxels[[2, 0]])
    with pytest.raises(ChunkError, match="has channels 0 to 2, but channel 3 was requested"):
        loader("-v", url, "-c", "3").bounds()


def test_missing_blocks(em, tmp_path):
    """Missing blocks are zeros by default, and an error with --no-fill-missing."""
    for path in (tmp_path / "em").rglob("*.gz"):
        path.unlink()
    assert not load(loader("-v", em)).array.any()
    with pytest.raises(VolumeError, match="is not stored"):
        load(loader("-v", em, "--no-fill-missing"))


def test_blackout_sections(em, tmp_path):
    """The sections that the volume's list names are zeros; others are as they were."""
    with pytest.raises(VolumeError, match=r"has no file blackout_section_ids\.json"):
        load(loader("-v", em, "--blackout-sections"))
    path = tmp_path / "em" / "blackout_section_ids.json"
    path.write_text(json.dumps({"section_ids": [2, 4, 10, 11]}))
    plain, black = load(loader("-v", em)), load(loader("-v", em, "--blackout-sections"))
    assert [not section.any() for section in black.array] == [z in (4, 10) for z in range(3, 11)]
    np.testing.assert_array_equal(black.array[2:7], plain.array[2:7])
    path.write_text("[1, 2]")
    with pytest.raises(VolumeError, match=r"must contain .*section_ids.*, but contains \[1, 2\]"):
        load(loader("-v", em, "--blackout-sections"))


@pytest.mark.parametrize(
    "box",
    [BOUNDS, BoundingBox(Zyx(4, 11, 8), Zyx(9, 30, 40)), BoundingBox(Zyx(4, 11, 8), Zyx(5, 12, 9))],
)
def test_validate_mip(em, box):
    """A chunk that averages to the coarser level passes, wherever it was cut."""
    chunk = load(loader("-v", em, "--validate-mip", 1), box)
    np.testing.assert_array_equal(chunk, load(loader("-v", em), box))


def test_validate_mip_finds_lost_blocks(em, tmp_path):
    """A block that is missing from the fine level is found by the coarse one."""
    blocks = sorted((tmp_path / "em" / "4_4_40").iterdir())
    blocks[0].unlink()
    with pytest.raises(VolumeError, match=r"does not match the coarser level with .*: "):
        load(loader("-v", em, "--validate-mip", 1))


def test_validate_mip_refuses(em):
    """A finer level cannot be compared."""
    result = CliRunner().invoke(
        cli, split(["load-precomputed", "-v", em, "--mip", "1", "--validate-mip", "0"])
    )
    assert result.exit_code == 2
    assert "--validate-mip 0 is finer than --mip 1" in result.output


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        ("-v file://nowhere", 1, "file://nowhere is not a precomputed volume"),
        ("-v precomputd://x", 1, "did you mean precomputed://?"),
        ("", 2, "--volume-path"),
        (
            "-v x -s 0 0 0 -z 2 2 2 --chunk-stop 3 3 3",
            2,
            "--chunk-start (0, 0, 0) plus --chunk-size",
        ),
        ("-v x --channels a", 2, "list of channels"),
    ],
)
def test_bad_input(words, code, text, tmp_path, monkeypatch):
    """What cannot work is one sentence and an exit code, without a traceback."""
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(cli, split(["load-precomputed", words]))
    assert result.exit_code == code, result.output
    assert text in result.output
    assert "Traceback" not in result.output


def test_cut_outside(em):
    """A cut that reaches outside is refused with the part that lies inside."""
    result = CliRunner().invoke(cli, split(["load-precomputed", "-v", em, "-s 0 10 5 -z 8 8 8"]))
    assert result.exit_code == 1
    assert "the part inside is 3-8_10-18_5-13" in result.output
