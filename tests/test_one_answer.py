"""Reproducible: any division into tasks, in any order, gives the same bytes on disk."""

import random
import time
from pathlib import Path

import h5py
import numpy as np
import pytest

from chunkflow_py.cli.main import main
from chunkflow_py.core.geometry import BoundingBox, BoxGrid, Zyx

FIB25 = Path(__file__).parent.parent / "examples" / "fib25"
DOMAIN = BoundingBox.from_size((100, 40, 60), (24, 48, 48))
BLOCK = Zyx(8, 16, 16)
ALL_CUTS = ("one", "eight", "many")


@pytest.fixture
def raw(tmp_path):
    """Write a part of the real volume to a file, at its position."""
    with h5py.File(FIB25 / "raw.h5") as file:
        origin = [int(v) for v in file["main"].attrs["voxel_offset"]]
        part = file["main"][DOMAIN.slices(origin)]
    with h5py.File(tmp_path / "raw.h5", "w") as file:
        file["main"] = part
        file["voxel_offset"] = DOMAIN.start
        file["voxel_size"] = (10, 10, 10)
    return tmp_path / "raw.h5"


def run(raw, target, boxes, *network):
    """Run the same pipeline once per box, in the given order, into one volume."""
    for box in boxes:
        words = [
            "--quiet", "create-bbox", "-s", *box.start, "-p", *box.stop,
            "load-h5", "-f", raw, "--expand-margin-size", "auto",
            "inference", *network,
            "save-zarr", "-s", target, "--block-size", *BLOCK,
        ]  # fmt: skip
        with pytest.raises(SystemExit) as stop:
            main([str(word) for word in words])
        assert stop.value.code == 0


def stored(folder):
    """Return every file below *folder* with its bytes."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("grid", "dtype", "names"),
    [
        ("padded", "uint8", ("one", "eight")),
        pytest.param("anchored", "float32", ALL_CUTS, marks=pytest.mark.long),
        # What the two others promise together.
        pytest.param("anchored", "uint8", ALL_CUTS, marks=pytest.mark.long),
        pytest.param("padded", "uint8", ALL_CUTS, marks=pytest.mark.long),
        pytest.param("spread", "float32", ALL_CUTS, marks=pytest.mark.long),
    ],
)
def test_one_task_8_tasks_and_27_tasks_write_the_same_files(raw, tmp_path, dtype, grid, names):
    """The real network, tasks cut on blocks but off the patch grid, in shuffled order."""
    network = [
        "--framework", "pytorch", "-m", FIB25 / "unet_fib25_model.py",
        "-w", FIB25 / "unet_fib25.pt", "-s", 16, 32, 32, "-z", 12, 24, 24, "-v", 2, 4, 4,
        "--batch-size", 2, "--output-dtype", dtype, "--grid", grid, "--device", "cpu",
    ]  # fmt: skip
    cuts = {
        "one": [DOMAIN],
        "eight": list(BoxGrid.covering(DOMAIN, BLOCK * 2, respect_stop=True)),
        "many": list(BoxGrid.covering(DOMAIN, BLOCK)),
    }
    assert [len(boxes) for boxes in cuts.values()] == [1, 8, 27]
    found = {}
    for name in names:
        boxes = cuts[name]
        random.Random(len(boxes)).shuffle(boxes)
        run(raw, tmp_path / name / "affinity", boxes, *network)
        found[name] = stored(tmp_path / name)
    assert len([path for path in found["one"] if "/c/" in path]) == 3 * 27  # three channels
    assert [name for name in names if found[name] != found["one"]] == []


@pytest.mark.long
def test_legacy_patches_do_depend_on_the_cut(raw, tmp_path):
    """Negative control: patches counted from the chunk's corner give other bytes."""
    network = [
        "--framework", "pytorch", "-m", FIB25 / "unet_fib25_model.py",
        "-w", FIB25 / "unet_fib25.pt", "-s", 16, 24, 24, "-v", 4, 8, 8,
        "--grid", "chunk", "--mask-output-chunk", "--device", "cpu",
    ]  # fmt: skip
    run(raw, tmp_path / "one", [DOMAIN], *network)
    run(
        raw,
        tmp_path / "two",
        BoxGrid.covering(DOMAIN, Zyx(24, 48, 32), respect_stop=True),
        *network,
    )
    one, two = stored(tmp_path / "one"), stored(tmp_path / "two")
    assert one.keys() == two.keys()
    assert one != two


def test_affinities_lie_in_their_range(raw, tmp_path):
    """The network really ran: its output is affinities of the real volume, not a constant."""
    import zarr

    network = [
        "--framework", "pytorch", "-m", FIB25 / "unet_fib25_model.py",
        "-w", FIB25 / "unet_fib25.pt", "-s", 24, 48, 48, "-v", 0, 0, 0, "--output-kind", "affinity",
    ]  # fmt: skip
    run(raw, tmp_path / "out", [DOMAIN], *network)
    values = zarr.open_group(tmp_path / "out")["0"][:]
    assert values.shape == (3, *DOMAIN.size)
    assert values.min() >= 0
    assert values.max() <= 1
    assert 0.6 < np.median(values) < 1
    assert (values < 0.3).mean() > 0.02


@pytest.mark.long
def test_two_networks_in_a_row_tile_as_well(raw, tmp_path):
    """The first network computes the margin around the task that the second needs."""
    identity = ["-f", "identity", "-c", 1, "--grid", "anchored", "--device", "cpu"]
    first = [*identity, "-s", 16, 32, 32, "-z", 12, 24, 24, "-v", 2, 4, 4]
    second = [*identity, "-s", 6, 8, 8, "-v", 2, 3, 3]
    both = [*first, "inference", *second]
    run(raw, tmp_path / "one" / "affinity", [DOMAIN], *both)
    run(raw, tmp_path / "many" / "affinity", BoxGrid.covering(DOMAIN, BLOCK), *both)
    assert stored(tmp_path / "one") == stored(tmp_path / "many")


SAVERS = {
    "save-h5": "save-h5 --file-name {}/out.h5",
    "save-nrrd": "save-nrrd --file-name {}/out.nrrd",
    "save-tif": "save-tif --file-name {}/out.tif",
    "save-pngs": "save-pngs --output-path {}/pngs",
    "save-precomputed": "save-precomputed --volume-path precomputed://{}/p --block-size 4 8 8",
    "save-zarr": "save-zarr --store zarr://{}/z --block-size 4 8 8",
}


def test_files_do_not_tell_when_they_were_written(tmp_path):
    """Equal voxels are equal bytes in another second, too, in every format."""
    chunk = "create-chunk --size 4 8 8 --pattern random --dtype uint8"
    for folder in ("first", "second"):
        (tmp_path / folder).mkdir()
        for words in SAVERS.values():
            with pytest.raises(SystemExit) as stop:
                main(f"{chunk} {words.format(tmp_path / folder)}".split())
            assert stop.value.code == 0
        time.sleep(1.1)
    files = sorted(path.relative_to(tmp_path / "first") for path in (tmp_path / "first").rglob("*")
                   if path.is_file())  # fmt: skip
    assert len(files) > len(SAVERS)
    for file in files:
        first, second = (tmp_path / folder / file for folder in ("first", "second"))
        assert first.read_bytes() == second.read_bytes(), file
