#!/usr/bin/env bash
# Run a pipeline with four workers, and kill one of them. Usage: four_workers.sh FOLDER
# The queue is a SQLite file, so no server is needed.
set -euo pipefail
data=$(cd "$(dirname "${BASH_SOURCE[0]}")/../fib25" && pwd)
mkdir -p "$1" && cd "$1"

tasks=(generate-tasks --roi-start 112 64 64 --roi-size 32 96 128)
pipeline=(load-h5 --file-name "$data/raw.h5" --expand-margin-size auto
  inference --framework pytorch --output-kind affinity --grid padded
  --convnet-model "$data/unet_fib25_model.py" --convnet-weight-path "$data/unet_fib25.pt"
  --input-patch-size 16 48 48 --output-patch-size 16 32 32 --output-patch-overlap 0 0 0)

echo "== submit: check and store the pipeline, and send its 24 tasks to the queue"
chunkflow submit --run affinity.run --queue "sqlite://$PWD/tasks.sqlite" \
  "${tasks[@]}" --chunk-size 16 32 32 "${pipeline[@]}" \
  save-zarr --store affinity.zarr --chunk-size 16 32 32

echo "== start four workers"
workers=()
for number in 1 2 3 4; do
  chunkflow --quiet work affinity.run --threads 1 --lease 5 --worker-name "worker-$number" &
  workers+=($!)
done
trap 'kill "${workers[@]}" 2> /dev/null || true' EXIT

echo "== once the first blocks are stored, kill one worker in the middle of its tasks"
until [ -e affinity.zarr/0/c ] || ! kill -0 "${workers[1]}"; do sleep 0.1; done
kill -9 "${workers[1]}"
chunkflow status affinity.run

echo "== its leases end after 5 s, and the other workers execute its tasks"
for number in 0 2 3; do wait "${workers[number]}"; done
trap - EXIT
chunkflow status affinity.run
chunkflow verify affinity.run

echo "== one process and one large task give the same bytes"
OMP_NUM_THREADS=1 chunkflow --quiet "${tasks[@]}" --chunk-size 32 96 128 "${pipeline[@]}" \
  save-zarr --store alone.zarr --chunk-size 16 32 32
diff --recursive affinity.zarr/0/c alone.zarr/0/c && echo identical
