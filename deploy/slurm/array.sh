#!/bin/bash
# A job array over a file of boxes: needs neither a queue nor a run, and a job is a task.
#
#   chunkflow generate-tasks --volume-path em.zarr --chunk-size 64 512 512 --file-path tasks.npy
#   sbatch --array=0-99 --gres=gpu:1 --time=01:00:00 deploy/slurm/array.sh tasks.npy \
#     load-zarr --store em.zarr ... save-zarr --store out.zarr
#
# With GRANULARITY=10 a job does ten tasks, and a tenth of the jobs is enough.
# Slurm knows which failed: sacct --job ID --state FAILED,TIMEOUT,NODE_FAIL; send those again by
# their numbers, as in --array=7,42.
#SBATCH --job-name=chunkflow
#SBATCH --output=%x-%A_%a.log
#SBATCH --open-mode=append
#SBATCH --requeue
set -u
if [ $# -lt 2 ]; then
  echo "Usage: sbatch --array=0-99 $0 TASKS.npy COMMAND..." >&2
  exit 2
fi
tasks=$1
shift
exec chunkflow fetch-task-from-file --file-path "$tasks" --slurm-job-array \
  --granularity "${GRANULARITY:-1}" "$@"
