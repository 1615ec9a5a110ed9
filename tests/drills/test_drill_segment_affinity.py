"""Exact segmentation as steps of a run, whose workers are killed in each of them."""

import numpy as np
import pytest
from click.testing import CliRunner
from rigs.agglomeration import Volume

from chunkflow_py.cli.main import cli
from chunkflow_py.core.chunk import Chunk
from chunkflow_py.core.geometry import BoundingBox, Zyx
from chunkflow_py.segmentation.agglomeration.task_fragments import FragmentOptions
from chunkflow_py.volume import create_volume, open_volume
from chunkflow_py.volume.protocol import VolumeSpec
from drills.killed_steps import kill_in_each_step, say, work

pytestmark = [pytest.mark.drill, pytest.mark.slow]

TOTALS = {
    "fragments": 8, "link": 8, "solve": 1, "contacts": 8, "level-1": 1, "cut": 1, "relabel": 8,
    "supervoxels": 8,
}  # fmt: skip


PLACES = (
    "fragments.zarr/0/c", "edges", "links", "fragment-ids", "graph/contacts", "graph/level-0",
    "graph/level-1", "hierarchy",
)  # fmt: skip


def write_affinities(method="distance"):
    """Write the volume affinity.zarr of random affinities, and return its model."""
    edges = np.random.default_rng(0).choice([20, 90, 140, 200, 250], size=(3, 12, 16, 20))
    volume = Volume(edges.astype(np.uint8), FragmentOptions(method, 0.3, 0.5), (5, 0, -4))
    box, size_nm = volume.box, (40.0, 40.0, 40.0)
    spec = VolumeSpec(box, size_nm, np.dtype(np.uint8), 3, "affinity", Zyx(6, 8, 10))
    create_volume(spec, "zarr://affinity.zarr").write(
        Chunk(volume.affinity.array, box.start, size_nm, "affinity")
    )
    return volume


def contents(folder):
    """Return the contents of the files of a folder, by path."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("method", ["distance", "affinity"])
def test_killed_in_every_step(tmp_path, monkeypatch, method):
    """The segments are those of one task that is not disturbed, and the run is verified."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    volume = write_affinities(method)
    box = volume.box
    steps = say(
        "segment-affinity affinity.zarr zarr://segments.zarr --task-size 6 8 10 --threshold 0.6 "
        f"--min-size 5 --fragments {method} --aff-threshold-low 0.3 --aff-threshold-high 0.5 "
        "--supervoxels zarr://supervoxels.zarr --show-steps"
    )
    say("submit --run r " + steps.replace("\\\n", " "))
    kill_in_each_step(TOTALS)
    fragments, _, segments = volume.segmented(tuple(box.size), 0.6, min_size=5)
    for name, expected in (("segments", segments), ("supervoxels", fragments)):
        result = open_volume(f"{name}.zarr")
        assert result.bounds == BoundingBox.from_size(box.start, box.size)
        np.testing.assert_array_equal(result.read(result.bounds).array, expected)
    say("verify r")


def test_damage_in_every_step_is_found_and_repaired(tmp_path, monkeypatch):
    """A damaged object of any step is found by verify, and repair and a worker restore it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_affinities()
    steps = say(
        "segment-affinity affinity.zarr zarr://segments.zarr --task-size 6 8 10 --threshold 0.6 "
        "--show-steps"
    )
    say("submit --run r " + steps.replace("\\\n", " "))
    assert work() == 0
    say("verify r")
    work_folder = tmp_path / "segments.zarr.segment"
    before = contents(tmp_path / "segments.zarr"), contents(work_folder)
    tables = [path.name for path in work_folder.glob("segments-*")]
    assert len(tables) == 1
    for number, place in enumerate((*PLACES, *tables)):
        objects = sorted(path for path in (work_folder / place).rglob("*") if path.is_file())
        damaged = objects[number % len(objects)]
        data = bytearray(damaged.read_bytes())
        data[len(data) // 2] ^= 16
        damaged.write_bytes(data)
        found = CliRunner().invoke(cli, ["verify", "r"])
        assert found.exit_code != 0, place
        assert damaged.name in found.output, (place, found.output)
        say("repair r")
        assert work() == 0, place
        say("verify r")
        assert (contents(tmp_path / "segments.zarr"), contents(work_folder)) == before, place
