"""Conversion of whole volumes to other formats and places."""

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from rigs.variants import gate_runs

from chunkflow_py.cli.main import cli
from chunkflow_py.core.chunk import Chunk
from chunkflow_py.core.geometry import BoundingBox, BoxGrid, Zyx
from chunkflow_py.errors import AlignmentError, ChunkError, VolumeError, VolumeNotFoundError
from chunkflow_py.run.whole_volume import Conversion, downsampling, run_all, task_size
from chunkflow_py.volume import create_volume, open_volume
from chunkflow_py.volume.downsample import downsample
from chunkflow_py.volume.protocol import VolumeSpec
from chunkflow_py.volume.pyramid import isotropic_factors, levels_for_screen

BOUNDS = BoundingBox((-3, 7, 100), (37, 40, 151))
SPEC = VolumeSpec(
    BOUNDS, (40.0, 4.5, 4.0), np.dtype("uint16"), 2, "image", Zyx(8, 16, 16), "raw"
)  # fmt: skip
FORMATS = {"precomputed": "em", "zarr": "em.zarr", "h5": "em.h5"}


def address(folder, scheme, name="target"):
    """Return an address for a volume in this format."""
    return f"{scheme}://{folder}/{name}-{FORMATS.get(scheme, scheme)}"


def filled(url, spec=SPEC):
    """Create a volume of random voxels and return them."""
    shape = (*(() if spec.channels is None else (spec.channels,)), *spec.bounds.size)
    array = np.random.default_rng(0).integers(1, 200, shape).astype(spec.dtype)
    volume = create_volume(spec, url)
    for time in range(spec.times or 1):
        chunk = Chunk(array + np.array(time, spec.dtype), spec.bounds.start, kind=spec.kind)
        volume.write(chunk, time=None if spec.times is None else time)
    return array


def run(*words):
    """Run a command line and return its result."""
    return CliRunner().invoke(cli, ["--quiet", *map(str, words)])


@pytest.mark.parametrize("source", list(FORMATS))
@pytest.mark.parametrize("target", list(FORMATS))
def test_from_any_format_to_any(tmp_path, source, target):
    """Voxels, position, voxel size, dtype, channels and kind equal those of the source."""
    array = filled(address(tmp_path, source, "source"))
    there = address(tmp_path, target)
    done = run("convert", address(tmp_path, source, "source"), there, "--task-size", 16, 32, 32)
    assert done.exit_code == 0, done.output
    volume = open_volume(there)
    np.testing.assert_array_equal(volume.read(BOUNDS).array, array)
    assert (volume.bounds, volume.dtype, volume.channels) == (BOUNDS, np.uint16, 2)
    assert (volume.voxel_size_nm, volume.kind) == ((40, 4.5, 4), "image")
    assert volume.block_size == Zyx(8, 16, 16)


