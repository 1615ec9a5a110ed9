"""Tests of chunkflow_py.volume.read_checks."""

import json

import numpy as np
import pytest

from chunkflow_py.core.chunk import Chunk
from chunkflow_py.core.geometry import BoundingBox, Zyx
from chunkflow_py.errors import ChunkError, VolumeError, VolumeNotFoundError
from chunkflow_py.store import open_store
from chunkflow_py.volume import create_volume, open_volume
from chunkflow_py.volume.protocol import VolumeSpec
from chunkflow_py.volume.read_checks import bad_sections, blacken, check_against_mip

BOUNDS = BoundingBox(Zyx(3, 9, 5), Zyx(12, 42, 53))
SCHEMES = ("precomputed", "zarr")


def spec(**more):
    """Return the description of a volume with a coarser level."""
    said = {"factor": Zyx(2, 2, 2), "max_mip": 1, **more}
    return VolumeSpec(BOUNDS, (40, 4, 4), np.dtype("u1"), None, "image", Zyx(4, 16, 16), **said)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_levels_are_compared_where_they_lie(tmp_path, scheme):
    """A coarse voxel k is compared with the voxels 2k and 2k + 1, wherever the volume begins."""
    url = f"{scheme}://{tmp_path}/em"
    rng = np.random.default_rng(0)
    array = rng.integers(1, 255, BOUNDS.size, "u1")
    create_volume(spec(), url).write(Chunk(array, BOUNDS.start))
    fine, coarse = open_volume(url), open_volume(url, 1, "r+")
    assert coarse.bounds == BoundingBox(Zyx(1, 4, 2), Zyx(6, 21, 27))
    sums = np.zeros((2, *coarse.bounds.size))
    for position in np.ndindex(array.shape):
        k = tuple((Zyx(*position) + BOUNDS.start) // 2 - coarse.bounds.start)
        sums[(0, *k)] += array[position]
        sums[(1, *k)] += 1
    mean = np.rint(sums[0] / sums[1]).astype("u1")
    coarse.write(Chunk(mean, coarse.bounds.start))
    for box in (BOUNDS, BoundingBox(Zyx(4, 11, 8), Zyx(9, 30, 40))):
        check_against_mip(fine.read(box), fine, coarse)
    check_against_mip(fine.read(BoundingBox(Zyx(5, 11, 9), Zyx(6, 12, 10))), fine, coarse)
    wrong = mean.copy()
    wrong[2, 7, 9] ^= 64
    coarse.write(Chunk(wrong, coarse.bounds.start))
    with pytest.raises(VolumeError, match=r"1 of \d+ coarse voxels differ, .* at \(3, 11, 11\)"):
        check_against_mip(fine.read(BOUNDS), fine, coarse)


def test_what_cannot_be_compared(tmp_path):
    """Labels, and levels that are no multiples, are refused."""
    fine = create_volume(spec(), f"precomputed://{tmp_path}/em")
    chunk = fine.read(BOUNDS)
    labels = Chunk(chunk.array, chunk.voxel_offset, chunk.voxel_size_nm, "segmentation")
    with pytest.raises(ChunkError, match="segmentation"):
        check_against_mip(labels, fine, fine)
    other = VolumeSpec(BOUNDS, (40, 6, 6), np.dtype("u1"), None, None, Zyx(4, 16, 16))
    with pytest.raises(ChunkError, match="not an integer multiple"):
        check_against_mip(chunk, fine, create_volume(other, f"precomputed://{tmp_path}/other"))


def test_time_points_are_compared_with_their_own(tmp_path):
    """A chunk of one time point is compared with that time point of the coarser level."""
    url = f"zarr://{tmp_path}/em"
    create_volume(spec(times=2), url)
    fine, coarse = open_volume(url, 0, "r+"), open_volume(url, 1, "r+")
    for time in (0, 1):
        for volume in (fine, coarse):
            voxels = np.full(volume.bounds.size, 7 + 90 * time, "u1")
            volume.write(Chunk(voxels, volume.bounds.start), time=time)
    check_against_mip(fine.read(BOUNDS, time=1), fine, coarse, 1)
    with pytest.raises(VolumeError, match="does not match"):
        check_against_mip(fine.read(BOUNDS, time=1), fine, coarse, 0)


def test_lists_of_bad_sections():
    """The list is read from any store; what is no list of numbers is refused with what it is."""
    url = "mem://checks/em"
    store = open_store(url)
    with pytest.raises(VolumeNotFoundError, match=r"has no file blackout_section_ids\.json"):
        bad_sections(url)
    store.put("blackout_section_ids.json", json.dumps({"section_ids": [4, 2]}).encode())
    assert bad_sections(url) == [4, 2]
    for wrong in (b"[1, 2]", b'{"section_ids": ["1"]}', b'{"section_ids": [true]}', b"no json"):
        store.put("blackout_section_ids.json", wrong)
        with pytest.raises(VolumeError, match=r"must contain .*section_ids"):
            bad_sections(url)


def test_blacken_leaves_its_input():
    """Sections are set to zero in a copy, in all channels."""
    chunk = Chunk(np.ones((2, 3, 2, 2), "u1"), (5, 0, 0))
    assert blacken(chunk, [6]).array.sum(axis=(0, 2, 3)).tolist() == [8, 0, 8]
    assert chunk.array.all()
