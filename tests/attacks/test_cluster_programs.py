"""A compromised daemon asks its launcher to run the programs of a cluster.

The programs here report their user, their arguments and their environment.
"""

import os
import pwd
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import msgspec
import pytest

from daemon.launcher import programs
from daemon.launcher.channel import ProtocolViolation, close, receive, sealed
from daemon.launcher.exec_sessions import ExecSessions
from daemon.launcher.messages import (
    MOST_PROGRAMS,
    GetSessionExit,
    LauncherPolicy,
    NumberedReply,
    OperationFailed,
    ProgramCommand,
    RefusedReply,
    SessionExit,
    SessionOpened,
    StartProgram,
)
from daemon.launcher.shim_script import find_tools
from daemon.launcher.user_policy import UserPolicy
from daemon.runner.core.launcher_policy import PROGRAMS
from tests.launchers import EVERYTHING
from tests.parts.launcher.conftest import Talk, asked, talk
from tests.parts.launcher.random_messages import until_readable
from tests.parts.runner.conftest import needs_root

__all__ = ["talk"]
ASK = StartProgram(is_terminal=False)
SHOW = """#!/bin/sh
echo "$(id -u):$(id -g):$(id -G):$(umask)"
for word; do echo "word $word"; done
grep -E '^(NoNewPrivs|CapEff|CapBnd)' /proc/self/status
ls /proc/$$/fd
env | sort; pwd; cat
"""
ENDLESS = "#!/bin/sh\nwhile :; do echo x; done\n"


def policy_for(directory: Path, **texts: str) -> LauncherPolicy:
    """Return a policy whose programs have these contents and run as `nobody`.

    The daemon's user is `bin`.
    """
    directory.chmod(0o755)
    places = {}
    for name, text in texts.items():
        place = directory / name
        place.write_text(text)
        place.chmod(0o755)
        places[name] = str(place)
    return msgspec.structs.replace(
        EVERYTHING,
        programs=places,
        cluster_configs=["/etc/slurm/other.conf"],
        commands={"mail": [next(iter(places.values())), "--to", "ops"]},
        users=["nobody"],
        usual="nobody",
        permits_root=True,
        owner=pwd.getpwnam("bin").pw_uid if os.geteuid() == 0 else os.geteuid(),
    )


@pytest.fixture
def cluster(talk: Talk, tmp_path: Path) -> Talk:
    """A launcher with the six programs of a cluster, in a directory that other users can reach."""
    for parent in (tmp_path, *tmp_path.parents):
        if parent.is_relative_to(Path(gettempdir())) and parent != Path(gettempdir()):
            parent.chmod(parent.stat().st_mode | 0o011)
    talk.greet(tmp_path, policy_for(tmp_path, **dict.fromkeys(PROGRAMS, SHOW)))
    return talk


def told(talk: Talk, *descriptors: int) -> str:
    """Start a program with these descriptors; return its output."""
    talk.send(1, len(descriptors), ASK, descriptors=descriptors)
    data, received = receive(talk.channel)
    body = msgspec.msgpack.decode(data, type=NumberedReply).body
    assert isinstance(body, SessionOpened), body
    watched, writer, reader, errors = received
    os.close(writer)
    with open(reader) as out, open(errors) as err:
        text = out.read() + err.read()
    until_readable(watched)
    close([watched, *descriptors])
    assert talk.ask(GetSessionExit(session=body.session)).body == SessionExit(status=0), text
    return text


def refused(talk: Talk, *descriptors: int) -> str:
    answer = talk.ask(ASK, *descriptors).body
    close(descriptors)
    assert isinstance(answer, RefusedReply), answer
    return answer.text


@needs_root
@pytest.mark.parametrize(("user", "name"), [("", "bin"), ("nobody", "nobody")])
def test_cluster_program_has_its_own_user_and_nothing_of_the_launcher(
    cluster: Talk, user: str, name: str
) -> None:
    account = pwd.getpwnam(name)
    words = ("--parsable", "--job-name=a b", "--nice=-5")
    order = asked("sbatch", *words, user=user, env={"STEWARD_URL": "u", "PATH": "/bin"})
    uid, gid = account.pw_uid, account.pw_gid
    who, *lines = told(cluster, order, sealed(b"#!/bin/sh\n")).splitlines()
    assert who == f"{uid}:{gid}:{gid}:0022"
    assert lines[:6] == [
        *(f"word {word}" for word in words),
        *(f"Cap{kind}:\t{0:016x}" for kind in ("Eff", "Bnd")),
        "NoNewPrivs:\t1",
    ]
    assert lines[6:10] == ["0", "1", "10", "2"]  # descriptor 10 is the script
    assert lines[10:] == [
        *("LC_ALL=C", "PATH=/bin", "PWD=/", "SLURM_TIME_FORMAT=%s", "STEWARD_URL=u"),
        *("/", "#!/bin/sh"),
    ]