def test_what_options_change(tmp_path):
    """Options set the blocks, shards, encoding, dtype, channels and levels."""
    source, target = address(tmp_path, "h5", "source"), address(tmp_path, "precomputed")
    array = filled(source)
    done = run(
        "convert", source, target, "--block-size", 16, 16, 16, "--shard-size", 32, 32, 32,
        "--encoding", "raw", "--dtype", "uint8", "--channels", 1, "--max-mip", 2, "-f", 1, 2, 2,
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    volume = open_volume(target)
    np.testing.assert_array_equal(volume.read(BOUNDS).array.squeeze(), array[1])
    assert (volume.block_size, volume.write_unit) == (Zyx(16, 16, 16), Zyx(32, 32, 32))
    assert (volume.dtype, volume.channels or 1, volume.mips) == (np.uint8, 1, (0, 1, 2))
    assert open_volume(target, 2).voxel_size_nm == (40, 18, 16)


MIXED = (Zyx(1, 2, 2), Zyx(2, 2, 2), Zyx(1, 1, 4))  # factors from level to level


def mixed_pyramid(folder, scheme):
    """Create a volume whose levels differ by the factors MIXED; return its address."""
    if scheme == "n5":
        return n5_pyramid(folder / "source-n5")
    url = address(folder, scheme, "source")
    filled(url, replace(SPEC, max_mip=3, first_factors=MIXED, encoding=None))
    return url


def n5_pyramid(folder):
    """Write a pyramid as N5 tools do: empty datasets, each with its factors, xyz."""
    shape, shrink = np.array((40, 33, 51)), np.array((1, 1, 1))
    for mip, step in enumerate((Zyx(1, 1, 1), *MIXED)):
        shape, shrink = -(-shape // step), shrink * step
        (folder / f"s{mip}").mkdir(parents=True)
        dataset = {
            "dimensions": shape[::-1].tolist(), "blockSize": [16, 16, 8], "dataType": "uint16",
            "compression": {"type": "raw"}, "downsamplingFactors": shrink[::-1].tolist(),
            "pixelResolution": {"unit": "nm", "dimensions": [4.0, 4.5, 40.0]},
        }  # fmt: skip
        (folder / f"s{mip}/attributes.json").write_text(json.dumps(dataset))
    (folder / "attributes.json").write_text(json.dumps({"n5": "2.5.1"}))
    return f"n5://{folder}"


def levels(url):
    """Return the voxel size and extent of each level of a volume."""
    each = [open_volume(url, mip) for mip in open_volume(url).mips]
    return [(volume.voxel_size_nm, volume.bounds.size) for volume in each]


@pytest.mark.parametrize("source", ["precomputed", "zarr", "zarr2", "n5"])
@pytest.mark.parametrize("target", ["precomputed", "zarr", "zarr2"])
def test_factors_between_levels_are_those_of_the_source(tmp_path, source, target):
    """Each level has the factor of the source; the last one is used for further levels."""
    url = mixed_pyramid(tmp_path, source)
    sizes = [(40, 4.5, 4), (40, 9, 8), (80, 18, 16), (80, 18, 64)]
    assert [size for size, _ in levels(url)] == sizes
    there = address(tmp_path, target)
    assert run("convert", url, there, "--max-mip", 3).exit_code == 0
    assert levels(there) == levels(url)
    further = address(tmp_path, target, "further")
    assert run("convert", url, further, "--mip", 1, "--max-mip", 3).exit_code == 0
    assert [size for size, _ in levels(further)] == [*sizes[1:], (80, 18, 256)]
    like = address(tmp_path, target, "like")
    done = run("create-volume", "-v", like, "--like", url, "--like-mip", 1, "--max-mip", 3)
    assert done.exit_code == 0, done.output
    assert levels(like) == levels(further)
    asked = address(tmp_path, target, "asked")
    assert run("convert", url, asked, "--max-mip", 1, "--factor", 2, 1, 1).exit_code == 0
    assert levels(asked)[1][0] == (80, 4.5, 4)


def test_levels_of_several_factors_are_made(tmp_path):
    """A copy has each level of the source by the factor of that level, once."""
    source, target = mixed_pyramid(tmp_path, "zarr"), address(tmp_path, "precomputed")
    assert run("convert", source, target, "--max-mip", 3).exit_code == 0
    stored = stored_files(tmp_path)
    assert run("convert", source, target, "--max-mip", 3).exit_code == 0
    assert stored_files(tmp_path) == stored
    wanted = open_volume(source).read(BOUNDS)
    for mip, factor in enumerate(MIXED, 1):
        wanted = downsample(wanted, factor)
        level = open_volume(target, mip)
        np.testing.assert_array_equal(level.read(level.bounds).array, wanted.array)


def stored_files(folder):
    """Return each file with the time of its last change."""
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("size", "factors"),
    [
        ((40, 4, 4), [(1, 2, 2), (1, 2, 2), (1, 2, 2), (2, 2, 2), (2, 2, 2)]),
        ((2000, 500, 500), [(1, 2, 2), (1, 2, 2), (2, 2, 2)]),
        ((8, 8, 8), [(2, 2, 2), (2, 2, 2)]),
        ((10, 8, 8), [(2, 2, 2)]),
        ((4, 4, 100), [(2, 2, 1), (2, 2, 1)]),
        ((40, 4, 4), []),
    ],
)
def test_factors_make_voxels_cubic(size, factors):
    """Short axes are halved until no axis is short."""
    assert isotropic_factors(size, len(factors)) == tuple(map(Zyx.of, factors))


def test_a_copy_without_levels_gets_cubic_ones(tmp_path):
    """Where the source has one level, the voxel size decides."""
    source, target = address(tmp_path, "zarr", "source"), address(tmp_path, "zarr")
    filled(source, replace(SPEC, voxel_size_nm=(40.0, 4.0, 4.0)))
    assert run("convert", source, target, "--max-mip", 1).exit_code == 0
    level = open_volume(target, 1)
    assert level.voxel_size_nm == (40, 8, 8)
    fine = open_volume(target)
    wanted = downsample(fine.read(fine.bounds), Zyx(1, 2, 2))
    np.testing.assert_array_equal(level.read(level.bounds).array, wanted.array)


def test_a_dry_run_makes_no_levels(tmp_path):
    """Nothing is written."""
    source, target = address(tmp_path, "zarr", "source"), address(tmp_path, "zarr")
    filled(source, SPEC)
    before = stored_files(tmp_path)
    assert run("--dry-run", "convert", source, target, "--max-mip", 1).exit_code == 0
    assert stored_files(tmp_path) == before


def test_levels_that_are_no_factor_apart(tmp_path):
    """A pyramid without whole factors is refused; the error names the option to set."""
    source = n5_pyramid(tmp_path / "n5")
    file = tmp_path / "n5/s1/attributes.json"
    file.write_text(file.read_text().replace("[2, 2, 1]", "[1.5, 2, 1]"))
    target = address(tmp_path, "zarr")
    done = run("convert", source, target, "--max-mip", 1)
    assert done.exit_code == 1
    assert "not an integer multiple" in done.output
    assert "; give --factor" in done.output
    assert run("convert", source, target, "--max-mip", 1, "--factor", 1, 2, 2).exit_code == 0


def test_a_level_becomes_a_volume(tmp_path):
    """--mip of the source becomes level 0 of the target, with its position and voxel size."""
    source, target = address(tmp_path, "precomputed", "source"), address(tmp_path, "h5")
    filled(source, replace(SPEC, max_mip=1))
    assert run("downsample-volume", source).exit_code == 0
    assert run("convert", source, target, "--mip", 1).exit_code == 0
    coarse, volume = open_volume(source, 1), open_volume(target)
    assert (volume.bounds, volume.voxel_size_nm) == (coarse.bounds, (80, 9, 8))
    np.testing.assert_array_equal(
        volume.read(volume.bounds).array, coarse.read(coarse.bounds).array
    )


def test_time_points(tmp_path):
    """All time points are copied, or the requested one to a format without a time axis."""
    source, target = address(tmp_path, "zarr", "source"), address(tmp_path, "zarr")
    array = filled(source, replace(SPEC, times=3, encoding=None))
    assert run("convert", source, target).exit_code == 0
    volume = open_volume(target)
    assert volume.times == 3
    for time in range(3):
        np.testing.assert_array_equal(volume.read(BOUNDS, time=time).array, array + time)
    done = run("convert", source, address(tmp_path, "h5"))
    assert done.exit_code == 1
    assert "3 time points" in done.output
    done = run("convert", source, address(tmp_path, "h5"), "--time", 2)
    assert done.exit_code == 0, done.output
    found = open_volume(address(tmp_path, "h5")).read(BOUNDS)
    np.testing.assert_array_equal(found.array, array + 2)


def test_it_goes_on(tmp_path):
    """Stored blocks are kept, missing ones are copied; --overwrite copies all."""
    source, target = address(tmp_path, "h5", "source"), address(tmp_path, "precomputed")
    array = filled(source)
    half = Conversion(source, target, task_size=Zyx(8, 16, 16))
    first = next(iter(half.pipeline().source.body)).bbox
    volume = open_volume(target, mode="r+")
    seven = np.full((2, *first.size), 7, np.uint16)
    volume.write(Chunk(seven, first.start))
    assert run("convert", source, target).exit_code == 0
    # a task larger than the stored part is repeated as a whole
    np.testing.assert_array_equal(open_volume(target).read(BOUNDS).array, array)
    open_volume(target, mode="r+").write(Chunk(seven, first.start))
    assert list(run_all(half.pipeline())) == []
    np.testing.assert_array_equal(open_volume(target).read(first).array, seven)
    assert run("convert", source, target, "--overwrite").exit_code == 0
    np.testing.assert_array_equal(open_volume(target).read(BOUNDS).array, array)


def all_seven(folder):
    """Return the address of another volume, whose voxels are all 7."""
    other = f"zarr://{folder}/other"
    seven = np.full((2, *BOUNDS.size), 7, np.uint16)
    create_volume(replace(SPEC, encoding=None), other).write(Chunk(seven, BOUNDS.start))
    return other


@pytest.mark.parametrize("scheme", list(FORMATS))
def test_another_copy_is_not_gone_on_with(tmp_path, scheme):
    """A target that is a copy of another source is refused; --overwrite replaces it."""
    source, target = address(tmp_path, "h5", "source"), address(tmp_path, scheme)
    array = filled(source)
    other = all_seven(tmp_path)
    assert run("convert", other, target).exit_code == 0
    before = open_volume(target).read(BOUNDS).array
    done = run("convert", source, target)
    assert done.exit_code == 1
    assert f"a different copy, with source file://{tmp_path}/other, but this" in done.output
    assert f"this copy has source file://{tmp_path}/source-em.h5; replace all blocks" in done.output
    done = run("convert", other, target, "-c", "1,0")
    assert "with channels [0, 1], but this copy has channels [1, 0]" in done.output
    assert run("--dry-run", "convert", source, target).exit_code == 1
    np.testing.assert_array_equal(open_volume(target).read(BOUNDS).array, before)
    assert run("convert", source, target, "--overwrite").exit_code == 0
    np.testing.assert_array_equal(open_volume(target).read(BOUNDS).array, array)
    done = CliRunner().invoke(cli, ["convert", source, target])
    assert (done.exit_code, "wrote 0 tasks; all 1 were already stored" in done.output) == (0, True)


@pytest.mark.parametrize("scheme", list(FORMATS))
def test_what_nobody_copied_is_not_gone_on_with(tmp_path, scheme):
    """A target of another program is filled if it is empty, and refused if it has blocks."""
    source, target = address(tmp_path, "h5", "source"), address(tmp_path, scheme)
    array, spec = filled(source), replace(SPEC, encoding=None)
    filled(target, spec)
    done = run("convert", source, target)
    assert done.exit_code == 1
    assert "that this copy did not write; replace these blocks with --overwrite" in done.output
    create_volume(spec, f"{target}2.h5" if scheme == "h5" else f"{target}2")
    done = run("convert", source, f"{target}2.h5" if scheme == "h5" else f"{target}2")
    assert done.exit_code == 0, done.output
    found = open_volume(f"{target}2.h5" if scheme == "h5" else f"{target}2")
    np.testing.assert_array_equal(found.read(BOUNDS).array, array)


@pytest.mark.parametrize("scheme", list(FORMATS))
def test_an_interrupted_overwriting_begins_again(tmp_path, scheme):
    """A partly overwritten target has blocks of two volumes, so no copy continues it."""
    source, target = address(tmp_path, "h5", "source"), address(tmp_path, scheme)
    array = filled(source)
    other = all_seven(tmp_path)
    assert run("convert", other, target).exit_code == 0
    tasks = run_all(Conversion(source, target, task_size=Zyx(8, 16, 16), overwrite=True).pipeline())
    tasks.close()  # before the first task
    for again in (source, other):
        done = run("convert", again, target)
        assert "was being overwritten by a copy that did not finish" in done.output
    assert run("convert", source, target, "--overwrite").exit_code == 0
    assert run("convert", source, target).exit_code == 0
    np.testing.assert_array_equal(open_volume(target).read(BOUNDS).array, array)


def test_no_password_is_recorded(tmp_path):
    """The copy record does not contain the password of the source's address."""
    filled(address(tmp_path, "h5", "source"))
    volume = open_volume(address(tmp_path, "h5", "source"))
    for url in ("https://me:hidden@host/em", "https://host/em?signature=hidden"):
        recorded = Conversion(url, "zarr://t").copied(volume)
        assert (recorded["source"], "hidden" in str(recorded)) == ("https://host/em", False)


def test_names_of_channels_are_kept(tmp_path):
    """The copied channels keep their names."""
    source, target = address(tmp_path, "zarr", "source"), address(tmp_path, "zarr")
    spec = replace(SPEC, encoding=None)
    create_volume(spec, source, channel_names=["nuclei", "membranes"])
    assert run("convert", source, target).exit_code == 0
    assert open_volume(target).channel_names == ("nuclei", "membranes")
    assert run("convert", source, f"{target}2", "-c", "1,0").exit_code == 0
    assert open_volume(f"{target}2").channel_names == ("membranes", "nuclei")
    assert run("convert", source, address(tmp_path, "h5")).exit_code == 0


def test_a_web_server_is_refused_at_once(tmp_path):
    """A target on a web server is refused before any request."""
    filled(address(tmp_path, "h5", "source"))
    url = "zarr://https://host.invalid/em"
    with pytest.raises(VolumeError, match="web servers can only be read"):
        Conversion(address(tmp_path, "h5", "source"), url).pipeline()


KILLED = """
import sys
from chunkflow_py.core.geometry import Zyx
from chunkflow_py.run.whole_volume import Conversion
line = Conversion(sys.argv[1], sys.argv[2], task_size=Zyx(8, 16, 16)).pipeline()
line.check()
for number, task in enumerate(line.run()):
    if number == 5:
        print("five", flush=True)
        sys.stdin.read()
"""


def test_a_killed_copy_is_completed(tmp_path):
    """The same command completes a copy that was killed, with the bytes of the source."""
    source, target = address(tmp_path, "h5", "source"), address(tmp_path, "precomputed")
    array = filled(source)
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, source, target],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout.readline() == "five\n"
        process.kill()
    before = open_volume(target).read(BOUNDS).array
    assert before.any()
    assert not before.all()
    assert run("convert", source, target).exit_code == 0
    np.testing.assert_array_equal(open_volume(target).read(BOUNDS).array, array)


