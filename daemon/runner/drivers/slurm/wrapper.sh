#!/bin/sh
# Wrapper of a task on a host of a Slurm cluster. It needs sh, curl, tar and coreutils. The script
# contains no secret. Its environment has a claim, which is valid for one use.
#
# The wrapper claims the attempt, downloads the bundle of the task, and runs the task in its own
# directory. It sends the output, executes commands of the daemon, and reports the result.
#
# Exit status: that of the task, so that the cluster also has it. Before the task starts:
#   90   The daemon did not respond before the timeout.
#   91   The claim was rejected.
#   92   The task directory cannot be created or written.
#   93   This host has no curl or no tar.
set -u
umask 077
export PATH="${PATH:-/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin}"
user=$(id -un)
export USER="${USER:-$user}" LOGNAME="${LOGNAME:-$user}"
[ -n "${HOME:-}" ] || eval "export HOME=~$user"
unset LC_ALL SLURM_TIME_FORMAT # same environment as the daemon's Slurm commands; this host has its own slurm.conf
[ -e "${SLURM_CONF:-/}" ] || unset SLURM_CONF
command -v curl >/dev/null && command -v tar >/dev/null || exit 93
job=${SLURM_JOB_ID:-}
if [ -n "${STEWARD_ELEMENTS:-}" ]; then # a Slurm array: the words are its elements
    set -- $STEWARD_ELEMENTS
    shift "$SLURM_ARRAY_TASK_ID"
    STEWARD_CLAIM=$1.$STEWARD_CLAIM STEWARD_DIR=$STEWARD_DIR/steward-${1%%.*}-$STEWARD_TASK
    job=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID
    set --
fi
url=$STEWARD_URL/v1/wrapper secret=$STEWARD_CLAIM dir=$STEWARD_DIR
grace=$STEWARD_GRACE            # retry time of the claim, in seconds
patience=$STEWARD_PATIENCE      # retry time of a request after the end of the task, in seconds
spool=${STEWARD_SPOOL:-65536}   # limit of unsent output, in KiB; beyond it, the task has to wait
ca=${STEWARD_CA:-}
unset STEWARD_ELEMENTS STEWARD_TASK STEWARD_CLAIM STEWARD_CA STEWARD_URL STEWARD_DIR STEWARD_GRACE STEWARD_PATIENCE STEWARD_SPOOL

# ask SECONDS PATH FILE [OPTION]...: Send a request, and write the response to a file. Set `status`
# to its HTTP status, to 000 without a response, or to `disk` if the file cannot be written. The
# secret goes to curl through a pipe, because other users can see the arguments of a process.
ask() {
    seconds=$1 call=$2 answer=$3
    shift 3
    status=$(printf 'header = "Authorization: Bearer %s"\n' "$secret" |
        curl -q -sS -K - --noproxy '*' --connect-timeout 5 --max-time "$seconds" -o "$answer" \
            -w '%{http_code}' ${ca:+--cacert "$ca"} "$@" "$url/$call" 2>/dev/null) || case $? in 23) status=disk ;; *) status=000 ;; esac
}

# unpack PATH: Download an archive and extract it. Exit status 1 if the request failed.
unpack() {
    ask 600 "$1" .steward/bundle -X POST -d ''
    [ "$status" = 200 ] || return 1
    tar -xozf .steward/bundle || status=tar
    rm -f .steward/bundle
}