@needs_root
@pytest.mark.parametrize("user", ["root", "0", "00", "daemon", "1", "nosuchuser", "a:b", "-1"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_nothing_runs_as_root_or_as_another_user(cluster: Talk, user: str, program: str) -> None:
    forms = {
        "scancel": ["--name=x", "1"],
        "scontrol": ["show", "config"],
        "srun": ["--jobid=1", "--overlap", "-Q", "--chdir=/"],
    }
    command = [b"/bin/sh"] if program == "srun" else []
    order = asked(program, *forms.get(program, []), user=user, command=command)
    text = refused(cluster, order)
    assert any(reason in text for reason in ("cannot run", "unknown user"))


@pytest.mark.parametrize(
    "program", ["sh", "/bin/sh", "../sbatch", "sacctmgr", "", "sbatch\0", "git", "mail"]
)
def test_unlisted_program_stops_the_launcher(cluster: Talk, program: str) -> None:
    cluster.send(1, 1, ASK, descriptors=(asked(program),))
    assert cluster.has_ended()


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("sbatch", ["--wrap=id"]),
        ("sbatch", ["--uid=0"]),
        ("sbatch", ["--export=NONE"]),
        ("sbatch", ["--chdir=/etc"]),
        ("sbatch", ["--output=/etc/shadow"]),
        ("sbatch", ["--nodes=1 --wrap=id"]),
        ("sbatch", ["--nodes=1", "/etc/passwd"]),
        ("sbatch", ["--job-name", "x"]),
        ("sbatch", ["--", "x"]),
        ("sbatch", ["-D/etc"]),
        ("squeue", ["--clusters=x"]),
        ("squeue", ["--jobs=1,2"]),
        ("squeue", ["x"]),
        ("scancel", ["--name=x"]),
        ("scancel", ["1"]),
        ("scancel", ["--name=x", "--me"]),
        ("scancel", ["--name=x", "-1"]),
        ("scancel", ["--name=x", "1", "2"]),
        ("scontrol", ["update", "jobid=1", "priority=9"]),
        ("scontrol", ["-o", "show", "job", "1", "2"]),
        ("scontrol", ["-o", "show", "partition", "-M"]),
        ("scontrol", ["shutdown"]),
        ("scontrol", []),
        ("sinfo", ["--version", "-h"]),
        ("sinfo", ["-M", "x"]),
        ("srun", ["/bin/sh"]),
        ("srun", ["--jobid=1", "--overlap", "-Q", "--chdir=/", "--uid=0"]),
    ],
)
def test_malformed_option_is_not_passed_on(cluster: Talk, program: str, words: list[str]) -> None:
    command = [b"/bin/sh"] if program == "srun" else []
    assert "arguments that are not permitted" in refused(
        cluster, asked(program, *words, command=command)
    )


@pytest.mark.parametrize(
    ("program", "command"), [("srun", []), ("srun", [b"--uid=0"]), ("squeue", [b"/bin/sh"])]
)
def test_cluster_command_applies_only_to_a_job(
    cluster: Talk, program: str, command: list[bytes]
) -> None:
    words = ["--jobid=1", "--overlap", "-Q", "--chdir=/"] if program == "srun" else []
    text = refused(cluster, asked(program, *words, command=command))
    assert "a command that is not permitted" in text


@pytest.mark.parametrize(
    ("program", "fields"),
    [
        ("sbatch", {"env": {"LD_PRELOAD": "/srv/x.so"}}),
        ("sbatch", {"env": {"SLURM_CONF": "/srv/x"}}),
        ("sbatch", {"env": {"STEWARD_": "x"}}),
        ("sbatch", {"env": {"SBATCH_WRAP": "id"}}),
        ("squeue", {"env": {"STEWARD_URL": "x"}}),
        ("squeue", {"config": "/srv/slurm.conf"}),
    ],
)
def test_no_other_variable_and_configuration_is_passed_on(
    cluster: Talk, program: str, fields: dict[str, Any]
) -> None:
    refused(cluster, asked(program, **fields))


def test_mutable_or_oversized_input_stops_the_launcher(cluster: Talk, tmp_path: Path) -> None:
    with open(tmp_path / "file", "w+") as file:
        cluster.send(1, 2, ASK, descriptors=(asked("sbatch"), file.fileno()))
    assert cluster.has_ended()


def test_input_is_bounded() -> None:
    order = ProgramCommand(program="sbatch", user="", args=[])
    given = [sealed(bytes(programs.MOST_PAYLOAD + 1))]
    policy = msgspec.structs.replace(EVERYTHING, programs={"sbatch": "/bin/true"})
    users = UserPolicy(policy)
    with pytest.raises(ProtocolViolation, match="exceeds"):
        programs.start(policy, find_tools(), users, order, given, is_terminal=False)
    close(given)


