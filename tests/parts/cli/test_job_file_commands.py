"""Commands on job files: their input, requests and output."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from daemon.__main__ import command_line
from tests.parts.cli.conftest import FakeDaemon, Terminal

REGISTERED = {"EvalID": "", "JobModifyIndex": 7}
FILE = """variable "n" {
  type = number
}
variable "who" {
  default = "nobody"
}
job "web" {
  priority = var.n
  name     = var.who
}
"""


@pytest.fixture
def job_file(tmp_path: Path) -> Path:
    path = tmp_path / "web.hcl"
    path.write_text(FILE)
    return path


@pytest.fixture
def daemon(fake: FakeDaemon) -> FakeDaemon:
    fake.tell("/v1/jobs", REGISTERED, method="POST")
    return fake


def sent(fake: FakeDaemon) -> Any:
    return fake.asked("/v1/jobs")[0].body


# ---- running -----------------------------------------------------------------------------------------


def test_job_file_is_sent_as_a_job_and_as_source(
    daemon: FakeDaemon, terminal: Terminal, job_file: Path, tmp_path: Path
) -> None:
    (tmp_path / "vars.hcl").write_text('who = "file"\n')
    result = terminal.type(
        *("job", "run", "--var", "n=61", "--var-file", str(tmp_path / "vars.hcl"), str(job_file))
    )
    assert (result.exit_code, result.stderr) == (0, "")
    job = sent(daemon)["Job"]
    assert (job["ID"], job["Name"], job["Priority"]) == ("web", "file", 61)
    assert sent(daemon)["Submission"] == {
        "Source": FILE,
        "Format": "hcl2",
        "VariableFlags": {"n": "61"},
        "Variables": 'who = "file"\n',
    }


@pytest.mark.parametrize(
    ("environment", "files", "flags", "name"),
    [
        ({}, "", [], "nobody"),
        ({"NOMAD_VAR_who": "peer"}, "", [], "peer"),
        ({"NOMAD_VAR_who": "peer", "STEWARD_VAR_who": "ours"}, "", [], "ours"),
        ({"STEWARD_VAR_who": "ours"}, 'who = "file"\n', [], "file"),
        ({"STEWARD_VAR_who": "ours"}, 'who = "file"\n', ["--var", "who=flag"], "flag"),
        ({}, "", ["--var", "who=one", "--var=who=two"], "two"),
    ],
)
def test_variable_value_nearest_to_the_command_has_precedence(
    daemon: FakeDaemon,
    terminal: Terminal,
    job_file: Path,
    tmp_path: Path,
    environment: dict[str, str],
    files: str,
    flags: list[str],
    name: str,
) -> None:
    (tmp_path / "vars.hcl").write_text(files)
    given = ["--var", "n=1", "--var-file", str(tmp_path / "vars.hcl"), *flags]
    terminal.type("job", "run", *given, str(job_file), **environment)
    assert sent(daemon)["Job"]["Name"] == name


def test_values_from_the_environment_are_stored_with_the_submission(
    daemon: FakeDaemon, terminal: Terminal, job_file: Path
) -> None:
    variables = {"NOMAD_VAR_who": "env", "STEWARD_VAR_n": "5", "NOMAD_VAR_other": "unused"}
    terminal.type("job", "run", "--var", "n=6", str(job_file), **variables)
    assert sent(daemon)["Submission"]["VariableFlags"] == {"who": "env", "n": "6"}


def test_newlines_of_a_file_are_sent_unchanged(
    daemon: FakeDaemon, terminal: Terminal, tmp_path: Path
) -> None:
    path = tmp_path / "dos.hcl"
    path.write_bytes(b'job "x" {\r\n  name = <<E\r\na\r\nE\r\n}\r\n')
    terminal.type("job", "run", str(path))
    assert sent(daemon)["Job"]["Name"] == "a\r\n"
    assert "\r\n" in sent(daemon)["Submission"]["Source"]


def test_functions_on_files_start_from_the_directory_of_the_job_file(
    daemon: FakeDaemon, terminal: Terminal, tmp_path: Path
) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "a.yml").write_text("key: value\n")
    (tmp_path / "conf" / "b.yaml").write_text("")
    (tmp_path / "job.hcl").write_text(
        'job "x" {\n  name = file("conf/a.yml")\n'
        '  datacenters = fileset("conf", "*.{yml,yaml}")\n'
        '  all_at_once = fileexists("conf/none")\n'
        '  region = "${basename("a/b.c")} ${dirname("a/b.c")} ${filebase64("conf/a.yml")}"\n}\n'
    )
    terminal.type("job", "run", str(tmp_path / "job.hcl"))
    job = sent(daemon)["Job"]
    assert (job["Name"], job["Datacenters"]) == ("key: value\n", ["a.yml", "b.yaml"])
    assert (job["AllAtOnce"], job["Region"]) == (False, "b.c a a2V5OiB2YWx1ZQo=")


def test_json_file_can_have_the_form_of_hcl(daemon: FakeDaemon, terminal: Terminal) -> None:
    source = json.dumps({"job": {"web": {"priority": 7}}})
    terminal.type("job", "run", "-", stdin=source)
    assert (sent(daemon)["Job"]["ID"], sent(daemon)["Job"]["Priority"]) == ("web", 7)
    assert sent(daemon)["Submission"]["Format"] == "hcl2"


def test_old_syntax_is_read_on_request(daemon: FakeDaemon, terminal: Terminal) -> None:
    terminal.type("job", "run", "--hcl1", "-", stdin='"job" "old" {\n  "priority" = 8\n}\n')
    assert sent(daemon)["Job"]["Priority"] == 8
    assert sent(daemon)["Submission"]["Format"] == "hcl1"


@pytest.mark.parametrize(
    ("source", "options", "complaint"),
    [
        (
            'job "x" {\n  nmae = 1\n  count = 2\n}\n',
            [],
            [
                'steward: -:2,3-7: Unsupported argument; An argument named "nmae" is not expected '
                'here. Did you mean "name"?',
                "  2 |   nmae = 1",
                "    |   ^^^^",
                '-:3,3-8: Unsupported argument; An argument named "count" is not expected here.',
                "  3 |   count = 2",
                "    |   ^^^^^",
            ],
        ),
        (
            FILE,
            ["--var", "n=many"],
            [
                "steward: -var n:1,1-5: Invalid value for variable; The value for n is not "
                "compatible with the variable's type constraint: a number is required.",
                "  1 | many",
                "    | ^^^^",
            ],
        ),
        (
            FILE,
            ["--var", "n=1", "--var", "hwo=me"],
            [
                'steward: -var hwo:1,1-3: Undefined variable; A "hwo" variable was set but was '
                'not found in known variables. Did you mean "who"?',
                "  1 | me",
                "    | ^^",
            ],
        ),
        (FILE, ["--var", "n"], ["steward: -var n: write -var n=VALUE"]),
        (
            FILE,
            ["--var-file", "/no/such"],
            ["steward: cannot read the job file /no/such: No such file or directory"],
        ),
    ],
)
def test_error_is_shown_with_its_line(
    fake: FakeDaemon, terminal: Terminal, source: str, options: list[str], complaint: list[str]
) -> None:
    result = terminal.type("job", "run", *options, "-", stdin=source)
    assert (result.exit_code, fake.seen) == (1, [])
    assert result.stderr.splitlines() == complaint


def test_values_for_undeclared_variables_can_be_allowed(
    daemon: FakeDaemon, terminal: Terminal, job_file: Path
) -> None:
    options = ["--hcl2-strict=false", "--var", "n=1", "--var", "other=2"]
    assert terminal.type("job", "run", *options, str(job_file)).exit_code == 0


# ---- validate, init, fmt -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "status", "out", "err"),
    [
        ({"Error": "", "Warnings": ""}, 0, "Job validation successful\n", ""),
        ({"Error": "", "Warnings": "careful"}, 0, "Job validation successful\n", "careful\n"),
        ({"Error": "2 errors occurred", "Warnings": ""}, 1, "", "2 errors occurred\n"),
    ],
)
def test_a_job_file_is_validated_by_the_daemon(
    fake: FakeDaemon,
    terminal: Terminal,
    job_file: Path,
    answer: dict[str, str],
    status: int,
    out: str,
    err: str,
) -> None:
    fake.tell("/v1/validate/job", answer, method="POST")
    result = terminal.type("job", "validate", "--var", "n=3", str(job_file))
    assert (result.exit_code, result.stdout, result.stderr) == (status, out, err)
    assert fake.seen[0].body["Job"]["Priority"] == 3


@pytest.mark.parametrize("options", [[], ["--short"]])
def test_the_example_is_a_job_in_canonical_form(
    daemon: FakeDaemon, terminal: Terminal, tmp_path: Path, options: list[str]
) -> None:
    path = str(tmp_path / "my.hcl")
    assert terminal.type("job", "init", *options, path).exit_code == 0
    assert terminal.type("fmt", "--check", path).stdout == ""
    assert terminal.type("job", "run", path).exit_code == 0
    assert sent(daemon)["Job"]["ID"] == "example"


def test_example_is_printed_to_standard_output(
    terminal: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = terminal.type("job", "init", "--short", "-")
    assert (result.exit_code, result.stderr) == (0, "")
    assert terminal.type("job", "init", "--short", "my.hcl").exit_code == 0
    assert result.stdout == Path("my.hcl").read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["my.hcl"]


@pytest.mark.parametrize(
    "words",
    [
        ("operator", "debug", "--duration", "0s", "--output", "-"),
        ("operator", "snapshot", "save", "-"),
        ("job", "init", "--json", "-"),
    ],
)
def test_commands_without_standard_output_refuse_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(command_line(), list(words))
    assert result.exit_code == 1
    assert "-: " in result.stderr or '"-" as FILE' in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_example_never_overwrites_a_file(terminal: Terminal, job_file: Path) -> None:
    result = terminal.type("job", "init", str(job_file))
    assert result.exit_code == 1
    assert result.stderr == f"steward: {job_file} exists already; name another file\n"
    assert job_file.read_text() == FILE


def test_files_are_formatted_in_place(terminal: Terminal, tmp_path: Path) -> None:
    path = tmp_path / "job.hcl"
    path.write_text('job "x" {\n name="a"\n   priority = 5\n}')
    check = terminal.type("fmt", "--check", str(path))
    assert (check.exit_code, path.read_text()) == (1, 'job "x" {\n name="a"\n   priority = 5\n}')
    assert '+  name     = "a"' in check.stdout.splitlines()
    result = terminal.type("fmt", str(path))
    assert (result.exit_code, result.stdout) == (0, f"{path}\n")
    assert path.read_text() == 'job "x" {\n  name     = "a"\n  priority = 5\n}\n'
    assert terminal.type("fmt", str(path)).stdout == ""


def test_standard_input_is_formatted_to_standard_output(terminal: Terminal) -> None:
    assert terminal.type("fmt", "-", stdin="a=1\nbb=2\n").stdout == "a  = 1\nbb = 2\n"


def test_unreadable_file_is_not_formatted(terminal: Terminal, tmp_path: Path) -> None:
    path = tmp_path / "job.hcl"
    path.write_text("a = @\n")
    result = terminal.type("fmt", str(path))
    assert result.exit_code == 1
    assert f"{path}:1,5-6: Invalid character" in result.stderr
    assert path.read_text() == "a = @\n"
