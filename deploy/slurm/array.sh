#!/bin/bash
# A Slurm job array over a file of tasks: each job executes one task, without a queue or a run.
#
#   chunkflow generate-tasks --volume-path em.zarr --chunk-size 64 512 512 --file-path tasks.npy
#   sbatch --array=0-99 --gres=gpu:1 --time=01:00:00 deploy/slurm/array.sh tasks.npy \
#     load-zarr --store em.zarr ... save-zarr --store out.zarr
#
# With GRANULARITY=10, a job executes ten tasks, so a tenth of the jobs is enough.
# To list the failed jobs: sacct --job ID --state FAILED,TIMEOUT,NODE_FAIL. Submit them again by
# their numbers, such as --array=7,42.
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
