#!/bin/sh
# Start a host. Its key is generated the first time and kept: a container that is killed and started again has the same
# key. Only the public key is handed out.
set -eu

key=/etc/ssh/ssh_host_ed25519_key
[ -s "$key" ] || ssh-keygen -q -t ed25519 -N '' -C "$(hostname)" -f "$key"

# Rename it, so that a reader finds the whole line or no file.
cp "$key.pub" /keys/host/.new
mv /keys/host/.new "/keys/host/$(hostname).pub"

exec /usr/sbin/sshd -D -e
