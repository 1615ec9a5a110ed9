"""Outputs that are created before the first chunk are those that the first chunk would create."""

import numpy as np
import pytest

from chunkflow_py.cli.command_line import read_line
from chunkflow_py.core.chunk import Chunk
from chunkflow_py.core.geometry import BoundingBox, Zyx
from chunkflow_py.errors import OptionError
from chunkflow_py.pipeline.pipeline import Pipeline
from chunkflow_py.store import open_store
from chunkflow_py.volume import create_volume, open_volume
from chunkflow_py.volume.protocol import VolumeSpec

BOUNDS = BoundingBox(Zyx(2, 16, 32), Zyx(34, 80, 96))
IDENTITY = "inference --framework identity -s 16 32 32 -v 4 8 8 --bump wu -c"


@pytest.fixture
def em(tmp_path):
    """Return a volume of random voxels."""
    voxels = np.random.default_rng(0).integers(1, 255, BOUNDS.size, np.uint8)
    spec = VolumeSpec(BOUNDS, (40.0, 4.5, 4.0), voxels.dtype, None, "image", Zyx(16, 16, 16))
    create_volume(spec, f"zarr://{tmp_path}/em").write(Chunk(voxels, BOUNDS.start))
    return tmp_path / "em"


def checked(em, words, out, load="load-zarr --expand-margin-size auto -f"):
    """Return a line over *em*, checked."""
    tasks = f"generate-tasks -v zarr://{em} -c 16 32 32 {load} {em}"
    source, *operators = read_line(f"{tasks} {words.format(out=out)}".split())
    pipeline = Pipeline(operators, source)
    pipeline.check()
    return pipeline


def create(pipeline):
    """Create what a line writes to, and return what it has created."""
    hooks = [operator.hooks for operator in pipeline.operators]
    return [each.create_output() for each in hooks if each.declares("create_output")]


def run(pipeline):
    """Run a line."""
    assert [task.outcome for task in pipeline.run()] == [None] * 8


def objects(place):
    """Return all that is stored, keys and bytes."""
    store = open_store(str(place))
    return {key: store.get(key) for key in store.list()}


@pytest.mark.parametrize(
    "words",
    [
        "save-zarr -s {out}",
        "save-zarr -s {out} --plain --dtype uint16 --resolution 8 8 8",
        "save-precomputed -v {out} --create-thumbnail --block-size 8 32 32",
        "save-volume -v zarr://{out} --block-size 8 16 16 --shard-size 16 32 32",
        f"{IDENTITY} 1 save-zarr -s {{out}}",
        f"{IDENTITY} 3 --output-dtype uint8 save-precomputed -v {{out}} --create-thumbnail",
        "downsample -f 1 2 2 save-zarr -s {out} --chunk-size 8 16 16",
        "create-volume --like zarr://{em} -v zarr://{out} -b 16 32 32 save-volume -v {out}",
    ],
)
def test_the_same_before_and_with_the_first_chunk(em, tmp_path, words):
    """A run whose outputs are created beforehand stores what the line does by itself."""
    words = words.replace("{em}", str(em))
    before, by_itself = tmp_path / "before" / "out", tmp_path / "by_itself" / "out"
    pipeline = checked(em, words, before)
    assert [made.rpartition("/")[2] for made in create(pipeline) if made] == ["out"]
    created = objects(before)
    assert [made for made in create(checked(em, words, before)) if made] == []  # it is there
    run(checked(em, words, by_itself))
    whole = objects(by_itself)
    assert created.items() <= whole.items()
    run(checked(em, words, before))
    assert objects(before) == whole


def test_what_only_a_chunk_would_tell(em, tmp_path):
    """Where a line does not know what it makes, what to do about it is said."""
    out = tmp_path / "out"
    plugin = tmp_path / "own.py"
    plugin.write_text("def execute(chunk):\n    return chunk\n")
    saving = checked(em, f"plugin -f {plugin} -i chunk -o chunk save-zarr -s {{out}}", out)
    with pytest.raises(OptionError, match="and its type and channels will be known only with"):
        create(saving)
    creating = checked(em, "create-volume -v zarr://{out} -d uint8 -b 16 32 32 -s 40 4 4", out)
    with pytest.raises(OptionError, match="without --volume-size, --voxel-offset, --channel-num,"):
        create(creating)
    assert not out.exists()


def test_one_writer_is_told(em, tmp_path):
    """Before anything is made it is known whether several processes can write."""
    lines = {"save-volume -v h5://{out}.h5": True, "save-zarr -s {out}": False}
    for words, single in lines.items():
        assert checked(em, words, tmp_path / "out").operators[-1].body.single_writer is single


def test_the_voxel_size_of_a_level(em, tmp_path):
    """A downsampled output has the larger voxels."""
    create(checked(em, "downsample -f 1 2 2 save-zarr -s {out} -c 8 16 16", tmp_path / "out"))
    assert open_volume(str(tmp_path / "out")).voxel_size_nm == (40, 9, 8)
