import pytest

from daemon.launcher.shim_script import Tools, command_line
from daemon.launcher.user_policy import User

TOOLS = Tools(
    sh="/bin/sh",
    setsid="/bin/setsid",
    setpriv="/bin/setpriv",
    env="/bin/env",
    bwrap="/bin/bwrap",
    nsenter="/bin/nsenter",
    stat="/bin/stat",
)


def line_of(env: dict[str, str], user: User | None = None) -> tuple[str, list[str], dict[str, str]]:
    """Return the shell's text, its other arguments and its environment."""
    line, given = command_line(
        TOOLS, ["/bin/x", "a b"], env, shim_dir="/d", entry="", open_files=1024, user=user
    )
    own = {"STEWARD_SHIM_PLACE": "/d", "STEWARD_SHIM_GROUPS": ""}
    assert own.items() <= given.items()
    return line[2], line[3:], {name: given[name] for name in given.keys() - own.keys()}


def test_command_is_an_argument_and_never_part_of_the_script() -> None:
    text, arguments, _ = line_of({})
    assert "/bin/x" not in text
    assert arguments == ["steward-shim", "1024", "/bin/x", "a b"]


def test_plain_variables_need_no_other_program() -> None:
    text, _, given = line_of({"A": "1", "PATH": "/bin"})
    assert "/bin/env" not in text
    assert given == {"A": "1", "PATH": "/bin"}


@pytest.mark.parametrize(
    "name", ["a.b", "IFS", "OPTIND", "LD_PRELOAD", "BASH_ENV", "1x", "x-y", "STEWARD_SHIM_PLACE"]
)
def test_variables_used_by_a_shell_are_passed_around_it(name: str) -> None:
    text, _, given = line_of({name: "secret value"})
    assert given == {"STEWARD_ENV_0": f"{name}=secret value"}
    assert '/bin/env -u STEWARD_ENV_0 "$STEWARD_ENV_0"' in text


def test_no_variable_value_is_visible_in_an_argument() -> None:
    line, _ = command_line(
        TOOLS, ["/bin/x"], {"A": "hidden", "a.b": "hidden"}, shim_dir="/d", entry="", open_files=1
    )
    assert "hidden" not in " ".join(line)


def test_user_is_changed_after_the_new_session() -> None:
    user = User(name="u", uid=7, gid=8, groups=(8, 9), home="/h")
    text, _, _ = line_of({}, user)
    assert "/bin/setsid /bin/setpriv --reuid=7 --regid=8 --groups=8,9 --inh-caps=-all --" in text


def test_privileged_helper_gets_no_variables_of_the_task() -> None:
    env = {"LANGUAGE": "../../evil", "PATH": "/evil", "a.b": "hidden", "IFS": "x"}
    line, given = command_line(
        TOOLS, ["/bin/x"], env, shim_dir="/d", entry="", open_files=1, apart=True, closed=[3, 5]
    )
    carried = {name for name in given if not name.startswith("STEWARD_SHIM_")}
    assert carried == {"PATH", *(f"STEWARD_ENV_{number}" for number in range(4))}
    assert "evil" not in given["PATH"]
    assert not [item for item in line if "evil" in item or "hidden" in item]
    assert line[2].count("3<&- 5<&-") == 1


def test_second_shell_without_variables_is_valid() -> None:
    line, _ = command_line(TOOLS, ["/bin/x"], {}, shim_dir="/d", entry="", open_files=1, apart=True)
    assert "export" not in line[2]
