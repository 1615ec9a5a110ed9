# A container image of chunkflow.
#
#   docker build -t chunkflow .
#   docker run --rm --user "$(id -u)" -v "$PWD:/data" chunkflow create-chunk save-h5 --file-name chunk.h5
#
# For GPUs, build on a CUDA runtime image of Debian or Ubuntu whose Python is 3.11 to 3.13, and run
# with --gpus all:
#
#   docker build --build-arg BASE=nvidia/cuda:13.0.2-runtime-ubuntu24.04 -t chunkflow:cuda .
#   docker run --rm --gpus all -v models:/models -v cache:/cache chunkflow:cuda \
#     work s3://bucket/affinity.run#sha256=... --gpus all
#
# If the base has no Python, that of its distribution is installed. `docker stop --time 120` lets a
# worker finish its current task. deploy/ has files for Kubernetes, AWS and Slurm.
ARG BASE=python:3.11-slim-bookworm
FROM $BASE

# EXTRAS: optional dependencies to install, separated by commas; see pyproject.toml.
ARG EXTRAS=all

ENV PYTHONUNBUFFERED=1 \
    PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PATH=/opt/chunkflow/bin:$PATH

# Versions of these packages depend on the base.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates tini \
    && if ! python3 -c 'import venv, ensurepip' 2>/dev/null; then \
      apt-get install --yes --no-install-recommends python3 python3-venv; \
    fi \
    && rm -rf /var/lib/apt/lists/* \
    && python3 -m venv /opt/chunkflow

# torch has its own layer: it is most of the image and changes least.
RUN pip install torch==2.13.0

WORKDIR /src
COPY . .
RUN pip install -c constraints.txt --no-binary atomicwrites ".[$EXTRAS]"

# Any user, also with --user, can write to the home folder, which contains the caches; everything
# else may be read-only. /models is for networks that are not downloaded.
ENV HOME=/cache \
    XDG_CACHE_HOME=/cache
RUN useradd --no-create-home --home-dir /cache --uid 10001 chunkflow \
    && mkdir /cache /models /data \
    && chmod 1777 /cache \
    && chown chunkflow /data
VOLUME ["/cache", "/models"]
USER 10001
WORKDIR /data

# tini forwards signals, so that a worker drains on SIGTERM, and reaps orphaned processes.
STOPSIGNAL SIGTERM
ENTRYPOINT ["tini", "--", "chunkflow"]
CMD ["--help"]
