"""load-tensorstore in lines: arrays as TensorStore itself writes them."""

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from chunkflow_py.cli.main import cli
from chunkflow_py.core.geometry import BoundingBox
from chunkflow_py.errors import OptionError, VolumeError
from chunkflow_py.ops.load_h5 import load_h5
from chunkflow_py.volume.tensorstore_volume import TensorStoreVolume, parsed_spec

ts = pytest.importorskip("tensorstore")

ARRAY = np.arange(2 * 6 * 8 * 10, dtype=np.uint16).reshape(2, 6, 8, 10)  # c, z, y, x
PLACE = {"driver": "neuroglancer_precomputed", "kvstore": "file://em/"}


def run(line: str, *more: str):
    """Run a line and return click's result."""
    return CliRunner().invoke(cli, ["--quiet", *line.split(), *more])


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Work in a folder with a precomputed volume and zarr and N5 arrays of TensorStore."""
    monkeypatch.chdir(tmp_path)
    scale = {"size": [10, 8, 6], "resolution": [4, 8, 40], "voxel_offset": [1, 2, 3]}
    whole = {"type": "segmentation", "data_type": "uint16", "num_channels": 2}
    precomputed = PLACE | {
        "kvstore": f"file://{tmp_path}/em/",
        "scale_metadata": scale | {"chunk_size": [4, 4, 4], "encoding": "raw"},
        "multiscale_metadata": whole,
    }
    ts.open(precomputed, create=True).result().write(ARRAY.T).result()
    zarr = {"driver": "zarr3", "kvstore": f"file://{tmp_path}/em.zarr/"}
    ts.open(zarr, create=True, shape=ARRAY.shape, dtype=ts.uint16).result().write(ARRAY).result()
    n5 = {
        "driver": "n5",
        "kvstore": f"file://{tmp_path}/em.n5/",
        "metadata": {
            "dimensions": [10, 8, 6],
            "blockSize": [4, 4, 4],
            "dataType": "uint16",
            "compression": {"type": "raw"},
            "axes": ["x", "y", "z"],
            "units": ["nm", "nm", "um"],
            "resolution": [4, 8, 0.04],
        },
    }
    ts.open(n5, create=True).result().write(ARRAY[0].T).result()


def test_a_task_reads_its_part_of_a_precomputed_volume():
    """Axes, place, voxel size and meaning are TensorStore's; a task cuts its box."""
    line = "create-bbox -s 4 3 2 -z 2 2 2 load-tensorstore -d neuroglancer_precomputed -k em"
    result = run(f"{line} -e 9 1 0 save-h5 -f a.h5")
    assert result.exit_code == 0, result.output
    part = load_h5("a.h5")
    assert (part.bbox, part.voxel_size_nm) == (BoundingBox((3, 2, 2), (9, 6, 4)), (40, 8, 4))
    assert part.kind == "segmentation"
    np.testing.assert_array_equal(part.array, ARRAY[:, :, :4, 1:3])


@pytest.mark.parametrize(
    ("options", "expected", "size"),
    [
        ("-d zarr3 -k em.zarr -c 1 -v 40 8 4", ARRAY[1:], (40, 8, 4)),
        ("-d zarr3 -k em.zarr --axes czxy", ARRAY.swapaxes(2, 3), (1, 1, 1)),
        ("-d n5 -k em.n5 --cache 1000000", ARRAY[0], (40, 8, 4)),
        (
            "-d n5 -k em.n5 -s 1 2 3 --chunk-stop 4 5 6",
            ARRAY[0, 1:4, 2:5, 3:6],
            (40, 8, 4),
        ),
        ("--spec spec.json", ARRAY[0, :, 1], (1, 1, 1)),
        ("--spec zarr3://file://FOLDER/em.zarr/", ARRAY, (1, 1, 1)),
    ],
)
def test_any_spec_is_read(options, expected, size, tmp_path):
    """Driver and place, a file with a spec and its transform, or an address."""
    spec = {
        "driver": "zarr3",
        "kvstore": f"file://{tmp_path}/em.zarr/",
        "transform": {
            "input_inclusive_min": [0, 0, 0],
            "input_exclusive_max": [6, 1, 10],
            "input_labels": ["z", "y", "x"],
            "output": [{}, {"input_dimension": 0}, {"offset": 1}, {"input_dimension": 2}],
        },
    }
    Path("spec.json").write_text(json.dumps(spec))
    options = options.replace(
        "zarr3://file://FOLDER/em.zarr/", f"file://{tmp_path}/em.zarr/|zarr3:"
    )
    result = run(f"load-tensorstore {options} save-h5 -f a.h5")
    assert result.exit_code == 0, result.output
    found = load_h5("a.h5")
    np.testing.assert_array_equal(found.array, expected.reshape(found.shape))
    assert found.voxel_size_nm == size


def test_nothing_is_made_or_deleted(tmp_path):
    """A spec that asks for it makes no array, and leaves the one that is there alone."""
    spec = {"driver": "zarr3", "create": True, "dtype": "uint8", "metadata": {"shape": [1, 1, 1]}}
    with pytest.raises(VolumeError, match=r"cannot open zarr3 file.*does not exist"):
        TensorStoreVolume(spec | {"kvstore": f"file://{tmp_path}/new/"})
    assert not Path("new").exists()
    there = {"driver": "zarr3", "kvstore": f"file://{tmp_path}/em.zarr/", "delete_existing": True}
    volume = TensorStoreVolume(there)
    np.testing.assert_array_equal(volume.read(volume.bounds).array, ARRAY)
    for refused in (lambda: volume.write(volume.read(volume.bounds)),
                    lambda: volume.has_blocks(volume.bounds)):  # fmt: skip
        with pytest.raises(VolumeError):
            refused()


def test_two_options_that_say_the_same_are_refused():
    """An address is taken as it is, and JSON is parsed."""
    with pytest.raises(OptionError, match="leave out --driver and --kvstore"):
        parsed_spec("gs://bucket/em/|zarr3:", "zarr3")
    assert parsed_spec('{"driver": "n5"}', None, "gs://a/b")["kvstore"] == "gs://a/b/"


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        ("", 2, "the options do not name the driver"),
        ("-d zarr3", 2, "the options do not name the kvstore"),
        ("--spec {no", 2, "--spec is not valid JSON"),
        ("--spec nothing.json", 2, "nothing.json is neither JSON, nor an address, nor a file"),
        ("-d zarr3 -k nowhere", 1, "does not exist"),
        ("-d nonsense -k em", 1, "not a registered TensorStore driver"),
        ("-d zarr3 -k em.zarr --axes zyx", 1, "name the dimensions with --axes"),
        ("-d zarr3 -k em.zarr -c 2", 1, "has channels 0 to 1, but channel 2"),
        ("-d n5 -k em.n5 --chunk-start 0 0 9 --chunk-size 1 1 9", 1, "extends outside"),
    ],
)
def test_what_is_wrong_is_one_sentence(options, code, message):
    """Each error says what to change."""
    result = run(f"load-tensorstore {options}")
    assert result.exit_code == code, result.output
    assert message in result.stderr
    assert "Traceback" not in result.stderr
