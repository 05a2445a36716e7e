"""Make `daemon/confinement/calls.py`: the numbers of system calls, from the kernel's headers.

    python packaging/syscalls/make.py > daemon/confinement/calls.py

It needs the C preprocessor and the headers of Linux for programs (Debian: gcc, linux-libc-dev). The
numbers of aarch64 come from `asm-generic/unistd.h`, which is the same on every machine.
"""

import re
import subprocess
import sys

# What the header of aarch64 itself defines before it includes the generic one.
_AARCH64 = (
    *("__ARCH_WANT_RENAMEAT", "__ARCH_WANT_NEW_STAT", "__ARCH_WANT_SET_GET_RLIMIT"),
    *("__ARCH_WANT_TIME32_SYSCALLS", "__ARCH_WANT_SYS_CLONE3", "__ARCH_WANT_MEMFD_SECRET"),
)
_HEAD = '''\
"""The numbers of system calls. Made by `packaging/syscalls/make.py`; do not edit.

Source: the headers of Linux {version}. Each line of the table holds the name of a call, its number
on x86_64 and its number on aarch64; a dash stands where an architecture lacks the call.
"""

NEWEST = {newest}  # the highest number of the table, on either architecture

TABLE = """\\
'''


def defined(source: str, *options: str) -> dict[str, str]:
    """Return what a header defines, by name."""
    done = subprocess.run(
        ["cpp", "-dM", *options], input=source, capture_output=True, text=True, check=True
    )
    return dict(re.findall(r"#define (\w+) (\w+)", done.stdout))


def numbers(source: str, *options: str) -> dict[str, int]:
    """Return the numbers of all calls that a header defines."""
    macros = {name: text for name, text in defined(source, *options).items() if "__NR" in name}

    def number(text: str) -> int:
        return int(text) if text.isdecimal() else number(macros[text])

    return {
        name.removeprefix("__NR_"): number(text)
        for name, text in macros.items()
        if name.startswith("__NR_") and name not in ("__NR_syscalls", "__NR_arch_specific_syscall")
    }


def main() -> None:
    """Print the module."""
    x86_64 = numbers("#include <asm/unistd_64.h>\n")
    aarch64 = numbers("#include <asm-generic/unistd.h>\n", *(f"-D{one}" for one in _AARCH64))
    version = int(defined("#include <linux/version.h>\n")["LINUX_VERSION_CODE"])
    newest = max(*x86_64.values(), *aarch64.values())
    text = f"{version >> 16}.{version >> 8 & 0xFF}"
    sys.stdout.write(_HEAD.format(version=text, newest=newest))
    for name in sorted(x86_64.keys() | aarch64.keys()):
        print(name, x86_64.get(name, "-"), aarch64.get(name, "-"))
    print('"""')


if __name__ == "__main__":
    main()
