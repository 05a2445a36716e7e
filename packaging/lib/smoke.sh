# Smoke test of a program, which packaging/release-check runs in a bare root file system.
#
# /steward is the program. /job.json is a job that prints "it runs" and sleeps. The test starts the
# daemon and the job, and kills the daemon. The next daemon must recover the task.
# shellcheck shell=sh
set -eu
export STEWARD_ADDR=http://127.0.0.1:4646 PATH=/bin HOME=/root
export STEWARD_RAW_EXEC=true STEWARD_RAW_EXEC_ROOT=true # root is the only user of this root file system

# at_port: Exit status 0 if a socket has the address 127.0.0.1:4646.
at_port() { cat /proc/net/tcp | { while read -r _ place rest; do [ "$place" != 0100007F:1226 ] || return 0; done; return 1; }; }

# begin: Start the daemon, and wait until it listens. Set `daemon` to its process ID.
begin() {
    /steward agent --data-dir /root/data --key-file /root/key >/root/said 2>/root/log &
    daemon=$!
    while ! ls /root/data/store/bootstrap-token >/dev/null 2>&1 || ! at_port; do
        kill -0 "$daemon" || { cat /root/log; exit 1; }
        sleep 0.1
    done
    STEWARD_TOKEN=$(cat /root/data/store/bootstrap-token)
    export STEWARD_TOKEN
}

/steward version --json
(umask 077; echo 0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef >/root/key)
begin
/steward job run /job.json
/steward logs -job hello
kill -KILL "$daemon"
wait "$daemon" || :
begin
/steward job status hello
[ "$(/steward logs -job hello)" = "it runs" ] # one attempt only: the daemon recovered the task
/steward job stop hello
kill -TERM "$daemon"
wait "$daemon"
