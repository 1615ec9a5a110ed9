"""Labels of a whole volume as stages of a run, whose workers are killed in each of them."""

import os
import shlex
import signal
import subprocess

import numpy as np
import pytest
from click.testing import CliRunner

from chunkflow_py.cli.main import cli
from chunkflow_py.core.chunk import Chunk
from chunkflow_py.core.geometry import BoundingBox, Zyx
from chunkflow_py.ops.connected_components import connected_components
from chunkflow_py.run.run_directory import RunDirectory
from chunkflow_py.segmentation.labels.numbering import Numbering
from chunkflow_py.volume import create_volume, open_volume
from chunkflow_py.volume.downsample import downsample
from chunkflow_py.volume.protocol import VolumeSpec
from drills.worker import PROGRAM, environment

pytestmark = [pytest.mark.drill, pytest.mark.slow]

SIZE = Zyx(12, 16, 20)
TASKS = "generate-tasks -v mask.zarr -c 6 8 10"
LINE = f"""
submit --run r --stage label
    {TASKS} load-volume -v mask.zarr connected-components --global-ids
    save-volume -v zarr://parts.zarr
then --stage link
    {TASKS} link-labels -v parts.zarr -l links
then --stage solve
    generate-tasks --roi-size 1 1 1 -c 1 1 1 solve-labels -l links -t table
then --stage relabel
    {TASKS} load-volume -v parts.zarr relabel -t table save-volume -v labels.zarr
then --stage shrink
    {TASKS} load-volume -v labels.zarr
    downsample-upload -v labels.zarr --chunk-mip 0 --start-mip 1 --stop-mip 2
"""
STAGES = ("label", "link", "solve", "relabel", "shrink")
TOTALS = [8, 8, 1, 8, 8]


def say(line):
    """Run a line in this process; return what it printed."""
    result = CliRunner().invoke(cli, shlex.split(line))
    assert result.exit_code == 0, result.output
    return result.output


def done(home):
    """Return how many tasks of each stage are recorded."""
    return [sum(1 for _ in home.ledger(stage).records()) for stage in STAGES]


def work(*options, failpoint=""):
    """Run a worker to its end; return its exit code."""
    more = {"CHUNKFLOW_FAILPOINT": failpoint} if failpoint else {}
    line = [*PROGRAM, "--ahead", "0", "work", "r", "--lease", "5", "--threads", "1", *options]
    ended = subprocess.run(
        line,
        capture_output=True,
        env=environment(XDG_CACHE_HOME=os.environ["XDG_CACHE_HOME"], **more),
        start_new_session=True,
        timeout=600,
        check=False,
    )
    return ended.returncode


def test_killed_in_every_stage(tmp_path, monkeypatch):
    """A worker dies in each stage, with what it has written; the bytes are those of the whole."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    mask = (np.random.default_rng(0).random(SIZE) < 0.4).astype(np.uint8)
    box = BoundingBox.from_size((0, 0, 0), SIZE)
    size_nm = (40.0, 4.0, 4.0)
    spec = VolumeSpec(box, size_nm, mask.dtype, None, "segmentation", Zyx(6, 8, 10))
    create_volume(spec, "zarr://mask.zarr").write(Chunk(mask, (0, 0, 0), size_nm, "segmentation"))
    say(
        "create-volume -v zarr://labels.zarr -z 12 16 20 -s 40 4 4 -d uint64 -b 3 4 5 "
        "-t segmentation --max-mip 1"
    )
    say(LINE)
    home = RunDirectory("r")
    for stage in range(len(STAGES)):
        missing = sum(TOTALS[:stage]) - sum(done(home))
        if missing:
            assert work("--max-tasks", str(missing)) == 75
        assert done(home)[:stage] == TOTALS[:stage]
        # The first task of a stage of one task, else one in its middle: outcomes that end together
        # are recorded together, so that a later one may be the last of the stage.
        count = 1 + TOTALS[stage] // 4
        assert work(failpoint=f"written-not-recorded:kill-all@{count}") == -signal.SIGKILL
        there = done(home)
        assert there[stage] < TOTALS[stage]
        assert not any(there[stage + 1 :])
    assert work() == 0
    assert done(home) == TOTALS
    expected = connected_components(Chunk(mask), None, 6, Numbering(is_global=True))
    volume = open_volume("labels.zarr")
    np.testing.assert_array_equal(volume.read(volume.bounds).array, expected.array)
    coarse = open_volume("labels.zarr", 1)
    np.testing.assert_array_equal(
        coarse.read(coarse.bounds).array, downsample(expected, Zyx(2, 2, 2), "mode").array
    )
    say("verify r")
