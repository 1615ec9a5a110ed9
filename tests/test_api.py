"""Pipelines, predictions and volumes in Python, without a command line."""

from __future__ import annotations

import shlex
from pathlib import Path

import numpy as np
import pytest
import torch
from rigs.command_line import say

from chunkflow_py import BoundingBox, Chunk, Pipeline, open_volume, ops, predict, write_volume
from chunkflow_py.cli import catalog
from chunkflow_py.cli.command_line import read_line
from chunkflow_py.errors import ChunkError, OptionError
from chunkflow_py.ops import OperatorModule
from chunkflow_py.pipeline.operator import Operator
from chunkflow_py.run.run_directory import RunDirectory

BOX = BoundingBox.parse("0-16_0-32_0-32")
NETWORK = """
import torch

torch.manual_seed(0)
InstantiatedModel = torch.nn.Sequential(
    torch.nn.Conv3d(1, 2, 3, padding=1), torch.nn.BatchNorm3d(2), torch.nn.Sigmoid()
)
"""


@pytest.fixture
def image(tmp_path, monkeypatch):
    """Create a volume image.zarr in the current folder; return its voxels."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    array = np.random.default_rng(0).integers(0, 256, BOX.size, np.uint8)
    write_volume(array, "image.zarr", voxel_size=(40, 4, 4), kind="image", block_size=(8, 16, 16))
    return array


def pipeline(output="mask.zarr"):
    """Return the pipeline that the command line `COMMAND` describes."""
    return Pipeline(
        [
            ops.generate_tasks(volume_path="image.zarr", chunk_size=(8, 16, 16)),
            ops.load_zarr(store="image.zarr", expand_margin_size="auto"),
            ops.gaussian_filter(sigma=1.5),
            ops.threshold(threshold=128),
            ops.save_zarr(store=output, block_size=(8, 16, 16)),
        ]
    )


COMMAND = (
    "generate-tasks --volume-path image.zarr --chunk-size 8 16 16 "
    "load-zarr --store image.zarr --expand-margin-size auto "
    "gaussian-filter --sigma 1.5 threshold --threshold 128 "
    "save-zarr --chunk-size 8 16 16 --store"
)


# --- pipelines -----------------------------------------------------------------------------------


def test_a_pipeline_stores_what_the_command_line_stores(image):
    """The same operators with the same options give the same bytes."""
    made = pipeline()
    made.check()
    assert all(task.outcome is None for task in made.run())
    say(f"--quiet {COMMAND} typed.zarr")
    assert np.array_equal(open_volume("mask.zarr").read(BOX).array,
                          open_volume("typed.zarr").read(BOX).array)  # fmt: skip
    stored = [sorted(path.read_bytes() for path in Path(name).rglob("c/*/*/*"))
              for name in ("mask.zarr", "typed.zarr")]  # fmt: skip
    assert stored[0] == stored[1] != []


def test_submit_makes_the_spec_of_the_command_line(image):
    """The hash of the step and the stored arguments equal those of the command line."""
    submission = pipeline().submit("python.run", rehearse=False)
    assert submission.sent == 8
    say(f"submit --no-rehearse --run typed.run {COMMAND} mask.zarr")
    one, other = (RunDirectory.parse(name).spec for name in ("python.run", "typed.run"))
    assert one.hash == other.hash
    assert [stage.options for stage in one.steps] == [stage.options for stage in other.steps]
    say("--quiet work python.run")
    assert "8 of 8" in say("status python.run")


def test_plan_estimates_without_making_anything(image):
    """The estimate has tasks and bytes, and the output does not exist afterwards."""
    plan = pipeline().plan()
    assert [stage.tasks for stage in plan.stages] == [8]
    assert plan.fits
    assert not Path("mask.zarr").exists()


def test_a_source_may_be_given_apart_and_must_come_first(image):
    """`source=` is accepted; a source after another operator is refused."""
    source = ops.generate_tasks(roi_size=(8, 16, 16), chunk_size=(8, 16, 16))
    first = ops.create_chunk(size=(8, 16, 16))
    assert len(list(Pipeline([first], source).run())) == 1
    with pytest.raises(OptionError, match="move generate-tasks to the front"):
        Pipeline([first, source])


def test_what_no_command_has_made_is_not_submitted(image):
    """Workers could not create such an operator; the message names the remedy."""
    own = Operator("twice", "compute", lambda task: task, None)
    source = ops.generate_tasks(roi_size=(8, 16, 16), chunk_size=(8, 16, 16))
    with pytest.raises(OptionError, match="twice was not created by chunkflow_py.ops"):
        Pipeline([source, own]).submit("python.run")
    assert not Path("python.run").exists()


# --- operators -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", catalog.names())
def test_every_operator_can_be_called(name):
    """`ops.NAME` is callable, and is the module that contains the operator."""
    module = getattr(ops, name.replace("-", "_"))
    assert isinstance(module, OperatorModule)
    assert module.command.name == name


@pytest.mark.parametrize(
    ("keywords", "typed"),
    [
        (lambda: ops.create_chunk(size=(8, 16, 16), pattern="zero"),
         "create-chunk -s 8 16 16 --pattern zero"),
        (lambda: ops.create_chunk(size=[8, 16, 16], output_chunk_name="a"),
         "create-chunk --size 8 16 16 -o a"),
        (lambda: ops.load_zarr(store=Path("image.zarr"), channels=(0,), fill_missing=True),
         "load-zarr --store image.zarr --channels 0 --fill-missing"),
        (lambda: ops.load_zarr(store="image.zarr", fill_missing=False, mip=None),
         "load-zarr --store image.zarr --no-fill-missing"),
        (lambda: ops.threshold(threshold=0.1 + 0.2), "threshold -t 0.30000000000000004"),
        (lambda: ops.adjust_bbox(corner_offset=(-1, 0, 0, 1, 0, 0)),
         "adjust-bbox --corner-offset -1 0 0 1 0 0"),
        (lambda: ops.delete_var(var_names=("a", "b")), "delete-var --var-names a,b"),
        (lambda: ops.inference(framework="identity", input_patch_size=(4, 8, 8), augment=True,
                               normalize_percentiles=(1, 99), output_patch_overlap=(0, 0, 0)),
         "inference -f identity -s 4 8 8 --augment --normalize-percentiles 1 99 -v 0 0 0"),
    ],
)  # fmt: skip
def test_keywords_are_options(image, keywords, typed):
    """An operator made in Python has the options, which the hash covers, of the command."""
    (expected,) = read_line(shlex.split(typed))
    operator = keywords()
    assert operator.options == expected.options
    (again,) = read_line(operator.argv)
    assert again.options == expected.options


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ops.threshold(treshold=1), "did you mean threshold"),
        (lambda: ops.threshold(threshold="high"), "'high' is not a valid float"),
        (ops.load_zarr, "Missing option '--store'"),
        (lambda: ops.create_chunk(size=(8, 16)), "requires 3 arguments|three|8 16"),
    ],
)
def test_wrong_options_are_refused_when_the_operator_is_made(call, message):
    """The message names the operator and the nearest option."""
    with pytest.raises(OptionError, match=message):
        call()


def test_an_operator_that_does_not_exist_is_an_attribute_error():
    """Hasattr and tab completion work as for other packages."""
    with pytest.raises(AttributeError, match="there is no operator thresold"):
        _ = ops.thresold
    assert not hasattr(ops, "_private")
    assert not isinstance(ops.options, OperatorModule)


# --- predictions ---------------------------------------------------------------------------------


@pytest.fixture
def network(image):
    """Return a network, which is also stored in network.py and network.pt."""
    Path("network.py").write_text(NETWORK)
    space: dict[str, torch.nn.Module] = {}
    exec(NETWORK, space)
    module = space["InstantiatedModel"]
    module[1].running_mean += 1  # state that BatchNorm has learnt
    torch.save(module.state_dict(), "network.pt")
    return module


PATCH = {"patch_size": (8, 16, 16), "overlap": (2, 4, 4)}


def test_a_module_a_file_and_the_command_line_predict_the_same(image, network):
    """Arrays, volumes, modules and files all give the bytes of `inference`."""
    result = predict(image, network, **PATCH)
    assert result.shape == (2, *BOX.size)
    files = {"weights": "network.pt", "num_output_channels": 2}
    assert np.array_equal(result, predict("image.zarr", "network.py", **files, **PATCH))
    say(
        "--quiet load-zarr --store image.zarr inference --framework pytorch -m network.py "
        "-w network.pt -c 2 -s 8 16 16 -v 2 4 4 save-h5 --file-name typed.h5"
    )
    import h5py

    with h5py.File("typed.h5") as file:
        typed = next(each[()] for each in file.values() if each.ndim == 4)
    assert np.array_equal(result, typed)


def test_a_module_is_left_as_it_was(image, network):
    """Folding and evaluation mode are applied to a copy of the module."""
    network.train()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    predict(image, network, **PATCH)
    assert network.training
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())


def test_options_of_inference_may_be_given(image, network):
    """The output dtype and kind can be set; a chunk keeps its position."""
    chunk = Chunk(image, (5, 0, 0), (40, 4, 4), "image")
    result = predict(chunk, network, output_dtype="uint8", output_kind="probability", **PATCH)
    assert result.dtype == np.uint8


@pytest.mark.parametrize(
    ("error", "message", "call"),
    [
        (ChunkError, "3D or 4D|shape \\(4, 4\\)", lambda n: predict(np.zeros((4, 4)), n, **PATCH)),
        (OptionError, "no option overlp", lambda n: predict("image.zarr", n, overlp=1, **PATCH)),
        (OptionError, "nothing.py does not exist",
         lambda n: predict("image.zarr", "nothing.py", **PATCH)),
        (OptionError, "voxel size of an array", lambda n: write_volume(np.zeros((4, 4, 4)), "x")),
    ],
)  # fmt: skip
def test_wrong_input_is_one_sentence(image, network, error, message, call):
    """The message names the value and the remedy."""
    with pytest.raises(error, match=message):
        call(network)


# --- volumes -------------------------------------------------------------------------------------


@pytest.mark.parametrize("url", ["out.zarr", "zarr://out.zarr", "precomputed://file://out"])
@pytest.mark.parametrize("shape", [(8, 16, 16), (3, 8, 16, 16)])
def test_an_array_becomes_a_volume(tmp_path, monkeypatch, url, shape):
    """The volume has the voxels, position and voxel size of the array."""
    monkeypatch.chdir(tmp_path)
    array = np.random.default_rng(0).random(shape, np.float32)
    volume = write_volume(array, url, voxel_size=(40, 4, 4.5), voxel_offset=(1, 2, 3))
    assert volume.voxel_size_nm == (40, 4, 4.5)
    chunk = open_volume(volume.url).read(volume.bounds)
    assert chunk.bbox == BoundingBox.from_size((1, 2, 3), (8, 16, 16))
    assert np.array_equal(np.squeeze(chunk.array), array)


def test_a_subcommand_is_no_operator():
    """Subcommands such as `submit` act on runs and cannot be part of a pipeline."""
    assert "submit" in catalog.subcommands()
    assert not hasattr(ops, "submit")
