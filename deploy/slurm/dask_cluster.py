"""Run a pipeline on a Dask cluster whose workers are Slurm jobs.

    python dask_cluster.py --jobs 16 --sbatch=--gres=gpu:1 -- \
        --run file:///shared/affinity.run generate-tasks … save-zarr …

Jobs start while there are tasks, and end when there are none. Run it on a login node, inside tmux;
if it is started again, it continues where it stopped. It needs
`pip install 'chunkflow_py[dask]' dask-jobqueue` on a file system that the nodes share.
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
    parser.add_argument("--jobs", type=int, required=True, help="highest number of jobs")
    parser.add_argument("--memory", default="16GB", help="memory of a job")
    parser.add_argument("--cores", type=int, default=4, help="CPU cores of a job")
    parser.add_argument("--walltime", default="04:00:00", help="time limit of a job")
    parser.add_argument(
        "--lifetime", default="3h45m", help="age of a worker at its end, below --walltime"
    )
    parser.add_argument("--interface", help="network interface between the nodes, such as ib0")
    parser.add_argument("--sbatch", action="append", default=[], help="further #SBATCH option")
    parser.add_argument("arguments", nargs="+", help="options of chunkflow run, and the pipeline")
    options = parser.parse_args()
    with SLURMCluster(
        cores=1,  # Dask's threads per worker; with 3, reading, network and writing of tasks overlap
        job_cpu=options.cores,
        processes=1,
        memory=options.memory,
        walltime=options.walltime,
        interface=options.interface,
        worker_extra_args=["--lifetime", options.lifetime, "--lifetime-stagger", "5m"],
        job_extra_directives=options.sbatch,
        # By default, Dask limits each worker's computations to one thread.
        job_script_prologue=[f"export OMP_NUM_THREADS={options.cores}"],
        scheduler_options={"dashboard_address": ":0"},
    ) as cluster:
        cluster.adapt(maximum_jobs=options.jobs)
        address = cluster.scheduler_address.replace("tcp:", "dask:")
        chunkflow = str(Path(sys.executable).with_name("chunkflow"))
        return subprocess.call([chunkflow, "run", "--on", address, *options.arguments])


if __name__ == "__main__":
    sys.exit(main())
