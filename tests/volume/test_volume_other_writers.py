"""Volumes that bioio and ome-zarr-py have written."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
from click.testing import CliRunner
from contracts.image_contract import ImageContract, Stored, noise
from rigs.variants import gate_runs

from chunkflow_py.cli.main import cli
from chunkflow_py.volume import open_volume

NAMES, SIZE_NM = ("DAPI", "GFP"), (2000.0, 500.0, 500.0)
ROOT = Path(__file__).parents[2]
READERS = Path(os.environ.get("CHUNKFLOW_TEST_READERS", ROOT / ".rigs/readers"))


class TestBioio(ImageContract):
    """An OME-TIFF; see tests/data/make_bioio.py."""

    @pytest.fixture
    def stored(self, tmp_path: Path) -> Stored:
        """Return a copy of the file, whose voxels tifffile reads."""
        path = tmp_path / "cells.ome.tiff"
        shutil.copy(ROOT / "tests/data/bioio.ome.tiff", path)
        return Stored(path, tifffile.imread(path), SIZE_NM, 2, names=NAMES)


@pytest.mark.skipif(not READERS.is_dir(), reason=f"{READERS} is missing; make rigs makes it")
class TestOmeZarrPy(ImageContract):
    """OME-Zarr with two levels."""

    @pytest.fixture(params=gate_runs(["0.4", "0.5"], "0.5"))
    def stored(self, tmp_path: Path, request: Any) -> Stored:
        """Return a volume of two time points and two channels."""
        voxels, path = noise(2, 2), tmp_path / "image.ome.zarr"
        np.save(tmp_path / "voxels.npy", voxels)
        script = Path(__file__).with_name("write_ome_zarr.py")
        words = [READERS / "bin/python", script, tmp_path / "voxels.npy", path, request.param]
        subprocess.run(words, check=True, timeout=60)
        return Stored(path, voxels, SIZE_NM, 2, names=NAMES)

    def test_it_is_read_only(self, stored: Stored) -> None:
        """Unlike image files, it can also be written."""
        assert open_volume(str(stored.path), mode="r+").write_unit

    def test_levels_and_colours_are_kept(self, stored: Stored, tmp_path: Path) -> None:
        """A copy has the same levels, of the same factors, and the same colours."""
        line = f"--quiet convert {stored.path} zarr://{tmp_path}/copy.zarr"
        assert CliRunner().invoke(cli, line.split()).exit_code == 0
        copy = open_volume(f"{tmp_path}/copy.zarr", 1)
        assert (copy.mips, copy.voxel_size_nm) == ((0, 1), (2000.0, 1000.0, 1000.0))
        assert copy.channel_colors == ("0000FF", "00FF00")