def test_a_dry_run_makes_nothing(tmp_path):
    """A dry run reads everything and writes nothing, whether the target exists or not."""
    source, target = address(tmp_path, "h5", "source"), address(tmp_path, "precomputed")
    filled(source)
    assert run("--dry-run", "convert", source, target).exit_code == 0
    assert [path.name for path in tmp_path.iterdir()] == ["source-em.h5"]


def test_memory_is_told(tmp_path):
    """The estimated memory is logged before the copy begins."""
    source, target = address(tmp_path, "h5", "source"), address(tmp_path, "precomputed")
    filled(source)
    done = CliRunner().invoke(cli, ["convert", source, target])
    assert "expected peak" in done.output


def test_failures_are_listed(tmp_path):
    """Failed tasks are listed, all others are done, and the exit code is 1."""
    source, target = address(tmp_path, "precomputed", "source"), address(tmp_path, "h5")
    array = filled(source)
    folder = next(path for path in (tmp_path / "source-em").iterdir() if path.is_dir())
    torn = sorted(folder.iterdir())[0]
    torn.write_bytes(b"torn")
    done = run("convert", source, target, "--task-size", 8, 16, 16)
    assert done.exit_code == 1
    assert done.output.count("load failed on task") == 1
    assert torn.name.removesuffix(".gz") in done.output
    assert "1 of 60 tasks failed, and the others are done" in done.output
    found = open_volume(target).read(BOUNDS).array
    assert 0 < (found != array).sum() <= 2 * 8 * 16 * 16


