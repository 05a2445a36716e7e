# Sourced by packaging/try and packaging/check, after they have set `root` (the clone) and `me`.
# Finds or installs Python, makes the virtual environment, and runs steps that an interrupt ends.
#
# Every step runs in a session of its own: an interrupt reaches this shell alone, which then ends
# the step with all that it started, in whatever phase that is. A shell starts what it does not wait
# for at once with SIGINT ignored; programs, and the tests of what signals do, must not inherit that.
# shellcheck shell=sh

UNAVAILABLE=69 # sysexits.h: something is needed that only an administrator can give
step_pid=''
with_signals=''
updated=''
policy='' # the file that keeps services from being started
step_must_end='' # set while the step cannot be interrupted safely
LOCK_WITHIN=300  # seconds that another package manager may take

say() { printf '==> %s\n' "$*"; }
detail() { printf '    %s\n' "$*"; }
complain() { printf '%s: %s\n' "$me" "$*" >&2; }

fail() { # status, words
    failure=$1
    shift
    complain "$*"
    exit "$failure"
}

# Redefined by those who have more to end than a step.
tidy() { :; }

on_exit() {
    status=$?
    trap '' INT TERM HUP PIPE
    trap - EXIT
    if [ -n "$step_must_end" ] && [ -n "$step_pid" ]; then
        # Without its parent dpkg would go on alone, with its lock, and leave packages half configured.
        complain "interrupted: waiting until $step_must_end is complete"
        wait "$step_pid" 2>/dev/null || :
    elif [ -n "$step_pid" ]; then
        kill -s TERM -- "-$step_pid" 2>/dev/null || kill -TERM "$step_pid" 2>/dev/null || :
        wait "$step_pid" 2>/dev/null || :
    fi
    tidy
    allow_services
    [ -z "${scratch:-}" ] || rm -rf -- "$scratch" || complain "cannot remove $scratch"
    exit "$status"
}

watch_signals() {
    trap on_exit EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM
    trap 'exit 129' HUP
    trap 'exit 141' PIPE
}

step() { # command...: run it, return its status
    # shellcheck disable=SC2086 # several words, or none
    setsid $with_signals "$@" &
    step_pid=$!
    step_status=0
    wait "$step_pid" || step_status=$?
    step_pid=''
    return "$step_status"
}

quietly() { # command...: run it, show what it said only when it fails
    step "$@" >"$scratch/said" 2>&1 && return 0
    quiet_status=$?
    complain "failed with status $quiet_status: $*"
    tail -n 30 "$scratch/said" >&2
    return "$quiet_status"
}

prepare() {
    [ "$(uname -s)" = Linux ] || fail "$UNAVAILABLE" "Steward runs on Linux only, and this is $(uname -s)"
    watch_signals
    if env --default-signal=INT true 2>/dev/null; then
        with_signals='env --default-signal=INT,QUIT'
    fi
    scratch=$(mktemp -d "${TMPDIR:-/tmp}/steward-setup.XXXXXX")
}

# ---- Python ----------------------------------------------------------------------------------

