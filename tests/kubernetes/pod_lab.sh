#!/bin/bash
# Runs COMMAND where podman can play Pods, over a throw-away copy of this machine's root: `pod_lab.sh DIR COMMAND…`, as
# root. DIR is /lab in there. Nothing is installed outside of the copy. Exit code 77: there is no podman to be had.
[ "${POD_LAB:-}" = inside ] || POD_LAB=inside exec unshare -m -p -i -u --fork bash "$0" "$@"
set -e
dir=$(realpath "$1"); shift
mount --make-rprivate /
T=$(mktemp -d)
mount -t tmpfs -o size=4g pod "$T"
mkdir -p "$T/u" "$T/w" "$T/root"
mount -t overlay overlay -o lowerdir=/,upperdir="$T/u",workdir="$T/w" "$T/root"
cd "$T/root"
mount -t proc proc proc
mount --bind /dev dev
mount --bind /dev/pts dev/pts
mount -t tmpfs tmpfs dev/shm
mount -t sysfs sysfs sys
mount --rbind /sys/fs/cgroup sys/fs/cgroup
mount --make-rprivate sys/fs/cgroup
umount -l sys/fs/cgroup/unified 2>/dev/null || true
mount -t tmpfs tmpfs run
mount -t tmpfs tmpfs tmp
mkdir -p var/lib/containers lab
mount -t tmpfs tmpfs var/lib/containers
mount --bind "$dir" lab
mkdir .old; pivot_root . .old; umount -l /.old; cd /
cp /dev/null /etc/fstab
if ! command -v podman >/dev/null; then
  export DEBIAN_FRONTEND=noninteractive
  apt-get -o Acquire::Retries=0 -o Acquire::http::Timeout=10 install -y -q --no-install-recommends podman runc catatonit >/tmp/apt.log 2>&1 || { tail -3 /tmp/apt.log; exit 77; }
fi
# The image is empty: the test lends it /usr, and what else its Python needs, as host paths.
mkdir -p /tmp/image/usr /tmp/image/etc /tmp/image/tmp
for link in bin lib lib64 sbin; do [ -L /$link ] && ln -s usr/$link /tmp/image/$link; done
cp /etc/passwd /etc/group /tmp/image/etc/
tar -C /tmp/image -c . | podman --cgroup-manager=cgroupfs --storage-driver=vfs import - localhost/lent:1 >/dev/null 2>&1
exec "$@"
