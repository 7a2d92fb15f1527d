# The head node: orch from this source tree, without TensorFlow.
# Build from the top of the source tree:  docker build -f docker/head.Dockerfile .
FROM python:3.11-slim-bookworm

# For ssh-keygen only: orch brings its own SSH client.
RUN apt-get update \
 && apt-get install -y --no-install-recommends openssh-client \
 && rm -rf /var/lib/apt/lists/*

RUN useradd --create-home --uid 1000 --shell /bin/bash ml \
 && install -d -o ml -g ml /keys/head

WORKDIR /orch
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY orchestrator orchestrator
RUN --mount=type=cache,target=/root/.cache/pip \
    python3 -m venv /opt/orch \
 && /opt/orch/bin/pip install --disable-pip-version-check -c constraints.txt .
COPY cluster_specs cluster_specs
COPY examples examples
COPY --chmod=755 docker/head.sh /usr/local/bin/head-node

ENV PATH=/opt/orch/bin:$PATH
USER ml
HEALTHCHECK --interval=5s --timeout=5s --start-period=60s --retries=5 CMD ["orch", "coordinator", "status"]
CMD ["/usr/local/bin/head-node"]
