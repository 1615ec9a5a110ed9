"""Inference over dask arrays."""

from pathlib import Path

import dask
import dask.array as da
import h5py
import numpy as np
import pytest
from rigs.variants import gate_runs

import chunkflow_py.dask
from chunkflow_py.cli.main import main
from chunkflow_py.core.chunk import Chunk
from chunkflow_py.core.geometry import BoundingBox
from chunkflow_py.dask import inference, inferencer_from, release_networks
from chunkflow_py.errors import ChunkError, OptionError
from chunkflow_py.volume import open_volume
from chunkflow_py.volume.files.hdf5 import write_hdf5

FIB25 = Path(__file__).parent.parent / "examples" / "fib25"
DOMAIN = BoundingBox.from_size((100, 40, 60), (20, 36, 40))
UNET = (
    f"--framework pytorch -m {FIB25}/unet_fib25_model.py -w {FIB25}/unet_fib25.pt -s 16 32 32 "
    "-z 8 24 24 -v 0 0 0 --grid padded --batch-size 2 --device cpu"
)
IDENTITY = "--framework identity -s 8 12 12 -z 6 8 8 -v 2 3 4 -c 1 --batch-size 2"
CHUNKS = [None, (20, 36, 40), (7, 11, 13), (3, 36, 5)]

TWO_OUTPUTS = """
import torch

class Two(torch.nn.Module):
    def forward(self, x):
        return {"same": x, "both": torch.cat([x, 1 - x], 1)}

InstantiatedModel = Two()
"""


@pytest.fixture(autouse=True)
def released():
    """Release all networks and their threads after each test."""
    yield
    release_networks()


@pytest.fixture
def raw(tmp_path):
    """Write a part of the real volume to a file, at its position."""
    with h5py.File(FIB25 / "raw.h5") as file:
        origin = [int(v) for v in file["main"].attrs["voxel_offset"]]
        part = file["main"][DOMAIN.slices(origin)]
    write_hdf5(tmp_path / "raw.h5", Chunk(part, DOMAIN.start, (10, 10, 10), "image"))
    return open_volume(f"h5://{tmp_path}/raw.h5")


def line(raw, tmp_path, options, size):
    """Return the output of a pipeline with tasks of one size."""
    path = raw.url.removeprefix("h5://")
    words = ["--quiet", "generate-tasks", "-v", raw.url, "-c", *map(str, size)]
    words += ["load-h5", "-f", path, "--expand-margin-size", "auto", "inference", *options.split()]
    words += ["save-h5", "-f", f"{tmp_path}/out-"]
    with pytest.raises(SystemExit) as stop:
        main(words)
    assert stop.value.code == 0
    channels = None
    for each in tmp_path.glob("out-*.h5"):
        volume = open_volume(f"h5://{each}")
        part = volume.read(volume.bounds)
        if channels is None:
            channels = np.empty((part.channels, *DOMAIN.size), part.dtype)
        channels[(..., *part.bbox.slices(DOMAIN.start))] = part.array
    return channels


@pytest.mark.long
def test_the_real_network_gives_the_bytes_of_the_line(raw, tmp_path):
    """For a volume or an array in chunks of any size, the bytes equal those of a pipeline."""
    wanted = line(raw, tmp_path, UNET, (12, 36, 40))
    for chunks in CHUNKS[1:3]:
        found = inference(raw, UNET, chunks=chunks).compute(scheduler="threads")
        assert found.tobytes() == wanted.tobytes()
    array = da.from_array(raw.read(raw.bounds).array, chunks=(9, 20, 40))
    found = inference(array, UNET, voxel_offset=DOMAIN.start, voxel_size_nm=(10, 10, 10))
    assert found.chunks[1:] == ((9, 9, 2), (20, 16), (40,))
    assert found.compute(scheduler="sync").tobytes() == wanted.tobytes()