def test_another_target_is_refused(tmp_path):
    """A target with other bounds, channels or dtype is refused, and so is the source itself."""
    source, target = address(tmp_path, "h5", "source"), address(tmp_path, "precomputed")
    filled(source)
    other = BoundingBox((0, 0, 0), (40, 33, 51))
    for number, (changes, words) in enumerate(
        [
            ({"bounds": other}, f"exists with bounds {other}, but"),
            ({"channels": 3}, "exists with number of channels 3, but .* has number of channels 2"),
            (
                {"voxel_size_nm": (40.0, 4.0, 4.0)},
                r"size \(40.0, 4.0, 4.0\), but .* \(40.0, 4.5, 4.0\)",
            ),
            ({"kind": "probability"}, "exists with kind probability, but .* has kind image"),
        ]
    ):
        url = f"{target}-{number}"
        create_volume(replace(SPEC, **changes), url)
        with pytest.raises(VolumeError, match=words):
            Conversion(source, url).pipeline()
    create_volume(replace(SPEC, dtype=np.dtype("uint8")), target)
    with pytest.raises(ChunkError, match="2 channels of uint16, but .* holds 2 channels of uint8"):
        list(run_all(Conversion(source, target).pipeline()))
    with pytest.raises(VolumeError, match="to itself"):
        Conversion(source, source).pipeline()
    with pytest.raises(VolumeNotFoundError):
        Conversion(address(tmp_path, "zarr", "none"), target).pipeline()


