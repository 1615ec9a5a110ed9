"""Carry out a line on a Dask cluster whose workers are jobs of Slurm.

    python dask_cluster.py --jobs 16 --sbatch=--gres=gpu:1 -- \
        --run file:///shared/affinity.run generate-tasks … save-zarr …

Jobs come while there is work, and leave when there is none. Run it on a login node, inside of tmux;
started again, it goes on where it stopped. Needs `pip install 'chunkflow_py[dask]' dask-jobqueue`
on the file system that the nodes share.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from dask_jobqueue import SLURMCluster


def main() -> int:
    """Start the cluster, and chunkflow on it; return its exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, required=True, help="how many, at most")
    parser.add_argument("--memory", default="16GB", help="of a job")
    parser.add_argument("--cores", type=int, default=4, help="of a job, for one process")
    parser.add_argument("--walltime", default="04:00:00", help="of a job")
    parser.add_argument("--lifetime", default="3h45m", help="a worker leaves before its job ends")
    parser.add_argument("--interface", help="of the network between the nodes, such as ib0")
    parser.add_argument("--sbatch", action="append", default=[], help="a line after #SBATCH")
    parser.add_argument("line", nargs="+", help="options of chunkflow run, and the line")
    said = parser.parse_args()
    with SLURMCluster(
        cores=1,  # threads that take tasks: three of them overlap reading, network and writing
        job_cpu=said.cores,
        processes=1,
        memory=said.memory,
        walltime=said.walltime,
        interface=said.interface,
        worker_extra_args=["--lifetime", said.lifetime, "--lifetime-stagger", "5m"],
        job_extra_directives=said.sbatch,
        # Without it Dask has each worker compute with one thread.
        job_script_prologue=[f"export OMP_NUM_THREADS={said.cores}"],
        scheduler_options={"dashboard_address": ":0"},
    ) as cluster:
        cluster.adapt(maximum_jobs=said.jobs)
        address = cluster.scheduler_address.replace("tcp:", "dask:")
        chunkflow = str(Path(sys.executable).with_name("chunkflow"))
        return subprocess.call([chunkflow, "run", "--on", address, *said.line])


if __name__ == "__main__":
    sys.exit(main())
