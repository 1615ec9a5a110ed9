"""deploy/slurm/dask_cluster.py: a line on Dask workers that are jobs of Slurm."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import slurm_rig
import zarr

SCRIPT = Path(__file__).parents[2] / "deploy" / "slurm" / "dask_cluster.py"
CHUNKFLOW = Path(sys.executable).with_name("chunkflow")


@pytest.mark.slurm
def test_line_on_jobs(tmp_path):
    """Jobs are started for the tasks that there are, and carry the line out to its end."""
    if find_spec("dask_jobqueue") is None:  # an import would take our signals
        pytest.skip("dask_jobqueue is not installed")
    if reason := slurm_rig.missing():
        pytest.skip(reason)
    folder = tmp_path / "slurm"
    folder.mkdir()
    made = "create-chunk --size 32 16 16 --pattern random save-zarr --store em.zarr"
    subprocess.run([CHUNKFLOW, *made.split()], cwd=tmp_path, check=True, capture_output=True)
    options = "--jobs 2 --cores 1 --memory 400MB --walltime 00:10:00 --interface lo --lifetime 8m"
    line = (
        f"--run {tmp_path}/copy.run generate-tasks -v em.zarr -c 8 16 16 load-zarr --store em.zarr "
        "save-zarr --store copy.zarr"
    )
    with slurm_rig.cluster(folder):
        environment = os.environ | {
            "SLURM_CONF": str(folder / "slurm.conf"),
            "PATH": f"{os.environ['PATH']}:/usr/sbin",
        }
        done = subprocess.run(
            [sys.executable, SCRIPT, *options.split(), "--", *line.split()],
            cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=110, check=False,
        )  # fmt: skip
    logs = "".join(path.read_text() for path in tmp_path.glob("slurm-*.out"))
    assert done.returncode == 0, done.stderr + logs
    assert f"{tmp_path}/copy.run is complete" in done.stdout
    assert "Start Nanny" in logs  # of a job: this process has started no worker
    before, after = (zarr.open(tmp_path / name)["0"][:] for name in ("em.zarr", "copy.zarr"))
    np.testing.assert_array_equal(before, after)