# started PID: Set `start` to the start time of a process, in clock ticks since the boot. It is
# empty if there is no such process.
started() {
    start=
    read -r line 2>/dev/null <"/proc/$1/stat" || return 0
    set -- ${line##*) }
    start=${20}
}

# is_left DIRECTORY: Exit status 0 if this is an abandoned task directory of this user. Its wrapper
# on this host is dead, or it belongs to an earlier attempt. The wrapper of another host or PID
# namespace is invisible here, so its directory counts as used.
is_left() {
    [ -d "$1" ] && [ ! -L "$1" ] && [ -O "$1" ] && [ -f "$1/.steward/pid" ] &&
        read -r at host boot space pid since of 2>/dev/null <"$1/.steward/pid" || return 1
    [ "$of" = "$attempt" ] && [ "$at" -lt "$number" ] 2>/dev/null && return 0
    [ "$host" = "$this_host" ] || return 1
    [ "$boot" = "$this_boot" ] || return 0
    [ "$space" = "$this_space" ] || return 1
    started "$pid"
    [ "$start" != "$since" ]
}

# sweep DIRECTORY: Delete an abandoned directory. Rename it first, because another wrapper can sweep
# at the same time. Exit status 1 if it is in use.
sweep() {
    is_left "$1" && mv -T "$1" "$1.$$" 2>/dev/null || return 1
    if is_left "$1.$$"; then rm -rf "$1.$$"; else mv -T "$1.$$" "$1" && return 1; fi
}

# because REASON: Record why the task was stopped. The first reason wins.
because() { [ -s .steward/why ] || echo "$1" >.steward/why; }

this_host=$(uname -n) this_space=$(readlink /proc/self/ns/pid)
read -r this_boot </proc/sys/kernel/random/boot_id
attempt=${dir##*/} number=${secret#*.}
number=${number%%.*}
for place in "${dir%/*}"/steward-*; do # a killed wrapper leaves a directory with secrets
    sweep "$place"
done
mkdir -m 700 "$dir" 2>/dev/null || exit 92
trap 'cd /; rm -rf "$dir"' EXIT
started $$
cd "$dir" && mkdir .steward &&
    echo "$number $this_host $this_boot $this_space $$ $start $attempt" >.steward/pid || exit 92
trap : HUP INT QUIT # a signal to the whole job also reaches the task; wait for its end
trap 'because cluster' TERM
if [ -n "$ca" ]; then
    printf '%s\n' "$ca" >.steward/ca
    ca=$dir/.steward/ca
fi

read -r nonce </proc/sys/kernel/random/uuid
waited=0
until unpack "claim?nonce=$nonce&job=$job&host=${SLURMD_NODENAME:-}"; do
    case $status in
    000 | 408 | 429 | 5??) ;;
    disk) exit 92 ;;
    *) exit 91 ;;
    esac
    [ "$waited" -lt "$grace" ] || exit 90
    waited=$((waited + 2))
    sleep 2
done
why=
[ "$status" = 200 ] || why=bundle
secret= logs=0 most=0 outputs=
# The settings are `secret`, `logs`, `most` (timeout of the task in seconds; 0: none) and `outputs`
# (the file with outputs for later steps).
[ ! -s .steward/settings ] || . ./.steward/settings

# keep STREAM: Write the output of the task into numbered files until the end of the stream. Above
# the limit of unsent output, wait, which also blocks the task. After the task's end, do not wait.
keep() {
    n=0
    while dd bs=65536 count=64 of=".steward/$1.$n" 2>/dev/null && [ -s ".steward/$1.$n" ]; do
        n=$((n + 1))
        while [ ! -e .steward/main.end ] && size=$(du -sk .steward) &&
            [ "${size%%[!0-9]*}" -gt "$spool" ]; do sleep 0.5; done
    done
    : >".steward/$1.end"
}

# rest: Sleep before the next retry after the task's end, with a backoff. Exit status 1 after the
# timeout.
rest() {
    [ "$waited" -lt "$patience" ] || return 1
    again=$((2 + waited / 10))
    [ "$again" -le 60 ] || again=60
    waited=$((waited + again))
    sleep "$again"
}

