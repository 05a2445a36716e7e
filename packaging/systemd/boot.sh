#!/bin/sh
# Be a machine: start the systemd of a root as first process of new namespaces. `boot.sh ROOT`
set -eu
cd -- "$1"
mount --bind . .
cd -- "$1" # into what was just mounted
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
# The root of the mounts themselves, not a place in them: whoever enters these mounts comes there.
pivot_root . .
umount --lazy .
mount --make-rshared / # without this, credentials are empty
cd /
exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin container=test \
    chroot . /lib/systemd/systemd --system --unit=multi-user.target
