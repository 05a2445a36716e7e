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
#
# Each program that the wrapper starts costs the host 1 to 2 ms of CPU, and curl costs 7 ms. Therefore
# the script prefers built-in commands of the shell. If the host has bash, and the daemon has a URL
# with plain HTTP, bash executes the script from the claim on. Bash sends a request without a program,
# but starts programs more slowly than a smaller shell.
set -u
umask 077
export PATH="${PATH:-/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin}"
prints= # not empty if `printf` is a command of this shell
! PATH= command -v printf >/dev/null || prints=1
quick= # not empty in a version of bash with everything that this script uses
case ${BASH_VERSION:-} in
'' | [1-4].*) ;;
*)
    set +o posix
    quick=1
    ;;
esac
case ${SLURM_JOB_USER:-} in
'' | *[!A-Za-z0-9._-]*) user=$(id -un) ;;
*) user=$SLURM_JOB_USER ;;
esac
export USER="${USER:-$user}" LOGNAME="${LOGNAME:-$user}"
[ -n "${HOME:-}" ] || eval "export HOME=~$user"
unset LC_ALL SLURM_TIME_FORMAT # same environment as the daemon's Slurm commands; this host has its own slurm.conf
[ -e "${SLURM_CONF:-/}" ] || unset SLURM_CONF
[ -z "$quick" ] || LC_ALL=C # not exported: bash then counts bytes, not characters
command -v curl >/dev/null && command -v tar >/dev/null || exit 93
job=${STEWARD_JOB:-${SLURM_JOB_ID:-}}
if [ -n "${STEWARD_ELEMENTS:-}" ]; then # a Slurm array: the words are its elements
    set -- $STEWARD_ELEMENTS
    shift "$SLURM_ARRAY_TASK_ID"
    STEWARD_CLAIM=$1.$STEWARD_CLAIM STEWARD_DIR=$STEWARD_DIR/steward-${1%%.*}-$STEWARD_TASK
    job=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID
    unset STEWARD_ELEMENTS
    set --
fi
url=$STEWARD_URL/v1/wrapper secret=$STEWARD_CLAIM dir=$STEWARD_DIR
grace=$STEWARD_GRACE            # retry time of the claim, in seconds
patience=$STEWARD_PATIENCE      # retry time of a request after the end of the task, in seconds
spool=${STEWARD_SPOOL:-65536}   # limit of unsent output, in KiB; beyond it, the task has to wait
ca=${STEWARD_CA:-}
task=${STEWARD_TASK:-}

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

