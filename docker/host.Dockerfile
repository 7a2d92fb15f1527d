# One host: sshd, and a Python with TensorFlow. It contains nothing of orch, as a real host.
# Build from the top of the source tree:  docker build -f docker/host.Dockerfile .
FROM python:3.11-slim-bookworm

# The package generates host keys. They must not be in the image: every host generates its own (host.sh).
RUN apt-get update \
 && apt-get install -y --no-install-recommends openssh-server \
 && rm -rf /var/lib/apt/lists/* /etc/ssh/ssh_host_* \
 && mkdir -p /run/sshd

# Only what the example needs. The wheels stay in the builder's cache, not in the image.
COPY constraints.txt /tmp/constraints.txt
RUN --mount=type=cache,target=/root/.cache/pip \
    python3 -m venv /opt/tf \
 && /opt/tf/bin/pip install --disable-pip-version-check -c /tmp/constraints.txt scikit-learn \
      "tensorflow-cpu; platform_machine == 'x86_64'" "tensorflow==2.21.*; platform_machine != 'x86_64'"

# No password matches *. Unlike the usual ! it does not lock the account, and sshd refuses locked accounts.
# A new volume gets the owner and mode of the directory below it, so /shared belongs to ml on every host.
RUN useradd --create-home --uid 1000 --shell /bin/bash --password '*' ml \
 && install -d -o ml -g ml /shared /keys/head \
 && install -d /keys/host

COPY docker/sshd_config /etc/ssh/sshd_config
COPY --chmod=755 docker/host.sh /usr/local/sbin/host

# Port 22 listens. A connection would be a stricter test, but fill sshd's log.
HEALTHCHECK --interval=2s --timeout=3s --start-period=30s --retries=10 \
  CMD ["grep", "-qE", "^ *[0-9]+: [0-9A-F]+:0016 [0-9A-F]+:0000 0A ", "/proc/net/tcp"]
CMD ["/usr/local/sbin/host"]
