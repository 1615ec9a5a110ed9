#!/bin/bash
# Install chunkflow without a network, from the folder made by wheelhouse.sh.
#
#   wheelhouse/install.sh /shared/apps/chunkflow/0.2.0
#
# PYTHON is the Python for which the wheels were collected (default: python3).
set -euo pipefail
if [ $# != 1 ]; then
  echo "Usage: $0 FOLDER" >&2
  exit 2
fi
wheels=$(cd "$(dirname "$0")" && pwd)
prefix=$1
(cd "$wheels" && sha256sum --quiet --check SHA256SUMS)
"${PYTHON:-python3}" -m venv "$prefix"
"$prefix/bin/python" -m pip --disable-pip-version-check install --no-index --find-links "$wheels" \
  --constraint "$wheels/constraints.txt" "chunkflow_py[$(cat "$wheels/extras")]"
"$prefix/bin/chunkflow" --version
