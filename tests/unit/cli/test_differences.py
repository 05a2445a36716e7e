"""The text of a diff."""

from daemon.cli.core.diff import diff_lines
from daemon.jobspec.diff import diff_jobs
from daemon.jobspec.diffs.annotations import annotate
from storage.records.codec import Document
from storage.records.diff import JobDiff
from storage.records.evaluation import DesiredUpdates
from tests.unit.jobspec.build import complete, group, job, task


def shown(old: Document, new: Document, *, verbose: bool = False) -> list[str]:
    planned = {"web": DesiredUpdates(destructive_update=2, place=1)}
    diff = annotate(diff_jobs(complete(old), complete(new)), planned)
    return [line.words for line in diff_lines(diff, verbose=verbose)]


BEFORE = job(group(task(Config={"command": "/bin/a"}), task("side"), Count=2), Meta={"a": "1"})
AFTER = job(
    group(task(Config={"command": "/bin/b"}), task("side"), Count=3), Priority=70, Meta={"b": "1"}
)


def test_changed_fields_are_shown_with_their_old_values() -> None:
    assert shown(BEFORE, AFTER) == [
        '~ job "g"',
        '  - Meta[a]: "1"',
        '  + Meta[b]: "1"',
        '  ~ Priority: "50" => "70"',
        '~ group "web" (1 create, 2 create/destroy update)',
        '  ~ Count: "2" => "3" (forces create)',
        '  ~ task "main" (forces create/destroy update)',
        "    ~ Config",
        '      ~ command: "/bin/a" => "/bin/b"',
    ]


def test_unchanged_fields_are_shown_on_request() -> None:
    before = job(group(task(Config={"command": "/bin/a", "args": ["x"]})))
    after = job(group(task(Config={"command": "/bin/b", "args": ["x"]})))
    everything = shown(before, after, verbose=True)
    assert '        args[0]: "x"' in everything
    assert set(shown(before, after)) < set(everything)


def test_unchanged_group_is_shown_with_its_allocation_updates() -> None:
    assert shown(BEFORE, job(BEFORE["TaskGroups"][0], Priority=70, Meta={"a": "1"}))[2:] == [
        '  group "web" (1 create, 2 create/destroy update)'
    ]


def test_a_job_that_does_not_change_is_one_line() -> None:
    diff: JobDiff = diff_jobs(complete(BEFORE), complete(BEFORE))
    assert [line.words for line in diff_lines(diff, verbose=False)] == ['  job "g"']
