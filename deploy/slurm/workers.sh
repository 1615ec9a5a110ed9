#!/bin/bash
# Workers of a run on a Slurm cluster: one worker per job, requeued until the run is complete.
#
#   sbatch --array=1-16 --gres=gpu:1 --time=04:00:00 deploy/slurm/workers.sh RUN [OPTIONS]
#
# RUN is the address that `chunkflow submit` printed, with its digest; OPTIONS are options of
# `chunkflow work`. Other options of sbatch (--partition, --account, --mem) go before the file name.
# A run with a budget needs the price of a job in an hour: COST_PER_HOUR=2.5 sbatch ...
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

# Slurm sends USR1 300 s before the job ends. The worker then has 240 s to finish its current task,
# and releases its other tasks. It does not start a task that would last longer than the job.
chunkflow work --task-limit auto ${COST_PER_HOUR:+--cost-per-hour "$COST_PER_HOUR"} "$@" --walltime auto --grace 240 &
worker=$!
cancelled=
trap 'kill -USR1 "$worker"' USR1
trap 'cancelled=yes; kill -TERM "$worker"' TERM INT
# A signal ends `wait` but not the worker, so wait again.
until wait "$worker" || ! kill -0 "$worker" 2> /dev/null; do :; done
wait "$worker"
code=$?

# 75: the worker stopped with work left. A cancelled job is not requeued.
if [ "$code" = 75 ] && [ -z "$cancelled" ]; then
  echo "$(date '+%F %T') work is left: job $SLURM_JOB_ID is requeued"
  scontrol requeue "$SLURM_JOB_ID"
fi
# 70: an unexpected error. Another node may succeed, but a job that always fails must end.
if [ "$code" = 70 ] && [ -z "$cancelled" ] && [ "${SLURM_RESTART_COUNT:-0}" -lt 3 ]; then
  echo "$(date '+%F %T') the worker failed: job $SLURM_JOB_ID is requeued"
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
