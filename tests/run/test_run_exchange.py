"""Tasks of a run exchange patches: the same bytes, whatever happens to the exchange."""

from __future__ import annotations

import os
import random
from pathlib import Path

import numpy as np
import pytest
from rigs.command_line import say

from chunkflow_py.run.run_directory import RunDirectory
from chunkflow_py.run.run_parts import ExchangeSettings
from chunkflow_py.volume import open_volume

PIPELINE = (
    "generate-tasks --volume-path zarr://em.zarr --chunk-size 6 20 20 "
    "load-volume --volume-path zarr://em.zarr --expand-margin-size auto "
    "inference --framework identity --num-output-channels 2 --input-patch-size 6 10 10 "
    "--output-patch-overlap 2 3 3 save-volume --volume-path zarr://{out}.zarr --block-size 6 20 20"
)


@pytest.fixture(autouse=True)
def em(tmp_path, monkeypatch):
    """Make an image of eight tasks, and the result without a run."""
    monkeypatch.chdir(tmp_path)
    say(
        "create-chunk --size 12 40 40 save-volume --volume-path zarr://em.zarr --block-size 6 20 20"
    )
    say(PIPELINE.format(out="expected"))


def voxels(name):
    """Return the whole output."""
    volume = open_volume(f"zarr://{name}.zarr")
    return volume.read(volume.bounds).array


def submit(exchange):
    """Submit a run that exchanges patches."""
    return say(f"submit --run r --exchange {exchange} {PIPELINE.format(out='out')}")


def objects(folder="r/exchange"):
    """Return the files below the exchange."""
    return [path for path in Path(folder).rglob("*") if path.is_file()]


def check():
    """Check that the run is complete and has the right bytes."""
    assert "verified: all 8 tasks" in say("verify r")
    np.testing.assert_array_equal(voxels("out"), voxels("expected"))


def test_objects_are_stored_used_and_removed():
    """Objects of a task remain until it is recorded; nothing remains of a complete run."""
    submit("on")
    say("work r --processes 1 --threads 1 --max-tasks 1", code=75)
    first = {path.parent.name for path in objects()}
    assert len(first) == 7
    say("work r --processes 1 --threads 1 --max-tasks 3", code=75)
    assert {path.parent.name for path in objects()} < first
    say("work r --processes 2 --threads 1")
    assert not objects()
    check()


@pytest.mark.parametrize("seed", range(3))
def test_whatever_happens_to_the_exchange(seed):
    """Objects are deleted, cut, changed, swapped and added while the run is interrupted."""
    rng = random.Random(seed)
    submit("on")
    for _ in range(3):
        say("work r --processes 1 --threads 1 --max-tasks 2", code=75)
        for path in objects():
            content = path.read_bytes()
            match rng.randrange(6):
                case 0:
                    path.unlink()
                case 1:
                    path.write_bytes(content[: rng.randrange(len(content))])
                case 2:
                    place = rng.randrange(len(content))
                    path.write_bytes(content[:place] + b"?" + content[place + 1 :])
                case 3:
                    other = rng.choice(objects())
                    path.write_bytes(other.read_bytes())
                case 4:
                    path.with_name("another").write_bytes(os.urandom(100))
                case _:
                    pass
    say("work r --processes 2 --threads 1")
    check()


def test_another_folder_and_one_that_cannot_be_written():
    """The exchange may be elsewhere; where it is a file, tasks compute their patches."""
    submit(f"file://{Path.cwd()}/parts")
    say("work r --processes 1 --threads 1 --max-tasks 1", code=75)
    assert objects("parts")
    for path in objects("parts"):
        path.unlink()
    for folder in sorted(Path("parts").rglob("*"), reverse=True):
        folder.rmdir()
    Path("parts").rmdir()
    Path("parts").write_text("not a folder")
    said = say("work r --processes 1 --threads 1")
    assert "parts of patches" in said
    check()


def test_submit_again_switches_the_exchange_off():
    """The exchange is not part of what was submitted, so it can be changed."""
    submit("on")
    assert RunDirectory("r").exchange == ExchangeSettings("on")
    say("work r --processes 1 --threads 1 --max-tasks 1", code=75)
    assert objects()
    submit("off")
    assert RunDirectory("r").exchange == ExchangeSettings("off")
    assert not objects(), "nobody would remove them"
    say("work r --processes 1 --threads 1 --max-tasks 2", code=75)
    assert not objects()
    say("work r --processes 1 --threads 1")
    check()


def test_no_parts_for_tasks_that_are_recorded():
    """Only tasks of the plan without a record still need parts."""
    submit("on")
    say("work r --processes 1 --threads 1 --max-tasks 1", code=75)
    run = RunDirectory(str(Path("r").absolute()))
    step = run.spec.first
    parts = run.exchange_of(step).parts(run.plan(step))
    assert parts.unfinished(["0", "1", "7", "8", "99"]) == ["1", "7"]
    parts.close()
