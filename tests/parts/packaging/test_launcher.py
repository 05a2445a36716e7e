"""The start of the single executable.

It unpacks once, becomes the program, and trusts no directory of other users.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.parts.packaging.test_environment import ROOT
from tests.time_limits import HAPPENS_WITHIN

SOURCE = ROOT / "packaging" / "executable"
PROGRAM = """#!/bin/sh
echo "$$ $LAUNCHED_STEWARD $*"
cat "$(dirname "$0")/inner/link"
exit 7
"""


def compiles(tmp_path: Path, base: Path) -> Path | None:
    launcher = tmp_path / "launcher"
    words = [
        "gcc",
        "-Wall",
        "-Wextra",
        f'-DFOR_ROOT="{base}"',
        "-o",
        launcher,
        SOURCE / "launcher.c",
    ]
    if shutil.which("gcc") is None:
        return None
    done = subprocess.run([*words, "-lz"], capture_output=True, text=True, check=False)
    if "zlib.h" in done.stderr or "-lz" in done.stderr:
        return None
    assert (done.returncode, done.stderr) == (0, "")
    return launcher


class Packed:
    """The single file, around a program that prints its arguments."""

    def __init__(self, directory: Path) -> None:
        self.base, self.file = directory / "base", directory / "steward"
        self.environment = {"PATH": os.environ["PATH"], "CACHE_DIRECTORY": str(self.base)}
        launcher = compiles(directory, self.base)
        if launcher is None:
            pytest.skip("needs gcc and zlib")
        tree = directory / "tree"
        (tree / "inner").mkdir(parents=True)
        (tree / "steward").write_text(PROGRAM)
        (tree / "steward").chmod(0o755)
        (tree / "inner" / "words").write_text("unpacked\n" * 20_000)
        (tree / "inner" / "link").symlink_to("words")
        words = [sys.executable, SOURCE / "pack.py", launcher, tree, self.file]
        subprocess.run(words, check=True)

    def run(self, *words: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [self.file, *words],
            capture_output=True,
            text=True,
            timeout=HAPPENS_WITHIN,
            env=self.environment,
            check=False,
        )

    @property
    def places(self) -> list[Path]:
        return [path for path in self.base.iterdir() if path.name != ".lock"]


@pytest.fixture
def packed(tmp_path: Path) -> Packed:
    return Packed(tmp_path)


def test_single_file_executes_the_program(packed: Packed) -> None:
    with subprocess.Popen(
        [packed.file, "a b", "c"],
        stdout=subprocess.PIPE,
        text=True,
        env=packed.environment,
    ) as process:
        said, _ = process.communicate(timeout=HAPPENS_WITHIN)
    first, *rest = said.splitlines()
    assert first == f"{process.pid} {packed.file} a b c"
    assert rest == ["unpacked"] * 20_000
    assert process.returncode == 7


def test_single_file_unpacks_once(packed: Packed) -> None:
    packed.run()
    (place,) = packed.places
    (place / "inner" / "words").write_text("as it was\n")
    assert packed.run().stdout.splitlines()[1:] == ["as it was"]


def test_leftovers_of_a_kill_are_replaced(packed: Packed) -> None:
    packed.run()
    (place,) = packed.places
    place.rename(packed.base / f".{place.name}")
    assert packed.run().returncode == 7
    assert packed.places == [place]


@pytest.mark.parametrize("which", ["base", "place"])
def test_directory_writable_by_others_is_not_used(packed: Packed, which: str) -> None:
    packed.run()
    (place,) = packed.places
    (packed.base if which == "base" else place).chmod(0o777)
    done = packed.run()
    assert done.returncode == 126
    assert "only its owner" in done.stderr


def test_symlink_instead_of_a_directory_is_not_followed(packed: Packed) -> None:
    packed.run()
    (place,) = packed.places
    elsewhere = packed.base.parent / "elsewhere"
    place.rename(elsewhere)
    place.symlink_to(elsewhere)
    assert packed.run().returncode == 126


@pytest.mark.parametrize("where", [0.6, 0.9, 1])
def test_damaged_file_executes_nothing_and_leaves_no_files(packed: Packed, where: float) -> None:
    content = bytearray(packed.file.read_bytes())
    payload = content.rindex(b"\x1f\x8b\x08")
    at = payload + int((len(content) - payload - 1) * where)
    content[at] ^= 1
    packed.file.write_bytes(content)
    done = packed.run()
    assert (done.returncode, done.stdout) == (126, "")
    assert "download it again" in done.stderr
    assert not packed.base.exists() or packed.places == []


def test_truncated_file_is_reported(packed: Packed) -> None:
    packed.file.write_bytes(packed.file.read_bytes()[:-1000])
    assert "incomplete" in packed.run().stderr


def test_build_is_reproducible(packed: Packed, tmp_path: Path) -> None:
    again = tmp_path / "again"
    words = [sys.executable, SOURCE / "pack.py", tmp_path / "launcher", tmp_path / "tree", again]
    subprocess.run(words, check=True)
    assert again.read_bytes() == packed.file.read_bytes()


def test_program_keeps_the_umask_of_its_caller(packed: Packed) -> None:
    packed.run()
    (place,) = packed.places
    (place / "steward").write_text("#!/bin/sh\numask\n")
    done = subprocess.run([packed.file], capture_output=True, umask=0o077, env=packed.environment)
    assert done.stdout == b"0077\n"
    assert place.stat().st_mode & 0o777 == 0o755
