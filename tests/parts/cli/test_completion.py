"""Tab completion: commands, options, and names that the daemon knows."""

import socket

import pytest

from tests.parts.cli.conftest import FakeDaemon, Terminal

ALLOC = "6ff3f0a1-7d6e-4bd5-8a0b-0d6c34b4a1f2"


def offered(terminal: Terminal, line: str) -> list[str]:
    """Return the completions of a line's last word, as requested by click's bash script."""
    words = line.split(" ")
    asked = {
        "_STEWARD_COMPLETE": "bash_complete",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(words) - 1),
    }
    result = terminal.type(**asked)
    assert (result.exit_code, result.stderr) == (0, "")
    return result.stdout.split()


@pytest.mark.parametrize(
    ("line", "context", "name"),
    [
        ("steward job status w", "jobs", "web"),
        ("steward stop a w", "jobs", "web"),
        ("steward alloc logs 6", "allocs", ALLOC),
        ("steward eval status 6", "evals", ALLOC),
        ("steward deployment promote 6", "deployment", ALLOC),
        ("steward node drain 6", "nodes", ALLOC),
        ("steward job status --namespace w", "namespaces", "web"),
        ("steward namespace status w", "namespaces", "web"),
        ("steward var get nomad/j", "vars", "nomad/jobs"),
        ("steward logs --job w", "jobs", "web"),
        ("steward logs -f -n5 -job w", "jobs", "web"),
        ("steward exec -job w", "jobs", "web"),
        ("steward alloc fs -job w", "jobs", "web"),
        ("steward job status -namespace w", "namespaces", "web"),
    ],
)
def test_names_are_those_of_the_daemon(
    fake: FakeDaemon, terminal: Terminal, line: str, context: str, name: str
) -> None:
    fake.tell("/v1/search", {"Matches": {context: [name]}}, method="POST")
    assert offered(terminal, line) == [f"plain,{name}"]
    [asked] = fake.asked("/v1/search")
    assert asked.body["Context"] == context
    assert asked.body["Prefix"] == line.rpartition(" ")[2]


@pytest.mark.parametrize(
    "name",
    ["w;reboot", "w$(reboot)", "w`x`", "w\x1b[2J", "w\nplain,x", "w*", "w'", "-purge", "w x"],
)
def test_name_that_a_shell_would_interpret_is_not_offered(
    fake: FakeDaemon, terminal: Terminal, name: str
) -> None:
    fake.tell("/v1/search", {"Matches": {"jobs": [name, "web/periodic-1"]}}, method="POST")
    assert offered(terminal, "steward stop w") == ["plain,web/periodic-1"]


@pytest.mark.parametrize("option", ["--namespace", "-namespace"])
def test_completion_respects_the_typed_namespace(
    fake: FakeDaemon, terminal: Terminal, option: str
) -> None:
    fake.tell("/v1/search", {"Matches": {"jobs": None}}, method="POST")
    assert offered(terminal, f"steward job status {option} shop w") == []
    assert fake.asked("/v1/search")[0].query["namespace"] == "shop"


def test_daemon_that_refuses_offers_no_completion(fake: FakeDaemon, terminal: Terminal) -> None:
    assert offered(terminal, "steward job status w") == []
    assert fake.asked("/v1/search")


def test_daemon_that_accepts_and_does_not_respond_offers_no_completion(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("daemon.cli.core.completion.ANSWER_WITHIN", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        address = f"http://127.0.0.1:{deaf.getsockname()[1]}"
        assert offered(terminal, f"steward job status -address {address} w") == []


def test_files_are_left_to_the_shell(terminal: Terminal) -> None:
    assert offered(terminal, "steward job run w") == ["file,w"]
    assert offered(terminal, "steward job run --var-file w") == ["file,w"]
    assert offered(terminal, "steward job run -var-file w") == ["file,w"]


@pytest.mark.parametrize(
    ("line", "offer"),
    [
        ("steward job st", "status"),
        ("steward job stop --pu", "--purge"),
        ("steward job run -time", "--timeout"),
    ],
)
def test_commands_and_options(terminal: Terminal, line: str, offer: str) -> None:
    assert f"plain,{offer}" in offered(terminal, line)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_its_script(terminal: Terminal, shell: str) -> None:
    result = terminal.type(_STEWARD_COMPLETE=f"{shell}_source")
    assert result.exit_code == 0
    assert "_STEWARD_COMPLETE" in result.stdout
