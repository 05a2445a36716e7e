# Functions of the scripts in packaging: find or install Python and other programs, create virtual
# environments, and run steps that signals can interrupt. A script sets `root` (the directory of the
# clone) and `me` (its name), sources this file, and calls `prepare`.
#
# Each step runs in its own session. So a signal from the terminal reaches only this shell, which then
# stops the step and all its processes. Background processes of a shell ignore SIGINT, and tests of
# signals must not inherit this. The command in `with_signals` resets it.
# shellcheck shell=sh

UNAVAILABLE=69 # EX_UNAVAILABLE of sysexits.h: only an administrator can install a requirement
step_pid=''
with_signals=''
updated=''
policy='' # path of the file that keeps apt-get from starting services
step_must_end='' # name of the running step, if an interrupt of it would do damage
LOCK_WITHIN=300  # timeout for the lock of another package manager, in seconds

say() { printf '==> %s\n' "$*"; }
detail() { printf '    %s\n' "$*"; }
complain() { printf '%s: %s\n' "$me" "$*" >&2; }

# fail STATUS MESSAGE...: Print a message and exit with this status.
fail() {
    failure=$1
    shift
    complain "$*"
    exit "$failure"
}

# tidy: Stop other processes of the script at its exit. A script can redefine this function.
tidy() { :; }