is_python() { # path: is it 3.11 or later, and can it make virtual environments?
    "$1" -I -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

candidates() { # [minor version]: where Pythons are
    if [ $# -eq 0 ]; then
        command -v python3 || :
        set -- 11 12 13 14 15 16 17 18 19
    fi
    for minor in "$@"; do
        command -v "python3.$minor" || :
        for home in "${PYENV_ROOT:-${HOME:-/root}/.pyenv}/versions/3.$minor".*; do
            printf '%s\n' "$home/bin/python3.$minor"
        done
    done
}

find_python() { # [minor version]: print the first Python that will do
    candidates "$@" >"$scratch/candidates"
    while IFS= read -r candidate; do
        if is_python "$candidate"; then
            # Itself, not what stands in front of it: a shim may choose another one elsewhere.
            "$candidate" -I -c 'import sys; print(sys.executable)'
            return 0
        fi
    done <"$scratch/candidates"
    return 1
}

need_python() { # set `python`; install it where that is possible
    python=${PYTHON:-}
    if [ -n "$python" ]; then
        is_python "$python" ||
            fail "$UNAVAILABLE" "PYTHON=$python is not a Python 3.11 or later with the modules venv and ensurepip"
        return
    fi
    python=$(find_python) && return
    command -v apt-get >/dev/null || fail "$UNAVAILABLE" \
        "Python 3.11 or later with its modules venv and ensurepip is needed; install it with this system's package manager"
    packages='python3 python3-venv'
    if [ "$(id -u)" -ne 0 ]; then
        complain "Python 3.11 or later with its module venv is needed. Ask an administrator to run this command:"
        printf "\n    sudo sh -c 'apt-get update && apt-get install -y %s'\n\n" "$packages" >&2
        exit "$UNAVAILABLE"
    fi
    # shellcheck disable=SC2086 # two words
    install_packages $packages
    python=$(find_python) || fail "$UNAVAILABLE" \
        "the Python of this system ($(python3 --version 2>&1)) is too old: 3.11 or later is needed; put one on the PATH, or name it in PYTHON"
}

install_packages() { # package...
    say "installing $* with apt-get"
    if [ -z "$updated" ]; then
        detail "finishing interrupted installations: dpkg --configure -a"
        with_dpkg_lock dpkg --configure -a
        detail "fetching the lists of packages: apt-get update"
        quietly apt-get update
    fi
    updated=yes
    set -- env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@"
    detail "downloading packages"
    with_dpkg_lock "$@" --download-only
    forbid_services
    detail "unpacking and configuring packages; an interrupt takes effect afterwards"
    step_must_end='the installation of packages'
    with_dpkg_lock "$@"
    step_must_end=''
    allow_services
    detail "installed: $(set_up <"$scratch/said")"
}

with_dpkg_lock() { # command...: run it while showing the package at work; wait for another package manager
    lock_waited=0
    until progressing "$@"; do
        grep -qi 'could not get lock\|frontend lock\|is locked by' "$scratch/said" &&
            [ "$lock_waited" -lt "$LOCK_WITHIN" ] || {
            complain "failed with status $step_status: $*"
            tail -n 30 "$scratch/said" >&2
            exit "$step_status"
        }
        [ "$lock_waited" -gt 0 ] || detail "waiting for another package manager to release its lock"
        lock_waited=$((lock_waited + 1))
        sleep 1
    done
}

progressing() { # command...: run it; a terminal shows the package at work, in one line
    # shellcheck disable=SC2016 # expanded by the inner shell
    step sh -c '
        said=$1
        shift
        { "$@" 2>&1; echo $? >"$said.status"; } | tee -p "$said" | while IFS= read -r line; do
            case $line in
            Get:* | Unpacking\ * | Setting\ up\ *) [ ! -t 1 ] || printf "\r\033[K    %.70s" "$line" ;;
            esac
        done
        [ ! -t 1 ] || printf "\r\033[K"
        exit "$(cat "$said.status")"' sh "$scratch/said" "$@"
}

# Packages start the services that they bring; tests start what they need by themselves.
forbid_services() {
    { [ ! -e /usr/sbin/policy-rc.d ] && [ -w /usr/sbin ]; } || return 0
    policy=/usr/sbin/policy-rc.d
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 755 "$policy"
}

allow_services() {
    [ -z "$policy" ] || rm -f -- "$policy"
    policy=''
}

want_programs() { # program=package...: install those that are missing where that is possible
    packages=''
    for pair in "$@"; do
        command -v "${pair%%=*}" >/dev/null || packages="$packages ${pair#*=}"
    done
    [ -n "$packages" ] || return 0
    if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
        say "skipping the steps that need:$packages"
        return 0
    fi
    # shellcheck disable=SC2086 # several words
    install_packages $packages
}

set_up() { # what apt-get said: print the packages that it names as set up
    tr -d '\r' | sed -n 's/^Setting up \([^ ]*\) (\(.*\)) \.\.\.$/\1 \2/p' | paste -s -d , | sed 's/,/, /g'
}

# ---- the virtual environment -----------------------------------------------------------------

need_environment() { # directory, [groups of pyproject.toml]: make it, and install Steward and what it needs in it
    venv=$1
    wanted="$(cksum <"$root/pyproject.toml") ${2:-} $root"
    # The file is there in every clone, so nothing is left behind by locking it.
    exec 9<"$root/pyproject.toml"
    flock -n 9 || {
        say "waiting for another installation in this clone"
        step flock 9
    }
    if is_ready "$venv" "$wanted"; then
        exec 9<&-
        return
    fi
    if ! is_environment "$venv"; then
        need_python
        say "making $venv with $("$python" --version) ($python)"
        quietly "$python" -m venv --clear "$venv" ||
            fail 1 "cannot make $venv; read its output, and check that $root is writable"
    fi
    say "installing Steward${2:+ and what its tests need} in $venv"
    install_steward "${2:-}" || fail 1 "cannot install in $venv; is the package index reachable?"
    printf '%s\n' "$wanted" >"$venv/.steward"
    exec 9<&-
}

is_environment() { # directory: is it a virtual environment, whole, and where it was made?
    is_python "$1/bin/python" && "$1/bin/python" -I -c 'import pip' 2>/dev/null &&
        grep -qF -- "$1/bin/python" "$1/bin/pip" 2>/dev/null
}

is_ready() { # directory, what is wanted in it
    [ -r "$1/.steward" ] && [ "$(cat "$1/.steward")" = "$2" ] && is_environment "$1"
}

install_steward() { # [groups]
    set -- "$1" -e "$root"
    if [ -n "$1" ]; then
        # `pip install --group` would do, but needs a newer pip than many have.
        "$venv/bin/python" -I - "$root/pyproject.toml" "$1" >"$scratch/groups.txt" <<'PYTHON'
import sys, tomllib
with open(sys.argv[1], "rb") as file:
    groups = tomllib.load(file)["dependency-groups"]
print("\n".join(one for name in sys.argv[2].split() for one in groups[name]))
PYTHON
        set -- "$@" -r "$scratch/groups.txt"
    fi
    shift
    quietly "$venv/bin/python" -m pip install --disable-pip-version-check --no-input "$@" || return
    detail "$(grep '^Successfully installed' "$scratch/said" || echo 'everything was there')"
}

quoted() { # word: in the form that a shell reads
    case $1 in
    *[!A-Za-z0-9_./:=@%+,-]* | '') printf "'%s'" "$(printf '%s' "$1" | sed "s/'/'\\\\''/g")" ;;
    *) printf '%s' "$1" ;;
    esac
}