def test_tasks_that_cut_blocks_are_refused(tmp_path):
    """A task size that cuts blocks of the target is refused before the first task."""
    source, target = address(tmp_path, "h5", "source"), address(tmp_path, "precomputed")
    filled(source)
    with pytest.raises(AlignmentError, match=r"task sizes that work: \(8, 16, 16\) or"):
        list(run_all(Conversion(source, target, task_size=Zyx(12, 16, 16)).pipeline()))


def test_options_after_the_addresses(tmp_path):
    """Options are accepted before and after the addresses; a third address is an error."""
    source, target = address(tmp_path, "h5", "source"), address(tmp_path, "h5")
    array = filled(source)
    done = run("convert", "-c", 0, source, target, "--encoding", "raw")
    assert done.exit_code == 0, done.output
    np.testing.assert_array_equal(open_volume(target).read(BOUNDS).array, array[:1])
    assert run("convert", source, target, "third").exit_code == 2
    assert "axes" in run("convert", source).output  # without a target, it describes the source
    done = run("convert", source, "--encoding", "raw")
    assert done.exit_code == 2
    assert "--encoding applies only to copying, but DST is missing" in done.output


@pytest.mark.aws
@pytest.mark.parametrize("scheme", ["precomputed", "zarr"])
def test_over_buckets(tmp_path, s3, scheme):
    """A volume is copied to a bucket with a level, the level is made again, and copied back."""
    source, there, back = address(tmp_path, "h5", "source"), f"{scheme}://{s3.url}/em", "back"
    array = filled(source, replace(SPEC, encoding=None))
    done = run("convert", source, there, "--task-size", 16, 32, 32, "--max-mip", 1)
    assert done.exit_code == 0, done.output
    done = run("downsample-volume", there)
    assert done.exit_code == 0, done.output
    assert run("convert", there, address(tmp_path, "h5", back)).exit_code == 0
    found = open_volume(address(tmp_path, "h5", back))
    np.testing.assert_array_equal(found.read(BOUNDS).array, array)
    level = open_volume(there, 1)
    wanted = downsample(found.read(BOUNDS), Zyx(1, 2, 2))
    np.testing.assert_array_equal(level.read(level.bounds).array, wanted.array)


