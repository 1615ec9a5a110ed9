#!/bin/bash
# Workers of a run on a Slurm cluster, one a job, queued again until the run is complete.
#
#   sbatch --array=1-16 --gres=gpu:1 --time=04:00:00 deploy/slurm/workers.sh RUN [OPTIONS]
#
# RUN is what `chunkflow submit` printed, digest included; OPTIONS are those of `chunkflow work`.
# What the cluster asks for more (--partition, --account, --mem) belongs to sbatch, before the file.
#SBATCH --job-name=chunkflow
#SBATCH --output=%x-%j.log
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=B:USR1@300
set -u
if [ $# = 0 ]; then
  echo "Usage: sbatch --array=1-16 --gres=gpu:1 --time=04:00:00 $0 RUN [OPTIONS]" >&2
  exit 2
fi

# 300 s before its end the job is told so: the worker has 240 s to finish the task in hand, and
# gives back the others. It takes none that would last longer than the job.
chunkflow work --task-limit auto "$@" --walltime auto --grace 240 &
worker=$!
cancelled=
trap 'kill -USR1 "$worker"' USR1
trap 'cancelled=yes; kill -TERM "$worker"' TERM INT
# A signal ends `wait`, not the worker.
until wait "$worker" || ! kill -0 "$worker" 2> /dev/null; do :; done
wait "$worker"
code=$?

# 75: stopped with work left. Who cancelled the job wants it gone.
if [ "$code" = 75 ] && [ -z "$cancelled" ]; then
  echo "$(date '+%F %T') work is left: job $SLURM_JOB_ID is queued again"
  scontrol requeue "$SLURM_JOB_ID"
fi
# 70: an unexpected error. Another node may do better, but a job that only fails must end.
if [ "$code" = 70 ] && [ -z "$cancelled" ] && [ "${SLURM_RESTART_COUNT:-0}" -lt 3 ]; then
  echo "$(date '+%F %T') the worker failed: job $SLURM_JOB_ID is queued again"
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
