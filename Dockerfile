# A container image of chunkflow.
#
#   docker build -t chunkflow .
#   docker run --rm --user "$(id -u)" -v "$PWD:/data" chunkflow create-chunk save-h5 --file-name chunk.h5
#
# With GPUs, it needs no base with CUDA, because PyTorch's packages bring their own CUDA libraries:
#
#   docker run --rm --gpus all -v models:/models -v cache:/cache chunkflow \
#     work s3://bucket/affinity.run#sha256=... --gpus all
#
# A base must be a Debian or Ubuntu; if it has no Python, that of its distribution (3.11 to 3.13) is
# installed. `docker stop --time 120` lets a worker finish its current task. deploy/ has files for
# Kubernetes, AWS and Slurm. /opt/chunkflow/sbom.json lists all Python packages (CycloneDX).
ARG BASE=python:3.11-slim-bookworm
FROM $BASE

# EXTRAS: optional dependencies to install, separated by commas; see pyproject.toml. "all" adds 0.7 GB.
ARG EXTRAS=cloud,sqs,zarr,precomputed,image,metrics,numba,segmentation,sign

# Which parts of the driver the runtime of NVIDIA puts into the container.
ENV NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility

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

# pip chooses the packages of the extras; what is installed must have a hash of deploy/hashes.txt.
WORKDIR /src
COPY . .
RUN pip install --dry-run --quiet --report /tmp/report.json -c constraints.txt \
      --no-binary atomicwrites ".[$EXTRAS]" \
    && python3 deploy/hashes.py select /tmp/report.json > /tmp/hashed.txt \
    && pip install --require-hashes --no-deps -r /tmp/hashed.txt \
    && pip install --no-deps . \
    && python3 deploy/sbom.py > /opt/chunkflow/sbom.json \
    && rm /tmp/report.json /tmp/hashed.txt

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