# ship STREAM: Send these files in order. After the task's end, retry until the timeout.
ship() {
    n=0 sent=0 at=0 pause=0.1 waited=0
    while :; do
        over= whole=
        [ -e ".steward/$1.end" ] && over=1
        [ -e ".steward/$1.$((n + 1))" ] && whole=1
        : >".steward/$1.part"
        [ ! -s ".steward/$1.$n" ] ||
            tail -c +$((sent + 1)) ".steward/$1.$n" 2>/dev/null | head -c 131072 >".steward/$1.part"
        if [ -s ".steward/$1.part" ]; then
            ask 60 "log/$1?offset=$at" /dev/null --data-binary "@.steward/$1.part" \
                -H 'Content-Type: application/octet-stream'
            case $status in
            200)
                size=$(wc -c <".steward/$1.part")
                sent=$((sent + size)) at=$((at + size)) pause=0.1
                ;;
            4??) [ "$status" = 408 ] || [ "$status" = 429 ] || return ;;
            esac
            if [ "$status" != 200 ]; then
                if [ -n "$over" ]; then rest || return; else sleep 2; fi
            fi
        elif [ -n "$whole" ]; then
            rm -f ".steward/$1.$n"
            n=$((n + 1)) sent=0
        elif [ -n "$over" ]; then
            return
        else
            sleep "$pause"
            case $pause in 0.1) pause=0.2 ;; 0.2) pause=0.4 ;; *) pause=0.8 ;; esac
        fi
    done
}

# look DIRECTORY MIN-DEPTH MAX-DEPTH NAME: List the files that can match a pattern, with their
# types. Do not follow symbolic links.
look() {
    way=$1
    while [ "$way" != . ]; do
        [ -d "$way" ] && [ ! -L "$way" ] || return 0
        way=${way%/*}
    done
    find "$1" -xdev -mindepth "$2" -maxdepth "$3" ! -type d -name "$4" \
        -printf '%y %n %s %p\0' 2>/dev/null || whole=0
}

# find_kept: List the files that can match. The daemon selects the files to keep.
find_kept() {
    (
        whole=1
        . ./.steward/keep
        exit $((1 - whole))
    ) >.steward/found
    [ $? = 0 ] && whole=1 || whole=0
    head -c 1048576 .steward/found >.steward/list
    root=0
    [ "$(id -u)" != 0 ] || root=1
}

# send_file NUMBER PATH: Send a file, and read it only once. A named pipe at this path cannot block
# the wrapper. Exit status 1 if the daemon needs the list again.
send_file() {
    dd if="$2" iflag=nofollow,nonblock bs=65536 2>/dev/null | {
        at=0
        while dd bs=65536 count=16 iflag=fullblock of=.steward/part 2>/dev/null && [ -s .steward/part ]; do
            put "kept/file?file=$1&offset=$at" --data-binary @.steward/part || exit 1
            [ "$status" = 200 ] || exit 0
            size=$(wc -c <.steward/part)
            at=$((at + size))
        done
        put "kept/file?file=$1&offset=$at&end=1" -d ''
    }
}

# put PATH OPTION...: Retry a request until its status is 200, or 422 for a file that the daemon
# rejects. Exit status 1 for another status, or after the timeout.
put() {
    while :; do
        ask 60 "$1" /dev/null -X POST -H 'Content-Type: application/octet-stream' "$2" "$3"
        case $status in
        200 | 422) return 0 ;;
        000 | 408 | 429 | 5??) rest || return 1 ;;
        *) return 1 ;;
        esac
    done
}

# send_kept: Send the list, and then the files that the daemon selected. Exit status 1 on failure.
send_kept() {
    waited=0
    while :; do
        ask 60 "kept?root=$root&whole=$whole" .steward/wanted -X POST \
            -H 'Content-Type: application/octet-stream' --data-binary @.steward/list
        case $status in
        200)
            begins=
            while IFS= read -r line <&3; do
                line=${line%/}
                send_file "${line%% *}" "${line#* }" 3<&- || {
                    begins=1
                    break
                }
            done 3<.steward/wanted
            [ -n "$begins" ] || return 0
            ;;
        408 | 429 | 5?? | 000) ;;
        *) return 1 ;;
        esac
        rest || return 1
    done
}

# measure: Sum the CPU time (clock ticks) and memory (pages) of the processes of the task's session.
measure() {
    user=0 system=0 pages=0
    for stat in /proc/[0-9]*/stat; do
        read -r line 2>/dev/null <"$stat" || continue
        set -- ${line##*) }
        [ "$4" = "$main" ] || continue
        user=$((user + ${12} + ${14})) system=$((system + ${13} + ${15})) pages=$((pages + ${22}))
    done
}

# stop SIGNAL SECONDS: Send a signal to the task. After the timeout, kill its process group.
stop() {
    kill -s "$1" "$main" 2>/dev/null
    (
        sleep "$2"
        kill -s KILL -- "-$main" 2>/dev/null
    ) &
}

# obey: Poll the daemon for commands, and execute them. The poll is also a heartbeat.
obey() {
    seen=0 user=0 system=0 pages=0
    sleep 0.3 # most short tasks have ended after this time, so they need no poll
    until read -r main 2>/dev/null <.steward/main; do sleep 0.1; done
    while :; do
        ask 45 "orders?seen=$seen&user=$user&system=$system&pages=$pages" .steward/orders
        case $status in
        200)
            while read -r number order one two; do
                case $order in
                signal) kill -s "$one" "$main" 2>/dev/null ;;
                stop) stop "$one" "$two" ;;
                files) unpack files ;;
                esac
                seen=$number
            done <.steward/orders
            ;;
        410) # the attempt is no longer desired
            because void
            kill -s KILL -- "-$main" 2>/dev/null
            return
            ;;
        *) sleep 2 ;;
        esac
        measure 2>/dev/null
    done
}

