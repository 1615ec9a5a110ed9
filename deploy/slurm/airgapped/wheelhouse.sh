#!/bin/bash
# Collect everything that chunkflow needs as files, on a machine that reaches the internet and is
# like those of the cluster: same processor family, same or older Linux, same version of Python.
#
#   deploy/slurm/airgapped/wheelhouse.sh            makes ./wheelhouse
#   EXTRAS=zarr,sqs PYTHON=python3.12 deploy/slurm/airgapped/wheelhouse.sh FOLDER
#
# Then carry the folder over, and run install.sh there.
set -euo pipefail
source=$(cd "$(dirname "$0")/../../.." && pwd)
folder=${1:-wheelhouse}
extras=${EXTRAS:-all}
pip=("${PYTHON:-python3}" -m pip --disable-pip-version-check)

mkdir -p "$folder"
# Wheels, so that nothing is compiled where there may be no compiler. What exists as source only is
# built here; without atomicwrites pip would silently take an old neuroglancer.
"${pip[@]}" wheel --wheel-dir "$folder" --constraint "$source/constraints.txt" \
  --no-binary atomicwrites "${source}[$extras]"
cp "$source/constraints.txt" "$source/deploy/slurm/airgapped/install.sh" "$folder/"
echo "$extras" > "$folder/extras"
(cd "$folder" && sha256sum -- *.whl > SHA256SUMS)
echo "$folder holds $(find "$folder" -name '*.whl' | wc -l) wheels, $(du -sh "$folder" | cut -f1)"