def test_sizes_of_tasks(tmp_path):
    """Tasks are whole write units and, within the memory limit, whole blocks of the source."""
    filled(address(tmp_path, "h5", "source"))
    volume = open_volume(address(tmp_path, "h5", "source"))
    assert task_size(Zyx(4, 4, 4), volume, 8 * 16 * 16 * 4) == Zyx(8, 16, 16)
    assert task_size(Zyx(64, 64, 64), volume, 1) == Zyx(64, 64, 64)
    whole = task_size(Zyx(8, 16, 16), volume)
    assert len(BoxGrid.covering(BOUNDS, whole)) == 1


@pytest.mark.parametrize("scheme", ["precomputed", "zarr"])
def test_tasks_that_cut_the_blocks_of_a_level(tmp_path, scheme):
    """A task size that cuts blocks is refused with one that works; the whole level works."""
    url = f"{scheme}://{tmp_path}/em"
    bounds = BoundingBox.from_size((0, 0, 0), (80, 80, 80))
    create_volume(replace(SPEC, bounds=bounds, block_size=Zyx(16, 16, 16), max_mip=1), url)
    with pytest.raises(AlignmentError, match=r"use the task size \(16, 16, 16\)"):
        downsampling(url, 1, size=Zyx(13, 13, 13))
    assert not list(run_all(downsampling(url, 1, size=Zyx(16, 40, 16))))


@pytest.mark.parametrize(
    ("size", "nm", "factor", "levels"),
    [
        ((10, 1024, 1024), (40, 4, 4), None, 0),
        ((10, 1025, 64), (40, 4, 4), None, 1),
        ((4000, 4000, 4000), (8, 8, 8), None, 2),
        ((3000, 4096, 4096), (40, 10, 10), None, 4),  # z is halved from level 3 on
        ((3000, 4096, 4096), (40, 10, 10), (1, 2, 2), 2),
        ((3000, 4096, 4096), (40, 10, 10), (1, 1, 1), 0),
    ],
)
def test_levels_for_a_screen(size, nm, factor, levels):
    """Levels are added until each axis that shrinks has at most 1024 voxels."""
    assert levels_for_screen(Zyx(*size), nm, None if factor is None else Zyx(*factor)) == levels


def test_levels_by_default(tmp_path):
    """A long volume gets levels; a copy has as many as its source; HDF5 gets none."""
    source, target = address(tmp_path, "zarr", "source"), address(tmp_path, "zarr")
    bounds = BoundingBox.from_size((0, 0, 0), (4, 16, 2100))
    filled(source, replace(SPEC, bounds=bounds, block_size=Zyx(4, 16, 256)))
    assert run("convert", source, target).exit_code == 0
    sizes = [(4, 16, 2100), (4, 8, 1050), (4, 4, 525)]
    assert [size for _, size in levels(target)] == sizes
    fine = open_volume(target)
    wanted = downsample(fine.read(fine.bounds), Zyx(1, 4, 4))
    assert open_volume(target, 2).read(wanted.bbox).array.shape == wanted.array.shape
    assert run("convert", target, address(tmp_path, "precomputed"), "--mip", 1).exit_code == 0
    assert [s for _, s in levels(address(tmp_path, "precomputed"))] == sizes[1:]
    done = run("convert", source, address(tmp_path, "h5"))
    assert done.exit_code == 0, done.output
    assert open_volume(address(tmp_path, "h5")).mips == (0,)


def test_an_existing_target_keeps_its_levels(tmp_path):
    """A target that was created with fewer levels is filled; no level is missed."""
    source, target = address(tmp_path, "zarr", "source"), address(tmp_path, "zarr")
    spec = replace(SPEC, bounds=BoundingBox.from_size((0, 0, 0), (4, 16, 2100)))
    filled(source, replace(spec, max_mip=1))
    assert run("create-volume", "-v", target, "--like", source).exit_code == 0
    done = run("convert", source, target, "--overwrite")
    assert done.exit_code == 0, done.output
    assert open_volume(target).mips == (0,)


def windows(target):
    """Return the channels in the metadata of an OME-Zarr image."""
    for name, path in (("zarr.json", ("attributes", "ome")), (".zattrs", ())):
        if (file := Path(target.partition("://")[2]) / name).exists():
            document = json.loads(file.read_text())
            for key in path:
                document = document[key]
            return document["omero"]["channels"]
    raise AssertionError(target)


