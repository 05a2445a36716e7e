#!/bin/sh
# Start systemd of a root file system as process 1. The caller creates the namespaces.
#
#   boot.sh ROOT
set -eu
cd -- "$1"
mount --bind . .
cd -- "$1" # enter the new mount
mount -t proc proc proc
mount -t sysfs -o ro sysfs sys
mount -t tmpfs -o mode=755 tmpfs run
mount -t tmpfs tmpfs tmp
mount -t tmpfs -o mode=755 tmpfs dev
for name in null zero full random urandom tty; do
    : >"dev/$name"
    mount --bind "/dev/$name" "dev/$name"
done
mkdir dev/pts dev/shm
mount -t devpts -o newinstance,ptmxmode=0666 devpts dev/pts
ln -s pts/ptmx dev/ptmx
mount -t cgroup2 cgroup2 sys/fs/cgroup
# Replace the root of the mount namespace. With chroot alone, a process that enters the namespace
# would see the host's root.
pivot_root . .
umount --lazy .
mount --make-rshared / # without this, systemd credentials are empty
cd /
exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin container=test \
    chroot . /lib/systemd/systemd --system --unit=multi-user.target
