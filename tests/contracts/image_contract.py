"""Contract of image files that are opened as volumes: what each format must do."""

from __future__ import annotations

import pickle
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from click.testing import CliRunner

from chunkflow_py.cli.main import cli
from chunkflow_py.core.geometry import BoundingBox, Zyx
from chunkflow_py.errors import ChunkError, GeometryError, VolumeError, VolumeNotFoundError
from chunkflow_py.volume import open_volume
from chunkflow_py.volume.protocol import UNIT_NM

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

SIZE = Zyx(6, 40, 50)


def noise(*leading: int, dtype: str = "uint16") -> NDArray[Any]:
    """Return voxels without zeros, (…, z, y, x)."""
    rng = np.random.default_rng(0)
    return rng.integers(1, 250, (*leading, *SIZE)).astype(dtype)


@dataclass(frozen=True)
class Stored:
    """A file that another program has written.

    Attributes:
        path: the file or folder.
        voxels: (z, y, x), (c, z, y, x), (t, z, y, x) or (t, c, z, y, x).
        size_nm: voxel size, zyx, or ``None`` if the format does not store it.
        times: number of time points, or ``None``.
        start: position of the first voxel.
        names: names of the channels.
    """

    path: Path
    voxels: NDArray[Any]
    size_nm: tuple[float, float, float] | None = None
    times: int | None = None
    start: Zyx = Zyx(0, 0, 0)
    names: tuple[str, ...] = ()

    @property
    def first(self) -> NDArray[Any]:
        """Voxels of the first time point."""
        return self.voxels if self.times is None else self.voxels[0]