@pytest.mark.parametrize("scheme", ["zarr", "zarr2"])
def test_windows_fit_the_voxels(tmp_path, scheme):
    """Windows reach from the 0.1th to the 99.9th percentile; those that a user set are kept."""
    source, target = address(tmp_path, "precomputed", "source"), address(tmp_path, scheme)
    array = np.random.default_rng(0).integers(100, 1000, (2, *BOUNDS.size)).astype(np.uint16)
    array[1] *= 3
    array[:, 0, 0, :4] = 60000  # a few bright voxels, which do not widen the window
    create_volume(SPEC, source).write(Chunk(array, BOUNDS.start, kind="image"))
    assert run("convert", source, target).exit_code == 0
    first, second = windows(target)
    assert first["window"]["max"] == 60000
    assert 100 <= first["window"]["start"] <= 102
    assert 997 <= first["window"]["end"] <= 999
    assert second["window"]["end"] == pytest.approx(3 * 998, abs=6)
    assert (first["color"], second["color"]) == ("FF0000", "00FF00")
    file = Path(target.partition("://")[2]) / ("zarr.json" if scheme == "zarr" else ".zattrs")
    chosen = file.read_text().replace(f'"end": {first["window"]["end"]}', '"end": 500')
    file.write_text(chosen)
    assert run("convert", source, target).exit_code == 0
    assert file.read_text() == chosen


@pytest.mark.parametrize(
    ("dtype", "kind", "values", "window"),
    [
        ("uint8", "image", (7, 7), {"min": 0, "max": 255, "start": 7, "end": 8}),
        ("float32", "image", (0, 0), {"min": 0.0, "max": 1.0, "start": 0.0, "end": 1.0}),
        ("float32", "image", (np.nan, np.nan), {"min": 0.0, "max": 1.0, "start": 0.0, "end": 1.0}),
        ("float32", "image", (-2, 6), {"min": -2.0, "max": 6.0, "start": -2.0, "end": 6.0}),
        ("int16", "image", (-20, 60), {"min": -20, "max": 60, "start": -20, "end": 60}),
        ("float32", "probability", (0, 0.5), {"min": 0.0, "max": 1.0, "start": 0.0, "end": 1.0}),
    ],
)
def test_windows_of_unusual_voxels(tmp_path, dtype, kind, values, window):
    """Windows are never empty, and those of maps are their known range."""
    source, target = address(tmp_path, "h5", "source"), address(tmp_path, "zarr")
    spec = replace(SPEC, dtype=np.dtype(dtype), kind=kind, encoding=None)
    array = np.full((2, *BOUNDS.size), values[0], dtype)
    array[..., 1::2] = values[1]
    create_volume(spec, source).write(Chunk(array, BOUNDS.start, kind=kind))
    assert run("convert", source, target).exit_code == 0
    assert [channel["window"] for channel in windows(target)] == [window] * 2


@pytest.mark.parametrize("kind", ["segmentation", None])
def test_labels_have_no_window(tmp_path, kind):
    """Labels are not an image, so no channels are described."""
    source, target = address(tmp_path, "h5", "source"), address(tmp_path, "zarr")
    spec = replace(SPEC, dtype=np.dtype("uint32"), channels=None, kind=kind, encoding=None)
    filled(source, spec)
    assert run("convert", source, target).exit_code == 0
    assert "omero" not in (tmp_path / "target-em.zarr/zarr.json").read_text()
    assert open_volume(target).kind == kind


def test_blocks_of_a_copy_of_sections(tmp_path):
    """Pages become blocks of several sections; a task reads each page once."""
    tifffile = pytest.importorskip("tifffile")
    image = np.random.default_rng(0).integers(0, 200, (20, 130, 140)).astype(np.uint8)
    tifffile.imwrite(tmp_path / "stack.tif", image)
    target = address(tmp_path, "zarr")
    assert run("convert", tmp_path / "stack.tif", target).exit_code == 0
    volume = open_volume(target)
    assert volume.block_size == Zyx(20, 64, 64)
    np.testing.assert_array_equal(volume.read(volume.bounds).array, image)
    assert task_size(volume.block_size, open_volume(str(tmp_path / "stack.tif"))).y >= 130


def test_colors_of_ome_tiff(tmp_path):
    """Colours in OME-XML become those of the copy, in the order of the chosen channels."""
    tifffile = pytest.importorskip("tifffile")
    image = np.random.default_rng(0).integers(0, 200, (2, 3, 16, 16)).astype(np.uint16)
    names = {"Name": ["DAPI", "GFP"], "Color": [0x1020F0FF, -0x00FF0001]}  # RGBA, signed
    file = tmp_path / "cells.ome.tif"
    tifffile.imwrite(file, image, metadata={"axes": "CZYX", "Channel": names})
    target = address(tmp_path, "zarr")
    assert run("convert", file, target, "--channels", "1,0").exit_code == 0
    assert [(c["label"], c["color"]) for c in windows(target)] == [
        ("GFP", "FF00FF"), ("DAPI", "1020F0"),
    ]  # fmt: skip
    again = address(tmp_path, "zarr", "again")
    assert run("convert", target, again).exit_code == 0
    assert [c["color"] for c in windows(again)] == ["FF00FF", "1020F0"]


