"""Chunks whose voxels differ in size do not meet: one check for every operator and saver."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from chunkflow_py.cli import catalog
from chunkflow_py.cli.main import cli
from chunkflow_py.core.geometry import same_size_nm
from chunkflow_py.pipeline.params import ItemName, ItemNames

# Operators of several items -> options with which they take the chunks a and b; and the synapses
# syns, whose voxels have a size as well.
COMPARED = {
    "adjust-pre": "-i a -s syns",
    "agglomerate": "-i a --fragments-name b",
    "compute-statistics": "--statistics-path counts -i a --mask-name b",
    "detect-duplicate-post": "-i a -s syns",
    "detect-post-synapses": "-i a -s syns",
    "evaluate-segmentation": "-s a -g b",
    "find-tbar-object": "-i a -s syns",
    "measure-contacts": "-i a --affinity-name b --graph-path graph --task-size 4 4 4",
    "measure-labels": "-s counts -i a --image-name b",
    "save-chunk-edges": "-i a --fragments-name b --segments-name a --affinity-name a "
    "--graph-path g --graph-chunk-size 4 4 4",
    "multiply": "-i a -o c -m b",
}
# Each of their inputs is handled by itself, or shown in its own size.
EACH_ALONE = {"delete-var", "mask", "napari", "neuroglancer", "plugin", "preview", "view"}

A = "create-chunk -p zero --size 4 4 4 -o a -e"
B = "create-chunk -p zero --size 4 4 4 -o b -e"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Everything is made in a folder of its own."""
    monkeypatch.chdir(tmp_path)


def say(line, code=0):
    """Run a line; return what it printed and logged."""
    result = CliRunner().invoke(cli, line.split())
    assert result.exit_code == code, result.output
    return result.output


def test_every_operator_of_several_items_is_compared():
    """A new one is compared as well, or says that its inputs may differ."""
    several = set()
    for name in catalog.names():
        types = [param.type for param in catalog.load(name).params]
        items = [t for t in types if isinstance(t, ItemName) and t.direction == "in"]
        if len(items) > 1 or any(isinstance(t, ItemNames) and t.direction == "in" for t in types):
            several.add(name)
    assert several == set(COMPARED) | EACH_ALONE


@pytest.mark.parametrize("name", [n for n, options in COMPARED.items() if "syns" not in options])
def test_sizes_that_differ_are_refused_before_the_first_task(name):
    """The error names both inputs and sizes; nothing is written."""
    told = say(f"{A} 40 4 4 {B} 10 10 10 save-h5 -i a -f early.h5 {name} {COMPARED[name]}", code=1)
    assert "(40.0, 4.0, 4.0) nm" in told
    assert "(10.0, 10.0, 10.0) nm" in told
    assert "'a'" in told
    assert "'b'" in told
    assert not list(Path().iterdir())


def test_sizes_that_only_tasks_tell_are_compared_too():
    """Files of tasks are known when they are read: the task fails."""
    for name, size in (("a", "40 4 4"), ("b", "10 10 10")):
        say(f"create-chunk --size 4 4 4 -e {size} save-h5 -f {name}_")
    line = "create-bbox -s 0 0 0 -z 4 4 4 load-h5 -f a_ -o a load-h5 -f b_ -o b"
    assert "(10.0, 10.0, 10.0) nm" in say(f"{line} multiply -i a -o c -m b", code=1)


def test_an_unknown_size_and_rounding_are_no_difference():
    """1 nm stands for a size that nobody has said; sizes are equal to a thousandth."""
    for size in ("1 1 1", "40.01 4 4.001"):
        say(f"{A} 40 4 4 {B} {size} multiply -i a -o c -m b")
    assert not same_size_nm((40, 4, 4), (40, 4, 4.1))
    say(f"{A} 40 4 4 transpose -i a -o a {B} 4 4 40 multiply -i a -o c -m b")
    say(f"{A} 40 4 4 {B} 80 8 8 delete-var -v a,b")


def test_a_volume_of_another_voxel_size_is_not_written_to():
    """Before the first task where the line knows the size, else with the first chunk."""
    say("create-chunk --size 4 4 4 -e 10 10 10 save-volume -v zarr://out.zarr")
    say("create-chunk --size 4 4 4 -e 40 4 4 save-h5 -f a_")
    for line in (
        "create-chunk --size 4 4 4 -e 40 4 4 save-volume -v out.zarr",
        "create-bbox -s 0 0 0 -z 4 4 4 load-h5 -f a_ save-volume -v out.zarr",
    ):
        told = say(line, code=1)
        assert "(40.0, 4.0, 4.0) nm" in told
        assert "(10.0, 10.0, 10.0) nm" in told
    say("create-chunk --size 4 4 4 save-volume -v out.zarr")


def test_a_plugin_takes_chunks_of_different_voxel_sizes():
    """It may combine an image with a coarser mask, as plugins of chunkflow 1.x do."""
    Path("own.py").write_text("def execute(a, b):\n    return a\n")
    say(f"{A} 40 4 4 {B} 10 10 10 plugin -f own.py -i a,b -o c save-h5 -i c -f c.h5")
    assert Path("c.h5").exists()