class ImageContract:
    """Tests of a format; a class that inherits defines the fixture `stored`."""

    @pytest.fixture
    def stored(self, tmp_path: Path) -> Stored:
        """Return a file of the format."""
        pytest.fail(f"no file in {tmp_path}")

    def test_what_the_volume_says(self, stored: Stored) -> None:
        """Bounds, size, dtype, channels and time points are those of the file."""
        volume = open_volume(str(stored.path))
        assert volume.bounds == BoundingBox.from_size(stored.start, stored.first.shape[-3:])
        assert volume.voxel_size_nm == (stored.size_nm or UNIT_NM)
        assert (volume.voxel_size_nm is UNIT_NM) == (stored.size_nm is None)
        assert volume.dtype == stored.voxels.dtype
        channels = stored.first.shape[0] if stored.first.ndim == 4 else None
        assert volume.channels == channels
        assert volume.times == stored.times
        assert tuple(getattr(volume, "channel_names", ())) == stored.names
        assert volume.has_blocks(volume.bounds, time=0 if stored.times else None)

    def test_voxels(self, stored: Stored) -> None:
        """All voxels of each time point are those of the file, also in another process."""
        volume = pickle.loads(pickle.dumps(open_volume(str(stored.path))))
        for time in range(stored.times or 1):
            chunk = volume.read(volume.bounds, time=time if stored.times else None)
            expected = stored.voxels if stored.times is None else stored.voxels[time]
            np.testing.assert_array_equal(chunk.array, expected)
            assert chunk.dtype == expected.dtype
            assert chunk.domain == volume.bounds

    def test_parts(self, stored: Stored) -> None:
        """A box and chosen channels are read as they are cut from the whole."""
        volume = open_volume(str(stored.path))
        time = None if stored.times is None else stored.times - 1
        whole = stored.voxels if time is None else stored.voxels[time]
        rng = np.random.default_rng(1)
        for _ in range(5):
            low = [int(rng.integers(0, n)) for n in SIZE]
            high = [int(rng.integers(a + 1, n + 1)) for a, n in zip(low, SIZE, strict=True)]
            box = BoundingBox(stored.start + low, stored.start + high)
            part = whole[(..., *box.slices(stored.start))]
            np.testing.assert_array_equal(volume.read(box, time=time).array, part)
            if volume.channels:
                chosen = volume.read(box, [volume.channels - 1, 0], time=time).array
                np.testing.assert_array_equal(chosen, part[[-1, 0]])

    def test_what_does_not_exist(self, stored: Stored) -> None:
        """Boxes outside, other channels, levels and times are errors."""
        volume = open_volume(str(stored.path))
        with pytest.raises(GeometryError, match="extends outside"):
            volume.read(BoundingBox(stored.start, stored.start + SIZE + (1, 0, 0)))
        with pytest.raises(ChunkError, match="channel"):
            volume.read(volume.bounds, [7])
        with pytest.raises(VolumeNotFoundError, match="no mip 5"):
            open_volume(str(stored.path), 5)
        if stored.times is not None:
            with pytest.raises(VolumeError, match="no time index"):
                volume.read(volume.bounds)
            with pytest.raises(VolumeError, match="was requested"):
                volume.read(volume.bounds, time=stored.times)

    def test_it_is_read_only(self, stored: Stored) -> None:
        """It can be opened for reading only."""
        with pytest.raises(VolumeError, match="read only"):
            open_volume(str(stored.path), mode="r+")

    def test_convert_and_tasks(self, stored: Stored, tmp_path: Path) -> None:
        """`convert` and tasks write the same volume: voxels, size, position and names."""
        more = ("" if stored.size_nm else " --voxel-size 3 2 2") + " --time 0" * bool(stored.times)
        lines = [
            f"--quiet convert {stored.path} zarr://{tmp_path}/converted.zarr",
            f"--quiet generate-tasks --volume-path {stored.path} --chunk-size 3 20 25 load-volume "
            f"--volume-path {stored.path}{more} save-zarr --store {tmp_path}/tasks.zarr",
        ]
        for line in lines:
            result = CliRunner().invoke(cli, shlex.split(line))
            assert result.exit_code == 0, result.output
        for name, times in (("converted", stored.times), ("tasks", None)):
            volume = open_volume(f"{tmp_path}/{name}.zarr")
            assert volume.bounds == BoundingBox.from_size(stored.start, SIZE)
            assert volume.times == times
            if stored.size_nm:
                assert volume.voxel_size_nm == pytest.approx(stored.size_nm)
            for time in range(times or 1):
                expected = stored.voxels if stored.times is None else stored.voxels[time]
                found = volume.read(volume.bounds, time=time if times else None)
                np.testing.assert_array_equal(found.array, expected)
        if stored.names:
            assert open_volume(f"{tmp_path}/converted.zarr").channel_names == stored.names

    @pytest.mark.long
    def test_a_run(self, stored: Stored, tmp_path: Path) -> None:
        """Workers process all time points of the file, and verify finds everything."""
        run, target = tmp_path / "copy.run", tmp_path / "copy.zarr"
        size = "" if stored.size_nm else "--voxel-size 3 2 2"
        for line in (
            f"--quiet submit --run {run} generate-tasks --volume-path {stored.path} --time-points "
            f"all --chunk-size 3 20 25 load-volume --volume-path {stored.path} {size} save-zarr "
            f"--store {target}",
            f"--quiet work {run} --until-complete",
            f"--quiet verify {run}",
        ):
            result = CliRunner().invoke(cli, shlex.split(line))
            assert result.exit_code == 0, result.output
        tasks = 8 * (stored.times or 1)
        assert f"all {tasks} tasks are recorded" in result.output
        volume = open_volume(str(target))
        assert volume.bounds == BoundingBox.from_size(stored.start, SIZE)
        assert volume.voxel_size_nm == pytest.approx(stored.size_nm or (3, 2, 2))
        if stored.names:
            assert volume.channel_names == stored.names
        for time in range(stored.times or 1):
            expected = stored.voxels if stored.times is None else stored.voxels[time]
            found = volume.read(volume.bounds, time=time if stored.times else None)
            np.testing.assert_array_equal(found.array, expected)
