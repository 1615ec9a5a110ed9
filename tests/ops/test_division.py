"""Operators whose result depends on how tasks divide a volume say so."""

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from ops.test_every_operator import NAMES, decorator_of

from chunkflow_py.cli import catalog
from chunkflow_py.cli.main import cli
from chunkflow_py.core.chunk import Chunk
from chunkflow_py.core.geometry import BoundingBox, Zyx
from chunkflow_py.volume import create_volume, open_volume
from chunkflow_py.volume.protocol import VolumeSpec

# What the result of an operator on a chunk depends on.
WARNS = {
    # name -> options with which it depends on all of the chunk
    "agglomerate": "",
    "clahe": "",
    "fill-segmentation-holes": "",
    "mask-out-objects": "--dust-size-threshold 9",
    "normalize-contrast": "",
    "normalize-section-shang": "",
    "rescale-intensity": "",
}
EACH_VOXEL = {
    "channel-voting", "inverse", "mapto01", "mask", "multiply", "nonzero-mask",
    "normalize-intensity", "quantize", "relabel", "select-channels", "stretch-intensity",
    "threshold",
}  # fmt: skip
ASKS_FOR_A_MARGIN = {
    "detect-duplicate-post", "detect-points", "detect-post-synapses", "detect-pre-synapses",
    "gaussian-filter", "inference", "median-filter", "resample",
}  # fmt: skip
JOINED_LATER = {
    "connected-components",
    "evaluate-segmentation",
    "fragment-affinity",
    "skeletonize",
}
NEEDS_WHOLE_CHUNKS = {"split-supervoxels"}  # of a graph; other tasks are refused
NO_VOXELS_MADE = {
    "adjust-bbox", "adjust-pre", "cleanup", "copy-var", "crop-margin", "debug", "delete-var",
    "downsample", "find-tbar-object", "print-max-id", "skip-all-zero", "skip-none", "statistics",
    "transpose",
}  # fmt: skip


def test_every_operator_says_what_its_result_depends_on():
    """An operator that computes is in one of the groups above, a new one too."""
    computing = {
        name
        for name in NAMES
        if decorator_of(name) == "transform"
        or '@operator("compute")' in Path(catalog.path_of(name)).read_text()
    }
    groups = [
        set(WARNS), EACH_VOXEL, ASKS_FOR_A_MARGIN, JOINED_LATER, NEEDS_WHOLE_CHUNKS, NO_VOXELS_MADE
    ]  # fmt: skip
    assert sum(map(len, groups)) == len(set().union(*groups))
    assert computing - {"plugin"} == set().union(*groups)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Everything is made in a folder of its own."""
    monkeypatch.chdir(tmp_path)


def store(array, kind, url="zarr://in.zarr"):
    """Store an array as a volume."""
    channels = array.shape[0] if array.ndim == 4 else None
    box = BoundingBox.from_size((0, 0, 0), array.shape[-3:])
    spec = VolumeSpec(box, (40, 4, 4), array.dtype, channels, kind, Zyx(4, 8, 8))
    create_volume(spec, url).write(Chunk(array, (0, 0, 0), (40, 4, 4), kind))


def say(line, code=0):
    """Run a line; return what it printed and logged."""
    result = CliRunner().invoke(cli, line.split())
    assert result.exit_code == code, result.output
    return result.output


@pytest.mark.parametrize("name", WARNS)
def test_who_depends_on_the_division_says_so(name):
    """Once for a line whose tasks divide a volume; not for one chunk that is all of it."""
    rng = np.random.default_rng(0)
    if name == "agglomerate":
        store(rng.random((3, 8, 8, 8), np.float32), "affinity")
    elif name in ("fill-segmentation-holes", "mask-out-objects"):
        store(rng.integers(0, 3, (8, 8, 8), np.uint8), "segmentation")
    else:
        store(rng.integers(0, 255, (8, 8, 8), np.uint8), "image")
    line = f"load-volume -v in.zarr {name} {WARNS[name]}"
    said = "the result depends on how the volume is cut into tasks"
    assert said not in say(line)
    assert say(f"generate-tasks -v in.zarr -c 4 8 8 {line}").count(said) == 1


def test_a_margin_for_agglomerate_and_chosen_objects_depend_on_nothing():
    """Labels joined by their margin, and objects chosen by id, give no warning."""
    store(np.random.default_rng(0).random((3, 8, 8, 8), np.float32), "affinity")
    store(np.ones((8, 8, 8), np.uint8), "segmentation", "zarr://seg.zarr")
    line = "generate-tasks -v in.zarr -c 4 8 8 load-volume -v"
    lines = ("in.zarr --expand-margin-size 2 0 0 agglomerate", "seg.zarr mask-out-objects -s 1")
    for more in lines:
        assert "depends on how" not in say(f"{line} {more}")


def blocks():
    """Store a mask of blocks, one in each corner."""
    mask = np.zeros((8, 16, 16), np.uint8)
    mask[1::4, 2::8, 2::8] = 1
    store(mask, "segmentation")
    return mask


TASKS = "generate-tasks -v in.zarr -c 4 8 8 load-volume -v in.zarr connected-components"


def ids(url="out.zarr"):
    """Return the labels of a volume, without the background."""
    volume = open_volume(url)
    return volume.dtype, np.unique(volume.read(volume.bounds).array).tolist()[1:]


def test_tasks_number_objects_of_the_volume():
    """New outputs get ids that no two tasks share; without tasks, and on one box, they count."""
    count = int(blocks().sum())
    assert "repeat" not in say(f"{TASKS} save-volume -v zarr://out.zarr")
    dtype, found = ids()
    assert dtype == "uint64"
    assert len(found) == count == 8
    for number, source in enumerate(("", "create-bbox -s 0 0 0 -z 8 16 16 ")):
        line = f"{source}load-volume -v in.zarr connected-components"
        say(f"{line} save-volume -v zarr://whole-{number}.zarr")
        assert ids(f"whole-{number}.zarr") == (np.dtype("uint32"), list(range(1, 9)))


def test_an_output_of_few_bits_is_warned_of_once():
    """Ids of the volume are taken if they fit into what is there; else a warning names the way."""
    blocks()
    end = "mask-out-objects save-volume -v"
    for name in ("wide", "narrow"):
        say(f"create-volume -v zarr://{name}.zarr --like in.zarr -d uint32 -b 4 8 8")
    assert "repeat" not in say(f"{TASKS} {end} wide.zarr")
    assert len(ids("wide.zarr")[1]) == 8
    huge = "--domain 0-2000_0-2000_0-2000"  # more voxels than uint32 can number
    told = say(f"{TASKS} {huge} {end} narrow.zarr")
    assert told.count("ids repeat in different tasks") == 1
    assert "uint32" in told
    assert "--global-ids" in told
    assert ids("narrow.zarr") == (np.dtype("uint32"), [1])
    assert "repeat" not in say(f"{TASKS} --chunk-ids {end} narrow.zarr")
    assert "uint32" in say(f"{TASKS} --global-ids {huge} {end} narrow.zarr", code=1)


def test_tasks_whose_volume_is_not_known_are_warned_of():
    """Files say nothing of the volume: ids of tasks repeat, and --domain is the remedy."""
    blocks()
    tasks = "generate-tasks -v in.zarr -c 4 8 8"
    say(f"{tasks} load-volume -v in.zarr save-h5 -f part_")
    line = f"{tasks} load-h5 -f part_ connected-components"
    assert "--domain" in say(f"{line} save-h5 -f labels_")
    domain = "--domain 0-8_0-16_0-16"
    assert "repeat" not in say(f"{line} {domain} save-h5 -f ids_")
