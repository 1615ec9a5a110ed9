#!/bin/bash
# Collect chunkflow and its dependencies as wheels, on a machine with internet access that is like
# the cluster's: same processor family, same or older Linux, same Python version.
#
#   deploy/slurm/airgapped/wheelhouse.sh            makes ./wheelhouse
#   EXTRAS=zarr,sqs PYTHON=python3.12 deploy/slurm/airgapped/wheelhouse.sh FOLDER
#
# Then copy the folder to the cluster and run its install.sh.
set -euo pipefail
source=$(cd "$(dirname "$0")/../../.." && pwd)
folder=${1:-wheelhouse}
extras=${EXTRAS:-all}
pip=("${PYTHON:-python3}" -m pip --disable-pip-version-check)

mkdir -p "$folder"
# Packages that exist only as source are built here, since the cluster may lack a compiler. One of
# them is atomicwrites; without it, pip would silently choose an old neuroglancer.
"${pip[@]}" wheel --wheel-dir "$folder" --constraint "$source/constraints.txt" \
  --no-binary atomicwrites "${source}[$extras]"
cp "$source/constraints.txt" "$source/deploy/slurm/airgapped/install.sh" "$folder/"
echo "$extras" > "$folder/extras"
(cd "$folder" && sha256sum -- *.whl > SHA256SUMS)
echo "$folder: $(find "$folder" -name '*.whl' | wc -l) wheels, $(du -sh "$folder" | cut -f1)"