@pytest.mark.parametrize("scheme", gate_runs(["zarr", "precomputed"], "zarr"))
def test_several_processes_copy_the_same(tmp_path, scheme):
    """Two processes make the same copy and levels as one; a second call finds all tasks stored."""
    source, url = f"zarr://{tmp_path}/source.zarr", f"{scheme}://{tmp_path}/two/em"
    filled(source, replace(SPEC, encoding=None, times=2 if scheme == "zarr" else None))
    words = ["convert", source, "--max-mip", 1, "--task-size", 8, 16, 32]
    assert run(*words, f"{scheme}://{tmp_path}/one/em").exit_code == 0
    done = CliRunner().invoke(cli, list(map(str, ["--verbose", *words, url, "--processes", 2])))
    assert done.exit_code == 0, done.output
    assert "wrote " in done.output
    assert "0 of" in done.output
    assert re.search(r"save +\d", done.output)  # the table of seconds
    one, two = ({path.relative_to(folder): path.read_bytes() for path in folder.rglob("*")
                 if path.is_file()} for folder in (tmp_path / "one", tmp_path / "two"))  # fmt: skip
    assert one == two
    again = CliRunner().invoke(cli, list(map(str, [*words, url, "--processes", 2])))
    assert "wrote 0 tasks; all" in again.output


def test_missing_blocks_of_processes_are_counted(tmp_path):
    """Blocks that other processes read as the fill value are told in the end."""
    source = address(tmp_path, "zarr", "source")
    filled(source, replace(SPEC, encoding=None, channels=None))
    blocks = sorted(path for path in (tmp_path / "source-em.zarr/0/c").rglob("*") if path.is_file())
    blocks[0].unlink()
    words = ["convert", source, f"zarr://{tmp_path}/t.zarr", "--max-mip", "0", "--processes", "2"]
    done = CliRunner().invoke(cli, [*words, "--task-size", "8", "16", "16"])
    assert done.exit_code == 0, done.output
    assert "1 block was missing in the volume and read as the fill value" in done.output


def test_failures_in_processes_are_listed(tmp_path):
    """A task that fails in another process is listed with its operator; the others are done."""
    source, target = address(tmp_path, "precomputed", "source"), f"zarr://{tmp_path}/t.zarr"
    filled(source)
    folder = next(path for path in (tmp_path / "source-em").iterdir() if path.is_dir())
    torn = sorted(folder.iterdir())[0]
    torn.write_bytes(b"torn")
    words = ("convert", source, target, "--task-size", 8, 16, 16)
    done = run(*words, "--processes", 2)
    assert done.exit_code == 1
    assert done.output.count("load failed on task") == 1
    assert torn.name.removesuffix(".gz") in done.output
    assert "1 of 60 tasks failed, and the others are done" in done.output
    assert "wrote 0" not in run(*words).output


@pytest.mark.drill
@pytest.mark.slow
def test_a_killed_process_ends_the_command(tmp_path):
    """The error names the signal; the same command completes the copy."""
    source, target = address(tmp_path, "zarr", "source"), f"zarr://{tmp_path}/t.zarr"
    array = filled(source, replace(SPEC, encoding=None))
    words = ["--quiet", "convert", source, target, "--task-size", "8", "16", "16", "-n", "2"]
    code = "from chunkflow_py.cli.main import cli; cli()"
    environment = os.environ | {"CHUNKFLOW_FAILPOINT": "mid-read:kill@5"}
    command = [sys.executable, "-c", code, *words]
    done = subprocess.run(command, check=False, env=environment, capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    assert "process 0 of 2 has died" in done.stderr or "process 1 of 2 has died" in done.stderr
    assert "SIGKILL" in done.stderr
    assert run(*words[1:]).exit_code == 0
    np.testing.assert_array_equal(open_volume(target).read(BOUNDS).array, array)


def test_processes_that_cannot_share_a_file_or_memory_are_refused(tmp_path, monkeypatch):
    """The error says what to change."""
    source = address(tmp_path, "zarr", "source")
    filled(source, replace(SPEC, encoding=None))
    done = run("convert", source, address(tmp_path, "h5"), "--processes", 2)
    assert (done.exit_code, "only one process can write" in done.output) == (2, True)
    monkeypatch.setattr("chunkflow_py.run.phase_processes.available_host_bytes", lambda: 100_000)
    done = run("convert", source, f"zarr://{tmp_path}/t.zarr", "--processes", 2)
    assert done.exit_code == 2
    assert "is expected to take 2 times" in done.output
