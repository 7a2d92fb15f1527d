#!/bin/sh
# Start the head node: generate its key, collect the keys of $HOSTS, and run the coordinator in the foreground.
set -eu
umask 077

mkdir -p ~/.ssh
[ -s ~/.ssh/id_ed25519 ] || ssh-keygen -q -t ed25519 -N '' -C "ml@$(hostname)" -f ~/.ssh/id_ed25519
cp ~/.ssh/id_ed25519.pub /keys/head/.new
chmod 644 /keys/head/.new
mv /keys/head/.new /keys/head/authorized_keys

# The hosts' keys come from their volumes, not over the network. Only the host itself can write to its volume, and each
# line of known_hosts is for one host.
for host in $HOSTS; do
  until [ -s "/keys/$host/$host.pub" ]; do sleep 0.2; done
  read -r type key _ < "/keys/$host/$host.pub"
  printf '%s %s %s\n' "$host" "$type" "$key"
done > ~/.ssh/known_hosts.new
mv ~/.ssh/known_hosts.new ~/.ssh/known_hosts

exec orch coordinator run
