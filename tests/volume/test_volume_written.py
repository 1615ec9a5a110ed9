"""What the savers of a line say they have stored is what is there, and the same each time."""

import time
from pathlib import PurePosixPath

import numpy as np
import pytest

from chunkflow_py.cli.command_line import read_line
from chunkflow_py.core.chunk import Chunk
from chunkflow_py.core.geometry import BoundingBox, Zyx
from chunkflow_py.pipeline.pipeline import Pipeline
from chunkflow_py.store import open_store
from chunkflow_py.store.store_protocol import checksum_of
from chunkflow_py.volume import create_volume
from chunkflow_py.volume.protocol import VolumeSpec

BOUNDS = BoundingBox(Zyx(0, 0, 0), Zyx(16, 64, 64))
METADATA = ("info", "zarr.json")


@pytest.fixture
def em(tmp_path):
    """Return a volume of random voxels, a fourth of it zero."""
    voxels = np.random.default_rng(0).integers(1, 255, BOUNDS.size, np.uint8)
    voxels[:, :32, :32] = 0
    spec = VolumeSpec(BOUNDS, (40.0, 4.5, 4.0), voxels.dtype, None, "image", Zyx(16, 16, 16))
    create_volume(spec, f"zarr://{tmp_path}/em").write(Chunk(voxels, BOUNDS.start))
    return tmp_path / "em"


def written(em, words, out):
    """Run a line over the volume in tasks, and return what each says that it has stored."""
    line = f"generate-tasks -v {em} -c 16 64 32 load-zarr -f {em} {words.replace('{}', str(out))}"
    source, *operators = read_line(line.split())
    pipeline = Pipeline(operators, source)
    pipeline.check()
    tasks = list(pipeline.run())
    assert [task.outcome for task in tasks] == [None, None]
    return [task.written for task in tasks]


@pytest.mark.parametrize(
    ("words", "left_out"),
    [
        ("save-zarr -s {}/em -c 16 16 16", 4),
        ("save-precomputed -v {}/em --block-size 16 16 16 --create-thumbnail --upload-log", 4),
        ("save-volume -v zarr://{}/em -b 16 16 16 --shard-size 16 32 32", 1),
        (
            "create-volume --like {em} -v zarr://{}/em -b 8 16 16 --max-mip 1 save-volume -v {}/em "
            "downsample-upload -v {}/em --stop-mip 2",
            9,
        ),
        ("save-h5 -f {}/cut_", 0),
        ("save-tif -f {}/cut_", 0),
        ("save-zarr -s {}/a -c 16 16 16 save-h5 -f {}/b_", 4),
    ],
)
def test_all_that_is_stored_is_said(em, tmp_path, words, left_out):
    """Each object and file is there as it is said, nothing else is, and it is the same twice."""
    words = words.replace("{em}", f"zarr://{em}")
    first = written(em, words, tmp_path / "one")
    time.sleep(1.1)  # so that a time that went into a file would show
    again = written(em, words, tmp_path / "other")
    said = {}
    for one, other in zip(first, again, strict=True):
        for stored, same in zip(one, other, strict=True):
            assert stored.url.replace("/one/", "/other/") == same.url
            assert (stored.size, stored.checksum) == (same.size, same.checksum)
            assert stored.url not in said
            said[stored.url] = stored
    store = open_store(str(tmp_path / "one"))
    for key in store.list():
        if PurePosixPath(key).name not in METADATA and "log/" not in key:
            data = store.get(key)
            stored = said.pop(f"{store.url}/{key}")
            assert (stored.size, stored.checksum) == (len(data), checksum_of(data))
    assert [stored.size for stored in said.values()] == [None] * left_out


def test_every_section_is_said(em, tmp_path):
    """A task that writes many files says them all."""
    line = f"load-zarr -f {em} save-pngs -o {tmp_path}/pngs"
    pipeline = Pipeline(read_line(line.split()))
    pipeline.check()
    (task,) = pipeline.run()
    files = sorted((tmp_path / "pngs").iterdir())
    assert [stored.url for stored in task.written] == [f"file://{path}" for path in files]
    assert [stored.checksum for stored in task.written] == [
        checksum_of(path.read_bytes()) for path in files
    ]


def test_an_empty_file_is_said(tmp_path):
    """A task without a result leaves a file of no bytes, which is said like any other."""
    (tmp_path / "empty.h5").touch()
    line = f"load-h5 -f {tmp_path}/empty.h5 save-h5 -f {tmp_path}/out.h5"
    (task,) = Pipeline(read_line(line.split())).run()
    assert [(each.url, each.size, each.checksum) for each in task.written] == [
        (f"file://{tmp_path}/out.h5", 0, checksum_of(b""))
    ]