@pytest.mark.parametrize("pad", gate_runs(["reflect", "zero"], "reflect"))
@pytest.mark.parametrize("dtype", gate_runs(["float32", "uint8"], "uint8"))
def test_chunks_change_nothing(raw, tmp_path, pad, dtype):
    """Blended overlapping patches have the same bytes for every chunk size and task size."""
    options = f"{IDENTITY} --pad {pad} --output-dtype {dtype}"
    wanted = line(raw, tmp_path, options, (9, 17, 21))
    for chunks in CHUNKS:
        found = inference(raw, options, chunks=chunks)
        assert found.shape == (1, *DOMAIN.size)
        assert found.dtype == dtype
        assert found.compute(scheduler="threads").tobytes() == wanted.tobytes(), chunks


def test_without_padding_the_output_is_smaller(raw):
    """With --pad none, the array has the extent of the output, without margins."""
    found = inference(raw, f"{IDENTITY} --pad none", chunks=(5, 9, 9)).compute(scheduler="sync")
    inner = raw.bounds.grow((-1, -2, -2))
    image = raw.read(inner).array / np.float32(255)
    np.testing.assert_allclose(found[0], image, atol=1e-6)


def test_other_processes(raw):
    """Workers in other processes read the volume and load the network themselves."""
    found = inference(raw, IDENTITY, chunks=(10, 18, 40))
    with dask.config.set(scheduler="processes", num_workers=2):
        elsewhere = found.compute()
    assert elsewhere.tobytes() == found.compute(scheduler="sync").tobytes()


def test_what_follows_the_network_asks_for_its_part(raw, monkeypatch):
    """A part of the result runs the network only on the chunks that it touches."""
    found = inference(raw, IDENTITY, chunks=(10, 18, 20))
    whole = found.compute(scheduler="sync")
    calls = []
    really = chunkflow_py.dask._run
    monkeypatch.setattr("chunkflow_py.dask._run", lambda *args: calls.append(1) or really(*args))
    found = inference(raw, IDENTITY, chunks=(10, 18, 20))
    part = found[:, 12:15, 20:30, 25:30].compute(scheduler="sync")
    np.testing.assert_array_equal(part, whole[:, 12:15, 20:30, 25:30])
    assert len(calls) == 1


def test_several_outputs(raw, tmp_path):
    """A network with named outputs yields one array for each."""
    (tmp_path / "two.py").write_text(TWO_OUTPUTS)
    options = f"{IDENTITY.replace('identity', 'pytorch').replace('-c 1', '-c 3')} --device cpu"
    options += f" -m {tmp_path}/two.py --output-names same,both --output-channels 1,2"
    found = inference(raw, options, chunks=(10, 18, 40))
    assert list(found) == ["same", "both"]
    same, both = dask.compute(found["same"], found["both"], scheduler="sync")
    assert (same.shape, both.shape) == ((1, *DOMAIN.size), (2, *DOMAIN.size))
    np.testing.assert_allclose(both[0], same[0], atol=1e-6)
    np.testing.assert_allclose(both.sum(0), 1, atol=1e-6)


def test_names_are_the_same_again(raw):
    """The same network over the same volume has the same dask names; others differ."""
    names = {str(sorted(map(str, inference(raw, IDENTITY).dask))) for _ in range(2)}
    assert len(names) == 1
    assert str(sorted(map(str, inference(raw, f"{IDENTITY} --pad zero").dask))) not in names


@pytest.mark.parametrize(
    "options", ["--grid chunk", "--output-margin 1 1 1", "--output-crop-margin 1 1 1"]
)
def test_what_depends_on_the_cut_is_refused(raw, options):
    """Options that count from the corner of a chunk are refused."""
    with pytest.raises(OptionError, match="depend on the chunks of the dask array"):
        inference(raw, f"{IDENTITY} {options}")


def test_nonsense_is_refused(raw):
    """Wrong options and arrays of other dimensions are refused before anything runs."""
    with pytest.raises(OptionError, match="No such option"):
        inference(raw, "--no-such-option")
    with pytest.raises(OptionError, match="output patch"):
        inferencer_from("--framework identity -s 8 8 8 -z 16 16 16")
    with pytest.raises(ChunkError, match=r"got an array of shape \(4, 4\)"):
        inference(da.zeros((4, 4)), IDENTITY)
