# syntax=docker/dockerfile:1
# One image for every pod of a Ray cluster, because Ray wants the same versions everywhere:
#   docker build --target cpu  -t serve-app:0.1.0-cpu .
#   docker build --target cuda -t serve-app:0.1.0-cuda .
# TORCH_PIP_FLAGS of the cpu target may name an index of CPU builds (PyTorch's installation page has
# it), which saves gigabytes of CUDA libraries:
#   docker build --target cpu --build-arg TORCH_PIP_FLAGS="--index-url ..." -t serve-app:0.1.0-cpu .

# One release of Python; the tag still follows security updates of Debian. For builds that repeat to the
# byte, name the digest that `docker buildx imagetools inspect` shows for it:
#   docker build --build-arg PYTHON_IMAGE=python@sha256:... ...
ARG PYTHON_IMAGE=python:3.11.14-slim-bookworm

FROM ${PYTHON_IMAGE} AS base
# g++: the CPU kernels are built for the processor they run on, so at a pod's first start and not here.
# Triton needs a C compiler too. bash and wget: KubeRay's probes. procps: `ray stop`, and people.
RUN apt-get update \
 && apt-get install --yes --no-install-recommends bash ca-certificates g++ procps wget \
 && rm -rf /var/lib/apt/lists/*
ENV PATH=/opt/venv/bin:$PATH \
    VIRTUAL_ENV=/opt/venv \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1

# What requirements.lock names, by hash (`make lock` writes it). torch has a layer and flags of its own,
# and brings nothing but the libraries of its build; the wheel of this project then needs nothing more.
FROM base AS locked
RUN python -m venv /opt/venv
WORKDIR /src
COPY requirements.lock ./
RUN --mount=type=cache,target=/root/.cache/pip pip install --no-deps --require-hashes -r requirements.lock

FROM locked AS build-cpu
ARG TORCH=torch==2.13.0
ARG TORCH_PIP_FLAGS=
RUN --mount=type=cache,target=/root/.cache/pip pip install ${TORCH_PIP_FLAGS} "${TORCH}"
COPY pyproject.toml README.md LICENSE ./
COPY deploy ./deploy
COPY serve_app ./serve_app
RUN --mount=type=cache,target=/root/.cache/pip pip install --no-deps . && pip check

FROM locked AS build-cuda
ARG TORCH=torch==2.13.0
RUN --mount=type=cache,target=/root/.cache/pip pip install "${TORCH}"
COPY pyproject.toml README.md LICENSE ./
COPY deploy ./deploy
COPY serve_app ./serve_app
RUN --mount=type=cache,target=/root/.cache/pip pip install --no-deps . && pip check

FROM base AS runtime
# The home is the one folder, besides /tmp, that is written to: kernels, weights, usage journal.
RUN useradd --uid 1000 --user-group --create-home --home-dir /home/serve --shell /bin/bash serve
ENV HOME=/home/serve
COPY deploy /opt/serve-app/deploy
WORKDIR /opt/serve-app
USER 1000:1000
# KubeRay brings its own command. Alone: docker run --network host serve-app:0.1.0-cpu
CMD ["serve-app", "serve", "deploy/local.yaml"]

FROM runtime AS cuda
# The driver comes with the node (NVIDIA's container toolkit), CUDA's libraries with torch.
ENV NVIDIA_DRIVER_CAPABILITIES=compute,utility
COPY --from=build-cuda /opt/venv /opt/venv

FROM runtime AS cpu
COPY --from=build-cpu /opt/venv /opt/venv
