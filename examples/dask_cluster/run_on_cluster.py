"""Start a Dask cluster of two workers on this machine, and run a pipeline on it.

Usage: python run_on_cluster.py FOLDER

On an existing cluster, `chunkflow run --on dask://HOST:PORT` is enough.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from distributed import LocalCluster

DATA = Path(__file__).resolve().parents[1] / "fib25"
PIPELINE = f"""
generate-tasks --roi-start 112 96 96 --roi-size 32 64 64 --chunk-size 16 32 32
load-h5 --file-name {DATA}/raw.h5 --expand-margin-size auto
inference --framework pytorch --output-kind affinity --output-dtype uint8 --grid padded
  --convnet-model {DATA}/unet_fib25_model.py --convnet-weight-path {DATA}/unet_fib25.pt
  --input-patch-size 16 32 32 --output-patch-overlap 0 0 0
save-zarr --store affinity.zarr --chunk-size 16 32 32
"""


def main(folder: str) -> None:
    """Run the pipeline in *folder*, then compare the stored data with the ledger."""
    Path(folder).mkdir(parents=True, exist_ok=True)

    def chunkflow(*arguments: str) -> None:
        print("$ chunkflow", *arguments[:3], "…" if len(arguments) > 3 else "", flush=True)
        subprocess.run([sys.executable, "-m", "chunkflow_py", *arguments], cwd=folder, check=True)

    # One thread per worker, since a process loads the network once. Dask's memory limit is off:
    # chunkflow estimates the memory itself.
    with LocalCluster(
        n_workers=2, threads_per_worker=1, memory_limit=0, dashboard_address=None
    ) as cluster:
        address = cluster.scheduler_address.replace("tcp://", "dask://")
        chunkflow("run", "--on", address, "--run", "dask.run", *PIPELINE.split())
    chunkflow("status", "dask.run")
    chunkflow("verify", "dask.run")


if __name__ == "__main__":
    main(*sys.argv[1:])
