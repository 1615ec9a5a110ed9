"""--in-place: a line that saves to the volume it loads."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from click.testing import CliRunner, Result

from chunkflow_py.cli.main import cli
from chunkflow_py.core.chunk import Chunk
from chunkflow_py.core.geometry import BoundingBox, Zyx
from chunkflow_py.volume import create_volume, open_volume
from chunkflow_py.volume.protocol import VolumeSpec

if TYPE_CHECKING:
    from pathlib import Path

LOAD = "load-precomputed -v file://em"
SAVE = "save-precomputed -v file://em"
TASKS = "generate-tasks -v file://em -c 4 8 8"


def run(line: str) -> Result:
    """Run a command line."""
    return CliRunner().invoke(cli, line.split())


@pytest.fixture(autouse=True)
def voxels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    """Make the volume em of 8 tasks, and return its voxels."""
    monkeypatch.chdir(tmp_path)
    array = np.random.default_rng(0).integers(0, 256, (8, 16, 16), np.uint8)
    bounds = BoundingBox.from_size((0, 0, 0), array.shape)
    spec = VolumeSpec(bounds, (40, 4, 4), array.dtype, None, None, Zyx(4, 8, 8))
    create_volume(spec, "precomputed://file://em").write(Chunk(array, (0, 0, 0), (40, 4, 4)))
    return array


def stored() -> np.ndarray:
    """Return the voxels of the volume."""
    volume = open_volume("precomputed://file://em")
    return volume.read(volume.bounds).array


@pytest.mark.parametrize("source", [TASKS, "create-bbox -s 0 0 0 -z 8 16 16", ""])
@pytest.mark.parametrize("ahead", [0, 2])
def test_a_line_replaces_what_it_loads(voxels: np.ndarray, source: str, ahead: int) -> None:
    """Each voxel is processed once, in tasks of any size, also where lanes work ahead."""
    result = run(f"--in-place --ahead {ahead} {source} {LOAD} inverse {SAVE}")
    assert result.exit_code == 0, result.output
    assert np.array_equal(stored(), 255 - voxels)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (f"{TASKS} {LOAD} inverse {SAVE}", "mip, or put --in-place before"),
        (f"--in-place {TASKS} {LOAD} -e 1 0 0 crop-margin --crop-bbox {SAVE}", "read no margin"),
        (f"--in-place {TASKS} {LOAD} --expand-margin-size auto median-filter {SAVE}", "no margin"),
        (
            f"--in-place submit --run r.run {TASKS} {LOAD} inverse {SAVE}",
            "submit cannot be combined with --in-place: a task of a run may be",
        ),
        (f"--in-place fetch-task -q file://q {LOAD} inverse {SAVE}", "a task of a queue may"),
    ],
)
def test_what_could_be_applied_twice_is_refused(voxels: np.ndarray, line: str, words: str) -> None:
    """Runs, queues and margins are refused with a remedy; nothing is written."""
    run(f"{TASKS} -q file://q")
    result = run(line)
    assert result.exit_code == 2, result.output
    assert words in " ".join(result.stderr.split())
    assert np.array_equal(stored(), voxels)
