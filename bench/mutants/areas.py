"""The areas of mutation tests: files that are changed, and tests that should detect the changes."""

from typing import NamedTuple


class Area(NamedTuple):
    """An area: patterns of its source files, and paths of its tests."""

    code: list[str]
    tests: list[str]


AREAS = {
    "scheduler": Area(
        ["daemon/scheduler/**/*.py"],
        ["tests/unit/scheduler", "tests/unit/evals", "tests/parts/evals"],
    ),
    "evals": Area(
        ["daemon/evals/**/*.py"],
        ["tests/unit/evals", "tests/parts/evals", "tests/parts/jobs", "tests/parts/api"],
    ),
    "flow": Area(
        ["daemon/flow/**/*.py"],
        [
            "tests/unit/flow",
            "tests/parts/evals/test_workflows.py",
            "tests/parts/api/test_run_actions.py",
        ],
    ),
    "writer": Area(
        ["storage/writer.py", "storage/store.py", "storage/read_pool.py"], ["tests/parts/storage"]
    ),
    "queries": Area(
        ["storage/queries/**/*.py"],
        [
            "tests/parts/storage",
            "tests/parts/evals",
            "tests/parts/api",
            "tests/parts/jobs",
            "tests/parts/notify/test_causes.py",
        ],
    ),
    "web": Area(
        ["daemon/web/**/*.py"],
        [
            "tests/unit/web",
            "tests/parts/web",
            "tests/parts/api",
            "tests/parts/ui/test_terminals.py",
            # the modules for UI sessions, for permissions of routes, and for masks
            "tests/parts/ui/test_missing_capabilities.py",
            "tests/parts/ui/test_pages.py",
            "tests/parts/ui/test_rejected_forms.py",
            "tests/parts/ui/test_rights.py",
            "tests/parts/ui/test_shared_pages.py",
            "tests/parts/ui/test_sign_in.py",
            "tests/parts/variables/test_job_secrets.py",
            "tests/unit/acl/test_explain.py",
        ],
    ),
    "acl": Area(
        ["daemon/acl/**/*.py"],
        [
            "tests/unit/acl",
            "tests/parts/acl",
            "tests/parts/identity",
            "tests/parts/api",
            "tests/parts/test_loops.py",
            "tests/parts/ui/test_rights.py",
        ],
    ),
    "identity": Area(["daemon/identity/**/*.py"], ["tests/unit/identity", "tests/parts/identity"]),
    "jobspec": Area(
        ["daemon/jobspec/**/*.py"],
        ["tests/unit/jobspec", "tests/unit/flow", "tests/wire/test_job_files.py"],
    ),
    "drivers": Area(["daemon/runner/drivers/**/*.py"], ["tests/unit/runner", "tests/parts/runner"]),
    "launcher": Area(["daemon/launcher/**/*.py"], ["tests/parts/launcher", "tests/attacks"]),
}
