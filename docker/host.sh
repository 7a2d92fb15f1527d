#!/bin/sh
# A pretend machine comes up. Its host key is made the first time and stays with it, as a machine's does: a container
# that is killed and started again shows the same key. Only the public half is handed out.
set -eu

key=/etc/ssh/ssh_host_ed25519_key
[ -s "$key" ] || ssh-keygen -q -t ed25519 -N '' -C "$(hostname)" -f "$key"

# By rename: whoever reads it meanwhile gets the whole line or no file.
cp "$key.pub" /keys/host/.new
mv /keys/host/.new "/keys/host/$(hostname).pub"

exec /usr/sbin/sshd -D -e