on_exit() {
    status=$?
    trap '' INT TERM HUP PIPE
    trap - EXIT
    if [ -n "$step_must_end" ] && [ -n "$step_pid" ]; then
        # Without its parent, dpkg would keep its lock and could leave packages half configured.
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

# step COMMAND [ARGUMENT]...: Run a command. Return its exit status, also in `step_status`.
step() {
    # shellcheck disable=SC2086 # several words, or none, on purpose
    setsid $with_signals "$@" &
    step_pid=$!
    step_status=0
    wait "$step_pid" || step_status=$?
    step_pid=''
    return "$step_status"
}

# quietly COMMAND [ARGUMENT]...: Run a command, and print its output only if it fails.
quietly() {
    step "$@" >"$scratch/said" 2>&1 && return 0
    quiet_status=$?
    complain "failed with status $quiet_status: $*"
    tail -n 30 "$scratch/said" >&2
    return "$quiet_status"
}

# prepare: Trap signals, and create the directory `scratch`, which `on_exit` deletes.
prepare() {
    [ "$(uname -s)" = Linux ] || fail "$UNAVAILABLE" "Steward runs only on Linux, and this system is $(uname -s)"
    watch_signals
    if env --default-signal=INT true 2>/dev/null; then
        with_signals='env --default-signal=INT,QUIT'
    fi
    scratch=$(mktemp -d "${TMPDIR:-/tmp}/steward-setup.XXXXXX")
}

# ---- Python ----------------------------------------------------------------------------------

# is_python PATH: Exit status 0 if the interpreter is Python 3.11 or later with venv and ensurepip.
is_python() {
    "$1" -I -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

# candidates [MINOR]...: Print paths at which Python 3.MINOR may be installed. Without MINOR, print
# those of all supported versions.
candidates() {
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

# find_python [MINOR]...: Print the path of the first suitable Python. Exit status 1 if no Python is
# suitable.
find_python() {
    candidates "$@" >"$scratch/candidates"
    while IFS= read -r candidate; do
        if is_python "$candidate"; then
            # Print the real path: a pyenv shim can select another interpreter in other directories.
            "$candidate" -I -c 'import sys; print(sys.executable)'
            return 0
        fi
    done <"$scratch/candidates"
    return 1
}

# need_python: Set `python`. As root with apt-get, install Python if it is missing.
need_python() {
    python=${PYTHON:-}
    if [ -n "$python" ]; then
        is_python "$python" ||
            fail "$UNAVAILABLE" "PYTHON=$python is not a Python 3.11 or later with the modules venv and ensurepip"
        return
    fi
    python=$(find_python) && return
    command -v apt-get >/dev/null || fail "$UNAVAILABLE" \
        "install Python 3.11 or later with the modules venv and ensurepip"
    packages='python3 python3-venv'
    if [ "$(id -u)" -ne 0 ]; then
        complain "Python 3.11 or later with the module venv is missing. As an administrator, run:"
        printf "\n    sudo sh -c 'apt-get update && apt-get install -y %s'\n\n" "$packages" >&2
        exit "$UNAVAILABLE"
    fi
    # shellcheck disable=SC2086 # two words, on purpose
    install_packages $packages
    python=$(find_python) || fail "$UNAVAILABLE" \
        "$(python3 --version 2>&1) is too old: install Python 3.11 or later, or set PYTHON to its path"
}

# install_packages PACKAGE...: Install packages with apt-get, without starting their services.
install_packages() {
    say "installing $* with apt-get"
    if [ -z "$updated" ]; then
        detail "completing interrupted installations: dpkg --configure -a"
        with_dpkg_lock dpkg --configure -a
        detail "downloading package lists: apt-get update"
        quietly apt-get update
    fi
    updated=yes
    set -- env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@"
    detail "downloading packages"
    with_dpkg_lock "$@" --download-only
    forbid_services
    detail "unpacking and configuring packages; an interrupt takes effect when this is complete"
    step_must_end='the installation of packages'
    with_dpkg_lock "$@"
    step_must_end=''
    allow_services
    detail "installed: $(set_up <"$scratch/said")"
}

# with_dpkg_lock COMMAND [ARGUMENT]...: Run a package manager. If another process holds the lock,
# retry until the timeout. Exit if the command fails.
with_dpkg_lock() {
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

# progressing COMMAND [ARGUMENT]...: Run a package manager, and show its current package on a
# terminal.
progressing() {
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

# forbid_services: Keep packages from starting their services. Tests start the daemons they need.
forbid_services() {
    { [ ! -e /usr/sbin/policy-rc.d ] && [ -w /usr/sbin ]; } || return 0
    policy=/usr/sbin/policy-rc.d
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 755 "$policy"
}

# allow_services: Undo forbid_services.
allow_services() {
    [ -z "$policy" ] || rm -f -- "$policy"
    policy=''
}

# want_programs PROGRAM=PACKAGE...: Install the packages of missing programs, as root with apt-get.
want_programs() {
    packages=''
    for pair in "$@"; do
        command -v "${pair%%=*}" >/dev/null || packages="$packages ${pair#*=}"
    done
    [ -n "$packages" ] || return 0
    if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
        say "skipping the steps that need:$packages"
        return 0
    fi
    # shellcheck disable=SC2086 # several words, on purpose
    install_packages $packages
}

# set_up: Read the output of apt-get, and print the packages that it installed.
set_up() {
    tr -d '\r' | sed -n 's/^Setting up \([^ ]*\) (\(.*\)) \.\.\.$/\1 \2/p' | paste -s -d , | sed 's/,/, /g'
}

# ---- the virtual environment -----------------------------------------------------------------

# need_environment DIRECTORY [GROUPS]: Create a virtual environment with Steward and with dependency
# groups of pyproject.toml. Set `venv`.
need_environment() {
    venv=$1
    wanted="$(cksum <"$root/pyproject.toml") ${2:-} $root"
    # Every clone has this file, so the lock needs no new file.
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
        say "creating $venv with $("$python" --version) ($python)"
        quietly "$python" -m venv --clear "$venv" ||
            fail 1 "cannot create $venv: read the output above, and check that $root is writable"
    fi
    say "installing Steward${2:+ with the dependency groups $2} in $venv"
    install_steward "${2:-}" || fail 1 "cannot install Steward in $venv: check that the package index is reachable"
    printf '%s\n' "$wanted" >"$venv/.steward"
    exec 9<&-
}

# is_environment DIRECTORY: Exit status 0 if this is a complete virtual environment that was not
# moved.
is_environment() {
    is_python "$1/bin/python" && "$1/bin/python" -I -c 'import pip' 2>/dev/null &&
        grep -qF -- "$1/bin/python" "$1/bin/pip" 2>/dev/null
}

# is_ready DIRECTORY STATE: Exit status 0 if the virtual environment has this state: the checksum of
# pyproject.toml, the groups and the clone.
is_ready() {
    [ -r "$1/.steward" ] && [ "$(cat "$1/.steward")" = "$2" ] && is_environment "$1"
}

# install_steward GROUPS: Install Steward as an editable package, and these dependency groups.
install_steward() {
    set -- "$1" -e "$root"
    if [ -n "$1" ]; then
        # `pip install --group` needs pip 25.1, which older Pythons do not have.
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
    detail "$(grep '^Successfully installed' "$scratch/said" || echo 'all packages were already installed')"
}

# quoted WORD: Print a word with shell quotes, if it needs them.
quoted() {
    case $1 in
    *[!A-Za-z0-9_./:=@%+,-]* | '') printf "'%s'" "$(printf '%s' "$1" | sed "s/'/'\\\\''/g")" ;;
    *) printf '%s' "$1" ;;
    esac
}
