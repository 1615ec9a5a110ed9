"""Start a Dask cluster of two workers on this machine, and carry out a line on it.

Usage: python run_on_cluster.py FOLDER

Elsewhere the cluster is there already, and what is left is `chunkflow run --on dask://HOST:PORT`.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from distributed import LocalCluster

DATA = Path(__file__).resolve().parents[1] / "fib25"
LINE = f"""
generate-tasks --roi-start 112 96 96 --roi-size 32 64 64 --chunk-size 16 32 32
load-h5 -f {DATA}/raw.h5 --expand-margin-size auto
inference --framework pytorch --output-kind affinity --output-dtype uint8 --grid padded
  -m {DATA}/unet_fib25_model.py -w {DATA}/unet_fib25.pt
  --input-patch-size 16 32 32 --output-patch-overlap 0 0 0
save-zarr --store affinity.zarr --chunk-size 16 32 32
"""


def main(folder: str) -> None:
    """Run the line in *folder*, then compare what was stored with its records."""
    Path(folder).mkdir(parents=True, exist_ok=True)

    def chunkflow(*words: str) -> None:
        print("$ chunkflow", *words[:3], "…" if len(words) > 3 else "", flush=True)
        subprocess.run([sys.executable, "-m", "chunkflow_py", *words], cwd=folder, check=True)

    # One thread a worker: the network is loaded once a process. No limit of Dask: memory is
    # foretold by the line itself.
    with LocalCluster(
        n_workers=2, threads_per_worker=1, memory_limit=0, dashboard_address=None
    ) as cluster:
        address = cluster.scheduler_address.replace("tcp://", "dask://")
        chunkflow("run", "--on", address, "--run", "dask.run", *LINE.split())
    chunkflow("status", "dask.run")
    chunkflow("verify", "dask.run")


if __name__ == "__main__":
    main(*sys.argv[1:])
