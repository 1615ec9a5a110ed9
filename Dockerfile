# chunkflow in a container.
#
#   docker build -t chunkflow .
#   docker run --rm --user "$(id -u)" -v "$PWD:/data" chunkflow create-chunk save-h5 -f chunk.h5
#
# With a GPU, give a CUDA base image that is Debian or Ubuntu with Python 3.11 to 3.13, and run
# with --gpus all:
#
#   docker build --build-arg BASE=<image> -t chunkflow:cuda .
#
# A base without Python gets the one of its distribution.
ARG BASE=python:3.11-slim-bookworm
FROM $BASE

# EXTRAS: optional dependencies to install, separated by commas; see pyproject.toml.
ARG EXTRAS=all

ENV PYTHONUNBUFFERED=1 \
    PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PATH=/opt/chunkflow/bin:$PATH

# The base decides which version of Python there is.
# hadolint ignore=DL3008
RUN if ! python3 -c 'import venv, ensurepip' 2>/dev/null; then \
      apt-get update \
      && apt-get install --yes --no-install-recommends ca-certificates python3 python3-venv \
      && rm -rf /var/lib/apt/lists/*; \
    fi \
    && python3 -m venv /opt/chunkflow

# torch first and in a layer of its own: it is most of the image and changes least.
RUN pip install torch==2.13.0

WORKDIR /src
COPY . .
RUN pip install -c constraints.txt --no-binary atomicwrites ".[$EXTRAS]"

RUN useradd --create-home --uid 10001 chunkflow && mkdir /data && chown chunkflow /data
USER 10001
WORKDIR /data
ENTRYPOINT ["chunkflow"]
CMD ["--help"]