code=125
if [ -z "$why" ]; then
    out=/dev/null err=/dev/null
    if [ "$logs" = 1 ]; then
        out=.steward/out err=.steward/err
        mkfifo "$out" "$err"
        keep stdout <"$out" &
        keepers=$!
        keep stderr <"$err" &
        keepers="$keepers $!"
        ship stdout &
        shippers=$!
        ship stderr &
        shippers="$shippers $!"
    fi
    obey &
    others=$!
    if [ "$most" -gt 0 ]; then
        (
            sleep "$most"
            read -r main <.steward/main && because time && stop TERM 5 && wait
        ) &
        others="$others $!"
    fi
    # Run the task in the foreground, because a shell ignores some signals in background commands.
    # The subshell becomes the task, so its PID is the PID of the task and of its session.
    (
        read -r pid rest </proc/self/stat && echo "$pid" >.steward/pid.main &&
            mv .steward/pid.main .steward/main && umask 022 && exec setsid sh .steward/task
    ) >"$out" 2>"$err" </dev/null
    code=$?
    kill $others 2>/dev/null # from now on, another process can have this PID
    read -r main <.steward/main && kill -s KILL -- "-$main" 2>/dev/null
    read -r why 2>/dev/null <.steward/why || why=
    if [ "$logs" = 1 ]; then
        : >.steward/main.end
        for pause in 0.02 0.04 0.1 0.2 0.2 0.4 0.4 0.6; do
            [ -e .steward/stdout.end ] && [ -e .steward/stderr.end ] && break
            sleep "$pause" # a child of the task can have its output still open
        done
        kill $keepers 2>/dev/null
        : >.steward/stdout.end
        : >.steward/stderr.end
        wait $shippers
    fi
fi

# Read the outputs for later steps, and only once. A named pipe cannot block the wrapper, even if it
# replaces the file now. One extra byte shows the daemon that the file is too large.
sends=
set -- -d ''
if [ -n "$outputs" ]; then
    sends=sent
    if [ -e "$outputs" ] && [ ! -f "$outputs" ]; then
        sends=irregular
    elif [ -e "$outputs" ]; then
        if dd if="$outputs" of=.steward/outputs iflag=nonblock,fullblock bs=65537 count=1 2>/dev/null; then
            set -- --data-binary @.steward/outputs -H 'Content-Type: application/octet-stream'
        else
            sends=unreadable
        fi
    fi
fi

kept=
if [ -s .steward/keep ]; then
    kept=sent
    case $why in
    bundle) kept=failed ;;
    cluster | void) kept=cluster ;; # the cluster may kill the wrapper soon, so send only the result
    *)
        find_kept
        send_kept || kept=failed
        ;;
    esac
fi

waited=0
while :; do
    ask 60 "result?code=$code&why=$why&outputs=$sends&kept=$kept" /dev/null -X POST "$@"
    case $status in
    200 | 400 | 401 | 403 | 404 | 409 | 410) break ;;
    412) send_kept || kept=failed ;; # a new daemon has not received the files
    esac
    rest || break
done
exit "$code"