attempt=${dir##*/} number=${secret#*.}
number=${number%%.*}
if [ "${STEWARD_MADE:-}" = "$dir" ]; then
    cd "$dir" || exit 92
else
    read -r this_host </proc/sys/kernel/hostname
    read -r this_boot </proc/sys/kernel/random/boot_id
    this_space=
    {
        while read -r name line; do
            [ "$name" != ino: ] || this_space="pid:[$line]"
        done </proc/self/fdinfo/3
    } 3</proc/self/ns/pid
    [ -n "$this_space" ] || this_space=$(readlink /proc/self/ns/pid) # a kernel older than 5.14
    for place in "${dir%/*}"/steward-*; do # a killed wrapper leaves a directory with secrets
        sweep "$place"
    done
    mkdir -m 700 "$dir" 2>/dev/null || exit 92
    trap 'status=$?; cd /; rm -rf "$dir"; exit "$status"' EXIT
    started $$
    set -- alloc alloc/data alloc/logs alloc/tmp ${task:+"$task" "$task/local" "$task/secrets"}
    cd "$dir" && mkdir .steward "$@" &&
        echo "$number $this_host $this_boot $this_space $$ $start $attempt" >.steward/pid || exit 92
fi
trap 'status=$?; cd /; rm -rf "$dir"; exit "$status"' EXIT

if [ -z "${BASH_VERSION:-}" ]; then
    case $STEWARD_URL in
    http://*) # the first line is checked in case a shell reads this script from its input
        if read -r line 2>/dev/null <"$0" && [ "$line" = '#!/bin/sh' ] && command -v bash >/dev/null; then
            export STEWARD_MADE="$dir" STEWARD_JOB="$job"
            exec bash -p "$0" # -p: run no start file, and import no functions
        fi
        ;;
    esac
fi

if [ -n "$quick" ]; then
    # A short text for a command is a pipe. `nap` waits for its input. Other shells cannot parse this.
    eval 'exec 9<<<""'
    if [ -p /proc/self/fd/9 ] && read -r nothing <&9; then exec 9<>/proc/self/fd/9; else quick=; fi
fi

# The address of the daemon for `speak`, or nothing if each request needs curl.
case $quick$STEWARD_URL in
1http://*[!]A-Za-z0-9._:/%~[-]*) peer= ;;
1http://*)
    peer=${STEWARD_URL#http://}
    authority=${peer%%/*}
    prefix=${peer#"$authority"}/v1/wrapper
    peer=${authority#'['}
    case $authority in
    *']') peer=${peer%']'}/80 ;;
    *:*) peer=${peer%:*} peer=${peer%']'}/${authority##*:} ;;
    *) peer=$peer/80 ;;
    esac
    ;;
*) peer= ;;
esac
unset STEWARD_TASK STEWARD_MADE STEWARD_JOB STEWARD_CLAIM STEWARD_CA STEWARD_URL STEWARD_DIR STEWARD_GRACE STEWARD_PATIENCE STEWARD_SPOOL

# ask SECONDS METHOD PATH FILE [BODY]: Send a request with the content of the file BODY. Write the
# response to a file. Set `status` to its HTTP status, to 000 without a response, or to `disk` if the
# file cannot be written. Other users cannot see the secret, because it is no argument of a process.
ask() {
    if [ -n "$peer" ]; then
        speak "$@" && return
        peer= # use curl, which has time limits for everything
    fi
    fetch "$@"
}

# identify: Write the secret for curl. In a shell in which `printf` is a program, other users could see
# its arguments.
identify() {
    if [ -n "$prints" ]; then
        printf 'header = "Authorization: Bearer %s"\n' "$secret"
    else
        cat <<END
header = "Authorization: Bearer $secret"
END
    fi
}

# fetch SECONDS METHOD PATH FILE [BODY]: Do the same with curl, which gets the secret through a pipe.
fetch() {
    seconds=$1 method=$2 call=$3 answer=$4 body=${5:-}
    set --
    [ "$method" = GET ] || set -- -X "$method" -d ''
    [ -z "$body" ] || set -- -X "$method" --data-binary "@$body" -H 'Content-Type: application/octet-stream'
    status=$(identify |
        curl -q -sS -K - --noproxy '*' --connect-timeout 5 --max-time "$seconds" -o "$answer" \
            -w '%{http_code}' ${ca:+--cacert "$ca"} "$@" "$url/$call" 2>/dev/null) || case $? in 23) status=disk ;; *) status=000 ;; esac
}

# speak SECONDS METHOD PATH FILE [BODY]: Do the same in bash, over plain HTTP. Exit status 1 if the
# request must be sent with curl: without a complete response, or if a body is not a short text. The
# whole request then fits into the buffer of the socket, so writing it cannot block.
speak() {
    text=
    [ -z "${5:-}" ] || slurp "$5" || return 1
    trap : PIPE URG # a disconnect, or the end of the wait for a connection, must not end this process
    self=$BASHPID
    watch "$self" 2>/dev/null &
    watcher=$!
    { exec 4<>"/dev/tcp/$peer"; } 2>/dev/null
    heard=$?
    kill -s KILL "$watcher" 2>/dev/null
    [ "$heard" = 0 ] || return 1
    printf '%s %s/%s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\nAuthorization: Bearer %s\r\nContent-Type: application/octet-stream\r\nContent-Length: %d\r\n\r\n%s' \
        "$2" "$prefix" "$3" "$authority" "$secret" "${#text}" "$text" 2>/dev/null >&4 &&
        hear "$1" "$4"
    heard=$?
    exec 4>&-
    return "$heard"
}

# watch PID: Interrupt a process that waits for a connection, every five seconds.
watch() {
    exec 5>&- 6>&- 7>&- 8>&-
    while nap 5; do
        kill -s URG "$1" || return
    done
}

# hear SECONDS FILE: Read the response to `speak`.
hear() {
    length= headers_end= headers=0
    IFS=' ' read -r -t "$1" version reply header <&4 || return 1
    case $version$reply in HTTP/1.1[1-9][0-9][0-9]) ;; *) return 1 ;; esac
    while [ -z "$headers_end" ]; do
        headers=$((headers + 1))
        [ "$headers" -le 64 ] && IFS= read -r -t 5 header <&4 || return 1
        case $header in
        [Cc]ontent-[Ll]ength:*) length=${header#*:} length=${length# } length=${length%?} ;;
        [Tt]ransfer-[Ee]ncoding:*) return 1 ;;
        ?) headers_end=1 ;;
        esac
    done
    case $length in '' | *[!0-9]*) return 1 ;; esac
    text=
    if [ "$length" -gt 0 ]; then
        IFS= read -r -t 60 -N "$length" text <&4 && [ "${#text}" = "$length" ] || return 1
    fi
    status=$reply
    [ "$2" = /dev/null ] || printf %s "$text" 2>/dev/null >"$2" || status=disk
}

# slurp FILE: Set `text` to the content of a file. Exit status 1 if it has NUL bytes, or more than
# 8 KiB, or if this shell is not bash.
slurp() {
    [ -n "$quick" ] || return 1
    ! IFS= read -r -d '' -n 8193 text 2>/dev/null <"$1"
}

# unpack PATH: Download an archive and extract it. Exit status 1 if the request failed.
unpack() {
    fetch 600 POST "$1" .steward/bundle
    [ "$status" = 200 ] || return 1
    tar -xozf .steward/bundle || status=tar
    rm -f .steward/bundle
}

# claim: Claim the attempt, and create the files of the task. A response with few files is a script.
# Otherwise, the script is only `form=archive`. Exit status 1 if the request failed.
#
# The script writes secrets with `printf`. If this is a program, the files come as an archive.
claim() {
    form=
    if [ -z "$prints" ]; then
        form=archive
    elif [ -n "$peer" ] && speak 600 POST "claim?form=script&$1" /dev/null; then
        [ "$status" = 200 ] || return 1
        eval "$text" || status=files
    else
        peer=
        fetch 600 POST "claim?form=script&$1" .steward/claimed
        [ "$status" = 200 ] || return 1
        . ./.steward/claimed || status=files
        rm -f .steward/claimed
    fi
    [ "$form" = archive ] || return 0
    unpack "claim?$1" || return 1
    secret=
    [ ! -s .steward/settings ] || . ./.steward/settings
}

# nap SECONDS: Sleep. In bash, wait for input that never arrives, which needs no program.
nap() {
    if [ -n "$quick" ]; then
        read -r -t "$1" -u 9 nothing 2>/dev/null
        [ $? -le 128 ] || return 0
    fi
    sleep "$1"
}

# first FILE: Exit status 0 if no other process has created this file before.
first() {
    set -C
    if true 2>/dev/null >"$1"; then
        set +C
    else
        set +C
        return 1
    fi
}

# because REASON: Record why the task was stopped. The first reason wins.
because() { [ -s .steward/why ] || echo "$1" >.steward/why; }

trap : HUP INT QUIT # a signal to the whole job also reaches the task; wait for its end
trap 'because cluster' TERM
if [ -n "$ca" ]; then
    printf '%s\n' "$ca" >.steward/ca
    ca=$dir/.steward/ca
fi

read -r nonce </proc/sys/kernel/random/uuid
waited=0
# The settings are `secret`, `logs`, `most` (timeout of the task in seconds; 0: none) and `outputs`
# (the file with outputs for later steps).
logs=0 most=0 outputs=
until claim "nonce=$nonce&job=$job&host=${SLURMD_NODENAME:-}"; do
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

# piece FILE: Write the next 4 MiB of the input, or less. Bash waits for the first byte itself, so an
# empty stream needs no program.
piece() {
    if [ -z "$quick" ]; then
        dd bs=65536 count=64 of="$1" 2>/dev/null
    elif IFS= read -r -d '' -n 1 byte; then
        {
            if [ -n "$byte" ]; then printf %s "$byte"; else printf '\0'; fi
            dd bs=65536 count=64 2>/dev/null
        } >"$1"
    else
        return 1
    fi
}

# keep STREAM [NUMBER]: Write the output of the task into numbered files, from NUMBER on, until the end
# of the stream. Above the limit of unsent output, wait, which also blocks the task. After the task's
# end, do not wait.
keep() {
    n=${2:-0}
    while piece ".steward/$1.$n" && [ -s ".steward/$1.$n" ]; do
        n=$((n + 1))
        while [ ! -e .steward/main.end ] && size=$(du -sk .steward) &&
            [ "${size%%[!0-9]*}" -gt "$spool" ]; do sleep 0.5; done
    done
    : >".steward/$1.end"
}

# gather STREAM DESCRIPTOR: Write the output of a task that has ended. Most output is short, and needs
# no program. The rest of other output goes to a keeper. Wait at most `left` seconds for the end.
gather() {
    IFS= read -r -t "$left" -d '' -n 4097 -u "$2" text
    case $? in
    0) # a NUL byte, or a long text
        if [ "${#text}" -lt 4097 ]; then printf '%s\0' "$text"; else printf %s "$text"; fi >".steward/$1.0"
        keep "$1" 1 <&"$2" &
        keepers="$keepers $!"
        ;;
    1) # the end of the stream
        [ -z "$text" ] || printf %s "$text" >".steward/$1.0"
        : >".steward/$1.end"
        ;;
    *) # a child of the task has the stream still open
        left=0.01
        [ -z "$text" ] || printf %s "$text" >".steward/$1.0"
        : >".steward/$1.end"
        ;;
    esac
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
        is_over= whole=
        [ -e ".steward/$1.end" ] && is_over=1
        [ -e ".steward/$1.$((n + 1))" ] && whole=1
        part=.steward/$1.part size=
        if [ ! -s ".steward/$1.$n" ]; then
            : >"$part"
        elif [ "$sent" = 0 ] && [ -n "$is_over$whole" ] && slurp ".steward/$1.$n"; then
            part=.steward/$1.$n size=${#text}
        else
            tail -c +$((sent + 1)) ".steward/$1.$n" 2>/dev/null | head -c 131072 >"$part"
        fi
        if [ -s "$part" ]; then
            ask 60 POST "log/$1?offset=$at" /dev/null "$part"
            case $status in
            200)
                [ -n "$size" ] || size=$(wc -c <"$part")
                sent=$((sent + size)) at=$((at + size)) pause=0.1
                [ "$part" = ".steward/$1.part" ] || [ -z "$is_over" ] || [ -n "$whole" ] || return
                ;;
            4??) [ "$status" = 408 ] || [ "$status" = 429 ] || return ;;
            esac
            if [ "$status" != 200 ]; then
                if [ -n "$is_over" ]; then rest || return; else sleep 2; fi
            fi
        elif [ -n "$whole" ]; then
            rm -f ".steward/$1.$n"
            n=$((n + 1)) sent=0
        elif [ -n "$is_over" ]; then
            return
        else
            nap "$pause"
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
            put "kept/file?file=$1&offset=$at" .steward/part || exit 1
            [ "$status" = 200 ] || exit 0
            size=$(wc -c <.steward/part)
            at=$((at + size))
        done
        put "kept/file?file=$1&offset=$at&end=1"
    }
}

# put PATH [BODY]: Retry a request until its status is 200, or 422 for a file that the daemon
# rejects. Exit status 1 for another status, or after the timeout.
put() {
    while :; do
        ask 60 POST "$1" /dev/null "${2:-}"
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
        ask 60 POST "kept?root=$root&whole=$whole" .steward/wanted .steward/list
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
    until read -r main 2>/dev/null <.steward/main; do nap 0.1; done
    while :; do
        ask 45 GET "orders?seen=$seen&user=$user&system=$system&pages=$pages" .steward/orders
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

# has_output: Exit status 0 if the task has written output.
has_output() {
    if [ -n "$piped" ]; then
        read -r -t 0 -u 7 || read -r -t 0 -u 8
    else
        [ -s .steward/stdout.0 ] || [ -s .steward/stderr.0 ]
    fi
}

# attend: Attend to a task that runs longer than a moment, or that has written output: send this
# output, and obey commands. After USR1, only the rest of the output is left to send.
attend() {
    others= shippers= ended=
    trap 'ended=1; [ -z "$others" ] || kill $others 2>/dev/null' USR1
    for pause in 0.05 0.05 0.05 0.05 0.05; do
        nap "$pause"
        ! has_output || break
    done
    first .steward/attended || return
    if [ "$logs" = 1 ] && [ -n "$piped" ]; then
        keep stdout <&7 &
        keepers=$!
        keep stderr <&8 &
        echo "$keepers $!" >.steward/keepers
        exec 7<&- 8<&-
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
    if [ "$logs" = 1 ]; then
        ship stdout &
        shippers=$!
        ship stderr &
        shippers="$shippers $!"
    fi
    while [ -z "$ended" ]; do
        wait
        [ -n "$ended" ] || nap 0.2
    done
    kill $others 2>/dev/null
    [ -z "$shippers" ] || wait $shippers
}

code=125
if [ -z "$why" ]; then
    keepers= piped=
    exec 5>/dev/null 6>/dev/null
    if [ -n "$quick" ] && [ "$logs" = 1 ]; then # pipes, as above
        eval 'exec 7<<<"" 8<<<""'
        read -r nothing <&7 && read -r nothing <&8 && piped=1
        exec 5>/proc/self/fd/7 6>/proc/self/fd/8
    fi
    if [ "$logs" = 1 ] && [ -z "$piped" ]; then
        mkfifo .steward/out .steward/err
        keep stdout <.steward/out &
        keepers=$!
        keep stderr <.steward/err &
        keepers="$keepers $!"
        exec 5>.steward/out 6>.steward/err
    fi
    attend 5>&- 6>&- &
    attendant=$!
    # Run the task in the foreground, because a shell ignores some signals in background commands.
    # The subshell becomes the task, so its PID is the PID of the task and of its session.
    (
        read -r pid rest </proc/self/stat && echo "$pid" >.steward/main &&
            umask 022 && exec 5>&- 6>&- 7>&- 8>&- 9>&- setsid sh .steward/task
    ) >&5 2>&6 </dev/null
    code=$?
    if first .steward/attended; then
        kill -s KILL "$attendant" 2>/dev/null # a shell that starts could run the EXIT trap on TERM
        is_short=1
    else
        kill -s USR1 "$attendant" 2>/dev/null # from now on, another process can have the PID of the task
        is_short=
    fi
    exec 5>&- 6>&-
    read -r main <.steward/main && kill -s KILL -- "-$main" 2>/dev/null
    read -r why 2>/dev/null <.steward/why || why=
    if [ "$logs" = 1 ]; then
        : >.steward/main.end
        if [ -n "$piped" ] && [ -n "$is_short" ]; then
            left=2
            gather stdout 7
            gather stderr 8
        fi
        for pause in 0.01 0.02 0.03 0.1 0.2 0.2 0.4 0.4 0.6; do
            [ -e .steward/stdout.end ] && [ -e .steward/stderr.end ] && break
            nap "$pause" # a child of the task can have its output still open
        done
        [ -n "$keepers" ] || read -r keepers 2>/dev/null <.steward/keepers
        kill $keepers 2>/dev/null
        : >.steward/stdout.end
        : >.steward/stderr.end
        if [ -n "$is_short" ]; then
            ship stdout
            ship stderr
        fi
    fi
    wait "$attendant"
fi

# Read the outputs for later steps, and only once. A named pipe cannot block the wrapper, even if it
# replaces the file now. One extra byte shows the daemon that the file is too large.
sends= sent_outputs=
if [ -n "$outputs" ]; then
    sends=sent
    if [ -e "$outputs" ] && [ ! -f "$outputs" ]; then
        sends=irregular
    elif [ -e "$outputs" ]; then
        if dd if="$outputs" of=.steward/outputs iflag=nonblock,fullblock bs=65537 count=1 2>/dev/null; then
            sent_outputs=.steward/outputs
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
    ask 60 POST "result?code=$code&why=$why&outputs=$sends&kept=$kept" /dev/null "$sent_outputs"
    case $status in
    200 | 400 | 401 | 403 | 404 | 409 | 410) break ;;
    412) send_kept || kept=failed ;; # a new daemon has not received the files
    esac
    rest || break
done
exit "$code"
