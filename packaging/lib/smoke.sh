# Run by packaging/release-check in a bare root, where /steward is the program and /job.json a job that prints
# "it runs" and sleeps. The daemon starts, runs the task, is killed, and its successor finds the task again.
# shellcheck shell=sh
set -eu
export STEWARD_ADDR=http://127.0.0.1:4646 PATH=/bin HOME=/root
export STEWARD_RAW_EXEC=true STEWARD_RAW_EXEC_ROOT=true # the root has no other user

at_port() { cat /proc/net/tcp | { while read -r _ place rest; do [ "$place" != 0100007F:1226 ] || return 0; done; return 1; }; }

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
[ "$(/steward logs -job hello)" = "it runs" ] # one attempt, re-attached
/steward job stop hello
kill -TERM "$daemon"
wait "$daemon"