def test_endless_program_is_killed_and_its_output_waits_for_a_reader(
    tmp_path: Path,
) -> None:
    for parent in (tmp_path, *tmp_path.parents):
        if parent.is_relative_to(Path(gettempdir())) and parent != Path(gettempdir()):
            parent.chmod(parent.stat().st_mode | 0o011)
    policy = policy_for(tmp_path, squeue=ENDLESS)
    order = ProgramCommand(program="squeue", user="", args=[])
    pid, received = programs.start(
        policy, find_tools(), UserPolicy(policy), order, [], is_terminal=False
    )
    sessions = ExecSessions()
    number = sessions.register(pid, 30.0)
    assert sessions.kill_late(29.0) == 1.0
    assert sessions.bounded == 1
    assert sessions.kill_late(30.0) is None
    until_readable(received[0])
    sessions.record_exit(pid, -9 if os.waitpid(pid, 0)[1] == 9 else 0)
    assert sessions.take_status(number) == 137
    close(received)


def test_endless_programs_are_counted(talk: Talk, tmp_path: Path) -> None:
    for parent in (tmp_path, *tmp_path.parents):
        if parent.is_relative_to(Path(gettempdir())) and parent != Path(gettempdir()):
            parent.chmod(parent.stat().st_mode | 0o011)
    talk.greet(tmp_path, policy_for(tmp_path, squeue="#!/bin/sh\nexec sleep 60\n"))
    order = asked("squeue")
    opened = [talk.ask(ASK, order).body for _ in range(MOST_PROGRAMS + 1)]
    assert isinstance(opened[-1], OperationFailed)
    assert {type(body) for body in opened[:-1]} == {SessionOpened}
    os.close(order)


# ---- commands of notifications ----------------------------------------------------------------------


@needs_root
def test_a_command_has_the_daemons_user_and_its_configured_arguments(cluster: Talk) -> None:
    account = pwd.getpwnam("bin")
    groups = os.getgrouplist("bin", account.pw_gid)
    who, *lines = told(cluster, asked("notify", "mail"), sealed(b'{"a":1}')).splitlines()
    uid, gid, others, mask = who.split(":")
    assert (int(uid), int(gid), mask) == (account.pw_uid, account.pw_gid, "0022")
    assert {*map(int, others.split())} == {*groups}
    assert lines[:5] == [
        *("word --to", "word ops"),
        *(f"Cap{kind}:\t{0:016x}" for kind in ("Eff", "Bnd")),
        "NoNewPrivs:\t1",
    ]
    assert lines[5:9] == ["0", "1", "10", "2"]  # descriptor 10 is the script
    assert [one for one in lines[9:] if not one.startswith(("LANG=", "PATH=", "PWD="))] == [
        *("/", '{"a":1}'),
    ]


@pytest.mark.parametrize(
    ("words", "fields"),
    [
        (["other"], {}),
        ([""], {}),
        ([], {}),
        (["mail", "--to=me"], {}),
        (["/bin/sh"], {}),
        (["mail"], {"user": "nobody"}),
        (["mail"], {"user": "root"}),
        (["mail"], {"env": {"LD_PRELOAD": "/srv/x.so"}}),
        (["mail"], {"env": {"STEWARD_URL": "x"}}),
        (["mail"], {"command": [b"/bin/sh"]}),
        (["mail"], {"config": "/etc/slurm/other.conf"}),
        (["mail"], {"terminal": "xterm"}),
    ],
)
def test_cluster_command_inherits_only_its_input_from_the_daemon(
    cluster: Talk, words: list[str], fields: dict[str, Any]
) -> None:
    text = refused(cluster, asked("notify", *words, **fields), sealed(b"{}"))
    assert "notif" in text


def test_a_command_reads_no_pipe_of_the_daemon(cluster: Talk) -> None:
    assert "its input" in refused(cluster, asked("notify", "mail"))
    order, content = asked("notify", "mail"), sealed(b"{}")
    answer = cluster.ask(StartProgram(is_terminal=True), order, content).body
    close([order, content])
    assert isinstance(answer, RefusedReply)


def test_rest_of_a_process_group_ends_with_its_command(talk: Talk, tmp_path: Path) -> None:
    for one in (tmp_path, *tmp_path.parents):
        if one.is_relative_to(Path(gettempdir())) and one != Path(gettempdir()):
            one.chmod(one.stat().st_mode | 0o011)
    talk.greet(tmp_path, policy_for(tmp_path, squeue="#!/bin/sh\nsleep 600 & echo $!\n"))
    talk.send(1, 1, ASK, descriptors=(order := asked("squeue"),))
    data, (watched, *ends) = receive(talk.channel)
    assert isinstance(msgspec.msgpack.decode(data, type=NumberedReply).body, SessionOpened)
    with open(ends[1], closefd=False) as out:
        left = out.readline().strip()
        assert out.read() == ""  # end of file, so `sleep` has ended
    assert (
        not Path(f"/proc/{left}/cmdline").exists() or not Path(f"/proc/{left}/cmdline").read_bytes()
    )
    close([watched, order, *ends])
